"""``pqkeepd doctor``: texts from other users."""

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from tests.fixtures.certificate import new_certificate
from tests.fixtures.postgresql import ACCOUNTS_ROLE, PostgresServer
from tests.fixtures.unprivileged import UID, own_folder
from tests.patience import PATIENCE
from typer.testing import CliRunner

from pqkeep_gateway import config
from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.cli import app
from pqkeep_server.doctor import examine
from pqkeep_server.gateways import require_shares
from pqkeep_server.initialise import Layout, Stores, initialise
from pqkeep_server.settings_file import edited
from pqkeep_server.shard_folders import add_shard


def test_the_terminal_obeys_no_file_s_name(tmp_path: Path) -> None:
    """Control characters in a file name are escaped."""
    for folder in ("gateway", "keyservice", "run"):
        (tmp_path / folder).mkdir(mode=0o700)
    (tmp_path / "gateway" / "a\x1b[2J\ngateway: good").touch(mode=0o644)
    ended = CliRunner().invoke(app, ["doctor", "--data", str(tmp_path)])
    assert ended.exit_code == 1
    assert "a\\x1b[2J\\ngateway: good" in ended.stdout
    assert "\x1b" not in ended.stdout
    assert "gateway: good" not in ended.stdout.splitlines()


LINK = {"certificate": "c.pem", "key": "k.pem", "ca": "ca.pem"}
ON_KEY_SERVICES_HOST: dict[str, object] = {
    "socket": None,
    "gateway_uid": None,
    "link": {"listen": "127.0.0.1:0", **LINK},
}
ON_GATEWAYS_HOST: dict[str, object] = {
    "key_service_socket": None,
    "link": {"key_service": "127.0.0.1:9", **LINK},
}


@pytest.mark.parametrize(
    ("gateway", "key_service", "missing"),
    [
        (ON_GATEWAYS_HOST, {}, "key service"),
        (ON_GATEWAYS_HOST, None, "key service"),
        (ON_GATEWAYS_HOST, ON_KEY_SERVICES_HOST, "gateway"),
        (None, ON_KEY_SERVICES_HOST, "gateway"),
    ],
    ids=["gateway", "gateway alone", "key service", "key service alone"],
)
def test_a_host_with_one_process_is_asked_for_no_other(
    gateway: dict[str, object] | None,
    key_service: dict[str, object] | None,
    missing: str,
    tmp_path: Path,
) -> None:
    """If the settings name another host, its process and user are not checked."""
    layout = Layout(tmp_path / "data")
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="operator")
    for file, changed in (
        (layout.gateway_settings, gateway),
        (layout.key_service_settings, key_service),
    ):
        if changed is None:
            shutil.rmtree(file.parent)
        else:
            file.write_text(edited(file.read_text(), changed))
    here = {"settings", "databases", "files", "space", "clocks", "gateway", "key service"} - {
        missing
    }
    if missing != "gateway":
        here |= {"certificate", "audit events", "tenants", "rate limits"}
    assert {subject for subject, _ in examine(layout)} == here


def test_a_database_that_does_not_answer_hides_no_other_problem(tmp_path: Path) -> None:
    """An unresponsive database is named beside the stopped key service."""
    layout = Layout(tmp_path / "data")
    stores = Stores(keys="postgresql://pqkeep_keyservice@127.0.0.1:1/keys")
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="operator", stores=stores)
    process, database = dict(examine(layout))["key service"]
    assert "127.0.0.1:1" not in process
    assert "127.0.0.1:1" in database


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis://127.0.0.1:1", "redis://127.0.0.1:1: it does not respond: Connection refused"),
        (
            "redis+sentinel://127.0.0.1:1,127.0.0.1:2/pqkeep",
            "redis+sentinel://127.0.0.1:1,127.0.0.1:2/pqkeep: no Sentinel responds with a primary",
        ),
    ],
)
def test_the_server_of_the_rate_limits_is_named(tmp_path: Path, url: str, problem: str) -> None:
    """A server or Sentinels that do not respond are named with their address and the cause."""
    layout = Layout(tmp_path / "data")
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="operator")
    _change(layout.gateway_settings, {"redis_url": url})
    assert dict(examine(layout))["rate limits"] == [problem]


