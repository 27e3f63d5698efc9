"""Collects everything in the files except records: log ids, keys, and verified checkpoints.

Signatures are ML-DSA-65 (FIPS 204) or SLH-DSA-SHA2-128s (FIPS 205). Their libraries are imported
for the first signature. Signatures need the extra ``pqkeep[audit]``.

After a restore from a backup, a new log continues the old one. First it has the old records from
the backup, then a record that names the old log, then new records. Records of the old log after the
backup are lost.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pqkeep.audit._files import Located
from pqkeep.audit._statements import (
    CHECKPOINT_CONTEXT,
    STATEMENT_CONTEXT,
    Checkpoint,
    Consistency,
    Found,
    Header,
    Key,
    Newer,
    NoteKey,
    Succession,
)
from pqkeep.audit.report import Findings, Kind, Place
from pqkeep.verification import verify

SIGNATURE_SIZES: Mapping[str, int] = {"Dilithium3": 3309, "SLH-DSA-SHA2-128s": 7856}


def is_signed_by(signed: Checkpoint | Found, key: Key) -> bool:
    """Return True if the key made the signature of a checkpoint or a statement.

    Raises ImportError if the algorithm's library is not installed.
    """
    if len(signed.signature) != SIGNATURE_SIZES[signed.algorithm]:
        return False
    is_checkpoint = isinstance(signed, Checkpoint)
    return verify(
        signed.signed_text(),
        signed.signature,
        public_key=key.public_key,
        algorithm=signed.algorithm,
        context=CHECKPOINT_CONTEXT if is_checkpoint else STATEMENT_CONTEXT,
    )


@dataclass(frozen=True, slots=True)
class Lineage:
    """A log and the earlier logs that it continues, the oldest first."""

    logs: tuple[str, ...]
    successions: tuple[Succession, ...] = ()
    """How each log, except the first, continues its predecessor."""

    def inherited(self, log_id: str) -> float:
        """Return how many records of a log are in the last log: infinity for the last log itself."""
        index = self.logs.index(log_id)
        return min(
            (succession.inherited for succession in self.successions[index:]), default=math.inf
        )

    def signs(self, log_id: str, version: int) -> bool:
        """Return True if this key version signs this log. Each log has its own key versions."""
        index = self.logs.index(log_id)
        bounds = [1, *(succession.first_version for succession in self.successions), math.inf]
        return bounds[index] <= version < bounds[index + 1]


def find_lineage(log_id: str | None, located: Sequence[Located]) -> Lineage | None:
    """Return the longest lineage in the exports that contains a log."""
    lineages = [lineage for lineage in _of_exports(located) if log_id in lineage.logs]
    if log_id is not None:
        lineages.append(Lineage((log_id,)))
    return max(lineages, key=lambda lineage: len(lineage.logs), default=None)


def _of_exports(located: Sequence[Located]) -> Iterable[Lineage]:
    for place, header in located:
        if isinstance(header, Header):
            successions = [
                statement
                for other, statement in located
                if other.order == place.order and isinstance(statement, Succession)
            ]
            successions.sort(key=lambda succession: succession.entry.id)
            yield Lineage(
                (*(succession.log_id for succession in successions), header.log_id),
                tuple(successions),
            )


KeyName = tuple[str, int]
"""Algorithm and version."""


class SignedTree(NamedTuple):
    """The size and root in a checkpoint with a valid signature."""

    size: int
    root: bytes


class VerifiedCheckpoint(NamedTuple):
    """A checkpoint with a valid signature, and its place in the files."""

    place: Place
    checkpoint: Checkpoint


@dataclass(slots=True)
class Evidence:
    """The valid evidence about one log and its predecessors."""

    lineage: Lineage | None
    keys: dict[KeyName, Key] = field(default_factory=dict)
    trees: dict[SignedTree, list[VerifiedCheckpoint]] = field(default_factory=dict)
    sizes: dict[int, list[SignedTree]] = field(default_factory=dict)
    """The trees by size. Two different trees of one size are a fork."""
    lost: dict[str, dict[int, list[SignedTree]]] = field(default_factory=dict)
    """Trees with lost records, by log and size. The log that continues theirs lacks these records.
    """
    successions: list[tuple[Place, Succession]] = field(default_factory=list)
    newer: list[tuple[Place, Newer]] = field(default_factory=list)
    consistencies: list[tuple[Place, Consistency]] = field(default_factory=list)
    headers: list[tuple[Place, Header]] = field(default_factory=list)
    """The first lines of this log's exports."""
    connected: set[SignedTree] = field(default_factory=set)
    """The trees that are proven states of the exported log. Without an export, all."""
    used: dict[KeyName, Key] = field(default_factory=dict)
    """Keys that made a valid signature."""

    @property
    def log_id(self) -> str | None:
        """The id of the verified log: the last one of the lineage."""
        return None if self.lineage is None else self.lineage.logs[-1]

    def is_kept(self, tree: SignedTree) -> bool:
        """Return True if a signed tree is a state of the last log."""
        return tree in self.sizes.get(tree.size, ())

    def trees_of_size(self, size: int) -> Sequence[SignedTree]:
        """Return the trees of one size, from all logs of the lineage."""
        lost = (trees.get(size, ()) for trees in self.lost.values())
        return [*self.sizes.get(size, ()), *(tree for trees in lost for tree in trees)]

    def trees_of(self, log_id: str) -> Mapping[int, Sequence[SignedTree]]:
        """Return a log's signed trees, by size."""
        inherited = self.lineage.inherited(log_id) if self.lineage else 0
        kept = {size: trees for size, trees in self.sizes.items() if size <= inherited}
        return {**kept, **self.lost.get(log_id, {})}


