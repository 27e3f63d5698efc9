"""The commits as the server sees them. They are checked at once, and compared with the responses.

The log is read from its documentation only, as in tests/crash_recovery: text, leaves and tree are
computed here, and a replay of the records must give the present keys.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from tests.crash_recovery.invariants import text
from tests.simulation.database import Server, Session

from pqkeep_keyservice import clock
from pqkeep_keyservice.ledger.records import Row
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import INSTALLATION, TenantId

Record = Row
"""A row of the table of records, in the order of its columns."""

NEW_RECORDS = f"SELECT {', '.join(Row._fields)} FROM audit_records WHERE id > ? ORDER BY id"  # noqa: S608
NEW_CHECKPOINTS = "SELECT size, root FROM audit_checkpoints WHERE size > ?"
ALL_KEYS = (
    "SELECT tenant_id, keyring, algorithm, version, status, disabled_from, archive_at_us,"
    " sealed_seed IS NOT NULL, created_at_us FROM keys ORDER BY tenant_id, keyring, algorithm, version"
)
ALL_LIMITS = "SELECT tenant_id, name, rotation_days FROM keyrings"
DAY_US = 24 * 3600 * 1_000_000
SCHEDULE = "schedule"


class KeyName(NamedTuple):
    """Which key."""

    tenant: str
    keyring: str
    algorithm: str


class Version(NamedTuple):
    """A version in the table."""

    status: str
    disabled_from: str | None
    archive_at_us: int | None
    has_seed: bool
    created_at_us: int

    @property
    def lasting(self) -> str:
        """The status; for a disabled version the status before."""
        return self.disabled_from or self.status

    @property
    def is_readable(self) -> bool:
        """True if it decrypts and verifies."""
        return self.status in ("active", "retired") and self.archive_at_us is None


Versions = tuple[Version, ...]
"""From version 1 on."""


class FindingError(Exception):
    """An invariant is violated."""

    def __init__(self, invariant: str, detail: str) -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class Whereabouts:
    """The tenants' shards by all logs, and the keys of tenants between shards."""

    def __init__(self, placed: Mapping[TenantId, str]) -> None:
        self._shards: dict[str, str | None] = {str(each): name for each, name in placed.items()}
        """By tenant. None while it moves."""
        self._left: dict[str, dict[KeyName, Versions]] = {}
        """By the digest of the bundle."""
        self._tenants: dict[str, set[str]] = {}
        """The tenants with keys, by shard."""

    def leave(self, shard: str, record: Any, keys: dict[KeyName, Versions]) -> None:
        """Remove a tenant's keys. Raises FindingError."""
        self._require(shard, record)
        self._shards[record.tenant_id] = None
        names = [name for name in keys if name.tenant == record.tenant_id]
        self._left[record.request_id] = {name: keys.pop(name) for name in names}

    def arrive(self, shard: str, record: Any, keys: dict[KeyName, Versions]) -> None:
        """Add the keys that left with the same bundle. Raises FindingError."""
        if record.request_id not in self._left or self._shards[record.tenant_id] is not None:
            raise FindingError("one shard", f"{record.tenant_id} arrives in {shard} again")
        self._shards[record.tenant_id] = shard
        keys.update(self._left.pop(record.request_id))

    def check_record(self, shard: str, record: Any) -> None:
        """Check that a record is in its tenant's shard. Raises FindingError."""
        is_of_move = record.operation in MOVE_OPERATIONS or record.outcome == MOVED
        if record.event_id is None and not is_of_move:
            self._require(shard, record)

    def _require(self, shard: str, record: Any) -> None:
        at = self._shards.get(record.tenant_id, shard)
        if at != shard:
            raise FindingError(
                "one shard", f"{record.operation} in {shard}, and the tenant in {at}"
            )

    def check_keys(self, shard: str, keys: Iterable[KeyName]) -> None:
        """Check that no tenant has keys in two shards. Raises FindingError."""
        here = self._tenants[shard] = {name.tenant for name in keys} - {str(INSTALLATION)}
        for other, there in self._tenants.items():
            if other != shard and here & there:
                raise FindingError("one shard", f"{here & there} are in {shard} and {other}")


MOVED = ErrorKind.TENANT_MOVED
Moving = Callable[[Whereabouts, str, Any, dict[KeyName, Versions]], None]
MOVES: Mapping[tuple[str, str], Moving] = {
    (KeyServiceEvent.TENANT_MOVED_OUT, Outcome.BEGUN): Whereabouts.leave,
    (KeyServiceEvent.TENANT_MOVED_IN, Outcome.COMPLETED): Whereabouts.arrive,
}
MOVE_OPERATIONS = frozenset(operation for operation, _ in MOVES)