@pytest.mark.parametrize(
    ("seconds", "found"), [(9000, " s ahead of this"), (-9000, " s behind this"), (0, "")]
)
def test_a_database_server_with_another_clock(
    postgres_server: PostgresServer, tmp_path: Path, seconds: int, found: str
) -> None:
    """A clock difference above the tolerance is reported with its server and direction."""
    address = postgres_server.url(ACCOUNTS_ROLE, postgres_server.new_database(ACCOUNTS_ROLE))
    with psycopg.connect(address, autocommit=True) as database:
        database.execute("CREATE SCHEMA first")
        database.execute(
            "CREATE FUNCTION first.clock_timestamp() RETURNS timestamptz LANGUAGE sql"
            f" RETURN pg_catalog.clock_timestamp() + make_interval(secs => {seconds:d})".encode()
        )
        name = sql.Identifier(database.info.dbname)
        path = sql.SQL("ALTER DATABASE {} SET search_path = first, pg_catalog, public")
        database.execute(path.format(name))
    layout = Layout(tmp_path / "data")
    stores = Stores(accounts=address)
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="operator", stores=stores)
    problems = dict(examine(layout))["clocks"]
    assert [found in problem and address in problem for problem in problems] == [True] * bool(found)


def test_more_gateways_than_shares_are_refused(tmp_path: Path) -> None:
    """Pqkeepd start refuses more gateways than the shares of the rate limits are for."""
    layout = Layout(tmp_path / "data")
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="operator")
    _change(layout.gateway_settings, {"rate_limit_unavailable": "local", "rate_limit_gateways": 2})
    require_shares(config.read(layout.gateway_settings), 2)
    with pytest.raises(ConfigError, match="rate_limit_gateways is 2, but 3 gateways"):
        require_shares(config.read(layout.gateway_settings), 3)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_who_cannot_read_the_folders_is_told_who_can() -> None:
    """If folders are unreadable, no part is called good, and one line names the folders' owner."""
    groups = os.getgroups()
    with own_folder("doctor") as data:
        layout = Layout(data)
        for folder in (layout.gateway, layout.key_service):
            folder.mkdir(mode=0o700)
        os.setgroups([])
        os.seteuid(int(UID or 0))
        try:
            ((subject, problems),) = examine(layout)
        finally:
            os.seteuid(0)
            os.setgroups(groups)
    assert (subject, problems) == ("user", [f"you cannot read {data}: run doctor as root"])


def test_a_host_without_an_installation(tmp_path: Path) -> None:
    """A missing data directory is reported once, with the command that creates one."""
    ended = CliRunner().invoke(app, ["doctor", "--data", str(tmp_path / "none")])
    assert ended.exit_code == 1
    assert ended.stdout == (
        f"data directory: wrong\n  {tmp_path}/none has no installation; pqkeepd init makes one\n"
    )


def _other_transfer_key(_: Layout, shard: Layout) -> None:
    shard.transfer_key.chmod(0o600)
    shard.transfer_key.write_bytes(os.urandom(32))
    shard.transfer_key.chmod(0o400)


def _change(file: Path, changes: dict[str, object]) -> None:
    file.write_text(edited(file.read_text(), changes))


