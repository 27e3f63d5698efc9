"""A settings file is read into a Struct: unknown names are errors, and paths begin at its folder."""

from pathlib import Path

import pytest
from msgspec import Struct

from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress, read_settings


class Example(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of some process."""

    database: DatabaseAddress = DatabaseAddress("default.sqlite3")
    secret_file: Path | None = None
    keys: dict[int, Path] = {}
    port: int = 0


def write(folder: Path, text: str) -> Path:
    """Write a settings file."""
    path = folder / "settings.toml"
    path.write_text(text)
    return path


def test_paths_begin_at_the_files_folder(tmp_path: Path) -> None:
    """Relative paths, in tables too, begin at the settings file; absolute ones stay as they are."""
    text = 'secret_file = "../pepper"\nkeys = {1 = "a", 2 = "/b"}\ndatabase = "c.sqlite3"'
    settings = read_settings(write(tmp_path, text), Example)
    here = tmp_path.resolve()
    assert settings.secret_file == here / "../pepper"
    assert settings.keys == {1: here / "a", 2: Path("/b")}
    assert settings.database == DatabaseAddress(str(here / "c.sqlite3"))
    assert not settings.database.is_on_server


def test_a_link_to_the_file(tmp_path: Path) -> None:
    """Where the settings file is a link, paths begin at the folder of what it leads to."""
    (tmp_path / "real").mkdir()
    write(tmp_path / "real", 'secret_file = "pepper"')
    (tmp_path / "link.toml").symlink_to("real/settings.toml")
    settings = read_settings(tmp_path / "link.toml", Example)
    assert settings.secret_file == tmp_path.resolve() / "real" / "pepper"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("colour = 1", "unknown field `colour`"),
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


def test_a_file_that_is_not_utf_8(tmp_path: Path) -> None:
    """A file that is not UTF-8 is named."""
    path = tmp_path / "settings.toml"
    path.write_bytes(b"# \xff")
    with pytest.raises(ConfigError, match=r"settings\.toml"):
        read_settings(path, Example)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    """A file that is missing is named."""
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
    """A PostgreSQL address stays as it is."""
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
    """An address with a password, or of another form, is refused without repeating it."""
    with pytest.raises(ConfigError, match=r"settings\.toml: .* - at `\$\.database`$") as refused:
        read_settings(write(tmp_path, f"database = '{address}'"), Example)
    assert "hunter2" not in str(refused.value)
