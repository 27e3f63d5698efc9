"""The complete verification: from paths to a report.

Files can hold several logs: one for each shard where a tenant has been. Each log is verified alone.
A statement without a log id belongs to the log of its export. A consistency proof from elsewhere
belongs to the log for which it is valid.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path

from pqkeep.audit._connections import connect
from pqkeep.audit._evidence import (
    Evidence,
    Lineage,
    SignedTree,
    collect_evidence,
    find_lineage,
    log_of,
)
from pqkeep.audit._export import ExportResult, verify_export
from pqkeep.audit._files import Located, Source, export_lines, open_source, portions, statements
from pqkeep.audit._formats import FORMATS, Formats
from pqkeep.audit._found import verify_found
from pqkeep.audit._merkle import is_grown
from pqkeep.audit._notes import (
    LONGEST_PROOF,
    PROOF,
    VerifierKey,
    read_proof,
    seconds_of,
    verifier_key,
)
from pqkeep.audit._statements import Consistency, Header, Key, NoteKey
from pqkeep.audit.report import (
    Anchor,
    Continued,
    Findings,
    Kind,
    Place,
    ProvenRecord,
    Report,
    SigningKey,
    Witnessed,
)


@dataclass(slots=True)
class LogStatements:
    """The statements about one log and the logs that it continues."""

    located: Sequence[Located]
    trusted: Sequence[Located] | None
    saved: list[Located] = field(default_factory=list)
    """Consistency proofs that may belong to any of the logs."""


def divided(located: Sequence[Located], trusted: Sequence[Located] | None) -> list[LogStatements]:
    """Divide statements among the logs of the exports.

    The last log gets statements about other logs.
    """
    heads = {
        place.order: statement.log_id
        for place, statement in located
        if isinstance(statement, Header)
    }
    lineages: list[Lineage] = []
    for log_id in heads.values():
        found = find_lineage(log_id, located)
        if found is None or any(found.logs[-1] in lineage.logs for lineage in lineages):
            continue
        lineages = [lineage for lineage in lineages if lineage.logs[-1] not in found.logs]
        lineages.append(found)
    of_log = {log_id: index for index, lineage in enumerate(lineages) for log_id in lineage.logs}
    last = len(lineages) - 1

    def index_of(item: Located) -> int:
        log_id = log_of(item) or heads.get(item.place.order, "")
        return of_log.get(log_id, last)

    divided = [LogStatements([], None if trusted is None else []) for _ in lineages]
    parts: list[list[Located]] = [[] for _ in lineages]
    for item in located:
        if isinstance(item.statement, Consistency) and item.place.order not in heads:
            divided[last].saved.append(item)
        else:
            parts[index_of(item)].append(item)
    for index, log in enumerate(divided):
        log.located = parts[index]
        if trusted is not None:
            log.trusted = [key for key in trusted if index_of(key) == index]
    return divided


def add_saved_proofs(collected: Sequence[Evidence], logs: Sequence[LogStatements]) -> None:
    """Add each saved consistency proof to the first log for which the proof is valid.

    A proof that is valid for no log is added to the last log.
    """
    for place, proof in (proof for log in logs for proof in log.saved):
        if not isinstance(proof, Consistency):
            continue
        found = (evidence for evidence in collected if _holds(proof, evidence))
        next(found, collected[-1]).consistencies.append((place, proof))


def _holds(proof: Consistency, evidence: Evidence) -> bool:
    return any(
        is_grown(proof.first, first.root, proof.second, second.root, proof.path)
        for first in evidence.trees_of_size(proof.first)
        for second in evidence.trees_of_size(proof.second)
    )


_LATEST = 253402300799
"""The last second that a time can show, in seconds since 1970."""
TRUSTED = -1
"""The number for the file of trusted keys. It sorts before all other files."""


def verify(
    paths: Sequence[str | PathLike[str]],
    trusted_keys: str | PathLike[str] | None = None,
    *,
    witnesses: Sequence[str] = (),
    least_witnesses: int | None = None,
) -> Report:
    """Verify exports, saved checkpoints, keys, consistency proofs, and tlog-proofs of records.

    ``witnesses`` are verifier keys (vkeys). At least ``least_witnesses`` of them, by default all,
    must have cosigned the log under the name in the trusted keys.

    Without a file of trusted keys, the keys in the verified files are used. The result then shows
    only that the files are consistent. Wrong content becomes a finding, never an exception.

    Raises OSError for an unreadable file, ValueError without paths or for an invalid witness, and
    ImportError without the extra ``pqkeep[audit]``.
    """
    return verify_formats(
        FORMATS, paths, trusted_keys, witnesses=witnesses, least_witnesses=least_witnesses
    )


def verify_formats(
    formats: Formats,
    paths: Sequence[str | PathLike[str]],
    trusted_keys: str | PathLike[str] | None = None,
    *,
    witnesses: Sequence[str] = (),
    least_witnesses: int | None = None,
) -> Report:
    """Verify like ``verify``, but with these formats of records."""
    if not paths:
        raise ValueError("no files to verify")
    witness_keys = {key.name: key for key in map(verifier_key, witnesses)}
    least = len(witness_keys) if least_witnesses is None else least_witnesses
    if not 0 <= least <= len(witness_keys):
        raise ValueError("more witnesses are needed than there are keys of witnesses")
    quorum = Quorum(witness_keys, least)
    findings = Findings()
    proofs = [path for path in paths if _is_proof(Path(path))]
    paths = [path for path in paths if path not in proofs]
    if not paths:
        return _of_proofs(proofs, formats, trusted_keys, quorum, findings)
    with ExitStack() as stack:
        files = [open_source(Path(path), order, formats, stack) for order, path in enumerate(paths)]
        parts = [part for file in files for part in portions(file)]
        sources = [replace(part, order=order) for order, part in enumerate(parts)]
        trusted = None
        if trusted_keys is not None:
            trusted = _trusted(open_source(Path(trusted_keys), TRUSTED, formats, stack), findings)
        located = [statement for source in sources for statement in statements(source, findings)]
        if len(sources) == len(files):
            logs = [LogStatements(located, trusted)]
        else:
            logs = divided(located, trusted)
        collected = [collect_evidence(log.located, log.trusted, findings) for log in logs]
        add_saved_proofs(collected, logs)
        *earlier, report = [
            _report(evidence, sources, findings, quorum, log.trusted)
            for evidence, log in zip(collected, logs, strict=True)
        ]
        proven = tuple(_proven(proofs, trusted, quorum, findings))
    if not (report.portions or collected[-1].trees or findings.count):
        message = "there is nothing to verify: no export, and no checkpoint"
        findings.add(Kind.NOTHING, message, sources[0].place(0))
    return replace(
        report,
        findings=findings.listed(),
        further=findings.further,
        proofs=proven,
        earlier=tuple(earlier),
    )


@dataclass(frozen=True, slots=True)
class Quorum:
    """The keys of witnesses, by name, and how many of them must have cosigned."""

    keys: Mapping[str, VerifierKey]
    least: int

    def require(self, witnessed: Sequence[Witnessed], place: Place, findings: Findings) -> None:
        """Report a log or proof that too few witnesses cosigned."""
        if len(witnessed) < self.least:
            names = ", ".join(sorted(self.keys.keys() - {one.witness for one in witnessed}))
            message = (
                f"{len(witnessed)} of {len(self.keys)} witnesses cosigned it, and {self.least} must:"
                f" no cosignature of {names}"
            )
            findings.add(Kind.NOT_WITNESSED, message, place)


def _witnessed(
    evidence: Evidence, origins: Collection[str], quorum: Quorum, findings: Findings
) -> Iterator[Witnessed]:
    """Yield the largest tree that each witness cosigned under a trusted name of the log."""
    largest: dict[str, Witnessed] = {}
    for tree in sorted(evidence.connected):
        for place, checkpoint in evidence.trees[tree]:
            for cosignature in checkpoint.cosignatures:
                key = quorum.keys.get(cosignature.witness)
                if key is None or cosignature.origin not in origins:
                    continue
                is_valid = key.has_signed(
                    cosignature.stamped, cosignature.origin, tree.size, tree.root
                )
                if is_valid:
                    largest[key.name] = _told(key, cosignature.origin, tree, cosignature.stamped)
                elif is_valid is False:
                    message = f"the cosignature of {key.name} of {tree.size} records is invalid"
                    findings.add(Kind.BAD_COSIGNATURE, message, place)
    yield from sorted(largest.values(), key=lambda one: (-one.size, one.witness))


def _told(key: VerifierKey, origin: str, tree: SignedTree, stamped: bytes) -> Witnessed:
    seconds = min(seconds_of(stamped), _LATEST)
    at = f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return Witnessed(key.name, origin, tree.size, at)


def _is_proof(path: Path) -> bool:
    """Return True if a file begins like a tlog-proof."""
    if not path.is_file():
        return False
    with path.open("rb") as opened:
        return opened.read(len(PROOF)) == PROOF


def _of_proofs(
    paths: Sequence[str | PathLike[str]],
    formats: Formats,
    trusted_keys: str | PathLike[str] | None,
    quorum: Quorum,
    findings: Findings,
) -> Report:
    """Return the report about files that are all tlog-proofs."""
    trusted = None
    if trusted_keys is not None:
        with ExitStack() as stack:
            trusted = _trusted(open_source(Path(trusted_keys), TRUSTED, formats, stack), findings)
    proven = tuple(_proven(paths, trusted, quorum, findings))
    return Report(
        log_id=None,
        continued=(),
        portions=(),
        checkpoints=(),
        keys=(),
        are_keys_trusted=True,
        findings=findings.listed(),
        further=findings.further,
        notes=(),
        proofs=proven,
    )


def _proven(
    paths: Sequence[str | PathLike[str]],
    trusted: Sequence[Located] | None,
    quorum: Quorum,
    findings: Findings,
) -> Iterator[ProvenRecord]:
    """Yield the records that valid tlog-proofs show to be in the log of the trusted keys."""
    keys = [item.statement for item in trusted or () if isinstance(item.statement, NoteKey)]
    for order, path in enumerate(paths):
        place = Place(order, 0, str(path))
        with Path(path).open("rb") as opened:
            data = opened.read(LONGEST_PROOF)
        try:
            proof = read_proof(data)
            note = proof.note
            logs = [verifier_key(key.text) for key in keys if key.origin == note.origin]
            signed = [log for log in logs if note.signed_by(log) is not None]
            cosigned = {
                key: stamped
                for key in quorum.keys.values()
                if (stamped := note.signed_by(key)) is not None
            }
        except ValueError as error:
            findings.add(Kind.MALFORMED, str(error), place)
            continue
        if not signed:
            message = f"no trusted key signed the note of {note.origin}: save the log's keys again"
            if not keys:
                message = "name the log's saved keys with --keys: a proof has no keys"
            findings.add(Kind.UNKNOWN_KEY, message, place)
            continue
        if not proof.is_included:
            message = f"the record is not in the log of {note.size} records"
            findings.add(Kind.NOT_INCLUDED, message, place, proof.index + 1)
            continue
        tree = SignedTree(note.size, note.root)
        witnessed = tuple(
            _told(key, note.origin, tree, stamped) for key, stamped in cosigned.items()
        )
        quorum.require(witnessed, place, findings)
        yield ProvenRecord(
            file=str(path),
            id=proof.index + 1,
            operation=str(proof.record.get("operation")),
            recorded_at=str(proof.record.get("recorded_at")),
            origin=note.origin,
            size=note.size,
            witnessed=witnessed,
        )


def _report(
    evidence: Evidence,
    sources: Sequence[Source],
    findings: Findings,
    quorum: Quorum,
    trusted: Sequence[Located] | None,
) -> Report:
    """Verify the statements about one log. Return the report without the findings."""
    exports = list(_verify_exports(evidence, sources, findings))
    notes = connect(evidence, exports, findings)
    origins = {
        item.statement.origin for item in trusted or () if isinstance(item.statement, NoteKey)
    }
    witnessed = tuple(_witnessed(evidence, origins, quorum, findings))
    place = sources[0].place(0)
    if quorum.keys and not origins:
        message = "no trusted keys name the log: give the log's saved keys, which have its note_key"
        findings.add(Kind.NOT_WITNESSED, message, place)
    else:
        quorum.require(witnessed, place, findings)
    return Report(
        log_id=evidence.log_id,
        continued=tuple(_continued(evidence)),
        portions=tuple(result.portion for _, result in exports),
        checkpoints=tuple(_anchors(evidence)),
        keys=tuple(
            SigningKey(*name, key.fingerprint()) for name, key in sorted(evidence.used.items())
        ),
        are_keys_trusted=trusted is not None,
        witnessed=witnessed,
        findings=(),
        further=0,
        notes=notes,
    )


def _trusted(source: Source, findings: Findings) -> list[Located]:
    keys = [
        statement
        for statement in statements(source, findings)
        if isinstance(statement.statement, Key | NoteKey)
    ]
    if not keys:
        findings.add(Kind.NO_KEYS, "there are no keys in it", source.place(0))
    return keys


def _verify_exports(
    evidence: Evidence, sources: Sequence[Source], findings: Findings
) -> Iterator[tuple[SignedTree | None, ExportResult]]:
    """Yield each export's signed tree (None without one), and the result for its records."""
    for place, first, header in _exports(evidence):
        head = _head(evidence, place, header)
        if head is None:
            message = f"no checkpoint of its size, {header.size}, has a good signature"
            findings.add(Kind.NO_CHECKPOINT, message, place)
        root = None if head is None else head.root
        lines = export_lines(sources[place.order], findings)
        if first.is_evidence:
            yield head, verify_found(lines, (place, first), root, evidence, findings)
            continue
        trees = evidence.trees_of(header.log_id)
        yield head, verify_export(lines, (place, first), header.size, root, trees, findings)


