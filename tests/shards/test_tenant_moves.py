"""Tenants move between two shards by pqkeepd's commands, under load and with interruptions."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from tests.fixtures.preloaded import pqkeepd_words
from tests.patience import PATIENCE
from tests.shards.test_two_shards import RETRY, SECRET, is_readable, log_of, use

from pqkeep import Client
from pqkeep.audit import Kind, verify
from pqkeep_gateway import config as gateway_config
from pqkeep_gateway.key_client import KeyClient, UnixSocket
from pqkeep_gateway.wiring import open_placements
from pqkeep_protocol.administration import BundlePart, ExportedTenant, ExportTenant, ReadBundle
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, GenerateKey
from pqkeep_server.key_service_client import take_step
from pqkeep_server.shard_folders import add_shard
from pqkeep_server.shards import ShardError, ShardMoves

if TYPE_CHECKING:
    from tests.fixtures.caller import Caller
    from tests.shards.conftest import TwoShards

OTHER = {"default": "b", "b": "default"}


class StoppedError(Exception):
    """The command was killed."""


def quiet(_: str) -> None:
    """Show nothing."""


def moves(two_shards: TwoShards) -> ShardMoves:
    """Return the environment of the commands."""
    return ShardMoves(two_shards.layout, quiet)


def tenant_of(caller: Caller) -> TenantId:
    """Return a caller's tenant."""
    return TenantId(UUID(caller.tenant_id))


