"""Finds out which signed trees are earlier or later states of the same log."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from pqkeep.audit._evidence import Evidence, SignedTree
from pqkeep.audit._export import ExportResult
from pqkeep.audit._merkle import EMPTY_ROOT, is_grown, proven_root
from pqkeep.audit.report import Findings, Kind

NO_RECORDS = SignedTree(0, EMPTY_ROOT)
ONE_MOMENT = timedelta(seconds=10)
"""An export may use the previous checkpoint while the next one is being signed."""


class Connections:
    """Groups of signed trees (union-find). The trees of a group are proven states of one log."""

    def __init__(self) -> None:
        self._above: dict[SignedTree, SignedTree] = {}

    def join(self, one: SignedTree, other: SignedTree) -> None:
        """Put two trees into one group."""
        self._above[self._top(one)] = self._top(other)

    def are_joined(self, one: SignedTree, other: SignedTree) -> bool:
        """Return True if two trees are in one group."""
        return self._top(one) == self._top(other)

    def _top(self, tree: SignedTree) -> SignedTree:
        while (above := self._above.get(tree, tree)) != tree:
            self._above[tree] = self._above.get(above, above)
            tree = above
        return tree


def connect(
    evidence: Evidence,
    exports: Iterable[tuple[SignedTree | None, ExportResult]],
    findings: Findings,
) -> tuple[str, ...]:
    """Report trees that are not states of the exported log. Return notes on unverified facts."""
    exports = list(exports)
    connections = Connections()
    refuted: dict[SignedTree, str] = {}
    for head, result in exports:
        for tree in result.continued:
            if head is not None:
                connections.join(tree, head)
        refuted.update(
            (tree, result.portion.file) for tree in result.not_continued if tree in evidence.trees
        )
    for tree, file in refuted.items():
        if sum(fork in evidence.trees for fork in evidence.sizes.get(tree.size, ())) > 1:
            continue  # a fork, which is reported as such
        place = evidence.trees[tree][0].place
        message = f"the log in {file} was another when it had {tree.size} records"
        findings.add(Kind.NOT_CONTINUED, message, place)
    notes = _follow_proofs(evidence, connections, findings)
    _check_successions(evidence, exports, connections, findings)
    heads = [
        (head, result) for head, result in exports if head is not None and evidence.is_kept(head)
    ]
    if not heads:
        notes.append("there is no export: only signatures and proofs of consistency were verified")
        evidence.connected = set(evidence.trees)
        return tuple(notes)
    head, result = max(heads, key=lambda head: head[0].size)
    evidence.connected = {tree for tree in evidence.trees if connections.are_joined(tree, head)}
    unconnected = sorted(
        tree
        for tree in evidence.trees
        if evidence.is_kept(tree) and tree not in refuted and not connections.are_joined(tree, head)
    )
    notes.extend(
        note
        for tree in unconnected
        if (note := _unconnected(evidence, tree, head, result, findings))
    )
    return (*notes, *_lost(evidence), *_newer(evidence))


def _follow_proofs(evidence: Evidence, connections: Connections, findings: Findings) -> list[str]:
    """Join the trees that consistency proofs connect. Return notes on unverified proofs."""
    notes = []
    exported = {place.order for place, _ in evidence.headers}
    for place, proof in evidence.consistencies:
        pairs = [
            (first, second)
            for first in evidence.trees_of_size(proof.first)
            for second in evidence.trees_of_size(proof.second)
        ]
        grown = [
            (first, second)
            for first, second in pairs
            if is_grown(proof.first, first.root, proof.second, second.root, proof.path)
        ]
        for first, second in grown:
            connections.join(first, second)
        sizes = f"from {proof.first} to {proof.second} records"
        if pairs and not grown:
            message = f"the proof does not show that the log grew {sizes}"
            findings.add(Kind.BAD_CONSISTENCY, message, place)
        elif not pairs:
            message = f"no checkpoints with good signatures go with the proof {sizes}"
            if place.order in exported:
                findings.add(Kind.BAD_CONSISTENCY, message, place)
            else:
                notes.append(f"{place}: {message}, which was not verified")
    return notes


def _check_successions(
    evidence: Evidence,
    exports: Iterable[tuple[SignedTree | None, ExportResult]],
    connections: Connections,
    findings: Findings,
) -> None:
    """Report each unproven claim that the log continues an earlier log."""
    heads = {result.portion.file: head for head, result in exports}
    for place, succession in evidence.successions:
        head = heads.get(place.file)
        if head is None:
            continue  # no checkpoint of the export, which is reported
        entry = succession.entry
        is_in_log = any(
            proven_root(entry.leaf, entry.id - 1, tree.size, entry.path or ()) == tree.root
            for tree in evidence.trees  # of an export in parts, each has its own
            if connections.are_joined(tree, head)
        )
        tree = SignedTree(succession.size, succession.root)
        is_true = connections.are_joined(tree, head) or tree == NO_RECORDS
        if not is_in_log or not is_true:
            message = (
                f"nothing shows that the log continues log {succession.log_id} of "
                f"{succession.size} records"
            )
            findings.add(Kind.BAD_SUCCESSION, message, place)


def _lost(evidence: Evidence) -> Iterable[str]:
    """Yield a note for each log that lost records in a restore from a backup."""
    for succession in evidence.lineage.successions if evidence.lineage else ():
        largest = max(evidence.lost.get(succession.log_id, ()), default=None)
        if largest is not None:
            yield (
                f"log {succession.log_id} had {largest} records, and was restored from a backup of "
                f"{succession.inherited}: records {succession.inherited + 1} to {largest} are lost"
            )


def _newer(evidence: Evidence) -> Iterable[str]:
    """Yield a note for each export that announces records after its checkpoint."""
    sizes: dict[int, int] = {}
    for place, header in evidence.headers:
        sizes[place.order] = max(sizes.get(place.order, 0), header.size)
    for place, newer in evidence.newer:
        if newer.last <= sizes.get(place.order, 0):
            continue  # a later part has them
        ids = f"{newer.first} to {newer.last}"
        yield f"{place.file}: its checkpoint does not cover the newer records {ids}"


def _unconnected(
    evidence: Evidence, tree: SignedTree, head: SignedTree, result: ExportResult, findings: Findings
) -> str | None:
    """Report a checkpoint that the export does not confirm. Return a note if that is not an error."""
    place = evidence.trees[tree][0].place
    checkpoint = f"{place}: the checkpoint of size {tree.size}"
    portion = result.portion
    is_whole = portion.tenant_id is None and portion.query is None
    is_compared = is_whole and tree.size >= portion.after
    if is_compared and tree.size <= head.size:
        # Only a whole export that is damaged does not answer this.
        return f"{checkpoint} was not compared: the export's records do not hold"
    if tree.size > head.size:
        at = min(signed.checkpoint.at for signed in evidence.trees[tree])
        exported_at = max(signed.checkpoint.at for signed in evidence.trees[head])
        if datetime.fromisoformat(exported_at) - datetime.fromisoformat(at) > ONE_MOMENT:
            message = (
                f"the log had {tree.size} records at {at}; the export of {exported_at} knows of "
                f"{head.size}"
            )
            findings.add(Kind.TRUNCATED, message, place)
            return None
        return f"{checkpoint} is newer than the export, and was not compared with it"
    if all(signed.place.file == result.portion.file for signed in evidence.trees[tree]):
        return f"{checkpoint} was not compared: the export has no proof of consistency for it"
    findings.add(
        Kind.NOT_CONNECTED,
        f"nothing shows that the log of {tree.size} records grew into that of {head.size}: "
        f"add /api/v1/audit/consistency?first={tree.size}&second={head.size}",
        place,
    )
    return None
