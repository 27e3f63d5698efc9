"""Has witnesses cosign the log's checkpoints (C2SP tlog-witness, tlog-cosignature).

The key service speaks no HTTP. A gateway takes a submission, posts it to the witness, and brings the
response back. Nothing in a response is believed but a signature of the witness's key in the
settings. So a gateway under an attacker's control can withhold cosignatures and report false
problems, which end with the next cosignature. It cannot make one.

    take     a note and its consistency proof from the last cosigned size, for each witness that is due
    report   200: verify and store the cosignature
             409: the witness has cosigned another size. Prove from that size, once; or it is larger
                  than the log: a conflict
             422: the proof does not fit the witness's tree: a conflict
             other statuses, or none: try again later, at longer and longer intervals

A conflict means that the witness has cosigned another history of the log: records were lost or
replaced, for instance by a restore. It has a record in the log, so a restart does not forget it. A
later cosignature ends it. Each witness begins one recorded conflict a day, so that a hostile
witness that conflicts and cosigns in turn does not fill the log.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID, uuid4

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA44PublicKey

from pqkeep_keyservice import clock
from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.audit.note_signer import ALGORITHM, NoteSigner
from pqkeep_keyservice.config import ED25519, Witness
from pqkeep_keyservice.keys.changes import CommitOutcome
from pqkeep_keyservice.ledger import checkpoints, search, signed_notes
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.ledger.uses import DAY_US
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.audit import (
    Checkpoint,
    Cosignature,
    ProveConsistency,
    ReportSubmission,
    Submission,
    WitnessProblem,
    WitnessState,
)
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

SECONDS = 60.0
"""The pause between two submissions to a witness, and after a first failure."""
LEASE_SECONDS = 30.0
"""The time that one gateway has for a submission. The gateway gives up before that."""
LONGEST_PAUSE_SECONDS = 3600.0
CLOCK_SECONDS = 600
"""Seconds by which a witness's clock may be ahead."""
_STATUSES = {404: WitnessProblem.UNKNOWN_LOG, 403: WitnessProblem.UNKNOWN_KEY}
_MAX_DIGITS = 19


@dataclass(slots=True)
class _Taken:
    """A submission that a gateway has."""

    id: UUID
    checkpoint: Checkpoint
    origin: str
    old: int
    expires: float


@dataclass(slots=True)
class _State:
    """A witness, and its last answers."""

    witness: Witness
    origin: str
    size: int | None = None
    """The largest cosigned size."""
    at: int | None = None
    known: int = 0
    """The size from which the next proof begins."""
    is_conflict: bool = False
    is_recorded: bool = False
    """Whether the log has a record of a conflict that has not ended."""
    recorded_on: int | None = None
    """The day on which the newest conflict was recorded, in days since 1970."""
    problem: WitnessProblem | None = None
    failures: int = 0
    has_told_size: bool = False
    """Whether the last response was 409 with a size."""
    due: float = 0.0
    taken: _Taken | None = None

    def pause(self, now: float) -> None:
        """Wait until the next attempt, longer after each failure."""
        doubled = SECONDS * 2 ** min(max(self.failures - 1, 0), 10)
        self.due = now + min(doubled, LONGEST_PAUSE_SECONDS)


