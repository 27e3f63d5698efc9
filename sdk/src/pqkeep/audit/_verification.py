"""The complete verification: from paths to a report.

Files can hold several logs: one for each shard where a tenant has been. Each log is verified alone.
A statement without a log id belongs to the log of its export. A consistency proof from elsewhere
belongs to the log for which it is valid.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
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
from pqkeep.audit._merkle import is_grown
from pqkeep.audit._statements import Consistency, Header, Key
from pqkeep.audit.report import Anchor, Continued, Findings, Kind, Place, Report, SigningKey


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
    """Add each saved consistency proof to the first log for which it is valid, or to the last log."""
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


TRUSTED = -1
"""The number of the file of trusted keys: it comes before all others."""


def verify(
    paths: Sequence[str | PathLike[str]], trusted_keys: str | PathLike[str] | None = None
) -> Report:
    """Verify exports, saved checkpoints, keys and consistency proofs.

    Without a file of trusted keys, the keys in the verified files are used. The result then shows
    only that the files are consistent. Wrong content becomes a finding, never an exception.

    Raises OSError for an unreadable file, ValueError without paths, and ImportError without the
    extra ``pqkeep[audit]``.
    """
    return verify_formats(FORMATS, paths, trusted_keys)


def verify_formats(
    formats: Formats,
    paths: Sequence[str | PathLike[str]],
    trusted_keys: str | PathLike[str] | None = None,
) -> Report:
    """Verify like ``verify``, but with these formats of records."""
    if not paths:
        raise ValueError("no files to verify")
    findings = Findings()
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
            _report(evidence, sources, findings, are_keys_trusted=trusted is not None)
            for evidence in collected
        ]
    if not (report.portions or collected[-1].trees or findings.count):
        message = "there is nothing to verify: no export, and no checkpoint"
        findings.add(Kind.NOTHING, message, sources[0].place(0))
    return replace(
        report, findings=findings.listed(), further=findings.further, earlier=tuple(earlier)
    )


def _report(
    evidence: Evidence, sources: Sequence[Source], findings: Findings, *, are_keys_trusted: bool
) -> Report:
    """Verify the statements about one log. Return the report without the findings."""
    exports = list(_verify_exports(evidence, sources, findings))
    notes = connect(evidence, exports, findings)
    return Report(
        log_id=evidence.log_id,
        continued=tuple(_continued(evidence)),
        portions=tuple(result.portion for _, result in exports),
        checkpoints=tuple(_anchors(evidence)),
        keys=tuple(
            SigningKey(*name, key.fingerprint()) for name, key in sorted(evidence.used.items())
        ),
        are_keys_trusted=are_keys_trusted,
        findings=(),
        further=0,
        notes=notes,
    )


def _trusted(source: Source, findings: Findings) -> list[Located]:
    keys = [
        statement
        for statement in statements(source, findings)
        if isinstance(statement.statement, Key)
    ]
    if not keys:
        findings.add(Kind.NO_KEYS, "there are no keys in it", source.place(0))
    return keys


def _verify_exports(
    evidence: Evidence, sources: Sequence[Source], findings: Findings
) -> Iterator[tuple[SignedTree | None, ExportResult]]:
    """Yield the signed tree of each export, or None, and the result for its records."""
    for place, first, header in _exports(evidence):
        head = _head(evidence, place, header)
        if head is None:
            message = f"no checkpoint of its size, {header.size}, has a good signature"
            findings.add(Kind.NO_CHECKPOINT, message, place)
        root = None if head is None else head.root
        lines = export_lines(sources[place.order], findings)
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
