"""Backups of an installation with two shards: complete, consistent, and of its own shards only."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa
from msgspec import structs
from tests.shards.conftest import TwoShards, running
from tests.shards.test_tenant_moves import (
    OTHER,
    StoppedError,
    moves,
    pqkeepd,
    shard_of,
    tenant_of,
    until_served,
)
from tests.shards.test_two_shards import is_readable, use

from pqkeep.audit import verify
from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.sealing import Sealer
from pqkeep_protocol.startup.settings import ConfigError, DatabaseAddress
from pqkeep_server.backup import create as backups
from pqkeep_server.backup.announcement import OldBackupError, announce, require_newest
from pqkeep_server.backup.authentication import AuthenticBackup, authenticate
from pqkeep_server.backup.contents import End, Message, Rows, Tag, finish, write
from pqkeep_server.backup.create import BackupError, backup
from pqkeep_server.backup.databases import ACCOUNTS, Database, keys_of, snapshot
from pqkeep_server.backup.encrypted_file import BackupFileError, BackupNumber, Origin, Writer
from pqkeep_server.backup.placements import unsettled
from pqkeep_server.backup.recovery_key import create as create_recovery_key
from pqkeep_server.backup.recovery_key import read_public
from pqkeep_server.backup.restore import RestoreError, Target, drill, restore
from pqkeep_server.backup.restored_files import settings_to_choose
from pqkeep_server.initialise import Layout
from pqkeep_server.shards import ShardMoves

if TYPE_CHECKING:
    from tests.fixtures.caller import Caller

# on a server not in campaigns only: there, what is read lazily fails
pytestmark = pytest.mark.parametrize(
    "running_shards", ["sqlite", "postgresql"], indirect=True, scope="module"
)
START = 'gateways = 1\nvalkey_server = "/bin/false"\n'


def quiet(_: str) -> None:
    """Show nothing."""


@pytest.fixture(autouse=True)
def private_files() -> Iterator[None]:
    """Make private files, like the commands."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@dataclass(frozen=True)
class Kept:
    """The files kept beside backups: a recovery key, and the root keys of all shards."""

    folder: Path
    root_keys: list[RootKeySource]

    @property
    def private(self) -> Path:
        """The private half of the recovery key."""
        return self.folder / "recovery.private"

    @property
    def public(self) -> Path:
        """The public half."""
        return self.folder / "recovery.public"

    def backup(self, two_shards: TwoShards, name: str) -> AuthenticBackup:
        """Make a backup, and read its file."""
        file = self.folder / name
        asyncio.run(backup(two_shards.layout, self.public, file, version="0", report=quiet))
        return self.read(file)

    def read(self, file: Path) -> AuthenticBackup:
        """Authenticate a file."""
        return authenticate(file, self.private, self.root_keys)

    def begin(self, name: str, origin: Origin) -> tuple[BinaryIO, Writer]:
        """Begin a file."""
        opened = (self.folder / name).open("wb")
        (self.folder / name).chmod(0o600)
        return opened, Writer(opened, read_public(self.public), origin)


