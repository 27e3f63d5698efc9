"""A settings file is read into a Struct. Unknown names are errors, and paths are relative to it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest
from msgspec import Struct

from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress
from pqkeep_protocol.startup.settings import read_settings as read_settings_and_environment


class Table(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A table in the settings."""

    host: str = ""
    mode: Literal["on", "off"] = "on"


class Example(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of an example process."""

    database: DatabaseAddress = DatabaseAddress("default.sqlite3")
    secret_file: Path | None = None
    keys: dict[int, Path] = {}
    port: int = 0
    mode: Literal["on", "off"] | None = None
    modes: tuple[Literal["on", "off"], ...] = ()
    named: dict[str, Literal["on", "off"]] = {}
    table: Table | None = None
    tables: tuple[Table, ...] = ()


def read_settings(
    file: Path, form: type[Example], environment: Mapping[str, str] | None = None
) -> Example:
    """Read the settings of a process with the variable prefix X_."""
    return read_settings_and_environment(file, form, environment or {}, "X_")


def write(folder: Path, text: str) -> Path:
    """Write a settings file."""
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_paths_begin_at_the_files_folder(tmp_path: Path) -> None:
    """Relative paths, also in tables, start at the settings file. Absolute ones do not change."""
    text = 'secret_file = "../pepper"\nkeys = {1 = "a", 2 = "/b"}\ndatabase = "c.sqlite3"'
    settings = read_settings(write(tmp_path, text), Example)
    here = tmp_path.resolve()
    assert settings.secret_file == here / "../pepper"
    assert settings.keys == {1: here / "a", 2: Path("/b")}
    assert settings.database == DatabaseAddress(str(here / "c.sqlite3"))
    assert not settings.database.is_on_server


def test_the_values_of_an_enumerated_setting_are_listed(tmp_path: Path) -> None:
    """A wrong value of an enumeration, also in tables and lists, is answered with the values."""
    wrong = (
        'mode = "of"',
        'modes = ["on", "of"]',
        'named = {a = "of"}',
        'tables = [{mode = "of"}]',
    )
    for text in wrong:
        with pytest.raises(
            ConfigError, match=r"Invalid enum value 'of'.*: the values are off, on$"
        ):
            read_settings(write(tmp_path, text), Example)
    with pytest.raises(ConfigError, match=r"got `str` - at `\$\.port`$"):
        read_settings(write(tmp_path, 'port = "1"'), Example)


def test_a_link_to_the_file(tmp_path: Path) -> None:
    """If the settings file is a link, paths start at its target's folder."""
    (tmp_path / "real").mkdir()
    write(tmp_path / "real", 'secret_file = "pepper"')
    (tmp_path / "link.toml").symlink_to("real/settings.toml")
    settings = read_settings(tmp_path / "link.toml", Example)
    assert settings.secret_file == tmp_path.resolve() / "real" / "pepper"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("colour = 1", "there is no setting colour$"),
        ("prot = 1", r"there is no setting prot; did you mean port\?$"),
        ("table = {hots = '1'}", r"there is no setting table\.hots; did you mean host\?$"),
        ("port = '1'", r"Expected `int`, got `str` - at `\$\.port`"),
        ("secret_file = 1", r"Expected `str`, got `int` - at `\$\.secret_file`"),
        ("keys = {1 = 2}", r"Expected `str`, got `int` - at `\$\.keys"),
        ("database = 1", r"Expected `str`, got `int` - at `\$\.database`"),
        ("{", "line 1"),
        ("port = 1\nport = 2", "Cannot overwrite a value"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, problem: str) -> None:
    """The message names the file and the setting, or the line that is not TOML."""
    with pytest.raises(ConfigError, match=rf"settings\.toml: .*{problem}"):
        read_settings(write(tmp_path, text), Example)


def test_the_environment_replaces_the_file(tmp_path: Path) -> None:
    """A variable is used literally for a text or path, and as TOML for anything else."""
    (tmp_path / "mode").write_text("off\n")
    environment = {
        "X_PORT": "2",
        "X_SECRET_FILE": "pepper",
        "X_DATABASE": "b.sqlite3",
        "X_KEYS": '{1 = "a"}',
        "X_MODE_FILE": str(tmp_path / "mode"),
        "X_TABLE": '{host = "h"}',
        "PORT": "3",
    }
    here = tmp_path.resolve()
    settings = read_settings(write(tmp_path, "port = 1\nmode = 'on'"), Example, environment)
    assert settings == Example(
        port=2,
        secret_file=here / "pepper",
        database=DatabaseAddress(str(here / "b.sqlite3")),
        keys={1: here / "a"},
        mode="off",
        table=Table(host="h"),
    )


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"X_PROT": "1"}, r"there is no setting X_PROT; did you mean X_PORT\?$"),
        ({"X_": "1"}, "there is no setting X_$"),
        ({"X_PORT": "many"}, "X_PORT: expected one value in TOML$"),
        ({"X_PORT": "1\nmode = 'on'"}, "X_PORT: expected one value in TOML$"),
        ({"X_PORT": "'1'"}, r"Expected `int`, got `str` - at `\$\.port`"),
        ({"X_MODE": "sometimes"}, r"at `\$\.mode`"),
        ({"X_TABLE": "{hots = 1}"}, r"there is no setting table\.hots"),
        ({"X_PORT": "1", "X_PORT_FILE": "/dev/null"}, "X_PORT and X_PORT_FILE set the same"),
        ({"X_MODE_FILE": "/missing"}, "X_MODE_FILE: cannot read the file /missing: No such file"),
        ({"X_SECRET_FILE_FILE": "/"}, "X_SECRET_FILE_FILE: cannot read the file /: Is a directory"),
    ],
)
def test_what_is_wrong_in_the_environment(
    tmp_path: Path, environment: Mapping[str, str], problem: str
) -> None:
    """An unknown or malformed variable is refused by name."""
    with pytest.raises(ConfigError, match=problem):
        read_settings(write(tmp_path, ""), Example, environment)


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    """A file that is not UTF-8 is refused by name."""
    path = tmp_path / "settings.toml"
    path.write_bytes(b"# \xff")
    with pytest.raises(ConfigError, match=r"settings\.toml"):
        read_settings(path, Example)


