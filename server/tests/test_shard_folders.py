"""A new shard: its key service's folder, and its entry in the gateway's settings."""

import os
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server import shard_folders
from pqkeep_server.cli import app
from pqkeep_server.initialise import InitialiseError, Layout, Stores, explained, initialise
from pqkeep_server.key_services import key_service_programs
from pqkeep_server.settings_file import edited
from pqkeep_server.shard_folders import add_missing, add_shard, remove_shard
from pqkeep_server.shards import ShardError

ON_SERVER = Stores(keys="postgresql://k@localhost/keys", keys_password_file="passwords")  # noqa: S106 - a path


def made(folder: Path, stores: Stores | None = None) -> Layout:
    """Make an installation."""
    layout = Layout(folder / "data")
    operator = new_credential(CredentialKind.OPERATOR)
    initialise(layout, operator, signup="operator", stores=stores or Stores())
    return layout


UNPRIVILEGED = 64102
"""The id of a user for the tests."""


@pytest.fixture
def layout(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """An installation with one shard, at a path short enough for a shard's socket.

    Commands change the process's umask, so it is restored.
    """
    before = os.umask(0o022)
    yield made(tmp_path_factory.mktemp("shards"))
    os.umask(before)


def test_a_shard_has_a_root_key_of_its_own_and_the_common_transfer_key(layout: Layout) -> None:
    """A shard has its own root key and the common transfer key, and valid settings."""
    shard = add_shard(layout, "b").layout
    assert layout.shards == ("default", "b")
    assert shard.root_key.read_bytes() != layout.root_key.read_bytes()
    assert shard.transfer_key.read_bytes() == layout.transfer_key.read_bytes()
    modes = {path.name: path.stat().st_mode & 0o777 for path in shard.key_service.iterdir()}
    assert modes == {
        "root.key": 0o400,
        "transfer.key": 0o400,
        "settings.toml": 0o600,
        "keys.sqlite3": 0o600,
    }
    read_root_key(shard.root_key)
    settings = key_service_config.read(shard.key_service_settings)
    assert (settings.shard, settings.gateway_uid) == ("b", "same")
    assert settings.socket == shard.socket.resolve()
    assert settings.operator_socket == shard.operator_socket.resolve()
    sockets = {
        name: shard.sockets
        for name, shard in gateway_config.read(layout.gateway_settings).key_services.items()
    }
    assert sockets == {
        "default": (layout.socket.resolve(),),
        "b": (shard.socket.resolve(),),
    }
    assert [
        key_service_program.name for key_service_program in key_service_programs(layout, None)
    ] == [
        "key service",
        "key service b",
    ]


def test_settings_stay_as_they_are_written(layout: Layout) -> None:
    """Comments and other settings of the gateway stay, with any number of shards."""
    text = edited(explained("gateway", {"port": 8123}), dict(_settings(layout.gateway_settings)))
    layout.gateway_settings.write_text(text + "# the end\n")
    for name in ("b", "c"):
        add_shard(layout, name)
    changed = layout.gateway_settings.read_text()
    lines = [line for line in text.splitlines() if "key_service_socket" not in line]
    assert [line for line in lines if line not in changed.splitlines()] == []
    settings = gateway_config.read(layout.gateway_settings)
    assert (settings.port, sorted(settings.key_services)) == (8123, ["b", "c", "default"])


def _settings(path: Path) -> dict[str, object]:
    return tomllib.loads(path.read_text())


def test_what_was_begun_is_gone_on_with(layout: Layout) -> None:
    """After an interruption before the gateway's settings, the next run keeps the root key."""
    before = layout.gateway_settings.read_text()
    root_key = add_shard(layout, "b").layout.root_key.read_bytes()
    with pytest.raises(InitialiseError, match="already"):
        add_shard(layout, "b")
    layout.gateway_settings.write_text(before)
    with pytest.raises(InitialiseError, match="other settings"):
        add_shard(layout, "b", database="others.sqlite3")
    assert add_shard(layout, "b").layout.root_key.read_bytes() == root_key
    assert "b" in gateway_config.read(layout.gateway_settings).key_services


def test_as_many_as_are_missing_are_made(layout: Layout) -> None:
    """Missing shards are added up to the number; none is ever removed."""
    assert [made.layout.shard for made in add_missing(layout, 3)] == ["shard-2", "shard-3"]
    assert add_missing(layout, 2) == []
    assert layout.shards == ("default", "shard-2", "shard-3")


def test_of_a_removed_shard_the_folder_stays(layout: Layout) -> None:
    """After removal no process uses the shard, and its keys, log and settings stay."""
    before = layout.gateway_settings.read_text()
    for name in ("b", "c"):
        shard = add_shard(layout, name).layout
    files = {path.name: path.read_bytes() for path in shard.key_service.iterdir()}

    def fail() -> None:
        raise ShardError("it is needed")

    settings = layout.gateway_settings.read_text()
    with pytest.raises(ShardError, match="needed"):
        remove_shard(layout, "c", fail)
    assert layout.shards == ("default", "b", "c")
    assert layout.gateway_settings.read_text() == settings
    removed = remove_shard(layout, "c", lambda: None)
    layout = Layout(layout.directory)
    assert removed.database == str(shard.key_service.resolve() / "keys.sqlite3")
    assert layout.shards == ("default", "b")
    assert [key_service_program.name for key_service_program in key_service_programs(layout, None)][
        1:
    ] == ["key service b"]
    assert list(gateway_config.read(layout.gateway_settings).key_services) == ["default", "b"]
    assert layout.gateway_settings.read_text() != before
    files["settings.removed.toml"] = files.pop("settings.toml")
    assert {path.name: path.read_bytes() for path in shard.key_service.iterdir()} == files
    assert key_service_config.read(shard.removed_settings).shard == "c"
    with pytest.raises(InitialiseError, match=": choose another name"):
        add_shard(layout, "c")


@pytest.mark.parametrize("name", ["default", "b", "../b", ""])
def test_a_shard_that_cannot_be_removed(layout: Layout, name: str) -> None:
    """The first shard cannot be removed, and an unknown one is refused."""
    before = layout.gateway_settings.read_text()
    with pytest.raises(InitialiseError):
        remove_shard(layout, name, lambda: None)
    assert layout.gateway_settings.read_text() == before
    assert layout.shards == ("default",)


def test_a_command_says_what_to_do_then(layout: Layout) -> None:
    """The next step fits the way of running: pqkeepd start, or pqkeepd dev."""
    data = str(layout.directory)
    ended = CliRunner().invoke(app, ["shard", "add", "b", "--data", data])
    assert "kill -HUP pqkeepd start" in ended.stdout
    layout.development_credentials.touch()
    ended = CliRunner().invoke(app, ["shard", "add", "c", "--data", data])
    assert "end pqkeepd dev, and start it again" in ended.stdout
    assert "HUP" not in ended.stdout


def test_an_older_installation_gets_its_transfer_key(layout: Layout) -> None:
    """If the first key service has no transfer key, one is made, and a restart is requested."""
    layout.transfer_key.unlink()
    text = layout.key_service_settings.read_text()
    layout.key_service_settings.write_text(edited(text, {"transfer_key_file": None}))
    ended = CliRunner().invoke(app, ["shard", "add", "b", "--data", str(layout.directory)])
    assert ended.exit_code == 0, ended.output
    assert "start it again" in ended.stdout
    shard = Layout(layout.directory, "b")
    key = layout.transfer_key.read_bytes()
    assert (len(key), shard.transfer_key.read_bytes()) == (32, key)
    assert key_service_config.read(layout.key_service_settings).transfer_key_file is not None
    assert key.hex() not in ended.output


def test_a_database_on_a_server_is_named(tmp_path: Path) -> None:
    """A shard of an installation on a server needs its own database, with the same password file."""
    layout = made(tmp_path, ON_SERVER)
    with pytest.raises(InitialiseError, match="--keys-database"):
        add_shard(layout, "b")
    with pytest.raises(InitialiseError, match="already uses this database"):
        add_shard(layout, "b", database=ON_SERVER.keys)
    assert not Layout(layout.directory, "b").key_service.exists()
    shard = add_shard(layout, "b", database="postgresql://k@localhost/others").layout
    settings = key_service_config.read(shard.key_service_settings)
    assert settings.database.location == "postgresql://k@localhost/others"
    assert settings.database_password_file == layout.key_service.resolve() / "passwords"


@pytest.mark.parametrize("name", ["B", "-b", "b/../c", "", "x" * 33, "b\n", "default"])
def test_a_bad_name_is_refused(layout: Layout, name: str) -> None:
    """An invalid name is refused. The first shard's name is refused too."""
    before = sorted(layout.directory.rglob("*"))
    with pytest.raises(InitialiseError):
        add_shard(layout, name)
    assert sorted(layout.directory.rglob("*")) == before


def test_secrets_are_not_repeated(layout: Layout) -> None:
    """An address with a password is refused and not quoted."""
    with pytest.raises(InitialiseError, match="database_password_file") as refused:
        add_shard(layout, "b", database="postgresql://role:hunter2@localhost/name")
    assert "hunter2" not in str(refused.value)


def test_a_gateway_whose_shards_are_set_elsewhere(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key service whose settings and folder name different shards is not run."""
    text = layout.gateway_settings.read_text()
    layout.gateway_settings.write_text(edited(text, {"key_service_socket": None}))
    monkeypatch.setenv("PQKEEP_GATEWAY_KEY_SERVICE_SOCKET", str(layout.socket))
    with pytest.raises(InitialiseError, match="by hand"):
        add_shard(layout, "b")
    assert layout.shards == ("default",)


def test_a_folder_is_of_one_shard(layout: Layout) -> None:
    """A key service is not run if its settings name a different shard than its folder."""
    shard = add_shard(layout, "b").layout
    text = shard.key_service_settings.read_text()
    shard.key_service_settings.write_text(edited(text, {"shard": "c"}))
    with pytest.raises(ConfigError, match="names the shard c"):
        list(key_service_programs(layout, None))


def test_a_path_that_is_too_long_is_refused_first(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that makes the socket's path too long is refused at once."""
    longest = len(os.fsencode(Layout(layout.directory, "b" * 8).socket))
    monkeypatch.setattr(shard_folders, "LONGEST_SOCKET_PATH", longest)
    with pytest.raises(InitialiseError, match="too long for a socket"):
        add_shard(layout, "b" * 9)
    assert layout.shards == ("default",)
    add_shard(layout, "b" * 8)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_key_service_gets_no_copy_of_what_it_may_not_read() -> None:
    """The transfer key's file is read with the user's rights, so root copies no secret of others."""
    with tempfile.TemporaryDirectory(prefix="pqkeep-") as folder:
        Path(folder).chmod(0o711)
        layout = made(Path(folder))
        layout.directory.chmod(0o711)
        for path in (layout.key_service, *layout.key_service.iterdir()):
            os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
        of_root = Path(folder) / "of-root"
        of_root.write_bytes(bytes(range(32)))
        of_root.chmod(0o400)
        text = layout.key_service_settings.read_text()
        chosen = edited(text, {"transfer_key_file": str(of_root)})
        layout.key_service_settings.write_text(chosen)
        with pytest.raises(InitialiseError, match="cannot use the transfer key"):
            add_shard(layout, "b")
        assert layout.shards == ("default",)
        layout.key_service_settings.write_text(text)
        shard = add_shard(layout, "b").layout
        assert shard.transfer_key.stat().st_uid == UNPRIVILEGED
        assert shard.transfer_key.read_bytes() == layout.transfer_key.read_bytes()


def test_the_settings_of_all_shards_are_checked(layout: Layout) -> None:
    """``config check`` reads every file of a data directory, and names an invalid one."""
    shard = add_shard(layout, "b").layout
    checked = CliRunner().invoke(app, ["config", "check", str(layout.directory)])
    files = [line.partition(":")[0] for line in checked.stdout.splitlines()]
    wanted = {layout.gateway_settings, layout.key_service_settings, shard.key_service_settings}
    assert (checked.exit_code, wanted <= set(map(Path, files))) == (0, True)
    shard.key_service_settings.write_text('shrad = "b"')
    wrong = CliRunner().invoke(app, ["config", "check", str(layout.directory)])
    assert (wrong.exit_code, str(shard.key_service_settings) in wrong.stderr) == (78, True)
    none = CliRunner().invoke(app, ["config", "check", str(layout.run)])
    assert (none.exit_code, "has no settings" in none.stderr) == (78, True)