@pytest.fixture(scope="module")
def kept(running_shards: TwoShards, tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A recovery key, and the root keys."""
    folder = tmp_path_factory.mktemp("kept")
    create_recovery_key("X-Wing", folder / "recovery.private", folder / "recovery.public")
    root_keys = []
    for shard, settings in running_shards.settings.items():
        copy = folder / f"{shard}.key"
        shutil.copy(settings.with_name("root.key"), copy)
        root_keys.append(RootKeySource(file=copy))
    running_shards.layout.start_settings.write_text(START)
    return Kept(folder, root_keys)


@dataclass(frozen=True)
class Two:
    """Two backups, with a move of a tenant to the other shard between them."""

    older: AuthenticBackup
    newer: AuthenticBackup
    moved: Caller
    tenants: Mapping[str, tuple[Caller, dict[str, object]]]
    """One tenant for each shard of the newer backup, with its ciphertexts."""


@pytest.fixture(scope="module")
def two(running_shards: TwoShards, kept: Kept) -> Two:
    """Make them."""
    running_shards.until_serving()
    tenants = {shard: running_shards.new_tenant(shard) for shard in OTHER}
    moved = running_shards.new_tenant("default")
    encrypted = {name: use(each) for name, each in (*tenants.items(), ("moved", moved))}
    older = kept.backup(running_shards, "older")
    moves(running_shards).move(tenant_of(moved), "b")
    until_served(running_shards, moved)
    newer = kept.backup(running_shards, "newer")
    return Two(
        older,
        newer,
        moved,
        {
            **{name: (each, encrypted[name]) for name, each in tenants.items()},
            "b, since it was moved": (moved, encrypted["moved"]),
        },
    )


@pytest.mark.timeout(300)
def test_an_installation_of_two_shards_is_restored(
    two_shards: TwoShards, kept: Kept, two: Two, tmp_path: Path
) -> None:
    """One file restores all shards: each tenant is in one shard, and each log continues.

    The shards' settings equal the restored installation's settings. start.toml names no program,
    and tenants can be moved.
    """
    choices = settings_to_choose(two.newer.manifest, two.newer.origin.shards)
    assert not choices.keys() & {"shard", "shards", "transfer_key_file", "gateways"}
    data = tmp_path / "data"
    logs = asyncio.run(restore(two.newer, Target(data), keep=(), report=quiet)).logs
    origins = two.newer.origin.shards
    assert logs.keys() == origins.keys() == OTHER.keys()
    assert not {str(each) for each in logs.values()} & {each.log_id for each in origins.values()}
    layout = Layout(data)
    assert layout.start_settings.read_text() == "gateways = 1\n"
    settings = {name: Layout(data, name).key_service_settings for name in OTHER}
    transfer_keys = {each.with_name("transfer.key").read_bytes() for each in settings.values()}
    assert len(transfer_keys) == 1
    assert transfer_keys != {two_shards.settings["b"].with_name("transfer.key").read_bytes()}
    made = TwoShards(layout, two_shards.operator_key, settings, tmp_path / "sink")
    with running(made) as restored:
        for name, (tenant, encrypted) in two.tenants.items():
            again = restored.caller(tenant.client.headers["X-API-Key"], tenant.tenant_id)
            assert is_readable(again, encrypted)
            assert shard_of(restored, again) == name[:7].partition(",")[0]
        for shard in OTHER:
            export = tmp_path / shard
            asked = restored.operator.ask("GET", "/audit/export", params={"shard": shard})
            export.write_text(asked.text)
            found = verify([export])
            assert not found.findings
            assert str(found.log_id) == str(logs[shard])
            assert str(found.continued[0].log_id) == origins[shard].log_id
        again = restored.caller(two.moved.client.headers["X-API-Key"], two.moved.tenant_id)
        moves(restored).move(tenant_of(two.moved), "default")
        until_served(restored, again)
        assert is_readable(again, two.tenants["b, since it was moved"][1])


def test_each_shard_is_told_of_a_backup(two_shards: TwoShards, two: Two) -> None:
    """The newest backup of every shard is the announced one."""
    before = two_shards.operator.get("/installation")
    assert before["backups"]["last_number"] is None
    announce(two_shards.layout, two.newer.origin)
    number = str(two.newer.origin.number)

    def is_shown() -> bool:
        told = two_shards.operator.get("/installation")
        at = {each["last_backup_at"] for each in told["shards"]}
        return bool(told["backups"]["last_number"] == number and at == {told["backups"]["last_at"]})

    two_shards.until(is_shown)


@pytest.mark.campaign
def test_the_commands_back_up_and_drill(two_shards: TwoShards, kept: Kept) -> None:
    """Pqkeepd backup prints a number for each shard, and a drill examines all shards."""
    file = kept.folder / "by-command"
    said = pqkeepd(two_shards, "backup", "--recovery-key", str(kept.public), "--to", str(file))
    assert said.returncode == 0, said.stderr
    number = kept.read(file).origin.number
    assert set(number.shards) == OTHER.keys()
    assert f"backup {number}, made at" in said.stdout
    assert BackupNumber.parse(str(number)) == number
    found = asyncio.run(drill(kept.read(file), report=quiet))
    assert found.records > sum(each.records for each in number.shards.values())


def test_a_backup_is_older_by_any_shard(two: Two) -> None:
    """The newest known backup number counts for each shard, also for a missing one."""
    newest = two.newer.origin.number
    require_newest(two.newer.origin, newest)
    require_newest(two.newer.origin, two.older.origin.number)
    require_newest(two.newer.origin, BackupNumber.parse("0.1"))
    for known in (newest, BackupNumber.parse(f"b:{newest.shards['b']}")):
        with pytest.raises(OldBackupError, match=r"in the shard"):
            require_newest(two.older.origin, known)
    alone = structs.replace(two.newer.origin, others={})
    with pytest.raises(OldBackupError, match="in the shard b"):
        require_newest(alone, newest)


# --- Forgeries ----------------------------------------------------------------------------


def mixed(
    two: Two,
    source: AuthenticBackup,
    databases: Collection[str],
    rename: Mapping[str, str],
) -> Iterator[Message]:
    """Yield the newer backup with some databases of another backup, or with other names."""
    yield two.newer.manifest
    counts: dict[str, dict[str, int]] = {}
    for taken, is_source in ((two.newer, False), (source, True)):
        for each in taken.messages():
            if isinstance(each, Rows) and (each.database in databases) is is_source:
                name = rename.get(each.database, each.database)
                yield Rows(name, each.table, each.columns, each.rows)
            elif isinstance(each, End):
                counts |= {
                    rename.get(name, name): of_tables
                    for name, of_tables in each.counts.items()
                    if (name in databases) is is_source
                }
    yield End(counts=counts)


FORGERIES: Mapping[str, Callable[[Two], Iterator[Message]]] = {
    "a part of an older backup": lambda two: mixed(two, two.older, {"keys-b"}, {}),
    "parts in each other's place": lambda two: mixed(
        two, two.newer, (), {"keys": "keys-b", "keys-b": "keys"}
    ),
    "nothing changed": lambda two: mixed(two, two.newer, (), {}),
}


def written(
    kept: Kept, origin: Origin, messages: Iterable[Message], sealers: Mapping[str, Sealer]
) -> Path:
    """Write a backup."""
    name = str(uuid4())
    file, writer = kept.begin(name, origin)
    for each in messages:
        if isinstance(each, End):
            finish(writer, each.counts, sealers)
        else:
            write(writer, each)
    file.close()
    return kept.folder / name


@pytest.mark.parametrize("held", OTHER)
@pytest.mark.parametrize("forgery", FORGERIES)
def test_one_shards_root_key_forges_no_backup(
    kept: Kept, two: Two, forgery: str, held: str
) -> None:
    """The root key of one shard is not enough to write or mix backups of both shards."""
    sealers = {
        **dict.fromkeys(OTHER, Sealer({1: Secret(bytes(32))})),
        held: two.newer.sealers[held],
    }
    file = written(kept, two.newer.origin, FORGERIES[forgery](two), sealers)
    with pytest.raises(BackupFileError, match=f"forged: .* of the shard {OTHER[held]}"):
        kept.read(file)


def test_a_shards_tag_is_not_left_out(kept: Kept, two: Two) -> None:
    """A backup that ends before the last shard's tag is damaged."""
    file, writer = kept.begin("cut", two.newer.origin)
    for each in mixed(two, two.newer, (), {}):
        write(writer, each)
    root_key = two.newer.origin.shards["default"].newest_root_key
    tag = two.newer.sealers["default"].backup_tag(root_key, writer.digest.digest())
    write(writer, Tag(tag))
    writer.finish()
    file.close()
    with pytest.raises(BackupFileError, match="damaged"):
        kept.read(kept.folder / "cut")


def test_another_installations_shard_is_refused(kept: Kept, two: Two) -> None:
    """A part that is sealed under another root key is not read."""
    foreign = Sealer({1: Secret(bytes(32))})
    part = structs.replace(two.newer.origin.others["b"], root_keys={1: foreign.check_value(1)})
    origin = structs.replace(two.newer.origin, others={"b": part})
    sealers = {**two.newer.sealers, "b": foreign}
    file = written(kept, origin, mixed(two, two.newer, (), {}), sealers)
    with pytest.raises(ConfigError, match="root key 1 of the shard b"):
        kept.read(file)


def test_parts_of_two_moments_are_not_restored(kept: Kept, two: Two, tmp_path: Path) -> None:
    """Parts of two moments are refused even with all root keys: a tenant would be in no shard."""
    origin = structs.replace(two.newer.origin, others=two.older.origin.others)
    messages = mixed(two, two.older, {"keys-b"}, {})
    mixture = kept.read(written(kept, origin, messages, two.newer.sealers))
    for taken, named in (
        (mixture, "in no shard of the backup, or in several"),
        (kept.read(written(kept, *_swapped(two), two.newer.sealers)), "belongs to the shard"),
    ):
        with pytest.raises(RestoreError, match=named):
            asyncio.run(restore(taken, Target(tmp_path / "data"), keep=(), report=quiet))
        assert not list(tmp_path.iterdir())


def _swapped(two: Two) -> tuple[Origin, Iterator[Message]]:
    """Return the newer backup with its two databases swapped."""
    return two.newer.origin, FORGERIES["parts in each other's place"](two)


# --- Moves --------------------------------------------------------------------------------


@pytest.mark.timeout(300)
def test_no_backup_has_a_tenant_twice_or_not_at_all(
    two_shards: TwoShards, kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup during a move is complete or refused, whatever moments its databases are from.

    The databases are copied before each step of a move there and back. A backup is accepted only if
    each tenant's keys are in exactly one shard, and the accounts name this shard.
    """
    monkeypatch.setattr(backups, "TRIES", 1)
    if two_shards.is_on_server:
        pytest.skip("copies files")
    tenant = two_shards.new_tenant("default")
    use(tenant)
    moments: list[Path] = []

    def copy(_: str) -> None:
        moments.append(folder := tmp_path / f"{len(moments):02}")
        for name in DATABASES:
            (folder / name).parent.mkdir(parents=True)
            source = sqlite3.connect(two_shards.layout.directory / name)
            with closing(source), closing(sqlite3.connect(folder / name)) as target:
                source.backup(target)

    mover = ShardMoves(two_shards.layout, copy)
    mover.move(tenant_of(tenant), "b")
    mover.move(tenant_of(tenant), "default")
    copy("")
    outcomes = asyncio.run(outcomes_of(moments, tenant))
    assert {is_taken for is_taken, _ in outcomes} == {True, False}
    assert all(is_whole for is_taken, is_whole in outcomes if is_taken)
    stopped = iter((False, True))

    def stop(_: str) -> None:
        if next(stopped):
            raise StoppedError

    with pytest.raises(StoppedError):
        ShardMoves(two_shards.layout, stop).move(tenant_of(tenant), "b")
    with pytest.raises(BackupError, match=f"tenant {tenant.tenant_id} is being moved"):
        kept.backup(two_shards, "while it moves")
    assert not (kept.folder / "while it moves").exists()
    moves(two_shards).move(tenant_of(tenant), "b")
    kept.backup(two_shards, "afterwards")
    stops = iter((False, False, True))

    def stop_at_arriving(_: str) -> None:
        if next(stops):
            raise StoppedError

    with pytest.raises(StoppedError):
        ShardMoves(two_shards.layout, stop_at_arriving).move(tenant_of(tenant), "default")
    with pytest.raises(BackupError, match=f"tenant {tenant.tenant_id} is being moved"):
        kept.backup(two_shards, "while it moves")
    moves(two_shards).cancel(tenant_of(tenant))
    kept.backup(two_shards, "after it came back")


DATABASES = ("gateway/accounts.sqlite3", "keyservice/keys.sqlite3", "keyservice-b/keys.sqlite3")


async def outcomes_of(moments: Sequence[Path], tenant: Caller) -> list[tuple[bool, bool]]:
    """Return for each choice of moments whether a backup is accepted, and whether it is complete.

    The accounts are read before the keys.
    """
    async with AsyncExitStack() as stack:
        kinds = (ACCOUNTS, keys_of("default"), keys_of("b"))
        opened = [
            [
                await stack.enter_async_context(
                    snapshot(Database(kind, DatabaseAddress(str(folder / name))))
                )
                for kind, name in zip(kinds, DATABASES, strict=True)
            ]
            for folder in moments
        ]
        outcomes = []
        for first, default, b in itertools.product(range(len(moments)), repeat=3):
            if first > min(default, b):
                continue
            accounts = opened[first][0]
            shards = {"default": opened[default][1], "b": opened[b][2]}
            is_taken = await unsettled(accounts, shards) is None
            has = [name for name, run in shards.items() if await run(has_keys, tenant)]
            outcomes.append((is_taken, has == [await accounts(placement, tenant)]))
        return outcomes


def has_keys(connection: sa.Connection, tenant: Caller) -> bool:
    """Return whether a shard has keys of the tenant."""
    query = sa.text("SELECT count(*) FROM keys WHERE tenant_id = :id")
    found = connection.execute(query, {"id": UUID(tenant.tenant_id).hex}).scalar_one()
    return bool(found)


def placement(connection: sa.Connection, tenant: Caller) -> str:
    """Return the tenant's shard in the accounts."""
    query = sa.text("SELECT shard FROM tenants WHERE id = :id")
    found = connection.execute(query, {"id": UUID(tenant.tenant_id).hex}).scalar_one()
    return str(found)