def test_a_file_that_would_keep_its_reader_waiting(tmp_path: Path) -> None:
    """A FIFO, a device and an endless file are refused at once."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/zero")):
        with pytest.raises(ConfigError, match="is not a regular file"):
            read_settings(path, Example)
    with pytest.raises(ConfigError, match="is longer than"):
        read_settings(write(tmp_path, " " * (1024 * 1024 + 1)), Example)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    """A missing file is refused by name."""
    with pytest.raises(ConfigError, match=r"missing\.toml: No such file"):
        read_settings(tmp_path / "missing.toml", Example)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://role@database.example.org/name",
        "postgresql://role@[::1]:5432/name?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem",
        "postgresql://role@one.example.org:5432,two.example.org:5433/name",
        "postgresql://role@/name?host=%2Frun%2Fpostgresql",
    ],
)
def test_a_postgresql_address(tmp_path: Path, address: str) -> None:
    """A PostgreSQL address is not changed."""
    settings = read_settings(write(tmp_path, f"database = '{address}'"), Example)
    assert settings.database.location == address
    assert settings.database.is_on_server


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://role:hunter2@localhost/name",
        "postgresql://role:hunter2%40x@localhost/name",
        "postgresql://role:hunter2@x@localhost/name",
        "postgresql://:hunter2@localhost/name",
        "postgresql://role@localhost/name?password=hunter2",
        "postgresql://role@localhost/name?passfile=hunter2",
        "postgresql://role@localhost/name?hunter2",
        "postgresql://role@[hunter2/name",
        "postgresql://localhost/hunter2",
        "postgresql://role@localhost/",
        "postgresql://role@localhost/name/hunter2",
        "postgresql://role@localhost/name#hunter2",
        "postgresql+asyncpg://role:hunter2@localhost/name",
        "mysql://role:hunter2@localhost/name",
    ],
)
def test_a_bad_address_is_refused_and_not_repeated(tmp_path: Path, address: str) -> None:
    """An invalid address, or an address with a password, is refused without being repeated."""
    with pytest.raises(ConfigError, match=r"settings\.toml: .* - at `\$\.database`$") as refused:
        read_settings(write(tmp_path, f"database = '{address}'"), Example)
    assert "hunter2" not in str(refused.value)
