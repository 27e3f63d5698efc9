"""Verifies the records of one export against the signed tree, in one pass.

Without inclusion proofs, all records are added to the tree. At the end its root is compared. Such
an export can start after some records: its first line then has the hashes of the subtrees before
it. The next export in the same file may begin where this one ends.

The record ids of a whole export run from 1 to its size. The record numbers of a tenant's export
begin at 1. So the next position is always known. A record with a wrong proof does not fill its
position. If another record has the same position, the record was inserted; otherwise it was edited.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pqkeep.audit._evidence import SignedTree
from pqkeep.audit._files import Line
from pqkeep.audit._merkle import GrowingTree, proven_root
from pqkeep.audit._statements import End, Entry, Header, Statement
from pqkeep.audit.report import MOST, Findings, Kind, Place, Portion

MOST_GAPS = 10_000


class Gap(NamedTuple):
    """Missing positions from ``begin`` until before ``end``, and the line found in their place."""

    begin: int
    end: int
    place: Place


class Gaps:
    """Skipped positions: missing, or out of order. They are ordered ranges without overlap.

    Ranges beyond MOST_GAPS are dropped.
    """

    def __init__(self) -> None:
        self._gaps: list[Gap] = []

    def __iter__(self) -> Iterator[Gap]:
        return iter(self._gaps)

    def __bool__(self) -> bool:
        return bool(self._gaps)

    def open(self, begin: int, end: int, place: Place) -> None:
        """Add skipped positions."""
        if begin < end and len(self._gaps) < MOST_GAPS:
            gap = Gap(begin, end, place)
            self._gaps.insert(bisect_right(self._gaps, begin, key=_begin), gap)

    def fill(self, position: int) -> bool:
        """Remove a position from its gap. Return False if it is in no gap."""
        at = bisect_right(self._gaps, position, key=_begin) - 1
        if at < 0 or position >= self._gaps[at].end:
            return False
        begin, end, place = self._gaps.pop(at)
        self.open(begin, position, place)
        self.open(position + 1, end, place)
        return True


def _begin(gap: Gap) -> int:
    return gap.begin


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The result for one export."""

    portion: Portion
    continued: frozenset[SignedTree]
    """Earlier signed trees that are states of the exported log."""
    not_continued: frozenset[SignedTree]
    """Earlier signed trees that differ from the exported log at the same size."""


def verify_export(
    lines: Iterable[Line],
    start: tuple[Place, Header],
    size: int,
    root: bytes | None,
    trees: Mapping[int, Sequence[SignedTree]],
    findings: Findings,
) -> ExportResult:
    """Verify an export, from its first line on.

    ``size`` is the size of the export's tree, or of its last part's tree. ``root`` is the signed
    root for that size. Without it, the first proof gives the root. ``trees`` are signed trees by
    size, which a whole export is compared with.
    """
    going = _ExportVerification(start, size, root, trees, findings)
    for line in lines:
        going.add_line(line)
    going.finish()
    return ExportResult(
        portion=going.portion(),
        continued=frozenset(going.continued),
        not_continued=frozenset(going.not_continued),
    )


class _Failure(NamedTuple):
    """A record with a proof that leads to another root."""

    position: int
    place: Place
    entry: Entry
    is_in_tree: bool
    """True if the record is a leaf of the tree that was built from the export."""


