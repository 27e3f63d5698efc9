"""A new data directory: its files, their modes, and that no file is overwritten."""

import json
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.access.credentials import CredentialKind, new_credential, read_pepper
from pqkeep_gateway.access.entitlements import Plan
from pqkeep_keyservice import config as key_service_config
from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.root_key_sources.file import read_root_key
from pqkeep_server.atomic_files import write_private_json
from pqkeep_server.initialise import (
    IN_FILES,
    InitialiseError,
    Layout,
    Stores,
    has_stores,
    initialise,
)
from pqkeep_server.users import User, Users, UsersError, _run

OPERATOR = new_credential(CredentialKind.OPERATOR)
ON_SERVER = Stores(keys="postgresql://k@localhost/keys")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """The paths of a new data directory."""
    return Layout(tmp_path / "data")


def mode(path: Path) -> int:
    """Return a file's permissions."""
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
def test_modes(layout: Layout, umask: int) -> None:
    """Folders are 0700, settings 0600 and secrets 0400, with any umask."""
    before = os.umask(umask)
    try:
        initialise(layout, OPERATOR, signup="operator")
    finally:
        os.umask(before)
    assert mode(layout.root_key.parent) == mode(layout.pepper.parent) == 0o700
    assert mode(layout.key_service_settings) == mode(layout.gateway_settings) == 0o600
    assert mode(layout.root_key) == mode(layout.pepper) == 0o400


def test_the_secrets_are_good_and_differ(tmp_path: Path) -> None:
    """Root key and pepper are 32 valid bytes, different in each directory."""
    first, second = Layout(tmp_path / "first"), Layout(tmp_path / "second")
    for layout in (first, second):
        initialise(layout, OPERATOR, signup="operator")
    secrets = {path.read_bytes() for x in (first, second) for path in (x.root_key, x.pepper)}
    assert len(secrets) == 4
    assert {len(secret) for secret in secrets} == {32}
    read_root_key(first.root_key)
    read_pepper(first.pepper)


@pytest.mark.parametrize("signup", ["operator", "open"])
def test_both_processes_read_their_settings(layout: Layout, signup: str) -> None:
    """The settings are valid and consistent: both name the same socket and operator digest."""
    initialise(layout, OPERATOR, signup="open" if signup == "open" else "operator")
    gateway = gateway_config.read(layout.gateway_settings)
    key_service = key_service_config.read(layout.key_service_settings)
    assert gateway.signup == signup
    assert gateway.key_service_socket is not None
    assert key_service.socket is not None
    assert os.path.realpath(gateway.key_service_socket) == os.path.realpath(key_service.socket)
    assert key_service.root_key_sources == {1: RootKeySource(file=layout.root_key.resolve())}
    assert gateway.operator_digest == read_pepper(layout.pepper).digest(OPERATOR).hex()


def test_the_operators_credential_is_kept_nowhere(layout: Layout) -> None:
    """Initialise stores only the digest of the operator's credential."""
    initialise(layout, OPERATOR, signup="operator")
    for path in layout.directory.rglob("*"):
        assert path.is_dir() or OPERATOR.encode() not in path.read_bytes()


def test_nothing_is_written_over(layout: Layout) -> None:
    """A second run is refused, and every file is unchanged."""
    initialise(layout, OPERATOR, signup="operator")
    before = {path: path.read_bytes() for path in layout.directory.rglob("*") if path.is_file()}
    with pytest.raises(InitialiseError, match="exists already"):
        initialise(layout, OPERATOR, signup="open")
    after = {path: path.read_bytes() for path in layout.directory.rglob("*") if path.is_file()}
    assert after == before


TWO = Users(User(61001, 61001), User(61002, 61002), 61003)


