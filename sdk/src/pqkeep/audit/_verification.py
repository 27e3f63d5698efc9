"""The whole verification: from paths to a report."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from os import PathLike
from pathlib import Path

from pqkeep.audit._connections import connect
from pqkeep.audit._evidence import Evidence, SignedTree, collect_evidence
from pqkeep.audit._export import ExportResult, verify_export
from pqkeep.audit._files import Located, Source, export_lines, open_source, portions, statements
from pqkeep.audit._findings import Findings, Place
from pqkeep.audit._formats import FORMATS, Formats
from pqkeep.audit._several_logs import LogStatements, add_saved_proofs, divided
from pqkeep.audit._statements import Header, Key
from pqkeep.audit.report import Anchor, Continued, Kind, Report, SigningKey

TRUSTED = -1
"""The order of the file of trusted keys: before all others."""


def verify(
    paths: Sequence[str | PathLike[str]], trusted_keys: str | PathLike[str] | None = None
) -> Report:
    """Verify exports, and checkpoints, keys and consistency proofs that were kept.

    Without a file of trusted keys, the keys in the files themselves are taken: that shows only that
    the files agree with themselves. Whatever the files hold is a finding, never an exception.

    Raises OSError for a file that cannot be read, ValueError without paths, and ImportError if
    ``pqkeep[audit]`` is not installed.
    """
    return verify_formats(FORMATS, paths, trusted_keys)


def verify_formats(
    formats: Formats,
    paths: Sequence[str | PathLike[str]],
    trusted_keys: str | PathLike[str] | None = None,
) -> Report:
    """Verify records of these formats; everything else is as ``verify`` says."""
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
        located = [each for source in sources for each in statements(source, findings)]
        if len(sources) == len(files):
            logs = [LogStatements(located, trusted)]
        else:
            logs = divided(located, trusted)
        collected = [collect_evidence(each.located, each.trusted, findings) for each in logs]
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
    """Verify what is about one log; return the report, without the findings."""
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
    keys = [each for each in statements(source, findings) if isinstance(each.statement, Key)]
    if not keys:
        findings.add(Kind.NO_KEYS, "there are no keys in it", source.place(0))
    return keys


def _verify_exports(
    evidence: Evidence, sources: Sequence[Source], findings: Findings
) -> Iterator[tuple[SignedTree | None, ExportResult]]:
    """Yield each export's signed tree, None if there is none, and what its records are."""
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
    """Yield the first line of each file's export, and that of the last part of it."""
    by_file: dict[int, list[tuple[Place, Header]]] = {}
    for each in evidence.headers:
        by_file.setdefault(each[0].order, []).append(each)
    for headers in by_file.values():
        (place, first), *_ = headers
        parts = [header for _, header in headers if not header.has_proofs]
        yield place, first, first if first.has_proofs else parts[-1]


def _head(evidence: Evidence, place: Place, header: Header) -> SignedTree | None:
    """Return the signed tree of an export's size: of two the one that the export itself has."""

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
