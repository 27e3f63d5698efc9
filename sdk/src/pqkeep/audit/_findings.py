"""Collects findings: all are counted, and the first MOST are listed."""

from typing import NamedTuple

from pqkeep.audit.report import Finding, Kind

MOST = 1_000


class Place(NamedTuple):
    """A line of a file."""

    order: int
    """Which of the files."""
    line: int
    """0: the file as a whole."""
    file: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Findings:
    """Findings so far."""

    def __init__(self) -> None:
        self._listed: list[tuple[Place, Finding]] = []
        self._further = 0

    def add(self, kind: Kind, message: str, place: Place, record: int | None = None) -> None:
        """Add a finding, or count it if there are MOST already."""
        if len(self._listed) == MOST:
            self._further += 1
            return
        finding = Finding(kind, message, place.file, place.line or None, record)
        self._listed.append((place, finding))

    def count_unlisted(self, count: int) -> None:
        """Count findings that are not listed."""
        self._further += count

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._listed) + self._further

    @property
    def further(self) -> int:
        """How many are not listed."""
        return self._further

    def listed(self) -> tuple[Finding, ...]:
        """Return the listed ones, by file and line."""
        in_order = sorted(self._listed, key=lambda each: each[0][:2])
        return tuple(finding for _, finding in in_order)