SPOILED: dict[str, tuple[Callable[[Layout, Layout], None], str, str]] = {
    "transfer key": (_other_transfer_key, "shards", "differs from the transfer key"),
    "no transfer key": (
        lambda _, b: _change(b.key_service_settings, {"transfer_key_file": None}),
        "shards",
        "no transfer_key_file",
    ),
    "row": (
        lambda first, _: _change(
            first.gateway_settings, {"shards": {"default": {"sockets": ["../run/keyservice.sock"]}}}
        ),
        "shards",
        "do not name the shard",
    ),
    "socket": (
        lambda _, b: _change(b.key_service_settings, {"socket": "../run/other.sock"}),
        "shards",
        "another socket of the shard b",
    ),
    "folder": (
        lambda _, b: shutil.rmtree(b.key_service),
        "shards",
        "name the shard b, but its folder is missing here",
    ),
    "root key": (lambda _, b: b.root_key.unlink(), "settings", "keyservice-b/root.key"),
    "name": (
        lambda _, b: _change(b.key_service_settings, {"shard": "c"}),
        "settings",
        "names the shard c",
    ),
    "mode": (
        lambda _, b: b.root_key.chmod(0o644),
        "files",
        "other users have access to",
    ),
}


@pytest.mark.parametrize("what", SPOILED)
def test_each_shard_is_looked_at(what: str, tmp_path: Path) -> None:
    """Errors in a shard, or between shards, are reported without any key."""
    spoil, subject, expected = SPOILED[what]
    layout = Layout(tmp_path / "data")
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="operator")
    shard = add_shard(layout, "b").layout
    assert not any(expected in finding for _, found in examine(layout) for finding in found)
    keys = [path.read_bytes() for path in (shard.transfer_key, shard.root_key)]
    spoil(layout, shard)
    problems = dict(examine(layout))
    assert any(expected in problem for problem in problems[subject]), problems
    is_lost = any("from its safe place" in problem for problem in problems["settings"])
    assert is_lost == (what == "root key")
    assert not any(key.hex() in str(problems) for key in keys)


@pytest.mark.parametrize(
    ("days", "url", "expected"),
    [
        (-1, "https://127.0.0.1", ["expired"]),
        (1, "https://127.0.0.1", ["expires in"]),
        (90, "https://keep.example.org", ["Hostname mismatch"]),
        (90, "https://127.0.0.1", []),
    ],
    ids=["expired", "soon", "other host", "good"],
)
def test_a_certificate_that_clients_refuse(
    days: int, url: str, expected: list[str], tmp_path: Path
) -> None:
    """Certificates that have expired, expire soon, or are for another host are reported."""
    layout = Layout(tmp_path / "data")
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="operator")
    made = new_certificate(tmp_path, expires=timedelta(days=days))
    changes: dict[str, object] = {
        "tls_certificate": str(made.path),
        "tls_key": str(made.key),
        "public_url": url,
    }
    _change(layout.gateway_settings, changes)
    problems = dict(examine(layout))["certificate"]
    assert len(problems) == len(expected)
    assert all(words in problem for words, problem in zip(expected, problems, strict=True))


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "another"])
def test_a_root_key_without_a_key_service(is_lost: bool, tmp_path: Path) -> None:  # noqa: FBT001 - parametrized
    """A lost root key is reported with the next step; an unused one is not an error."""
    layout = Layout(tmp_path / "data")
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="operator")
    layout.root_key.unlink()
    if not is_lost:
        layout.root_key.write_bytes(os.urandom(32))
        layout.root_key.chmod(0o400)
    problems = dict(examine(layout))["settings"]
    assert ["safe place" in problem for problem in problems] == ([True] if is_lost else [])


@pytest.mark.parametrize("command", ["doctor --data {}", "config check {}"])
def test_a_warning_is_a_sentence(
    command: str, tmp_path: Path, pqkeepd_command: Sequence[str | Path]
) -> None:
    """The product's log warnings are shown as text, not as JSON."""
    layout = Layout(tmp_path / "data")
    initialise(layout, new_credential(CredentialKind.OPERATOR), signup="operator")
    expired = new_certificate(tmp_path, expires=timedelta(days=-1))
    _change(
        layout.gateway_settings,
        {"tls_certificate": str(expired.path), "tls_key": str(expired.key)},
    )
    ended = subprocess.run(
        [*pqkeepd_command, *command.format(layout.directory).split()],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert str(expired.path) in ended.stdout + ended.stderr
    assert "pqkeepd: warning: " in ended.stderr
    assert "{" not in ended.stdout + ended.stderr