class History:
    """All commits of a shard."""

    def __init__(self, server: Server, whereabouts: Whereabouts, shard: str) -> None:
        self._reader = server.looker
        self._server = server
        self._whereabouts = whereabouts
        self._shard = shard
        self.records: list[Any] = []
        self.commit_of: list[int] = []
        """The number of the commit of each record."""
        self.by_request: defaultdict[str, list[int]] = defaultdict(list)
        """Positions of records, by request id."""
        self.numbers: Counter[str] = Counter()
        """The number of each tenant's records."""
        self._tree: list[tuple[int, bytes]] = []
        self._roots: dict[int, bytes] = {}
        self._signed = 0
        self.keys: dict[KeyName, Versions] = {}
        self.states: defaultdict[KeyName, list[tuple[int, Versions]]] = defaultdict(list)
        """Each key's versions, with the commit that made this state."""

    def committed(self, session: Session, *, has_changes: bool) -> None:
        """Check a commit. Raises FindingError."""
        if session is not self._server.holder:
            raise FindingError("one writer", f"session {session.number} writes without the lock")
        if not has_changes:
            return  # what is there was checked when it was written
        new = self._new_records()
        for record in new:
            self._append(record, session.server.commits)
        self._check_checkpoints()
        self._check_keys(new, session.server.commits)

    def find(self, request_id: str) -> list[Any]:
        """Return the records of a request."""
        return [self.records[place] for place in self.by_request.get(request_id, ())]

    def carried_out(self, request_id: str) -> list[Any]:
        """Return a request's records, without refusals because its tenant has left."""
        return [each for each in self.find(request_id) if each.outcome != MOVED]

    def states_between(self, name: KeyName, first: int, last: int) -> Iterable[Versions]:
        """Yield a key's states between two commits, inclusive."""
        found: list[tuple[int, Versions]] = [(0, ()), *self.states[name]]
        for place, (since, versions) in enumerate(found):
            until = found[place + 1][0] if place + 1 < len(found) else None
            if since <= last and (until is None or until > first):
                yield versions

    def _new_records(self) -> list[Any]:
        return [Record(*row) for row in self._reader.execute(NEW_RECORDS, (len(self.records),))]

    def _append(self, record: Any, commit: int) -> None:
        place = len(self.records)
        if record.id != place + 1:
            raise FindingError("no gaps", f"record {record.id} follows {place}")
        self.numbers[record.tenant_id] += 1
        if record.number != self.numbers[record.tenant_id]:
            raise FindingError("no gaps", f"record {record.id} has number {record.number}")
        if self.records and record.recorded_at_us < self.records[-1].recorded_at_us:
            raise FindingError("no gaps", f"record {record.id} is older than the one before")
        self.records.append(record)
        self.commit_of.append(commit)
        self.by_request[record.request_id].append(place)
        level, top = 0, sha256(b"\0" + text(record)).digest()
        while self._tree and self._tree[-1][0] == level:
            level, top = level + 1, sha256(b"\1" + self._tree.pop()[1] + top).digest()
        self._tree.append((level, top))
        self._roots[record.id] = self._root()

    def _root(self) -> bytes:
        top = self._tree[-1][1]
        for _, left in reversed(self._tree[:-1]):
            top = sha256(b"\1" + left + top).digest()
        return top

    def _check_checkpoints(self) -> None:
        for size, root in self._reader.execute(NEW_CHECKPOINTS, (self._signed,)).fetchall():
            self.check_root(size, root)
            self._signed = max(self._signed, size)

    def check_root(self, size: int, root: bytes) -> None:
        """Check a tree head. Raises FindingError."""
        if self._roots.get(size) != root:
            said = b64encode(root[:6]).decode()
            raise FindingError("tree", f"the first {size} records do not have the root {said}")

    def _check_keys(self, new: Iterable[Any], commit: int) -> None:
        keys = self._read_keys()
        limits = self._read_limits()
        expected = dict(self.keys)
        for record in new:
            if (move := MOVES.get((record.operation, record.outcome))) is not None:
                move(self._whereabouts, self._shard, record, expected)
            self._whereabouts.check_record(self._shard, record)
            if record.outcome == "success" and record.algorithm is not None:
                name = KeyName(record.tenant_id, record.keyring or "", record.algorithm)
                change = CHANGES.get(record.operation)
                if change is not None:
                    self._check_schedule(record, name, expected.get(name, ()), limits)
                    expected[name] = change(expected.get(name, ()), record)
        for name in keys.keys() | expected.keys():
            made, stored = expected.get(name, ()), keys.get(name, ())
            if [_seen(each) for each in made] != [_seen(each) for each in stored]:
                raise FindingError("keys", f"{name}: the log makes {made}, and there is {stored}")
            if stored != self.keys.get(name, ()):
                self.states[name].append((commit, stored))
        self.keys = keys
        self._whereabouts.check_keys(self._shard, keys)

    def _check_schedule(
        self,
        record: Any,
        name: KeyName,
        versions: Versions,
        limits: Mapping[tuple[str, str], int],
    ) -> None:
        if record.principal != SCHEDULE:
            return
        now = clock.now_us()
        rotation_days = limits.get((name.tenant, name.keyring), 0)
        if record.operation == "archive-key":
            at = versions[record.key_version - 1].archive_at_us
            if at is None or at > now:
                raise FindingError("schedule", f"{name} {record.key_version} is not due at {now}")
        elif record.operation == "rotate-key":
            since = versions[-1].created_at_us if versions else now
            if not rotation_days or since + rotation_days * DAY_US > now:
                raise FindingError("schedule", f"{name} is rotated before it is due")

    def _read_keys(self) -> dict[KeyName, Versions]:
        found: defaultdict[KeyName, list[Version]] = defaultdict(list)
        for tenant, keyring, algorithm, version, *state in self._reader.execute(ALL_KEYS):
            versions = found[KeyName(str(UUID(tenant)), keyring, algorithm)]
            if version != len(versions) + 1:
                raise FindingError("versions", f"version {version} follows {len(versions)}")
            versions.append(Version(*state))
        for name, versions in found.items():
            if sum(each.lasting == "active" for each in versions) > 1:
                raise FindingError("one active", f"{name} has two active versions")
            if any(each.has_seed == (each.status == "archived") for each in versions):
                raise FindingError("keys", f"{name}: seeds and statuses differ")
        return {name: tuple(versions) for name, versions in found.items()}

    def _read_limits(self) -> dict[tuple[str, str], int]:
        return {
            (str(UUID(tenant)), name): days
            for tenant, name, days in self._reader.execute(ALL_LIMITS)
        }