def pqkeepd(two_shards: TwoShards, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command."""
    return subprocess.run(
        [*pqkeepd_words(), *words, "--data", two_shards.layout.directory],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def shard_of(two_shards: TwoShards, caller: Caller) -> str:
    """Return the shard of the tenant's log."""
    log = log_of(caller)
    return next(name for name in OTHER if log_of(two_shards.operator, shard=name) == log)


class Load:
    """Encrypts and decrypts for a tenant, until stopped."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.encrypted: list[dict[str, Any]] = []
        self.refusals: list[tuple[int, str | None]] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> None:
        """End it."""
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ends.is_set():
            response = self.caller.ask("POST", "/kem/encrypt", {"plaintext": SECRET})
            if response.status_code == 200:
                data = response.json()["data"]
                self.encrypted.append({name: data[name] for name in ("ciphertext", "key_version")})
            else:
                self.refusals.append((response.status_code, response.headers.get(RETRY)))
                self._ends.wait(0.05)


@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_tenants_move_under_load(two_shards: TwoShards, tmp_path: Path, count: int) -> None:
    """Every ciphertext opens. Responses are results or 503. Both logs verify."""
    tenants = [two_shards.new_tenant(name) for name in OTHER for _ in range(count)]
    for tenant in tenants:
        use(tenant)
    loads = [Load(tenant) for tenant in tenants]
    try:
        for tenant in (*tenants, *tenants[:count]):
            moves(two_shards).move(tenant_of(tenant), OTHER[shard_of(two_shards, tenant)])
    finally:
        for load in loads:
            load.end()
    for tenant, load in zip(tenants, loads, strict=True):
        assert {status for status, _ in load.refusals} <= {503}
        assert all(retry is not None for _, retry in load.refusals)
        until_served(two_shards, tenant)
        for encrypted in load.encrypted:
            assert is_readable(tenant, encrypted)
    assert {shard_of(two_shards, each) for each in tenants} == {"default"}
    for name in OTHER:
        export = tmp_path / f"{name}.jsonl"
        text = two_shards.operator.ask("GET", "/audit/export", params={"shard": name}).text
        export.write_text(text)
        assert not verify([export]).findings


def until_served(two_shards: TwoShards, tenant: Caller) -> None:
    """Wait until a tenant is served."""
    two_shards.until(lambda: _serves(tenant))


def _serves(tenant: Caller) -> bool:
    return bool(tenant.ask("POST", "/kem/encrypt", {"plaintext": SECRET}).status_code == 200)


@pytest.mark.threat("concurrent-moves")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "stopped_before", [(5,), pytest.param((1, 2, 3, 4, 5), marks=pytest.mark.campaign)]
)
def test_an_interrupted_move_is_continued(
    two_shards: TwoShards, stopped_before: tuple[int, ...]
) -> None:
    """After a kill before any step, a second run leaves the complete tenant in one shard."""
    tenant = two_shards.new_tenant("default")
    encrypted = use(tenant)
    here = "default"
    for step in stopped_before:
        steps = 0

        def stop(_: str) -> None:
            nonlocal steps
            steps += 1
            if steps == step:  # noqa: B023 - it is called in this turn only
                raise StoppedError

        with pytest.raises(StoppedError):
            ShardMoves(two_shards.layout, stop).move(tenant_of(tenant), OTHER[here])
        two_shards.restart()
        mover = moves(two_shards)
        if step == 5:  # before it is served there, nothing of it is left behind
            assert [each.unfinished for each in mover.list()] == [0, 0]
        if step >= 3:  # it has left
            refused = tenant.ask("POST", "/kem/decrypt", encrypted)
            assert (refused.status_code, refused.headers[RETRY]) == (503, "1")
        mover.move(tenant_of(tenant), OTHER[here])
        here = OTHER[here]
        until_served(two_shards, tenant)
        assert is_readable(tenant, encrypted)
        assert shard_of(two_shards, tenant) == here
        assert [each.unfinished for each in mover.list()] == [0, 0]
        with pytest.raises(ShardError, match="is already in the shard"):
            mover.move(tenant_of(tenant), here)


@pytest.mark.threat("compromised-gateway")
def test_keys_that_a_gateway_made_elsewhere_stop_no_service(two_shards: TwoShards) -> None:
    """A tenant stays in service if the target shard has foreign keys of it."""
    tenant = two_shards.new_tenant("default")
    encrypted = use(tenant)
    asyncio.run(make_key_in_b(two_shards, tenant_of(tenant)))
    steps: list[str] = []
    with pytest.raises(ShardError, match=r"stays in default: b: .* already has keys of the tenant"):
        ShardMoves(two_shards.layout, steps.append).move(tenant_of(tenant), "b")
    assert not steps
    assert is_readable(tenant, encrypted)


async def make_key_in_b(two_shards: TwoShards, tenant: TenantId) -> None:
    """Make a key of a tenant in another shard, as a compromised gateway could."""
    socket = two_shards.layout.run / "keyservice-b.sock"
    client = KeyClient(UnixSocket(str(socket)), shard="b")
    connected = asyncio.create_task(client.run())
    async with asyncio.timeout(PATIENCE):
        while not await client.is_reachable():  # noqa: ASYNC110 - nobody is told of it
            await asyncio.sleep(0.05)
    request = GenerateKey(tenant=tenant, algorithm=Algorithm.X_WING, quota=None, idempotency=None)
    await client.execute(request, Attribution("", "gateway", "", ""))
    connected.cancel()
    await asyncio.wait([connected])


@pytest.mark.threat("concurrent-moves")
def test_one_command_moves_tenants_at_a_time(two_shards: TwoShards) -> None:
    """A second command is refused at once and changes nothing, and so is an outdated one."""
    tenant = two_shards.new_tenant("default")
    encrypted = use(tenant)
    refusals: list[str] = []

    def interfere(_: str) -> None:
        for meanwhile in (lambda: moves(two_shards).drain("b"), lambda: move(two_shards, "b")):
            with pytest.raises(ShardError) as refused:
                meanwhile()
            refusals.append(str(refused.value))

    def move(of: TwoShards, target: str) -> None:
        moves(of).move(tenant_of(tenant), target)

    ShardMoves(two_shards.layout, interfere).move(tenant_of(tenant), "b")
    assert {"another command is moving tenants" in each for each in refusals} == {True}
    until_served(two_shards, tenant)
    assert is_readable(tenant, encrypted)
    assert not any(each.stored.draining for each in moves(two_shards).list())


@pytest.mark.threat("concurrent-moves")
def test_a_move_that_was_overtaken_says_so(two_shards: TwoShards) -> None:
    """If the accounts database changes meanwhile, the command does not print "done"."""
    tenant = two_shards.new_tenant("default")
    encrypted = use(tenant)

    async def stay(tenant: TenantId) -> None:
        settings = gateway_config.read(two_shards.layout.gateway_settings)
        async with open_placements(settings) as placements:
            await placements.end_move(tenant, "default", "default")

    def overtake(step: str) -> None:
        if "serving" in step:  # as a command on another host would, that believes it has not left
            asyncio.run(stay(tenant_of(tenant)))

    with pytest.raises(ShardError, match="run this command again"):
        ShardMoves(two_shards.layout, overtake).move(tenant_of(tenant), "b")
    moves(two_shards).move(tenant_of(tenant), "b")
    until_served(two_shards, tenant)
    assert is_readable(tenant, encrypted)


@pytest.mark.campaign
def test_a_tenant_that_cannot_leave_stays(two_shards: TwoShards) -> None:
    """A tenant that the target refuses is served again, unless it has already left."""
    tenant = two_shards.new_tenant("default")
    encrypted = use(tenant)
    with pytest.raises(ShardError, match="keyservice-c"):
        moves(two_shards).move(tenant_of(tenant), "c")
    assert is_readable(tenant, encrypted)
    socket = two_shards.layout.operator_socket
    request = ExportTenant(tenant=tenant_of(tenant), target="elsewhere")
    take_step(socket, request, ExportedTenant)
    refused = tenant.ask("POST", "/kem/decrypt", encrypted)
    assert (refused.status_code, refused.headers[RETRY]) == (503, "1")
    with pytest.raises(ShardError, match="on its way to another shard"):
        moves(two_shards).move(tenant_of(tenant), "b")
    assert moves(two_shards).cancel(tenant_of(tenant)) == "default"
    until_served(two_shards, tenant)
    assert is_readable(tenant, encrypted)


@pytest.mark.campaign
def test_the_commands(two_shards: TwoShards) -> None:
    """The commands list shards, move a tenant, and report errors in one line."""
    tenant = two_shards.new_tenant("b")
    encrypted = use(tenant)
    moved = pqkeepd(two_shards, "shard", "move", tenant.tenant_id, "--to", "default")
    assert moved.returncode == 0, moved.stderr
    until_served(two_shards, tenant)
    assert is_readable(tenant, encrypted)
    again = pqkeepd(two_shards, "shard", "move", tenant.tenant_id, "--to", "default")
    assert (again.returncode, "is already in the shard default" in again.stderr) == (1, True)
    listed = pqkeepd(two_shards, "shard", "list").stdout.splitlines()
    assert [line.split("\t")[0] for line in listed] == ["b", "default"]
    unknown = "00000000-0000-4000-8000-000000000000"
    nobody = pqkeepd(two_shards, "shard", "move", unknown, "--to", "b")
    assert (nobody.returncode, "no such tenant" in nobody.stderr) == (1, True)


@pytest.mark.campaign
def test_a_shard_is_drained(two_shards: TwoShards) -> None:
    """While a shard drains, its tenants and new tenants go to other shards. A cancel ends this."""
    tenants = [two_shards.new_tenant("b") for _ in range(2)]
    encrypted = [use(tenant) for tenant in tenants]
    settings = two_shards.layout.gateway_settings.read_text()
    added = add_shard(two_shards.layout, "c", database="keys.sqlite3").layout
    try:
        assert moves(two_shards).drain("b") >= 2
    finally:
        shutil.rmtree(added.key_service)
        two_shards.layout.gateway_settings.write_text(settings)
    for tenant, each in zip(tenants, encrypted, strict=True):
        until_served(two_shards, tenant)
        assert is_readable(tenant, each)
    assert shard_of(two_shards, two_shards.new_tenant()) == "default"
    listed = {each.stored.name: each for each in moves(two_shards).list()}
    assert (listed["b"].stored.tenants, listed["b"].stored.draining) == (0, True)
    with pytest.raises(ShardError, match="no such shard"):
        moves(two_shards).end_draining("c")
    ended = pqkeepd(two_shards, "shard", "drain", "b", "--cancel")
    assert (ended.returncode, ended.stdout) == (0, "The shard b accepts new tenants.\n")
    assert shard_of(two_shards, two_shards.new_tenant()) == "b"


def test_a_move_is_cancelled_by_proof(two_shards: TwoShards) -> None:
    """A cancel returns the tenant if its bundle was not read, or the new shard does not have it."""
    tenant = two_shards.new_tenant("default")
    encrypted = use(tenant)

    def stop(step: str) -> None:
        if "arriving" in step:
            raise StoppedError

    for is_read in (False, True):
        with pytest.raises(StoppedError):
            ShardMoves(two_shards.layout, stop).move(tenant_of(tenant), "b")
        assert tenant.ask("POST", "/kem/decrypt", encrypted).status_code == 503
        assert [each.stored.moving for each in moves(two_shards).list()] == [0, 1]
        if is_read:
            read_bundle(two_shards, tenant_of(tenant))
            with two_shards.without("b"):
                refused = pqkeepd(two_shards, "shard", "move", tenant.tenant_id, "--cancel")
                assert (refused.returncode, "start its key service" in refused.stderr) == (1, True)
                assert tenant.ask("POST", "/kem/decrypt", encrypted).status_code == 503
            two_shards.until_serving()
        assert moves(two_shards).cancel(tenant_of(tenant)) == "default"
        until_served(two_shards, tenant)
        assert is_readable(tenant, encrypted)
    with pytest.raises(ShardError, match="is not being moved"):
        moves(two_shards).cancel(tenant_of(tenant))
    moves(two_shards).move(tenant_of(tenant), "b")
    until_served(two_shards, tenant)
    assert is_readable(tenant, encrypted)


def test_a_move_that_the_other_shard_renounced_does_not_go_on(two_shards: TwoShards) -> None:
    """After a killed cancellation at this point, the move command says to cancel."""
    tenant = two_shards.new_tenant("default")
    encrypted = use(tenant)
    steps: list[str] = []

    def stop(step: str) -> None:
        steps.append(step)
        if "arriving" in step or sum("taking it back" in each for each in steps) == 2:
            raise StoppedError

    interrupted = ShardMoves(two_shards.layout, stop)
    with pytest.raises(StoppedError):
        interrupted.move(tenant_of(tenant), "b")
    read_bundle(two_shards, tenant_of(tenant))
    with pytest.raises(StoppedError):
        interrupted.cancel(tenant_of(tenant))
    with pytest.raises(ShardError, match="--cancel"):
        moves(two_shards).move(tenant_of(tenant), "b")
    moves(two_shards).cancel(tenant_of(tenant))
    until_served(two_shards, tenant)
    assert is_readable(tenant, encrypted)


def test_the_transfer_key_changes_while_nobody_moves(two_shards: TwoShards) -> None:
    """The transfer key cannot change during a move. Afterwards all shards get the same new key."""
    tenant = two_shards.new_tenant("default")
    encrypted = use(tenant)
    files = [path.parent / "transfer.key" for path in two_shards.settings.values()]
    before = {file.read_bytes() for file in files}

    def stop(step: str) -> None:
        if "arriving" in step:
            raise StoppedError

    with pytest.raises(StoppedError):
        ShardMoves(two_shards.layout, stop).move(tenant_of(tenant), "b")
    refused = pqkeepd(two_shards, "transfer-key", "rotate")
    assert (refused.returncode, "not finished" in refused.stderr) == (1, True)
    assert {file.read_bytes() for file in files} == before
    moves(two_shards).cancel(tenant_of(tenant))
    rotated = pqkeepd(two_shards, "transfer-key", "rotate")
    assert rotated.returncode == 0, rotated.stderr
    keys = {file.read_bytes() for file in files}
    assert (len(keys), keys & before) == (1, set())
    assert not any(key.hex() in rotated.stdout + rotated.stderr for key in keys)
    assert {file.stat().st_mode & 0o777 for file in files} == {0o400}
    read_bundle(two_shards, tenant_of(tenant))
    two_shards.restart()  # the bundle is under the key that is in the files
    moves(two_shards).move(tenant_of(tenant), "b")
    shown = tenant.get("/audit/keys")  # before an operation with a key says that it has left
    assert shown["log_id"] == shown["logs"][-1]
    until_served(two_shards, tenant)
    assert is_readable(tenant, encrypted)


def test_no_tenant_leaves_under_a_key_that_one_shard_lacks(two_shards: TwoShards) -> None:
    """After an interrupted change of the transfer key a tenant stays, and is served."""
    tenant = two_shards.new_tenant("default")
    encrypted = use(tenant)
    file = two_shards.settings["b"].parent / "transfer.key"
    file.unlink()
    file.write_bytes(bytes(range(32)))
    file.chmod(0o400)
    refused = pqkeepd(two_shards, "shard", "move", tenant.tenant_id, "--to", "b")
    assert (refused.returncode, "pqkeepd transfer-key rotate" in refused.stderr) == (1, True)
    assert is_readable(tenant, encrypted)
    assert pqkeepd(two_shards, "transfer-key", "rotate").returncode == 0
    moves(two_shards).move(tenant_of(tenant), "b")
    until_served(two_shards, tenant)
    assert is_readable(tenant, encrypted)


def read_bundle(two_shards: TwoShards, tenant: TenantId) -> None:
    """Read the first part of a tenant's bundle, like a command that is then killed."""
    socket = two_shards.layout.operator_socket
    exported = take_step(socket, ExportTenant(tenant=tenant, target="b"), ExportedTenant)
    take_step(socket, ReadBundle(tenant=tenant, sha256=exported.sha256, part=0), BundlePart)


def moved_there_and_back(two_shards: TwoShards) -> tuple[Caller, list[dict[str, Any]]]:
    """Return a tenant after a move there and back, with its records from before the move."""
    tenant = two_shards.new_tenant("default")
    use(tenant)
    before = tenant.get("/audit/records", limit="200")["records"]
    for target in ("b", "default"):
        moves(two_shards).move(tenant_of(tenant), target)
        until_served(two_shards, tenant)
        use(tenant)
    return tenant, before


def pages_of(caller: Caller, **query: str) -> list[tuple[str, dict[str, Any]]]:
    """Return a caller's records by page, each with its log."""
    place = "before" if query.get("order") == "desc" else "after"
    found: list[tuple[str, dict[str, Any]]] = []
    while True:
        page = caller.get("/audit/records", **query)
        assert len(page["records"]) <= int(query["limit"])
        found += zip(page["logs"], page["records"], strict=True)
        if page["next"] is None:
            return found
        query[place] = page["next"]


@pytest.mark.timeout(300)
def test_a_moved_tenants_records_are_one_list(two_shards: TwoShards, tmp_path: Path) -> None:
    """Records, search, proofs, keys and exports cover all logs with the tenant's records."""
    tenant, before = moved_there_and_back(two_shards)
    logs = [log_of(two_shards.operator, shard=name) for name in ("default", "b")]
    keys = tenant.get("/audit/keys")
    assert (keys["log_id"], keys["logs"]) == (logs[0], logs)
    ascending = pages_of(tenant, limit="7")
    assert [record for _, record in ascending[: len(before)]] == before
    times = [record["recorded_at"] for _, record in ascending]
    assert times == sorted(times)
    in_logs = {(log, record["id"]) for log, record in ascending}
    assert len(in_logs) == len(ascending)
    assert {log for log, _ in ascending} == set(logs)
    descending = pages_of(tenant, limit="5", order="desc")
    assert descending[::-1] == ascending
    operations = [record["operation"] for _, record in ascending]
    assert operations.count("sign") == 3
    assert len(pages_of(tenant, limit="1", operation="sign")) == 3
    polled = tenant.get("/audit/records", after=str(before[-1]["id"]), limit="500")
    assert len(polled["records"]) == len(ascending) - len(before)
    for log in logs:
        one = tenant.get("/audit/records", log=log, limit="500")
        assert "logs" not in one
        assert one["records"] == [record for its, record in ascending if its == log]
        record = one["records"][0]
        path, its_log = f"/audit/records/{record['id']}/proof", {"log": log}
        # a proof needs a checkpoint, which comes within moments
        two_shards.until(partial(_is_answered, tenant, path, its_log))
        proof = tenant.get(path, log=log)
        assert (proof["record"], proof["checkpoint"]["log_id"]) == (record, log)
        assert tenant.get("/audit/keys", log=log)["log_id"] == log
    stranger = two_shards.new_tenant("b")
    assert stranger.ask("GET", "/audit/records", params={"log": logs[0]}).status_code == 404
    assert stranger.get("/audit/keys").keys() == {"log_id", "keys", "note_key"}
    trusted = tmp_path / "keys.jsonl"
    trusted.write_text(
        "".join(tenant.ask("GET", "/audit/keys", params={"log": log}).text + "\n" for log in logs)
    )
    export = tmp_path / "export.jsonl"
    with Client(two_shards.url, api_key=tenant.client.headers["X-API-Key"]) as client:
        assert client.audit.export(export) == len(ascending)
        assert len(list(client.audit.records(page_size=9))) == len(ascending)
    report = verify([export], trusted)
    assert (report.findings, report.log_id) == ((), logs[1])
    assert [each.log_id for each in report.earlier] == logs[:1]
    every = [*report.earlier[0].portions, *report.portions]
    assert sum(each.records for each in every) == len(ascending)
    lines = export.read_text().splitlines(keepends=True)
    record = next(n for n, line in enumerate(lines) if line.startswith('{"type":"record"'))
    for changed, kinds in (
        ([*lines[:record], *lines[record + 1 :]], {Kind.MISSING, Kind.WRONG_COUNT}),
        ([line.replace('"sign"', '"verify"') for line in lines], {Kind.EDITED}),
        (lines[:-1], {Kind.TRUNCATED}),
    ):
        export.write_text("".join(changed))
        assert {each.kind for each in verify([export], trusted).findings} == kinds
    with two_shards.without("b"):
        for path in ("records", "export"):
            refused = tenant.ask("GET", f"/audit/{path}")
            assert (refused.status_code, RETRY in refused.headers) == (503, True)


def test_a_moved_tenants_usage_is_counted_once(two_shards: TwoShards) -> None:
    """The used quota and the count of each operation are the same before and after moves."""
    tenant = two_shards.new_tenant("default")
    use(tenant)
    for target in ("b", "default"):
        before = tenant.get("/usage", period="30d")
        moves(two_shards).move(tenant_of(tenant), target)
        until_served(two_shards, tenant)
        served = {"encrypt": 1}  # by the question whether it is served
        after = tenant.get("/usage", period="30d")
        now, then = (each["buckets"][-1]["operations"] for each in (after, before))
        assert now == {**then, "encrypt": then["encrypt"] + served["encrypt"]}
        assert after["total"] == before["total"] + 1
        assert after["operations_used"] == before["operations_used"]
        of_all = two_shards.operator.get("/usage", period="30d", tenant_id=tenant.tenant_id)
        assert of_all["total"] == after["total"]


def _is_answered(caller: Caller, path: str, query: dict[str, str]) -> bool:
    return caller.ask("GET", path, params=query).is_success