def _exports(evidence: Evidence) -> Iterator[tuple[Place, Header, Header]]:
    """Yield the first lines of each file's export: of the whole, and of its last part."""
    by_file: dict[int, list[tuple[Place, Header]]] = {}
    for portion in evidence.headers:
        by_file.setdefault(portion[0].order, []).append(portion)
    for headers in by_file.values():
        (place, first), *_ = headers
        parts = [header for _, header in headers if not header.has_proofs]
        yield place, first, first if first.has_proofs else parts[-1]


def _head(evidence: Evidence, place: Place, header: Header) -> SignedTree | None:
    """Return the signed tree of an export's size. If two differ, return the export's own."""

    def is_elsewhere(tree: SignedTree) -> bool:
        return all(signed.place.order != place.order for signed in evidence.trees[tree])

    trees = evidence.trees_of(header.log_id).get(header.size, ())
    signed = [tree for tree in trees if tree in evidence.trees]
    return min(signed, key=is_elsewhere, default=None)


def _continued(evidence: Evidence) -> Iterator[Continued]:
    lineage = evidence.lineage
    for succession in lineage.successions if lineage else ():
        largest = max(evidence.lost.get(succession.log_id, ()), default=0)
        lost = max(0, largest - succession.inherited)
        yield Continued(succession.log_id, succession.inherited, lost)


def _anchors(evidence: Evidence) -> Iterator[Anchor]:
    for tree in sorted(evidence.trees):
        for place, checkpoint in evidence.trees[tree]:
            yield Anchor(
                size=tree.size,
                root=tree.root,
                at=checkpoint.at,
                algorithm=checkpoint.algorithm,
                key_version=checkpoint.version,
                file=place.file,
                line=place.line,
            )