def collect_evidence(
    located: Sequence[Located], trusted: Sequence[Located] | None, findings: Findings
) -> Evidence:
    """Report invalid statements, and return the valid ones.

    Without trusted keys, signatures are verified with the keys in the files.
    """
    log_id = _firstlog_of([*(trusted or ()), *located])
    lineage = find_lineage(log_id, located)
    evidence = Evidence(lineage)
    ours = list(_of_lineage(lineage, located, findings))
    _add_keys(evidence, ours if trusted is None else trusted, findings)
    if trusted is not None:
        _compare_keys(evidence, ours, findings)
    for place, statement in ours:
        match statement:
            case Header():
                evidence.headers.append((place, statement))
            case Consistency():
                evidence.consistencies.append((place, statement))
            case Newer():
                evidence.newer.append((place, statement))
            case Succession():
                evidence.successions.append((place, statement))
            case Checkpoint():
                _add_checkpoint(evidence, place, statement, findings)
            case _:
                pass
    for _, succession in evidence.successions:
        tree = SignedTree(succession.size, succession.root)
        if tree not in evidence.sizes.setdefault(tree.size, []):
            evidence.sizes[tree.size].append(tree)
    return evidence


def log_of(located: Located) -> str | None:
    """Return the log id in a statement, or None."""
    statement = located.statement
    return statement.log_id if isinstance(statement, Header | Key | NoteKey | Checkpoint) else None


def _firstlog_of(located: Iterable[Located]) -> str | None:
    return next((log_id for item in located if (log_id := log_of(item)) is not None), None)


def _of_lineage(
    lineage: Lineage | None, located: Iterable[Located], findings: Findings
) -> Iterable[Located]:
    """Yield the statements about logs of the lineage. Report other logs, once for each file."""
    logs = () if lineage is None else lineage.logs
    reported: set[tuple[int, str]] = set()
    foreign_exports: set[int] = set()
    for item in located:
        about = log_of(item)
        order = item.place.order
        if about is None or about in logs:
            if order not in foreign_exports:
                yield item
            continue
        if isinstance(item.statement, Header):
            foreign_exports.add(order)
        if (order, about) not in reported:
            reported.add((order, about))
            message = f"it is about log {about}; the others are about {logs[-1]}"
            findings.add(Kind.ANOTHER_LOG, message, item.place)


def _add_keys(evidence: Evidence, located: Iterable[Located], findings: Findings) -> None:
    places: dict[KeyName, Place] = {}
    for place, key in located:
        if not isinstance(key, Key):
            continue
        name = (key.algorithm, key.version)
        first = evidence.keys.setdefault(name, key)
        places.setdefault(name, place)
        if first.public_key != key.public_key:
            findings.add(
                Kind.REPLACED_KEY,
                f"key {_named(name)} is {key.fingerprint()} here and {first.fingerprint()} "
                f"in {places[name]}",
                place,
            )


def _compare_keys(evidence: Evidence, located: Iterable[Located], findings: Findings) -> None:
    for place, key in located:
        if not isinstance(key, Key):
            continue
        name = (key.algorithm, key.version)
        trusted = evidence.keys.get(name)
        if trusted is not None and trusted.public_key != key.public_key:
            findings.add(
                Kind.REPLACED_KEY,
                f"key {_named(name)} is {key.fingerprint()}; the trusted one is "
                f"{trusted.fingerprint()}",
                place,
            )


def check_signature(
    evidence: Evidence, place: Place, signed: Checkpoint | Found, what: str, findings: Findings
) -> bool:
    """Return True if a key of the log signed it. Otherwise report it, as ``what``."""
    name = (signed.algorithm, signed.version)
    key = evidence.keys.get(name)
    if key is None:
        message = f"no key {_named(name)} to verify {what} with"
        findings.add(Kind.UNKNOWN_KEY, message, place)
        return False
    if not is_signed_by(signed, key):
        message = f"{what} is not what key {_named(name)} signed"
        findings.add(Kind.BAD_SIGNATURE, message, place)
        return False
    lineage, log_id = evidence.lineage, signed.log_id
    if lineage is None or log_id not in lineage.logs or not lineage.signs(log_id, signed.version):
        message = f"key {_named(name)} is not one of log {log_id}"
        findings.add(Kind.UNKNOWN_KEY, message, place)
        return False
    evidence.used[name] = key
    return True


def _add_checkpoint(
    evidence: Evidence, place: Place, checkpoint: Checkpoint, findings: Findings
) -> None:
    what = f"the checkpoint of size {checkpoint.size}"
    lineage, log_id = evidence.lineage, checkpoint.log_id
    if not check_signature(evidence, place, checkpoint, what, findings) or lineage is None:
        return
    tree = SignedTree(checkpoint.size, checkpoint.root)
    is_lost = tree.size > lineage.inherited(log_id)
    sizes = evidence.lost.setdefault(log_id, {}) if is_lost else evidence.sizes
    if tree not in evidence.trees:
        evidence.trees[tree] = []
        of_size = sizes.setdefault(tree.size, [])
        of_size.append(tree)
        if len(of_size) > 1:
            other = evidence.trees[of_size[0]][0].place
            message = f"the log of {tree.size} records was signed with another root in {other}"
            findings.add(Kind.FORK, message, place)
    evidence.trees[tree].append(VerifiedCheckpoint(place, checkpoint))


def _named(name: KeyName) -> str:
    return f"{name[0]} version {name[1]}"
