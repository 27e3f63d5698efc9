"""Collects findings: every one is counted, and as many are kept as anybody will read."""

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
    """What is wrong so far."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._listed: list[tuple[Place, Finding]] = []
        self._further = 0

    def add(self, kind: Kind, message: str, place: Place, record: int | None = None) -> None:
        """Note one more."""
        if len(self._listed) == MOST:
            self._further += 1
            return
        finding = Finding(kind, message, place.file, place.line or None, record)
        self._listed.append((place, finding))

    def leave_out(self, count: int) -> None:
        """Note that there are more, which are not kept."""
        self._further += count

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._listed) + self._further

    @property
    def further(self) -> int:
        """How many were not kept."""
        return self._further

    def listed(self) -> tuple[Finding, ...]:
        """Return those that were kept, by file and line."""
        in_order = sorted(self._listed, key=lambda each: each[0][:2])
        return tuple(finding for _, finding in in_order)