class Witnesses:
    """Submits the newest checkpoint to each witness once a minute, if the log has grown."""

    def __init__(
        self, witnesses: Sequence[Witness], store: KeyStore, log: AuditLog, notes: NoteSigner
    ) -> None:
        self._witnesses = witnesses
        self._store = store
        self._log = log
        self._notes = notes
        self._epoch: int | None = None
        """The writer's epoch in which the states were read."""
        self._states: list[_State] = []
        self._lock = asyncio.Lock()

    async def take(self) -> tuple[Submission, ...]:
        """Return the submissions that are due. Each is with one gateway for LEASE_SECONDS."""
        if not self._witnesses:
            return ()
        async with self._lock:
            now, due = _now(), list[_State]()
            for state in await self._read_states():
                if state.taken is not None and now >= state.taken.expires:
                    state.taken = None
                    self._failed(state, WitnessProblem.UNREACHABLE, 0, "no response was reported")
                if state.taken is None and now >= state.due:
                    due.append(state)
            newest = await self._newest() if due else None
            if newest is None:
                return ()
            return tuple(
                [
                    await self._submission(state, newest)
                    for state in due
                    if newest.size != state.size or state.problem is not None
                ]
            )

    async def report(self, response: ReportSubmission) -> None:
        """Take a witness's response to a submission."""
        async with self._lock:
            for state in await self._read_states():
                if state.taken is not None and state.taken.id == response.id:
                    taken, state.taken = state.taken, None
                    await self._react(state, taken, response)

    async def find_states(self) -> tuple[WitnessState, ...]:
        """Return the states of all witnesses, in the settings' order."""
        if self._witnesses:
            async with self._lock:
                await self._read_states()
        return self.states

    @property
    def states(self) -> tuple[WitnessState, ...]:
        """The states since the last look-up; empty before it."""
        return tuple(
            WitnessState(
                name=state.witness.name,
                origin=state.origin,
                size=state.size,
                at=state.at,
                problem=WitnessProblem.CONFLICT if state.is_conflict else state.problem,
            )
            for state in self._states
        )

    async def _read_states(self) -> Sequence[_State]:
        """Return the states. A key service that became active again reads them from the log."""
        epoch = self._store.writer.epoch
        if self._epoch != epoch:
            query = self._store.database.query
            origin = self._notes.origin(await query(checkpoints.log_id))
            states = [_State(witness, origin) for witness in self._witnesses]
            for state in states:
                name = state.witness.name
                newest = await query(checkpoints.find_newest_cosignature, name, origin)
                if newest is not None:
                    state.size = state.known = newest[0]
                    state.at = _seconds(newest[1])
                conflict = await query(checkpoints.find_conflict, name, origin)
                if conflict is not None:
                    state.is_conflict = state.is_recorded = conflict[0]
                    state.recorded_on = conflict[1] // DAY_US
            self._states, self._epoch = states, epoch
        return self._states

    async def _newest(self) -> Checkpoint | None:
        return await self._store.database.query(checkpoints.find_newest_checkpoint, ALGORITHM)

    async def _submission(self, state: _State, newest: Checkpoint) -> Submission:
        sizes = (state.known, state.size or 0)
        old = next((size for size in sizes if size <= newest.size), 0)
        path: tuple[bytes, ...] = ()
        if 0 < old < newest.size:
            request = ProveConsistency(tenant=INSTALLATION, first=old, second=newest.size)
            path = await self._store.database.query(search.prove_consistency, request)
        note = await self._notes.signed(newest)
        state.taken = _Taken(uuid4(), newest, state.origin, old, _now() + LEASE_SECONDS)
        url = f"{state.witness.url.rstrip('/')}/add-checkpoint"
        return Submission(state.taken.id, url, signed_notes.submission(old, path, note))

    async def _react(self, state: _State, taken: _Taken, response: ReportSubmission) -> None:
        told = _size(response.content) if response.status == 409 else None  # noqa: PLR2004
        had_told, state.has_told_size = state.has_told_size, told is not None
        if response.status == 200:  # noqa: PLR2004 - OK
            timestamped = find_cosignature(state.witness, taken, response.content)
            if timestamped is not None:
                await self._cosigned(state, taken, timestamped)
                return
        elif response.status == 422 and taken.old:  # noqa: PLR2004 - the proof is refused
            await self._conflict(state, taken, "the consistency proof is refused", taken.old)
            return
        elif response.status == 409 and told is None and taken.old == taken.checkpoint.size:  # noqa: PLR2004
            await self._conflict(
                state, taken, "it has another root hash for the same size", taken.old
            )
            return
        elif told is not None:
            newest = await self._newest()
            if newest is not None and told > newest.size:
                await self._conflict(state, taken, "it has cosigned more records", told)
                return
            if not had_told and told != taken.old:
                state.known = told
                state.due = 0.0  # at once, from the size that the witness has
                return
        problem = _STATUSES.get(response.status, WitnessProblem.BAD_RESPONSE)
        if not response.status:
            problem = WitnessProblem.UNREACHABLE
        self._failed(state, problem, response.status, response.error)

    async def _cosigned(self, state: _State, taken: _Taken, timestamped: bytes) -> None:
        cosignature = Cosignature(state.witness.name, taken.origin, timestamped)
        size = taken.checkpoint.size
        await self._store.database.write(checkpoints.add_cosignature, size, cosignature)
        state.size = state.known = size
        state.at = _seconds(timestamped)
        if state.problem is not None or state.is_conflict:
            _LOG.info("a witness cosigns the log again", witness=state.witness.name)
        if state.is_recorded:
            state.is_recorded = not await self._record(state, taken, Outcome.COMPLETED)
        state.is_conflict = state.is_recorded
        state.problem, state.failures = None, 0
        state.pause(_now())

    async def _conflict(self, state: _State, taken: _Taken, reason: str, their_size: int) -> None:
        state.failures += 1
        state.problem = WitnessProblem.CONFLICT
        state.pause(_now())
        _LOG.error(
            "a witness has cosigned another history of the audit log: records were lost or"
            " replaced; see docs/audit.md",
            witness=state.witness.name,
            origin=taken.origin,
            reason=reason,
            witness_size=their_size,
            size=taken.checkpoint.size,
        )
        state.is_conflict, today = True, clock.now_us() // DAY_US
        if not state.is_recorded and state.recorded_on != today:
            state.is_recorded = await self._record(state, taken, Outcome.BEGUN)
            state.recorded_on = today if state.is_recorded else None

    def _failed(self, state: _State, problem: WitnessProblem, status: int, error: str) -> None:
        state.failures += 1
        if state.problem is not problem:
            _LOG.warning(
                "a witness does not cosign the log, which goes on without it",
                witness=state.witness.name,
                problem=problem.value,
                status=status,
                error=error,
            )
        state.problem = problem
        state.pause(_now())

    async def _record(self, state: _State, taken: _Taken, outcome: Outcome) -> bool:
        """Record that a conflict began or ended. Return whether the record is durable."""
        checkpoint = taken.checkpoint
        record = NewRecord(
            tenant=INSTALLATION,
            principal="key-service",
            operation=KeyServiceEvent.WITNESS_CONFLICT,
            algorithm=None,
            key_version=None,
            outcome=outcome,
            request_id=state.witness.name,
            source_address="",
            policy=f"checkpoint-{checkpoint.size}-{checkpoint.root.hex()}",
            target=taken.origin,
        )
        return await self._log.commit(record) is CommitOutcome.DURABLE