def test_a_directory_with_other_files_stays_as_it_is(layout: Layout) -> None:
    """A directory with other files is refused, because their modes would change."""
    layout.directory.mkdir(mode=0o755)
    (layout.directory / "notes.txt").touch()
    before = mode(layout.directory)
    with pytest.raises(InitialiseError, match=r"has other files, such as notes\.txt"):
        initialise(layout, OPERATOR, signup="operator", users=TWO)
    assert mode(layout.directory) == before
    assert [path.name for path in layout.directory.iterdir()] == ["notes.txt"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_new_file_system_is_empty(layout: Layout) -> None:
    """lost+found and the rest of an interrupted run do not prevent an installation."""
    for name in ("lost+found", ".new-begun", "run"):
        (layout.directory / name).mkdir(parents=True)
    initialise(layout, OPERATOR, signup="operator", users=TWO)
    assert layout.gateway_settings.exists()


def test_what_was_begun_is_finished(layout: Layout) -> None:
    """After an interruption between the two folders, the next run makes the other one."""
    initialise(layout, OPERATOR, signup="open")
    _remove_gateway(layout)
    initialise(layout, OPERATOR, signup="open")
    read_root_key(layout.root_key)
    read_pepper(layout.pepper)
    assert {path.name for path in layout.directory.iterdir()} == {"keyservice", "gateway", "run"}


@pytest.mark.parametrize("later", [ON_SERVER, IN_FILES], ids=["same", "other"])
def test_a_root_key_is_never_removed(layout: Layout, later: Stores) -> None:
    """The root key of keys on a database server is kept, or other databases are refused."""
    initialise(layout, OPERATOR, signup="open", stores=ON_SERVER)
    root_key = layout.root_key.read_bytes()
    _remove_gateway(layout)
    with nullcontext() if later == ON_SERVER else pytest.raises(InitialiseError):
        initialise(layout, OPERATOR, signup="open", stores=later)
    assert layout.root_key.read_bytes() == root_key


def _remove_gateway(layout: Layout) -> None:
    for path in (layout.pepper, layout.gateway_settings, layout.gateway / "accounts.sqlite3"):
        path.unlink()
    layout.gateway.rmdir()


def test_keys_without_a_gateway_are_left_alone(layout: Layout) -> None:
    """A key service's folder with a database is not a draft: it is named, and stays."""
    layout.key_service.mkdir(parents=True)
    (layout.key_service / "keys.sqlite3").write_bytes(b"keys")
    with pytest.raises(InitialiseError, match="keyservice"):
        initialise(layout, OPERATOR, signup="open")
    assert (layout.key_service / "keys.sqlite3").read_bytes() == b"keys"


def test_a_private_file(tmp_path: Path) -> None:
    """write_private_json writes JSON of mode 0600 and leaves no draft behind."""
    path = tmp_path / "ready.json"
    write_private_json(path, {"name": "Müller"})
    assert json.loads(path.read_text()) == {"name": "Müller"}
    assert mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_private_file_is_replaced_whole(tmp_path: Path) -> None:
    """A world-readable file, or a left-over draft, is replaced by a private file."""
    path = tmp_path / "ready.json"
    path.write_text("old")
    path.chmod(0o644)
    (tmp_path / ".ready.json.x").write_text("left over")
    write_private_json(path, {"new": True})
    assert json.loads(path.read_text()) == {"new": True}
    assert mode(path) == 0o600


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """If the name is a link, the link is replaced and its target is unchanged."""
    target = tmp_path / "target"
    target.write_text("untouched")
    path = tmp_path / "ready.json"
    path.symlink_to(target)
    write_private_json(path, {})
    assert target.read_text() == "untouched"
    assert not path.is_symlink()


def test_an_installation_on_a_server(layout: Layout) -> None:
    """The addresses of both databases are in the settings of the right process."""
    stores = Stores(
        "postgresql://a@localhost/accounts", "passwords", "postgresql://k@localhost/keys", None
    )
    initialise(layout, OPERATOR, signup="operator", stores=stores)
    gateway = gateway_config.read(layout.gateway_settings)
    assert gateway.database.location == stores.accounts
    assert gateway.database_password_file == layout.gateway.resolve() / "passwords"
    key_service = key_service_config.read(layout.key_service_settings)
    assert key_service.database.location == stores.keys
    assert key_service.database_password_file is None
    assert has_stores(layout, stores)
    assert not has_stores(layout, IN_FILES)


@pytest.mark.parametrize("name", ["accounts", "keys"])
def test_a_bad_address_is_refused(layout: Layout, name: str) -> None:
    """An address with a password is refused and not quoted, and no file is made."""
    stores = Stores(**{name: "postgresql://role:hunter2@localhost/name"})
    with pytest.raises(InitialiseError, match="database_password_file") as refused:
        initialise(layout, OPERATOR, signup="operator", stores=stores)
    assert "hunter2" not in str(refused.value)
    assert list(layout.directory.iterdir()) == []


def test_a_used_database_is_no_draft(layout: Layout) -> None:
    """A key service's folder with a used database is not touched, even without a gateway."""
    initialise(layout, OPERATOR, signup="open")
    database = layout.key_service / "keys.sqlite3"
    assert (database.read_bytes(), mode(database)) == (b"", 0o600)
    database.write_bytes(b"keys")
    shutil.rmtree(layout.gateway)
    with pytest.raises(InitialiseError, match="keyservice"):
        initialise(layout, OPERATOR, signup="open")
    assert database.read_bytes() == b"keys"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_the_operators_tenants_have_the_plan_without_limits(layout: Layout) -> None:
    """Settings for two users name enterprise_plus and the reason; settings for one user name no plan."""
    initialise(layout, OPERATOR, signup="operator", users=TWO)
    text = layout.gateway_settings.read_text()
    assert gateway_config.read(layout.gateway_settings).default_plan == "enterprise_plus"
    comment = text[: text.index("\ndefault_plan = ")].rpartition("\n\n")[2]
    assert "1,000 operations a month" in " ".join(comment.replace("#", "").split())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_another_default_plan_can_be_chosen(layout: Layout) -> None:
    """The plan that init takes is in the settings."""
    initialise(layout, OPERATOR, signup="operator", users=TWO, default_plan=Plan.STARTER)
    assert gateway_config.read(layout.gateway_settings).default_plan == "starter"


def test_a_missing_program_is_in_a_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without groupadd the message names the packages that have it."""
    monkeypatch.setattr("pqkeep_server.users._PATH", "/nonexistent")
    with pytest.raises(UsersError, match=r"groupadd is missing. Install .*passwd on"):
        _run("groupadd")
