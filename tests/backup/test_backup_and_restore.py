"""A backup of a running installation, restored elsewhere: everything in it works again."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyotp import TOTP
from tests.backup.conftest import (
    LEGACY,
    QUICK,
    UNKNOWN,
    Backup,
    Command,
    Migration,
    Outputs,
    RecoveryKey,
)
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation, running
from tests.fixtures.postgresql import options_of
from tests.patience import PATIENCE
from tests.sampling import IS_EXHAUSTIVE

from pqkeep.audit import verify
from pqkeep_protocol.algorithms import CURRENT
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_server.initialise import IN_FILES, Stores

AskFile = Callable[..., list[tuple[Any, ...]]]

WRITERS = 2
ALGORITHMS = CURRENT if IS_EXHAUSTIVE else QUICK
"""The algorithms of the ciphertexts and signatures that both installations exchange."""
REFRESH = "service_refresh_token"
NEW = "continue-log"
"""The content of the first record of a restored log."""
LOG = {
    "audit_records": "SELECT * FROM audit_records ORDER BY id",
    "audit_tiles": "SELECT * FROM audit_tiles ORDER BY level, position",
    "audit_checkpoints": "SELECT * FROM audit_checkpoints ORDER BY size, algorithm",
    "audit_log": "SELECT * FROM audit_log",
}


@dataclass(frozen=True)
class Store:
    """Databases for an installation, empty at first."""

    databases: Stores
    keys: Callable[[str], list[tuple[Any, ...]]]
    """Runs a query on the database of keys."""


@pytest.fixture(scope="module")
def new_store(
    request: pytest.FixtureRequest, ask_file: AskFile
) -> Iterator[Callable[[str, Path], Store]]:
    """Make a store of a kind, for the installation in a data directory."""
    with ExitStack() as stack:

        def store(kind: str, data: Path) -> Store:
            if kind == "sqlite":
                file = data / "keyservice" / "keys.sqlite3"
                return Store(IN_FILES, lambda query: ask_file(file, query))
            databases = stack.enter_context(request.getfixturevalue("own_postgresql")())

            def ask(query: str) -> list[tuple[Any, ...]]:
                with psycopg.connect(databases.keys) as connection:
                    return connection.execute(query).fetchall()

            return Store(databases, ask)

        yield store


def log_of(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Return all stored rows of the audit log."""
    return {table: store.keys(query) for table, query in LOG.items()}


@dataclass(frozen=True)
class Team:
    """Members of a tenant, their pages, and their credentials."""

    members: dict[str, Any]
    invitations: dict[str, Any]
    totp: TOTP
    recovery_code: str
    refresh_token: str
    """The viewer's."""
    invitation_token: str

    @classmethod
    def of(cls, installation: Installation, tenant_id: str) -> Team:
        """Make an owner with a second factor, a viewer, and an open invitation."""
        owner, viewer = (installation.person(tenant_id, role) for role in ("owner", "viewer"))
        fields = {"email": "grace@example.com", "role": "developer"}
        owner.post_proven(f"/tenants/{tenant_id}/invitations", fields, status=201)
        totp = TOTP(owner.post_proven("/auth/mfa/enroll")["secret"])
        codes = owner.confirm_authenticator(totp)
        return cls(
            members=owner.get("/team/members"),
            invitations=owner.get("/team/invitations"),
            totp=totp,
            recovery_code=codes[0],
            refresh_token=viewer.client.cookies[REFRESH],
            invitation_token=installation.mailbox.token(fields["email"], "invitation"),
        )


