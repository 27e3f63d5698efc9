"""Settings are edited, and everything else in their file stays as it was written."""

import tomllib

import pytest

from pqkeep_server.settings_file import (
    Settings,
    SettingsFileError,
    edited,
    new_settings,
    root_key_settings,
)

TEXT = '# ours\nsocket = "s"  # here\nroot_key_file = "root.key"\n\n[more]\nsocket = "t"\n'


def test_the_rest_stays() -> None:
    """Comments, order and tables are what they were."""
    assert edited(TEXT, {"root_key_file": "other"}) == TEXT.replace('"root.key"', '"other"')


def test_a_new_setting() -> None:
    """A setting that was missing is added before the first table."""
    assert edited(TEXT, {"a": "b"}) == TEXT.replace("\n\n[more]", '\na = "b"\n\n[more]')


def test_a_setting_is_removed() -> None:
    """A setting that is to be None is gone."""
    assert edited(TEXT, {"root_key_file": None}) == TEXT.replace('root_key_file = "root.key"\n', "")


def test_root_keys_take_the_place_of_the_first_one() -> None:
    """Several root keys are one inline table, and the first alone has its own setting."""
    several = edited(TEXT, root_key_settings({1: "root.key", 2: "root-2.key"}))
    assert 'root_keys = {1 = "root.key", 2 = "root-2.key"}\n' in several
    assert "root_key_file" not in several
    again = edited(several, root_key_settings({1: "root.key"}))
    assert 'root_key_file = "root.key"\n' in again


CASES: dict[str, tuple[str, Settings]] = {
    "a value on several lines": ('a = """\nb"""\n', {"a": "c"}),
    "a name that a table has too": ("[t]\na = 1\n", {"a": "c"}),
    "a table that becomes inline": ('[root_keys]\n1 = "a"\n', root_key_settings({1: "a", 2: "b"})),
    "a table before another": (
        '[root_keys]\n1 = "a"\n\n[more]\nb = 1\n',
        root_key_settings({1: "a", 2: "b"}),
    ),
    "a table that is removed": ('x = 1\n[root_keys]\n1 = "a"\n', root_key_settings({1: "a"})),
    "a dotted name": ("x.y = 1\n[a.b]\nc = 1\n", {"z": "c"}),
    "a value with quotes": ("a = 'b'\n", {"a": 'q"\\\n\x7f', "c": "ü"}),
    "no line end": ("a = 1", {"b": "c", "a": "d"}),
    "Windows line ends": ("a = 1\r\n[t]\r\nb = 1\r\n", {"b": "c"}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_edited_file_has_the_new_values_and_all_others(case: str) -> None:
    """Read again, the file has what was set, and of everything else what it had."""
    text, settings = CASES[case]
    plain = {name: value for name, value in settings.items() if value is not None}
    kept = {name: each for name, each in tomllib.loads(text).items() if name not in settings}
    assert tomllib.loads(edited(text, settings)) == kept | plain


def test_what_is_no_toml_is_refused() -> None:
    """A file that is not TOML cannot be edited."""
    with pytest.raises(SettingsFileError):
        edited("{", {"a": "c"})


def test_a_new_file() -> None:
    """A new file has the settings in their order, and none that is None."""
    text = new_settings({"a": 'x"', "b": None, "c": {"d": {"f": 1}}, "e": True})
    assert text == 'a = "x\\""\nc = {d = {f = 1}}\ne = true\n'
