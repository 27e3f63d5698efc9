"""Divides what files hold among several logs: those of the shards where a tenant has been.

Each log is verified by itself. What names no log is about the log of the export that it is in;
consistency proofs that were saved elsewhere are about the log in which they hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pqkeep.audit._evidence import Evidence, log_of
from pqkeep.audit._files import Located
from pqkeep.audit._lineage import Lineage, find_lineage
from pqkeep.audit._merkle import is_grown
from pqkeep.audit._statements import Consistency, Header


@dataclass(slots=True)
class LogStatements:
    """What is about one log, and those that it continues."""

    located: Sequence[Located]
    trusted: Sequence[Located] | None
    saved: list[Located] = field(default_factory=list)
    """Consistency proofs that may be about any of the logs."""


def divided(located: Sequence[Located], trusted: Sequence[Located] | None) -> list[LogStatements]:
    """Divide statements among the logs of the exports. What is about no such log is the last one's."""
    heads = {place.order: each.log_id for place, each in located if isinstance(each, Header)}
    lineages: list[Lineage] = []
    for log_id in heads.values():
        found = find_lineage(log_id, located)
        if found is None or any(found.logs[-1] in each.logs for each in lineages):
            continue
        lineages = [each for each in lineages if each.logs[-1] not in found.logs]
        lineages.append(found)
    of_log = {log_id: index for index, each in enumerate(lineages) for log_id in each.logs}
    last = len(lineages) - 1

    def index_of(each: Located) -> int:
        log_id = log_of(each) or heads.get(each.place.order, "")
        return of_log.get(log_id, last)

    divided = [LogStatements([], None if trusted is None else []) for _ in lineages]
    parts: list[list[Located]] = [[] for _ in lineages]
    for each in located:
        if isinstance(each.statement, Consistency) and each.place.order not in heads:
            divided[last].saved.append(each)
        else:
            parts[index_of(each)].append(each)
    for index, log in enumerate(divided):
        log.located = parts[index]
        if trusted is not None:
            log.trusted = [each for each in trusted if index_of(each) == index]
    return divided


def add_saved_proofs(collected: Sequence[Evidence], logs: Sequence[LogStatements]) -> None:
    """Add each consistency proof that was saved to the first log in which it holds, or the last."""
    for place, proof in (each for log in logs for each in log.saved):
        if not isinstance(proof, Consistency):
            continue
        found = (each for each in collected if _holds(proof, each))
        next(found, collected[-1]).consistencies.append((place, proof))


def _holds(proof: Consistency, evidence: Evidence) -> bool:
    return any(
        is_grown(proof.first, first.root, proof.second, second.root, proof.path)
        for first in evidence.trees_of_size(proof.first)
        for second in evidence.trees_of_size(proof.second)
    )
