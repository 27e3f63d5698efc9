"""What was appended lately, by kind of record, so that a checkpoint counts without reading records.

The counts are those that ``key_usage`` and ``operation_counts`` make of the rows; where this process
has not appended all the records that are to be counted, these read them.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pqkeep_keyservice.ledger.records import Row

MAX_RECORDS = 20_000
"""How many are kept while no checkpoint can be saved."""


class Kind(NamedTuple):
    """What counts of a record."""

    tenant_id: str
    keyring: str | None
    algorithm: str | None
    key_version: int | None
    operation: str
    outcome: str
    is_event: bool
    """Whether the gateway brought it."""
    target: str | None


class Commit(NamedTuple):
    """The records of one transaction, which have one time."""

    size: int
    """Of the log after it."""
    recorded_at_us: int
    kinds: Mapping[Kind, int]
    """How many there are of each."""


def commit_of(rows: Iterable[Row], size: int, recorded_at_us: int) -> Commit:
    """Return what a transaction has appended, after which the log has that size."""
    kinds = Counter(  # of plain tuples, which are made in half the time
        (
            row.tenant_id,
            row.keyring,
            row.algorithm,
            row.key_version,
            row.operation,
            row.outcome,
            row.event_id is not None,
            row.target,
        )
        for row in rows
    )
    return Commit(size, recorded_at_us, {Kind(*kind): many for kind, many in kinds.items()})


class Appended:
    """The newest commits."""

    def __init__(self, size: int) -> None:
        """Know nothing of the records up to a size."""
        self._since = size
        self._commits: deque[Commit] = deque()

    def add(self, commit: Commit) -> None:
        """Note a commit that has become durable."""
        self._commits.append(commit)
        self.forget(commit.size - MAX_RECORDS)

    def forget(self, size: int) -> None:
        """Drop what is known of the records up to a size."""
        while self._commits and self._commits[0].size <= size:
            self._since = self._commits.popleft().size

    def between(self, begin: int, end: int) -> list[Commit] | None:
        """Return the commits of exactly the records behind ``begin`` and up to ``end``, if known."""
        found = [each for each in self._commits if begin < each.size <= end]
        before = [each.size for each in self._commits if each.size <= begin]
        is_whole = [begin, end] == [
            before[-1] if before else self._since,
            found[-1].size if found else begin,
        ]
        return found if is_whole else None