def _seen(version: Version) -> tuple[object, ...]:
    """Return the properties of a version that the log decides."""
    return version.status, version.disabled_from, version.archive_at_us is not None


def _generate(versions: Versions, record: Any) -> Versions:
    if record.key_version <= len(versions):
        return versions  # the answer of an earlier request, or ``if_absent``
    if record.key_version != len(versions) + 1:
        raise FindingError("versions", f"{record.key_version} is made after {len(versions)}")
    is_current = bool(versions) and versions[-1].lasting == "active"
    if is_current != (record.operation == "rotate-key"):
        raise FindingError("one active", f"{record.operation} with {versions[-1:]}")
    if is_current:
        versions = _with(versions, len(versions), _retired)
    return (*versions, Version("active", None, None, has_seed=True, created_at_us=0))


def _retired(version: Version) -> Version:
    if version.disabled_from is not None:
        return version._replace(disabled_from="retired")
    return version._replace(status="retired")


def _retire(versions: Versions, record: Any) -> Versions:
    return _with(
        versions, record.key_version, lambda old: old if old.lasting == "retired" else _retired(old)
    )


def _disable(versions: Versions, record: Any) -> Versions:
    return _with(
        versions,
        record.key_version,
        lambda old: (
            old
            if old.disabled_from is not None
            else old._replace(status="disabled", disabled_from=old.status)
        ),
    )


def _enable(versions: Versions, record: Any) -> Versions:
    return _with(
        versions,
        record.key_version,
        lambda old: old._replace(status=old.lasting, disabled_from=None),
    )


def _schedule(versions: Versions, record: Any) -> Versions:
    return _with(
        versions, record.key_version, lambda old: old._replace(archive_at_us=old.archive_at_us or 1)
    )


def _cancel(versions: Versions, record: Any) -> Versions:
    return _with(versions, record.key_version, lambda old: old._replace(archive_at_us=None))


def _archive(versions: Versions, record: Any) -> Versions:
    def archive(old: Version) -> Version:
        if old.lasting != "retired":
            raise FindingError("once", f"{old} is archived, by {record.principal}")
        return old._replace(status="archived", disabled_from=None, archive_at_us=None)

    return _with(versions, record.key_version, archive)


def _with(versions: Versions, number: int, change: Callable[[Version], Version]) -> Versions:
    if not 1 <= number <= len(versions):
        raise FindingError("versions", f"version {number} of {len(versions)} is changed")
    return (*versions[: number - 1], change(versions[number - 1]), *versions[number:])


CHANGES: Mapping[str, Callable[[Versions, Any], Versions]] = {
    "generate-key": _generate,
    "rotate-key": _generate,
    "retire-key": _retire,
    "disable-key": _disable,
    "enable-key": _enable,
    "schedule-archive": _schedule,
    "cancel-archive": _cancel,
    "archive-key": _archive,
}