@dataclass(frozen=True)
class Restored:
    """A running installation restored from another's backup, and the facts of the first."""

    installation: Installation
    tenant_id: str
    api_key: str
    outputs: Outputs
    team: Team
    migration: Migration
    said: str
    """By the restore."""
    mode: int
    """Its backup file's."""
    kept: list[dict[str, Any]]
    """Checkpoints of the first installation, before and after its backup."""
    log_before: dict[str, list[tuple[Any, ...]]]
    """The state just before the backup."""
    log_after: dict[str, list[tuple[Any, ...]]]
    """The state at the end."""
    log: dict[str, list[tuple[Any, ...]]]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("postgresql", "postgresql", QUICK), id="postgresql-postgresql"),
        *(
            pytest.param((*kinds, ALGORITHMS), id="-".join(kinds), marks=pytest.mark.campaign)
            for kinds in (("sqlite", "sqlite"), ("sqlite", "postgresql"), ("postgresql", "sqlite"))
        ),
    ],
)
def restored(
    request: pytest.FixtureRequest,
    new_store: Callable[[str, Path], Store],
    command: Command,
    recovery_key: RecoveryKey,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Restored]:
    """Back up an installation, restore it elsewhere, delete the first, and run the restored one."""
    source, target, algorithms = request.param
    folder = tmp_path_factory.mktemp("restored")
    old, new, file = folder / "old", folder / "new", folder / "backup"
    here, there = new_store(source, old), new_store(target, new)
    with running(folder, data=old, databases=here.databases) as installation:
        tenant = installation.new_tenant()
        outputs = Outputs.of(tenant, algorithms)
        team = Team.of(installation, tenant.tenant_id)
        migration = Migration.of(installation)
        leaving = installation.new_tenant().tenant_id
        operator = installation.operator()
        assert operator.ask("PATCH", f"/tenants/{leaving}", {"status": "suspended"}).is_success
        assert operator.ask("DELETE", f"/tenants/{leaving}", params={"days": 1}).is_success
        kept = [installation.operator().post("/audit/checkpoints", status=201)]
        log_before = log_of(here)
        status, said = command(
            *("backup", "--data", old, "--recovery-key", recovery_key.public, "--to", file)
        )
        assert status == 0, said
        tenant.post("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
        kept.append(installation.operator().post("/audit/checkpoints", status=201))
    log_after = log_of(here)
    status, said = command(
        *("restore", file, "--recovery-key", recovery_key.private, "--data", new),
        *("--root-key", old / "keyservice" / "root.key", *options_of(there.databases)),
        *(*UNKNOWN, "--keep", "mailbox"),
    )
    assert status == 0, said
    log = log_of(there)
    shutil.rmtree(old)
    mode = stat.S_IMODE(file.stat().st_mode)
    with running(folder, data=new) as installation:
        yield Restored(
            installation,
            tenant.tenant_id,
            tenant.api_key,
            outputs,
            team,
            migration,
            said,
            mode,
            kept,
            log_before,
            log_after,
            log,
        )


def test_a_backup_is_its_owner_s(restored: Restored) -> None:
    """Only the owner can read or write the file."""
    assert restored.mode == 0o600


def test_what_is_to_be_destroyed_is_listed(restored: Restored) -> None:
    """The restore names a tenant that is due for deletion, with a date a week from now."""
    (line,) = (line for line in restored.said.splitlines() if "all keys of the tenant" in line)
    at = datetime.fromisoformat(line.split()[0])
    assert at > datetime.now(UTC) + timedelta(days=6)


def test_keys_are_of_use_after_a_restore(restored: Restored) -> None:
    """Ciphertexts and signatures of each used algorithm, and API keys, work elsewhere."""
    installation, tenant_id = restored.installation, restored.tenant_id
    restored.outputs.check(installation.caller(restored.api_key, tenant_id))
    assert installation.operator().get(f"/tenants/{tenant_id}")["id"] == tenant_id


def test_a_migration_goes_on_after_a_restore(restored: Restored) -> None:
    """After a restore, rules deny, the canary runs, legacy data can move, and counts are equal."""
    before = restored.migration
    tenant = restored.installation.caller(before.api_key, before.tenant_id)
    assert Migration.seen_by(tenant) == before.facts
    assert before.facts["campaign"]["canary"]["state"] == "running"
    denied = {"algorithm": "ML-KEM-1024", "plaintext": ""}
    assert tenant.refusal("/kem/encrypt", denied)[:2] == (403, "ERR_POLICY_001")
    disabled = {"algorithm": "Kyber768", "plaintext": ""}
    assert tenant.refusal("/kem/encrypt", disabled)[0] == 404
    moved = {"algorithm": LEGACY, "key_version": 1, "ciphertext": before.sealed}
    tenant.post("/kem/re-encrypt", moved | {"to": {"algorithm": "X-Wing"}})


def test_the_audit_log_is_restored(restored: Restored) -> None:
    """All records from before the backup are there with tiles and checkpoints; a new log follows."""
    before, log, after = restored.log_before, restored.log, restored.log_after
    records = log["audit_records"]
    size = next(index for index, row in enumerate(records) if NEW in row)
    assert size >= len(before["audit_records"]) > 0
    assert records[:size] == after["audit_records"][:size]
    assert tiles_of(log, size) == tiles_of(after, size)
    *old, new = log["audit_checkpoints"]
    assert len(old) >= len(before["audit_checkpoints"]) > 0
    assert old == after["audit_checkpoints"][: len(old)]
    assert all(checkpoint[0] <= size for checkpoint in old)
    log_ids = [each["audit_log"][0][0] for each in (before, log)]
    assert [next(id_ for id_ in log_ids if id_ in row) for row in (old[-1], new)] == log_ids
    assert len(set(log_ids)) == 2


def tiles_of(log: dict[str, list[tuple[Any, ...]]], size: int) -> list[tuple[Any, ...]]:
    """Return a number of tiles over the first records of a log."""
    return [tile for tile in log["audit_tiles"] if (tile[1] + 1) << tile[0] <= size]


@pytest.mark.parametrize("is_whole", [True, False])
def test_old_checkpoints_and_the_new_log(
    restored: Restored, tmp_path: Path, *, is_whole: bool
) -> None:
    """Old checkpoints and an export of the new log verify together.

    The old log's records after the backup count as lost, and are not a fork.
    """
    installation = restored.installation
    operator = installation.operator()
    caller = operator
    if not is_whole:
        caller = installation.caller(restored.api_key, restored.tenant_id)
    export, kept, keys = (tmp_path / name for name in ("export.jsonl", "kept.jsonl", "keys.json"))
    export.write_bytes(caller.ask("GET", "/audit/export").content)
    size = json.loads(export.read_bytes().splitlines()[0])["size"]
    first, later = restored.kept
    proof = operator.get("/audit/consistency", first=first["size"], second=size)
    kept.write_text("".join(f"{json.dumps(each)}\n" for each in (first, later, proof)))
    keys.write_text(json.dumps(operator.get("/audit/keys")))
    report = verify([export, kept], keys)
    assert report.findings == ()
    assert report.log_id != first["log_id"]
    (continued,) = report.continued
    assert continued.log_id == first["log_id"]
    assert first["size"] <= continued.records < later["size"]
    assert continued.lost == later["size"] - continued.records


def test_versions_are_not_given_out_again(restored: Restored) -> None:
    """A version from after the backup is not found, and the next version has a much higher number."""
    caller = restored.installation.caller(restored.api_key, restored.tenant_id)
    lost = caller.ask("GET", "/kms/keys/3?algorithm=Kyber768")
    assert lost.status_code == 404
    made = caller.post("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    assert (made["old_key_version"], made["key_version"]) == (2, 1_000_001)


def test_people_come_in_after_a_restore(restored: Restored, password: str) -> None:
    """Passwords, TOTP and recovery codes still work, roles and invitations stay, sessions end."""
    installation, team = restored.installation, restored.team
    named = {"tenant_id": restored.tenant_id}
    assert installation.operator().get("/team/members", **named) == team.members
    assert installation.operator().get("/team/invitations", **named) == team.invitations
    signed_in = {"email": team.members["members"][0]["email"], "password": password}
    for proof in (
        {"totp_code": team.totp.at(int(time.time()) + 30)},
        {"recovery_code": team.recovery_code},
    ):
        person = installation.caller(None)
        response = person.ask("POST", "/auth/login", signed_in)
        token = response.json()["error"]["challenge_token"]
        person.post("/auth/mfa/verify", {"challenge_token": token, **proof})
        assert person.get("/auth/me")["role"] == "owner"
    refresh = {"Cookie": f"{REFRESH}={team.refresh_token}"}
    ended = installation.caller(None).ask("POST", "/auth/refresh", headers=refresh)
    assert refusal_of(ended) == (401, "ERR_AUTH_001", None)
    accepted = {"token": team.invitation_token, "password": password}
    joined = installation.caller(None).post("/auth/accept-invitation", accepted, status=201)
    assert joined["role"] == "developer"


def work(caller: Caller, stop: threading.Event, done: list[tuple[str, int]]) -> None:
    """Change keys and API keys, and note every acknowledged version."""
    while not stop.is_set():
        made = caller.post("/kms/keys/rotate", {"algorithm": "Dilithium3"}, status=201)
        done.append((caller.tenant_id, made["key_version"]))
        caller.post("/kem/encrypt", {"plaintext": "eHh4"})
        caller.get(f"/tenants/{caller.tenant_id}/api-keys")


def shown_backup(operator: Caller) -> dict[str, Any]:
    """Return the operator's view of the newest backup, once there is one."""
    deadline = time.monotonic() + PATIENCE
    while not (shown := operator.get("/installation")["backups"])["last_at"]:  # seconds old
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return dict(shown)


def test_a_consistent_moment(
    command: Command,
    recovery_key: RecoveryKey,
    ask_file: AskFile,
    tmp_path: Path,
) -> None:
    """A backup under load has every change acknowledged before it, and no partial change.

    The operator sees its number and its time.
    """
    old, new, file = tmp_path / "old", tmp_path / "new", tmp_path / "backup"
    with running(tmp_path, data=old) as installation:
        tenants = [installation.new_tenant() for _ in range(WRITERS)]
        for tenant in tenants:
            for algorithm in ("Dilithium3", "Kyber768"):
                tenant.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
        done: list[tuple[str, int]] = []
        stop = threading.Event()
        threads = [threading.Thread(target=work, args=(tenant, stop, done)) for tenant in tenants]
        for thread in threads:
            thread.start()
        while len(done) < 10 * WRITERS:
            time.sleep(0.01)
        acknowledged = list(done)
        status, said = command(
            *("backup", "--data", old, "--recovery-key", recovery_key.public, "--to", file)
        )
        stop.set()
        for thread in threads:
            thread.join()
        assert status == 0, said
        shown = shown_backup(installation.operator())
    assert len(done) > len(acknowledged)  # they went on
    assert said.startswith(f"backup {shown['last_number']}, made at ")
    assert shown["last_at"][:19].replace("T", " ") in said
    assert shown["age_seconds"] < PATIENCE
    status, said = command(
        *("restore", file, "--recovery-key", recovery_key.private, "--data", new),
        *("--root-key", old / "keyservice" / "root.key", *UNKNOWN),
    )
    assert status == 0, said

    keys = new / "keyservice" / "keys.sqlite3"
    there = {
        (tenant, version)
        for tenant, version in ask_file(
            keys, "SELECT tenant_id, version FROM keys WHERE algorithm = 'Dilithium3'"
        )
    }
    assert {(tenant.replace("-", ""), version) for tenant, version in acknowledged} <= there
    assert not ask_file(
        keys,
        "SELECT tenant_id FROM key_revisions LEFT JOIN keys USING (tenant_id, algorithm) "
        "WHERE tenant_id != ? "  # whose checkpoint key is new since the restore
        "GROUP BY tenant_id, algorithm HAVING count(version) = 0 OR max(version) != count(version)",
        INSTALLATION.hex,
    )
    ((count, last),) = ask_file(keys, "SELECT count(*), max(id) FROM audit_records")
    assert count == last > 0
    ((changes,),) = ask_file(
        keys,
        "SELECT count(*) FROM audit_records WHERE outcome = 'success' "
        "AND operation IN ('generate-key', 'rotate-key')",
    )
    assert ask_file(keys, "SELECT count(*) FROM keys") == [(changes,)]


class Attempt:
    """A restore that must fail: its arguments, and the target folder's content."""

    def __init__(self, folder: Path, backup: Backup, recovery_key: RecoveryKey) -> None:
        self.folder = folder
        self.data = folder / "new"
        self.file = Path(shutil.copy(backup.file, folder / "backup"))
        self.recovery_key = recovery_key.private
        self.root_key = backup.root_key
        self.backup = backup
        self.options = UNKNOWN


@pytest.fixture
def attempt(tmp_path: Path, backup: Backup, recovery_key: RecoveryKey) -> Attempt:
    """A restore that would succeed."""
    return Attempt(tmp_path, backup, recovery_key)


def other_recovery_key(attempt: Attempt, command: Command) -> str:
    files = attempt.folder / "private", attempt.folder / "public"
    status, _ = command("recovery-key", "create", "--private", files[0], "--public", files[1])
    assert status == 0
    attempt.recovery_key = files[0]
    return "made for another recovery key"


def other_root_key(attempt: Attempt, _: Command) -> str:
    attempt.root_key = attempt.folder / "root.key"
    attempt.root_key.write_bytes(bytes(32))
    attempt.root_key.chmod(0o400)
    return "root key 1, which seals private keys in the backup, is not among"


def flipped_bit(attempt: Attempt, _: Command) -> str:
    data = bytearray(attempt.file.read_bytes())
    data[-20] ^= 1
    attempt.file.write_bytes(data)
    return "is damaged"


def cut_off(attempt: Attempt, _: Command) -> str:
    attempt.file.write_bytes(attempt.file.read_bytes()[:-1])
    return "is damaged"


def no_backup(attempt: Attempt, _: Command) -> str:
    attempt.file.write_bytes(b"something else")
    return "not a backup"


def no_file(attempt: Attempt, _: Command) -> str:
    attempt.file.unlink()
    return "No such file"


def full_target(attempt: Attempt, _: Command) -> str:
    attempt.data.mkdir()
    (attempt.data / "precious").write_text("precious")
    return "is not empty"


def newer_schema(attempt: Attempt, command: Command) -> str:
    data = attempt.folder / "data"
    shutil.copytree(attempt.backup.data, data, ignore=shutil.ignore_patterns("*.sock"))
    with closing(sqlite3.connect(data / "keyservice" / "keys.sqlite3")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    attempt.file.unlink()
    public = attempt.recovery_key.with_suffix(".public")
    status, said = command(
        *("backup", "--data", data, "--recovery-key", public, "--to", attempt.file)
    )
    assert status == 0, said
    return "a schema that this version of pqkeep does not know"


@pytest.mark.parametrize(
    "mistake",
    [
        other_recovery_key,
        other_root_key,
        flipped_bit,
        cut_off,
        no_backup,
        no_file,
        full_target,
        newer_schema,
    ],
)
def test_a_restore_that_is_refused(
    mistake: Callable[[Attempt, Command], str], attempt: Attempt, command: Command
) -> None:
    """A restore that does not fit ends with status 1 and the reason, and changes nothing."""
    message = mistake(attempt, command)
    before = sorted(attempt.folder.rglob("*"))
    status, said = command(
        *("restore", attempt.file, "--recovery-key", attempt.recovery_key),
        *("--root-key", attempt.root_key, "--data", attempt.data, *attempt.options),
    )
    assert (status, message in said) == (1, True), said
    assert "Traceback" not in said
    assert sorted(attempt.folder.rglob("*")) == before


def test_a_database_that_is_not_empty(
    attempt: Attempt, command: Command, new_store: Callable[[str, Path], Store]
) -> None:
    """A database with a table is not restored into, and the other database stays empty."""
    store = new_store("postgresql", attempt.data)
    accounts, keys = store.databases.accounts, store.databases.keys
    with psycopg.connect(keys) as connection:
        connection.execute("CREATE TABLE precious (id integer)")
    status, said = command(
        *("restore", attempt.file, "--recovery-key", attempt.recovery_key),
        *("--root-key", attempt.root_key, "--data", attempt.data, *options_of(store.databases)),
        *attempt.options,
    )
    assert (status, "is not empty" in said) == (1, True), said
    assert not attempt.data.exists()
    with psycopg.connect(accounts) as connection:
        tables = "SELECT count(*) FROM information_schema.tables WHERE table_schema = 'public'"
        assert connection.execute(tables).fetchall() == [(0,)]


def test_a_backup_without_a_key_service(backup: Backup) -> None:
    """Without a running key service, the log has no record of the backup. The command says so."""
    assert backup.file.stat().st_size
    assert "complete, but the key service did not record it: the key service does" in backup.said


def test_no_backup_is_overwritten(
    backup: Backup, command: Command, recovery_key: RecoveryKey
) -> None:
    """A backup to an existing file is refused, and the file is unchanged."""
    before = backup.file.read_bytes()
    status, said = command(
        *("backup", "--data", backup.data, "--recovery-key", recovery_key.public),
        *("--to", backup.file),
    )
    assert (status, "exists already" in said) == (1, True), said
    assert backup.file.read_bytes() == before


@pytest.mark.threat("stolen-backup")
def test_secrets_are_not_in_a_backup(backup: Backup) -> None:
    """The file contains no root key, pepper or tenant name in plain text."""
    data = backup.file.read_bytes()
    for secret in (
        backup.root_key.read_bytes(),
        (backup.data / "gateway" / "pepper").read_bytes(),
        b"enterprise_plus",
    ):
        assert secret not in data
