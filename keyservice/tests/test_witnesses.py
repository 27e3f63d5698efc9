"""Witnesses: their cosignatures are verified, their problems told, and forks remembered."""

from __future__ import annotations

import asyncio
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import msgspec
import pytest
from tests.fixtures import witness as tool

from pqkeep_keyservice.audit import witnesses as module
from pqkeep_keyservice.config import Config, Witness
from pqkeep_keyservice.wiring import wire
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    MAX_WITNESS_RESPONSE,
    Checkpoint,
    GetNote,
    ListAuditKeys,
    ListCheckpoints,
    ListRecords,
    ListWitnesses,
    ReportSubmission,
    SignCheckpoint,
    Submission,
    TakeSubmissions,
    WitnessProblem,
    WitnessState,
)
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution, GenerateKey
from pqkeep_protocol.startup.settings import ConfigError, converted

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Location, Sql

    from pqkeep_keyservice.keys.sealing import Sealer
    from pqkeep_keyservice.live.worker_processes import WorkerSettings

BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
ORIGIN = "pqkeep.example/audit"
ML_DSA = Algorithm.ML_DSA_65
BY = Attribution("request-1", "gateway", "", "")


def vouched(text: bytes) -> bytes:
    """Return a cosigned tree's text: the lines after the proof."""
    return text.partition(b"\n\n")[2]


class Log:
    """A log with witnesses, and the gateway that carries between them."""

    def __init__(self, service: InProcessService, tenant: TenantId) -> None:
        self._service, self._tenant = service, tenant

    async def ask(self, request: Any) -> Any:
        return await self._service.execute(request, BY)

    async def grow(self, records: int = 1) -> Checkpoint:
        for _ in range(records):
            request = GenerateKey(tenant=self._tenant, algorithm=ML_DSA, quota=0)
            with pytest.raises(KeyServiceError):
                await self.ask(request)
        sign = SignCheckpoint(tenant=INSTALLATION, algorithm=ML_DSA)
        return cast("Checkpoint", (await self.ask(sign)).checkpoint)

    @property
    def states(self) -> list[Any]:
        return self._service.parts.witnesses._states

    async def take(self) -> tuple[Submission, ...]:
        for state in self.states:
            state.due = 0.0
        taken = await self.ask(TakeSubmissions(tenant=INSTALLATION))
        return cast("tuple[Submission, ...]", taken.submissions)

    async def report(self, submission: Submission, response: tool.Response) -> WitnessState:
        report = ReportSubmission(
            tenant=INSTALLATION,
            id=submission.id,
            status=response.status,
            content=response.body[:MAX_WITNESS_RESPONSE],
        )
        await self.ask(report)
        return await self.state()

    async def carry(self, respond: Callable[[bytes], tool.Response]) -> WitnessState:
        (submission,) = await self.take()
        return await self.report(submission, respond(submission.body))

    async def state(self) -> WitnessState:
        found = await self.ask(ListWitnesses(tenant=INSTALLATION))
        return cast("WitnessState", found.witnesses[0])

    async def note(self, covering: int | None = None) -> str:
        return str((await self.ask(GetNote(tenant=INSTALLATION, covering=covering))).text)

    async def key(self) -> str:
        return str((await self.ask(ListAuditKeys(tenant=INSTALLATION))).note_key)

    async def newest(self) -> Checkpoint:
        request = ListCheckpoints(tenant=INSTALLATION, after=None, algorithm=ML_DSA)
        return cast("Checkpoint", (await self.ask(request)).checkpoints[0])

    async def conflicts(self) -> list[tuple[str, str, str]]:
        request = ListRecords(tenant=INSTALLATION, operations=("witness-conflict",))
        found = [msgspec.json.decode(line) for line in (await self.ask(request)).lines]
        return [(one["outcome"], one["request_id"], one["target"]) for one in found]


@pytest.fixture
def one() -> tool.Witness:
    """Return an honest witness."""
    return tool.Witness()


NewLog = Callable[..., "InProcessService"]


@pytest.fixture
async def new_log(
    location: Location, sealer: Sealer, worker_settings: WorkerSettings, settings: Path
) -> Any:
    """Return a function that serves the database anew, with these witnesses."""
    from keyservice.tests.conftest import InProcessService  # noqa: PLC0415

    from pqkeep_keyservice.storage.store import KeyStore  # noqa: PLC0415

    database = await location.open()
    parts = []

    async def new(*witnesses: tool.Witness, origin: str = ORIGIN) -> InProcessService:
        store = KeyStore(database, sealer)
        await store.check()
        tables = [Witness(url="https://witness.example/log", key=one.vkey) for one in witnesses]
        wired = wire(store, sealer, worker_settings, settings, origin=origin, witnesses=tables)
        parts.append(wired)
        return InProcessService(wired)

    yield new
    for wired in parts:
        wired.close()
    await database.close()