class _ExportVerification:
    def __init__(
        self,
        start: tuple[Place, Header],
        size: int,
        root: bytes | None,
        trees: Mapping[int, Sequence[SignedTree]],
        findings: Findings,
    ) -> None:
        self._start, self._header = start
        self._is_whole = self._header.tenant_id is None
        self._size = size
        self._root = root
        self._signed_trees = trees
        self._findings = findings
        self._count = 0
        self._times: tuple[str, str] | None = None
        self._next = self._header.after + 1
        self._last_id = self._header.after
        self._count_before = 0
        """The number of records in earlier parts."""
        self._gaps = Gaps()
        self._failures: list[_Failure] = []
        self._unlisted = 0
        """The number of failures beyond MOST, which are not listed."""
        self._numbers: dict[str, int] = {}
        self._tree = GrowingTree(self._header.after, self._header.subtrees)
        self._is_complete = True
        self._last_place = self._start
        self._end: End | None = None
        self.continued: set[SignedTree] = set()
        self.not_continued: set[SignedTree] = set()
        self._compare_trees()

    def portion(self) -> Portion:
        """Return the summary of the export."""
        first_at, last_at = self._times or (None, None)
        return Portion(
            file=self._start.file,
            tenant_id=self._header.tenant_id,
            size=self._size,
            records=self._count,
            first_at=first_at,
            last_at=last_at,
            after=self._header.after,
        )

    def add_line(self, line: Line) -> None:
        """Verify the next line."""
        place, statement = line
        if self._end is not None and not isinstance(statement, Header):
            self._findings.add(Kind.MALFORMED, "it stands after the export's end", place)
            return
        self._last_place = place
        if isinstance(statement, Entry):
            self._count += 1
            self._add_record(place, statement)
        else:
            self._add_other(place, statement)

    def finish(self) -> None:
        """Report missing records, and classify the records with wrong proofs."""
        findings = self._findings
        if self._end is None:
            findings.add(
                Kind.TRUNCATED, "the export is cut off: it has no end line", self._last_place
            )
        else:
            self._check_count(self._end)
        beyond = self._size + 1
        if self._is_whole:
            self._gaps.open(self._next, beyond, self._last_place)
        is_grown_whole = self._tree.size == self._size and self._tree.root() == self._root
        if not self._header.has_proofs and self._tree.size == self._size:
            self._compare_root(is_signed=is_grown_whole)
        for failure in sorted(
            self._failures, key=lambda finding: (finding.position, finding.place)
        ):
            kind = self._kind_of(failure)
            is_only_proof = is_grown_whole and failure.is_in_tree
            self._report(Kind.WRONG_PROOF if is_only_proof else kind, failure)
        if self._unlisted:
            findings.count_unlisted(self._unlisted)
            return
        for gap in self._gaps:
            is_tail = self._is_whole and gap.end == beyond
            findings.add(
                Kind.TRUNCATED if is_tail else Kind.MISSING,
                self._missing(gap),
                gap.place,
                gap.begin if self._is_whole else None,
            )

    def _add_other(self, place: Place, statement: Statement | None) -> None:
        match statement:
            case End():
                self._end = statement
            case Header() if place != self._start:
                self._begin_part(place, statement)
            case None:  # a malformed record, which has been reported
                self._count += 1
            case _:
                pass

    def _begin_part(self, place: Place, header: Header) -> None:
        """Continue with an export that begins at the end of this one."""
        is_next = header.after == self._tree.size and header.subtrees == self._tree.subtrees
        if header.has_proofs or self._header.has_proofs or not is_next:
            self._findings.add(Kind.MALFORMED, "another export begins here", place)
            return
        if self._end is not None:
            self._check_count(self._end)
        self._end, self._count_before = None, self._count

    def _check_count(self, end: End) -> None:
        count = self._count - self._count_before
        if end.records != count:
            message = f"the end counts {end.records} records; there are {count}"
            self._findings.add(Kind.WRONG_COUNT, message, self._last_place)

    def _add_unproven(self, place: Place, entry: Entry) -> None:
        """Add a record without a proof to the tree. The root is compared at the end."""
        if entry.id == self._tree.size + 1:
            self._tree.add(entry.leaf)
        self._add_known(entry.id, place, entry)

    def _compare_root(self, *, is_signed: bool) -> None:
        """Report the range of records that was edited, if the root is wrong."""
        if self._root is None or is_signed:
            return
        first = max((tree.size for tree in self.continued), default=0) + 1
        last = min((tree.size for tree in self.not_continued), default=self._size)
        self.not_continued.clear()
        which = f"record {first}" if first == last else f"one of the records {first} to {last}"
        message = f"{which} was edited: they are not what was signed"
        self._findings.add(Kind.EDITED, message, self._start, first)

    def _add_record(self, place: Place, entry: Entry) -> None:
        if (entry.path is not None) is not self._header.has_proofs:
            wrong = "proof is missing" if entry.path is None else "it has an unexpected name"
            self._findings.add(Kind.MALFORMED, wrong, place, entry.id)
            return
        if entry.path is None:
            self._add_unproven(place, entry)
            return
        is_in_tree = self._is_whole and entry.id == self._tree.size + 1
        if is_in_tree:
            self._tree.add(entry.leaf)
        root = proven_root(entry.leaf, entry.id - 1, self._size, entry.path)
        if self._root is None:
            self._root = root
        position = entry.id if self._is_whole else entry.number
        if root is None or root != self._root:
            self._add_failure(_Failure(position, place, entry, is_in_tree))
            return
        if self._header.tenant_id not in (None, entry.tenant_id):
            message = f"record {entry.id} is another tenant's, {entry.tenant_id}"
            self._findings.add(Kind.ANOTHER_TENANT, message, place, entry.id)
            return
        self._add_known(position, place, entry)

    def _add_known(self, position: int, place: Place, entry: Entry) -> None:
        """Check the content and the position of a record."""
        if not entry.is_known:
            message = (
                f"record {entry.id} has format {entry.format}, which this version does not know:"
                " upgrade pqkeep to verify what it says"
            )
            self._findings.add(Kind.UNKNOWN_FORMAT, message, place, entry.id)
        self._times = (self._times[0] if self._times else entry.recorded_at, entry.recorded_at)
        self._is_complete = self._is_complete and position == self._next
        self._check_place(position, place, entry)
        if self._is_whole and self._is_complete:
            self._count_number(place, entry)
            self._compare_trees()

    def _add_failure(self, failure: _Failure) -> None:
        self._is_complete = False
        if len(self._failures) < MOST:
            self._failures.append(failure)
        else:
            self._unlisted += 1

    def _check_place(self, position: int, place: Place, entry: Entry) -> None:
        """Report a record that is out of order or repeated."""
        is_later = entry.id > self._last_id
        self._last_id = max(self._last_id, entry.id)
        is_new = position >= self._next
        if is_new:
            self._gaps.open(self._next, position, place)
            self._next = position + 1
        was_missing = not is_new and self._gaps.fill(position)
        if is_new and is_later:
            return
        if is_new or is_later:
            # Only a tenant's export comes here: numbers must grow as ids do.
            kind, what = Kind.WRONG_NUMBER, f"has number {position}, against the order of the ids"
        elif was_missing:
            kind, what = Kind.OUT_OF_ORDER, f"comes after record {self._last_id}"
        else:
            kind, what = Kind.REPEATED, "is here again"
        self._findings.add(kind, f"record {entry.id} {what}", place, entry.id)

    def _count_number(self, place: Place, entry: Entry) -> None:
        before = self._numbers.get(entry.tenant_id, entry.number - 1 if self._header.after else 0)
        expected = before + 1
        self._numbers[entry.tenant_id] = entry.number
        if entry.number != expected:
            message = f"record {entry.id} is its tenant's number {entry.number}, not {expected}"
            self._findings.add(Kind.WRONG_NUMBER, message, place, entry.id)

    def _compare_trees(self) -> None:
        trees = self._signed_trees.get(self._tree.size) if self._is_whole else None
        if trees:
            root = self._tree.root()
            self.continued.update(tree for tree in trees if tree.root == root)
            self.not_continued.update(tree for tree in trees if tree.root != root)

    def _kind_of(self, failure: _Failure) -> Kind:
        if self._gaps.fill(failure.position):
            return Kind.EDITED
        if not self._is_whole and failure.position == self._next:
            self._next += 1
            return Kind.EDITED
        return Kind.INSERTED

    def _report(self, kind: Kind, failure: _Failure) -> None:
        record = failure.entry.id
        name = (
            f"record {record}" if self._is_whole else f"record {record} (number {failure.position})"
        )
        message = _FAILURES[kind].format(
            name=name, proof="" if self._is_whole else ", or its proof"
        )
        self._findings.add(kind, message, failure.place, record)

    def _missing(self, gap: Gap) -> str:
        begin, last = gap.begin, gap.end - 1
        noun = "record" if self._is_whole else "the tenant's record number"
        missing = f"{noun} {begin} is" if begin == last else f"{noun}s {begin} to {last} are"
        if self._is_whole and last == self._size:
            return f"the log has {last} records, and {missing} missing"
        return f"{missing} missing"


_FAILURES: Mapping[Kind, str] = {
    Kind.EDITED: "{name} was edited{proof}: it is not what was signed",
    Kind.INSERTED: "{name} was inserted: it is not in the log that was signed",
    Kind.WRONG_PROOF: "{name} is what was signed, but its proof is not",
}
