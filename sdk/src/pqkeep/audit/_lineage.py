"""A log and those that it continues: each but the last was restored from a backup.

A log that continues another has the records that were in the backup, then one that names the other,
then its own. What the other log recorded after the backup is lost.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pqkeep.audit._files import Located
from pqkeep.audit._statements import Header, Succession


@dataclass(frozen=True, slots=True)
class Lineage:
    """The logs, the oldest first."""

    logs: tuple[str, ...]
    successions: tuple[Succession, ...] = ()
    """How each log but the first continues the one before."""

    def inherited(self, log_id: str) -> float:
        """Return how many records of a log the last one has; of the last one any number."""
        index = self.logs.index(log_id)
        return min((each.inherited for each in self.successions[index:]), default=math.inf)

    def signs(self, log_id: str, version: int) -> bool:
        """Return whether keys of a version sign a log: each has keys of its own."""
        index = self.logs.index(log_id)
        bounds = [1, *(each.first_version for each in self.successions), math.inf]
        return bounds[index] <= version < bounds[index + 1]


def find_lineage(log_id: str | None, located: Sequence[Located]) -> Lineage | None:
    """Return the longest lineage that an export gives to a log."""
    lineages = [each for each in _of_exports(located) if log_id in each.logs]
    if log_id is not None:
        lineages.append(Lineage((log_id,)))
    return max(lineages, key=lambda each: len(each.logs), default=None)


def _of_exports(located: Sequence[Located]) -> Iterable[Lineage]:
    for place, header in located:
        if isinstance(header, Header):
            successions = [
                each
                for other, each in located
                if other.order == place.order and isinstance(each, Succession)
            ]
            successions.sort(key=lambda each: each.entry.id)
            yield Lineage(
                (*(each.log_id for each in successions), header.log_id), tuple(successions)
            )
