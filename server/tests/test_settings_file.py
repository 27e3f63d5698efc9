"""Single settings are changed, and everything else stays as it was written."""

import pytest

from pqkeep_server.settings_file import SettingsFileError, Value, changed, root_key_settings

TEXT = '# ours\nsocket = "s"  # here\nroot_key_file = "root.key"\n\n[more]\nsocket = "t"\n'


def test_the_rest_stays() -> None:
    """Comments, order and tables are what they were."""
    assert changed(TEXT, {"root_key_file": "other"}) == TEXT.replace('"root.key"', '"other"')


def test_a_new_setting() -> None:
    """A setting that was not there is there then, at the top."""
    assert changed(TEXT, {"a": "b"}) == 'a = "b"\n' + TEXT


def test_a_setting_is_removed() -> None:
    """A setting that is to be none is gone."""
    assert changed(TEXT, {"root_key_file": None}) == TEXT.replace(
        'root_key_file = "root.key"\n', ""
    )


def test_root_keys_take_the_place_of_the_first_one() -> None:
    """Several root keys are one table, and the first alone is as it ever was."""
    several = changed(TEXT, root_key_settings({1: "root.key", 2: "root-2.key"}))
    assert 'root_keys = {1 = "root.key", 2 = "root-2.key"}\n' in several
    assert "root_key_file" not in several
    again = changed(several, root_key_settings({1: "root.key"}))
    assert 'root_key_file = "root.key"\n' in again


UNCHANGEABLE: dict[str, tuple[str, dict[str, Value | None]]] = {
    "on several lines": ('a = """\nb"""\n', {"a": "c"}),
    "in a table": ("[t]\na = 1\n", {"a": "c"}),
    "said as a table": ('[root_keys]\n1 = "a"\n', root_key_settings({1: "a", 2: "b"})),
    "no TOML": ("{", {"a": "c"}),
}


@pytest.mark.parametrize("case", UNCHANGEABLE)
def test_what_cannot_be_changed_is_refused(case: str) -> None:
    """A file that would not say what is meant is not written."""
    text, settings = UNCHANGEABLE[case]
    with pytest.raises(SettingsFileError):
        changed(text, settings)