@BOTH
async def test_a_cosignature_is_verified_stored_and_shown(
    new_log: Any, tenant: TenantId, one: tool.Witness
) -> None:
    """A witness cosigns under the operator's name, then the grown log; notes and lists show it."""
    log = Log(await new_log(one), tenant)
    first = await log.grow()
    one.trust(await log.key())
    assert (await log.state()).size is None
    before = int(time.time())
    state = await log.carry(one.add_checkpoint)
    assert (state.name, state.origin, state.size) == (one.name, ORIGIN, first.size)
    assert state.problem is None
    assert state.at is not None
    assert state.at >= before
    assert await log.take() == ()
    second = await log.grow(5)
    assert (await log.carry(one.add_checkpoint)).size == second.size
    assert one.requests[1].startswith(b"old %d\n" % first.size)
    shown = await log.newest()
    assert [(each.witness, each.origin) for each in shown.cosignatures] == [(one.name, ORIGIN)]
    note = await log.note()
    assert note.startswith(f"{ORIGIN}\n{second.size}\n")
    assert tool.is_signed(note, await log.key())
    assert tool.is_signed(note, one.vkey)
    third = await log.grow()
    assert one.name not in await log.note()
    assert await log.note(covering=second.size) == note
    assert (await log.note(covering=third.size)).startswith(f"{ORIGIN}\n{third.size}\n")


async def test_ed25519_witnesses_cosign_too(new_log: Any, tenant: TenantId) -> None:
    """A witness with an Ed25519 key, as most have today, cosigns."""
    one = tool.Witness(kind=tool.ED25519)
    log = Log(await new_log(one), tenant)
    checkpoint = await log.grow()
    one.trust(await log.key())
    assert (await log.carry(one.add_checkpoint)).size == checkpoint.size
    assert tool.is_signed(await log.note(), one.vkey)


def _replayed(one: tool.Witness) -> Callable[[bytes], tool.Response]:
    """Return a witness that repeats its first cosignature."""
    kept: list[tool.Response] = []

    def respond(body: bytes) -> tool.Response:
        kept.append(one.add_checkpoint(body))
        return kept[0]

    return respond


def _cosigns(**changes: Any) -> Callable[[tool.Witness], Callable[[bytes], tool.Response]]:
    """Return a witness that cosigns another note."""

    def change(one: tool.Witness) -> Callable[[bytes], tool.Response]:
        def respond(body: bytes) -> tool.Response:
            origin, size, root = vouched(body).decode().split("\n")[:3]
            tree: dict[str, Any] = {"origin": origin, "size": int(size), "root": b64decode(root)}
            tree |= changes
            return tool.Response(200, one.cosign(**tree).encode())

        return respond

    return change


def _always(response: tool.Response) -> Callable[[tool.Witness], Any]:
    return lambda _: lambda _: response


def _other(_: tool.Witness) -> Callable[[bytes], tool.Response]:
    """Return a witness of the same name with another key."""
    return _cosigns()(tool.Witness())


BAD = WitnessProblem.BAD_RESPONSE
HOSTILE = {
    "replay": (_replayed, BAD),
    "another origin": (_cosigns(origin="other.example/log"), BAD),
    "another size": (_cosigns(size=1), BAD),
    "another root": (_cosigns(root=bytes(32)), BAD),
    "no time": (_cosigns(seconds=0), BAD),
    "a time far ahead": (_cosigns(seconds=2**40), BAD),
    "another key": (_other, BAD),
    "empty": (_always(tool.Response(200)), BAD),
    "garbage": (_always(tool.Response(200, bytes(range(256)) * 256)), BAD),
    "half a line": (_always(tool.Response(200, "\u2014 witness.example/w1 AAAA".encode())), BAD),
    "short": (_always(tool.Response(200, "\u2014 witness.example/w1 AAAA\n".encode())), BAD),
    "redirect": (_always(tool.Response(302, b"https://elsewhere.example")), BAD),
    "garbage for a size": (_always(tool.Response(409, b"-1\n")), BAD),
    "a size of many digits": (_always(tool.Response(409, b"9" * 60_000)), BAD),
    "unknown log": (_always(tool.Response(404)), WitnessProblem.UNKNOWN_LOG),
    "unknown key": (_always(tool.Response(403)), WitnessProblem.UNKNOWN_KEY),
    "no response": (_always(tool.Response(0)), WitnessProblem.UNREACHABLE),
    "an error": (_always(tool.Response(500)), BAD),
}


