"""Settings are edited, and the rest of the file is unchanged."""

import tomllib

import pytest

from pqkeep_server.settings_file import (
    Settings,
    SettingsFileError,
    edited,
    new_settings,
    root_key_settings,
    root_key_tables,
)

FILE: Settings = {"file": "root.key"}
TOKEN: Settings = {"pkcs11": {"key": "k"}}
COMMAND: Settings = {"command": ["/c", "d"]}
TEXT = '# ours\nsocket = "s"  # here\nroot_key_file = "root.key"\n\n[more]\nsocket = "t"\n'


def test_the_rest_stays() -> None:
    """Comments, order and tables are unchanged."""
    assert edited(TEXT, {"root_key_file": "other"}) == TEXT.replace('"root.key"', '"other"')


def test_a_new_setting() -> None:
    """A missing setting is added before the first table."""
    assert edited(TEXT, {"a": "b"}) == TEXT.replace("\n\n[more]", '\na = "b"\n\n[more]')


def test_a_setting_is_removed() -> None:
    """A setting with the value None is removed."""
    assert edited(TEXT, {"root_key_file": None}) == TEXT.replace('root_key_file = "root.key"\n', "")


def test_root_keys_take_the_place_of_the_first_one() -> None:
    """Several root keys are tables; a single one in a file has its own setting."""
    several = edited(TEXT, root_key_settings({1: FILE, 2: TOKEN}))
    assert '[root_keys.1]\nfile = "root.key"\n\n[root_keys.2.pkcs11]\nkey = "k"\n' in several
    assert "root_key_file" not in several
    again = edited(several, root_key_settings({1: FILE}))
    assert 'root_key_file = "root.key"\n' in again


def test_what_was_written_of_a_root_key_stays() -> None:
    """A root key's table keeps its comments and form when another is added or removed."""
    written = "[root_keys.2]  # the token\npkcs11 = {key = 'k'}  # in one line\n"
    both = edited(written, root_key_settings({2: TOKEN, 3: COMMAND}))
    assert both == f'{written}\n[root_keys.3]\ncommand = ["/c", "d"]\n'
    assert edited(both, root_key_settings({3: COMMAND})) == both.removeprefix(written).lstrip()


@pytest.mark.parametrize("tables", [{1: FILE}, {2: FILE}, {1: FILE, 2: TOKEN}, {3: COMMAND}])
def test_root_keys_are_read_as_they_were_written(tables: dict[int, Settings]) -> None:
    """The written tables of root keys can be read."""
    assert root_key_tables(edited(TEXT, root_key_settings(tables))) == tables


CASES: dict[str, tuple[str, Settings]] = {
    "a value on several lines": ('a = """\nb"""\n', {"a": "c"}),
    "a name that a table has too": ("[t]\na = 1\n", {"a": "c"}),
    "an inline table of tables": (
        'root_keys = {1 = {file = "root.key"}} # ours\n',
        root_key_settings({1: FILE, 2: TOKEN}),
    ),
    "a table before another": (
        '[root_keys.1]\nfile = "root.key"\n\n[more]\nb = 1\n',
        root_key_settings({1: FILE, 2: TOKEN}),
    ),
    "a table that is removed": (
        'x = 1\n[root_keys.1]\nfile = "a"\n[root_keys.2]\nfile = "b"\n',
        root_key_settings({1: FILE}),
    ),
    "a dotted name": ("x.y = 1\n[a.b]\nc = 1\n", {"z": "c"}),
    "a value with quotes": ("a = 'b'\n", {"a": 'q"\\\n\x7f', "c": "ü"}),
    "no line end": ("a = 1", {"b": "c", "a": "d"}),
    "Windows line ends": ("a = 1\r\n[t]\r\nb = 1\r\n", {"b": "c"}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_edited_file_has_the_new_values_and_all_others(case: str) -> None:
    """The edited file has the new values and keeps all other settings."""
    text, settings = CASES[case]
    plain = {name: value for name, value in settings.items() if value is not None}
    kept = {name: value for name, value in tomllib.loads(text).items() if name not in settings}
    assert tomllib.loads(edited(text, settings)) == kept | plain


def test_what_is_no_toml_is_refused() -> None:
    """A file that is not TOML cannot be edited."""
    with pytest.raises(SettingsFileError):
        edited("{", {"a": "c"})


def test_a_new_file() -> None:
    """A new file has the settings in their order. Settings with the value None are left out."""
    text = new_settings({"a": 'x"', "b": None, "c": {"d": {"f": 1}}, "e": True})
    assert text == 'a = "x\\""\ne = true\n\n[c.d]\nf = 1\n'
