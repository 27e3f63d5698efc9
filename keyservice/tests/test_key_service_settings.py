"""Where the key service's database is, and what is said of an address that does not fit."""

from pathlib import Path

import pytest

from pqkeep_keyservice import config
from pqkeep_keyservice.config import ConfigError

GOOD = {"socket": '"keys.sock"', "database": '"keys.sqlite3"', "root_key_file": '"root.key"'}


def write(folder: Path, settings: dict[str, str]) -> Path:
    """Write a settings file."""
    path = folder / "settings.toml"
    path.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    return path


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://role@database.example.org/name",
        "postgresql://role@[::1]:5432/name?sslmode=verify-full&sslrootcert=%2Fetc%2Fca.pem",
        "postgresql://role@one.example.org:5432,two.example.org:5433/name",
        "postgresql://role@/name?host=%2Frun%2Fpostgresql",
    ],
)
def test_a_database_may_be_on_a_server(tmp_path: Path, address: str) -> None:
    """An address stays as it is, and its password file is found beside the settings."""
    more = {"database": f'"{address}"', "database_password_file": '"passwords"'}
    settings = config.read(write(tmp_path, {**GOOD, **more}))
    assert settings.database == address
    assert settings.database_password_file == str(tmp_path.resolve() / "passwords")


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
    """An address with a password, or of another form, is refused by the setting's name only."""
    with pytest.raises(ConfigError, match=r"^database: ") as refused:
        config.read(write(tmp_path, {**GOOD, "database": f'"{address}"'}))
    assert "hunter2" not in str(refused.value)