def find_cosignature(witness: Witness, taken: _Taken, content: bytes) -> bytes | None:
    """Return the key id, time and signature of a valid cosignature in a response, or None."""
    try:
        for name, timestamped in signed_notes.read_lines(content):
            if name == witness.name and timestamped[:4] == witness.key_id:
                _verify(witness, taken, timestamped)
                latest = clock.now_us() // 1_000_000 + CLOCK_SECONDS
                return timestamped if 0 < _seconds(timestamped) <= latest else None
    except (ValueError, InvalidSignature):
        pass
    return None


def _verify(witness: Witness, taken: _Taken, timestamped: bytes) -> None:
    """Raise InvalidSignature unless the witness signed this checkpoint of this log."""
    typed, seconds, signature = witness.typed_key, _seconds(timestamped), timestamped[12:]
    size, root = taken.checkpoint.size, taken.checkpoint.root
    if typed[0] == ED25519:
        text = signed_notes.note_text(taken.origin, size, root)
        message = f"cosignature/v1\ntime {seconds}\n{text}".encode()
        Ed25519PublicKey.from_public_bytes(typed[1:]).verify(signature, message)
        return
    message = signed_notes.message(witness.name, taken.origin, seconds, size, root)
    MLDSA44PublicKey.from_public_bytes(typed[1:]).verify(signature, message)


def _seconds(timestamped: bytes) -> int:
    """Return the time of a cosignature, in seconds since 1970."""
    return int.from_bytes(timestamped[4:12], "big")


def _size(content: bytes) -> int | None:
    """Return the size in a 409 response, or None."""
    text = content.removesuffix(b"\n")
    is_number = text.isdigit() and len(text) <= _MAX_DIGITS and (text == b"0" or text[:1] != b"0")
    return int(text) if is_number else None


def _now() -> float:
    return asyncio.get_running_loop().time()
