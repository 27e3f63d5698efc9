"""Verifies evidence: the records of a query, with signed statements that no other record matches.

Each statement covers a range of records, and its records follow it. The ranges follow each other
from the log's first record to the checkpoint's last one.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from pqkeep.audit._evidence import Evidence, check_signature
from pqkeep.audit._export import ExportResult
from pqkeep.audit._files import Line
from pqkeep.audit._merkle import proven_root
from pqkeep.audit._statements import End, Entry, Found, Header
from pqkeep.audit.report import Findings, Kind, Place, Portion


def verify_found(
    lines: Iterable[Line],
    start: tuple[Place, Header],
    root: bytes | None,
    evidence: Evidence,
    findings: Findings,
) -> ExportResult:
    """Verify the evidence of a query, from its first line on.

    ``root`` is the signed root of its size. Without it, the first proof gives the root.
    """
    going = _FoundVerification(start, root, evidence, findings)
    for line in lines:
        going.add_line(line)
    going.finish()
    return ExportResult(going.portion(), frozenset(), frozenset())


class _FoundVerification:
    def __init__(
        self,
        start: tuple[Place, Header],
        root: bytes | None,
        evidence: Evidence,
        findings: Findings,
    ) -> None:
        self._start, self._header = start
        self._root = root
        self._evidence = evidence
        self._findings = findings
        self._count = 0
        self._times: tuple[str, str] | None = None
        self._query: Mapping[str, Any] | None = None
        self._stated: tuple[Place, Found] | None = None
        """The present statement, if its signature is valid."""
        self._is_unknown = False
        """True after a statement that is not valid: its records cannot be compared."""
        self._seen: list[tuple[int, Place]] = []
        """The ids of the records since the statement."""
        self._through = 0
        """The last record that a statement covers."""
        self._last_place = self._start
        self._end: End | None = None

    def portion(self) -> Portion:
        """Return the summary of the evidence."""
        first_at, last_at = self._times or (None, None)
        return Portion(
            file=self._start.file,
            tenant_id=self._header.tenant_id,
            size=self._header.size,
            records=self._count,
            first_at=first_at,
            last_at=last_at,
            query=self._query or {},
        )

    def add_line(self, line: Line) -> None:
        """Verify the next line."""
        place, statement = line
        if self._end is not None:
            self._findings.add(Kind.MALFORMED, "it stands after the evidence's end", place)
            return
        self._last_place = place
        match statement:
            case Found():
                self._add_statement(place, statement)
            case Entry():
                self._count += 1
                self._add_record(place, statement)
            case None:  # a malformed record, which has been reported
                self._count += 1
            case End():
                self._end = statement
            case Header() if place != self._start:
                self._findings.add(Kind.MALFORMED, "another export begins here", place)
            case _:
                pass

    def finish(self) -> None:
        """Report missing records and statements."""
        self._compare()
        findings = self._findings
        if self._end is None:
            message = "the evidence is cut off: it has no end line"
            findings.add(Kind.TRUNCATED, message, self._last_place)
        elif self._end.records != self._count:
            message = f"the end counts {self._end.records} records; there are {self._count}"
            findings.add(Kind.WRONG_COUNT, message, self._last_place)
        self._require_stated(self._header.size, self._last_place)

    def _add_statement(self, place: Place, found: Found) -> None:
        self._compare()
        what = f"the statement on the records {found.after + 1} to {found.through}"
        is_signed = check_signature(self._evidence, place, found, what, self._findings)
        is_ours = is_signed and self._is_about_ours(place, found, what)
        self._stated = (place, found) if is_ours else None
        self._is_unknown = not is_ours
        if found.after < self._through:
            message = f"{what} covers records again"
            self._findings.add(Kind.OUT_OF_ORDER, message, place)
        self._require_stated(found.after, place)
        self._through = max(self._through, found.through)

    def _is_about_ours(self, place: Place, found: Found, what: str) -> bool:
        """Return True for a statement on the evidence's query, tenant and tree."""
        header = self._header
        root = found.root if self._root is None else self._root
        stated = found.log_id, found.tenant_id, found.size, found.root
        if stated != (header.log_id, header.tenant_id, header.size, root):
            message = f"{what} is about another log, tenant or checkpoint"
            self._findings.add(Kind.ANOTHER_QUERY, message, place)
            return False
        if self._query is None:
            self._query = found.query
        if found.query != self._query:
            message = f"{what} belongs to another query than the previous statement"
            self._findings.add(Kind.ANOTHER_QUERY, message, place)
            return False
        return True

    def _require_stated(self, last: int, place: Place) -> None:
        """Report records up to ``last`` that no statement covers."""
        if self._through < last:
            message = f"nothing states which of the records {self._through + 1} to {last} match"
            self._findings.add(Kind.NOT_STATED, message, place, self._through + 1)

    def _add_record(self, place: Place, entry: Entry) -> None:
        if entry.path is None:
            self._findings.add(Kind.MALFORMED, "proof is missing", place, entry.id)
            return
        root = proven_root(entry.leaf, entry.id - 1, self._header.size, entry.path)
        if self._root is None:
            self._root = root
        if root is None or root != self._root:
            self._add_unsigned(place, entry)
            return
        self._seen.append((entry.id, place))
        if self._header.tenant_id not in (None, entry.tenant_id):
            message = f"record {entry.id} is another tenant's, {entry.tenant_id}"
            self._findings.add(Kind.ANOTHER_TENANT, message, place, entry.id)
        if not entry.is_known:
            message = (
                f"record {entry.id} has format {entry.format}, which this version does not know:"
                " upgrade pqkeep to verify what it says"
            )
            self._findings.add(Kind.UNKNOWN_FORMAT, message, place, entry.id)
        self._times = (self._times[0] if self._times else entry.recorded_at, entry.recorded_at)

    def _add_unsigned(self, place: Place, entry: Entry) -> None:
        """Report a record that is not in the signed tree."""
        is_stated = self._stated is not None and entry.id in self._stated[1].ids
        if is_stated:
            self._seen.append((entry.id, place))
            message = f"record {entry.id} was edited, or its proof: it is not what was signed"
        else:
            message = f"record {entry.id} was inserted: it is not in the log that was signed"
        kind = Kind.EDITED if is_stated else Kind.INSERTED
        self._findings.add(kind, message, place, entry.id)

    def _compare(self) -> None:
        """Compare the records since the last statement with its ids."""
        seen, self._seen = self._seen, []
        if self._is_unknown:
            return
        place, ids = self._start, tuple[int, ...]()
        if self._stated is not None:
            place, ids = self._stated[0], self._stated[1].ids
        stated, known = set(ids), set[int]()
        for id_, at in seen:
            if id_ not in stated:
                message = f"record {id_} was added: the statement before it does not have it"
                self._findings.add(Kind.INSERTED, message, at, id_)
            elif id_ in known:
                self._findings.add(Kind.REPEATED, f"record {id_} is here again", at, id_)
            known.add(id_)
        for (before, _), (id_, at) in pairwise(seen):
            if id_ < before:
                message = f"record {id_} comes after record {before}"
                self._findings.add(Kind.OUT_OF_ORDER, message, at, id_)
        for id_ in ids:
            if id_ not in known:
                message = f"record {id_}, which matches the query, is missing"
                self._findings.add(Kind.MISSING, message, place, id_)