@pytest.mark.threat("hostile-witness")
async def test_a_bad_response_is_no_cosignature(
    new_log: Any, tenant: TenantId, one: tool.Witness
) -> None:
    """A bad response gives no cosignature and reports its problem.

    The next good response clears it.
    """
    log = Log(await new_log(one), tenant)
    await log.grow()
    one.trust(await log.key())
    for case, (change, problem) in HOSTILE.items():
        respond = change(one)
        if case == "replay":
            await log.carry(respond)
        checkpoint = await log.grow()
        state = await log.carry(respond)
        assert state.problem is problem, case
        assert state.size != checkpoint.size, case
        assert (await log.newest()).cosignatures == (), case
        (submission,) = await log.take()
        state = await log.report(submission, one.add_checkpoint(submission.body))
        if state.problem is not None:  # the replayed one had cosigned: 409, and at once again
            state = await log.carry(one.add_checkpoint)
        assert (state.size, state.problem) == (checkpoint.size, None), case
    assert await log.conflicts() == []


async def test_failures_wait_longer_and_longer(
    new_log: Any, tenant: TenantId, one: tool.Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without progress nothing is submitted; failures double the pause, up to an hour."""
    service = await new_log(one)
    log = Log(service, tenant)
    await log.grow()
    (state,) = await service.parts.witnesses._read_states()
    pauses = []
    for _ in range(9):
        await log.carry(lambda _: tool.Response(0))
        pauses.append(round(state.due - asyncio.get_running_loop().time()))
        assert (await log.ask(TakeSubmissions(tenant=INSTALLATION))).submissions == ()
    assert pauses == [60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


async def test_one_gateway_has_a_submission(
    new_log: Any, tenant: TenantId, one: tool.Witness
) -> None:
    """One of several gateways gets the submission, until its lease ends.

    A late report changes nothing.
    """
    log = Log(await new_log(one), tenant)
    await log.grow()
    one.trust(await log.key())
    (submission,) = await log.take()
    assert await log.take() == ()
    cosigned = one.add_checkpoint(submission.body)
    unknown = Submission(uuid4(), submission.url, submission.body)
    assert (await log.report(unknown, cosigned)).size is None
    assert (await log.report(submission, cosigned)).size is not None
    assert (await log.report(submission, tool.Response(404))).problem is None
    await log.grow()
    (withheld,) = await log.take()
    log.states[0].taken.expires = 0.0
    assert (await log.ask(TakeSubmissions(tenant=INSTALLATION))).submissions == ()
    assert (await log.state()).problem is WitnessProblem.UNREACHABLE
    state = await log.report(withheld, one.add_checkpoint(withheld.body))
    assert state.problem is WitnessProblem.UNREACHABLE
    await log.carry(one.add_checkpoint)  # 409, and then from the witness's size
    assert (await log.carry(one.add_checkpoint)).problem is None


@BOTH
@pytest.mark.threat("keys-database-rollback")
async def test_a_fork_is_noticed_and_remembered(
    new_log: Any, tenant: TenantId, one: tool.Witness, sql: Sql
) -> None:
    """More records or another root at the witness is a conflict until it cosigns again."""
    log = Log(await new_log(one), tenant)
    await log.grow()
    one.trust(await log.key())
    await log.carry(one.add_checkpoint)
    honest = dict(one.trees)
    one.trees[ORIGIN] = 1000, bytes(32)  # records that this log does not have
    await log.grow()
    assert (await log.carry(one.add_checkpoint)).problem is WitnessProblem.CONFLICT
    begun = ("begun", one.name, ORIGIN)
    assert await log.conflicts() == [begun]
    again = Log(await new_log(one), tenant)
    assert (await again.state()).problem is WitnessProblem.CONFLICT
    assert (await again.carry(lambda _: tool.Response(0))).problem is WitnessProblem.CONFLICT
    one.trees[ORIGIN] = 2, bytes(32)  # other records than this log has
    await again.grow()
    assert (await again.carry(one.add_checkpoint)).problem is WitnessProblem.CONFLICT
    assert (await again.carry(one.add_checkpoint)).problem is WitnessProblem.CONFLICT
    assert await again.conflicts() == [begun]
    other = Log(await new_log(one, origin="pqkeep.example/second"), tenant)
    assert (await other.state()).problem is None
    one.trees = honest
    ended = Log(await new_log(one), tenant)
    await ended.carry(one.add_checkpoint)
    state = await ended.state()
    assert (state.problem, (await ended.newest()).cosignatures != ()) == (None, True)
    assert await ended.conflicts() == [begun, ("completed", one.name, ORIGIN)]
    assert (await Log(await new_log(one), tenant).state()).problem is None


@pytest.mark.threat("keys-database-rollback")
async def test_a_hostile_witness_has_one_conflict_a_day(
    new_log: Any, tenant: TenantId, one: tool.Witness
) -> None:
    """A witness that alternates between conflicts and cosignatures has one record of each a day."""
    log = Log(await new_log(one), tenant)
    await log.grow()
    one.trust(await log.key())
    await log.carry(one.add_checkpoint)
    for _ in range(2):
        for _ in range(3):
            await log.grow()
            state = await log.carry(lambda _: tool.Response(422))
            assert state.problem is WitnessProblem.CONFLICT
            assert (await log.carry(one.add_checkpoint)).problem is None
        assert await log.conflicts() == [
            ("begun", one.name, ORIGIN),
            ("completed", one.name, ORIGIN),
        ]
        log = Log(await new_log(one), tenant)
    await log.state()
    log.states[0].recorded_on -= 1
    await log.grow()
    await log.carry(lambda _: tool.Response(422))
    assert len(await log.conflicts()) == 3


async def test_a_witness_that_lost_its_state_starts_again(
    new_log: Any, tenant: TenantId, one: tool.Witness
) -> None:
    """After 409 the next proof begins where the witness is, at once; but only once in a row."""
    log = Log(await new_log(one), tenant)
    await log.grow(4)
    one.trust(await log.key())
    await log.carry(one.add_checkpoint)
    one.trees.clear()
    checkpoint = await log.grow(3)
    assert (await log.carry(one.add_checkpoint)).problem is None
    (submission,) = (await log.ask(TakeSubmissions(tenant=INSTALLATION))).submissions
    state = await log.report(submission, one.add_checkpoint(submission.body))
    assert state.size == checkpoint.size
    await log.grow()
    for told in (b"2\n", b"3\n"):
        (submission,) = await log.take()
        state = await log.report(submission, tool.Response(409, told))
    assert state.problem is WitnessProblem.BAD_RESPONSE


def test_settings_of_witnesses() -> None:
    """A key must be a verifier key that fits its id; a witness needs the log's name."""
    key = tool.Witness().vkey
    common: dict[str, Any] = {
        "socket": "s",
        "gateway_uid": "same",
        "database": "keys.sqlite3",
        "root_key_file": "root.key",
    }

    def read(key: str, url: str = "https://w.example", **more: Any) -> Config:
        table = {"url": url, "key": key}
        values = {**common, "origin": ORIGIN, "witnesses": [table], **more}
        present = {name: value for name, value in values.items() if value is not None}
        return converted("settings", present, Config, Path())

    assert read(key).witnesses[0].name == "witness.example/w1"
    read(tool.Witness(kind=tool.ED25519).vkey)
    name, key_id, encoded = key.split("+", 2)
    wrong = "0" * 8
    for bad in (
        f"{name}+{wrong}+{encoded}",
        f"{name}+{key_id}+{encoded[:-8]}",
        f"{name}x+{key_id}+{encoded}",
        f"{name}+{key_id}+AAAA",
        "nothing",
    ):
        with pytest.raises(ConfigError):
            read(bad)
    for url in ("http://w.example", "ftp://w.example", "https://w.example/?a=b", "file:///etc"):
        with pytest.raises(ConfigError):
            read(key, url)
    with pytest.raises(ConfigError, match="set origin"):
        read(key, origin=None)
    for origin in ("https://w.example", "a b", "a+b", "", "x" * 129):
        with pytest.raises(ConfigError):
            read(key, origin=origin)
    two = {"url": "https://w.example", "key": key}
    with pytest.raises(ConfigError, match="same name"):
        read(key, witnesses=[two, two])
    assert module.SECONDS > module.LEASE_SECONDS
