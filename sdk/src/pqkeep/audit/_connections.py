"""Tells which signed trees are the same log at different times."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from pqkeep.audit._evidence import Evidence, Node
from pqkeep.audit._findings import Findings
from pqkeep.audit._merkle import is_grown
from pqkeep.audit._walk import Walked
from pqkeep.audit.report import Kind

ONE_MOMENT = timedelta(seconds=10)
"""An export may be of a checkpoint before the one that was being signed when it began."""


class Connections:
    """Trees in groups: those of a group are known to have grown into each other."""

    def __init__(self) -> None:
        """Begin with every tree for itself."""
        self._above: dict[Node, Node] = {}

    def join(self, one: Node, other: Node) -> None:
        """Put two trees into one group."""
        self._above[self._top(one)] = self._top(other)

    def are_joined(self, one: Node, other: Node) -> bool:
        """Tell whether two trees are in one group."""
        return self._top(one) == self._top(other)

    def _top(self, node: Node) -> Node:
        while (above := self._above.get(node, node)) != node:
            self._above[node] = self._above.get(above, above)
            node = above
        return node


def connect(
    evidence: Evidence, exports: Iterable[tuple[Node | None, Walked]], findings: Findings
) -> tuple[str, ...]:
    """Report the trees that do not belong to one log; return notes on what was not compared."""
    exports = list(exports)
    connections = Connections()
    refuted: dict[Node, str] = {}
    for head, walked in exports:
        for node in walked.continued:
            if head is not None:
                connections.join(node, head)
        refuted.update((node, walked.portion.file) for node in walked.not_continued)
    for node, file in refuted.items():
        if len(evidence.sizes[node.size]) > 1:
            continue  # a fork, which is reported as such
        place = evidence.nodes[node][0].place
        message = f"the log in {file} was another when it had {node.size} records"
        findings.add(Kind.NOT_CONTINUED, message, place)
    _follow_proofs(evidence, connections, findings)
    heads = [(head, walked) for head, walked in exports if head is not None]
    if not heads:
        return ("there is no export: only signatures and proofs of consistency were verified",)
    head, walked = max(heads, key=lambda each: each[0].size)
    apart = sorted(
        node
        for node in evidence.nodes
        if node not in refuted and not connections.are_joined(node, head)
    )
    return tuple(note for node in apart if (note := _apart(evidence, node, head, walked, findings)))


def _follow_proofs(evidence: Evidence, connections: Connections, findings: Findings) -> None:
    exported = {place.order for place, _ in evidence.headers}
    for place, proof in evidence.consistencies:
        pairs = [
            (first, second)
            for first in evidence.sizes.get(proof.first, ())
            for second in evidence.sizes.get(proof.second, ())
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
        elif not pairs and place.order in exported:
            message = f"no checkpoints with good signatures go with the proof {sizes}"
            findings.add(Kind.BAD_CONSISTENCY, message, place)


def _apart(
    evidence: Evidence, node: Node, head: Node, walked: Walked, findings: Findings
) -> str | None:
    """Report a tree that nothing connects with the export, if that is wrong; else return a note."""
    place = evidence.nodes[node][0].place
    checkpoint = f"{place}: the checkpoint of size {node.size}"
    if walked.portion.tenant_id is None and node.size <= head.size:
        # Only a whole export that is damaged does not answer this.
        return f"{checkpoint} was not compared: the export's records do not hold"
    if node.size > head.size:
        at = min(signed.checkpoint.at for signed in evidence.nodes[node])
        exported_at = _exported_at(evidence, walked)
        if datetime.fromisoformat(exported_at) > datetime.fromisoformat(at) + ONE_MOMENT:
            message = (
                f"the log had {node.size} records at {at}; the export of {exported_at} knows of "
                f"{head.size}"
            )
            findings.add(Kind.TRUNCATED, message, place)
            return None
        return f"{checkpoint} is newer than the export, and was not compared with it"
    if all(signed.place.file == walked.portion.file for signed in evidence.nodes[node]):
        return f"{checkpoint} was not compared: the export has no proof of consistency for it"
    findings.add(
        Kind.NOT_CONNECTED,
        f"nothing shows that the log of {node.size} records grew into that of {head.size}: "
        f"add /api/v1/audit/consistency?first={node.size}&second={head.size}",
        place,
    )
    return None


def _exported_at(evidence: Evidence, walked: Walked) -> str:
    return next(
        header.exported_at
        for place, header in evidence.headers
        if place.file == walked.portion.file
    )
