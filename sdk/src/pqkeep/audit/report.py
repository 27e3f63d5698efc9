"""The result of a verification.

All findings are counted, and the first MOST are listed.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What is wrong. The values are stable, for programs; docs/audit.md explains each."""

    NO_JSON = "no-json"
    MALFORMED = "malformed"
    EDITED = "edited"
    WRONG_PROOF = "wrong-proof"
    MISSING = "missing"
    INSERTED = "inserted"
    REPEATED = "repeated"
    OUT_OF_ORDER = "out-of-order"
    TRUNCATED = "truncated"
    WRONG_COUNT = "wrong-count"
    WRONG_NUMBER = "wrong-number"
    UNKNOWN_FORMAT = "unknown-format"
    ANOTHER_TENANT = "another-tenant"
    ANOTHER_LOG = "another-log"
    BAD_SIGNATURE = "bad-signature"
    UNKNOWN_KEY = "unknown-key"
    REPLACED_KEY = "replaced-key"
    NO_KEYS = "no-keys"
    NO_CHECKPOINT = "no-checkpoint"
    FORK = "fork"
    NOT_CONTINUED = "not-continued"
    NOT_CONNECTED = "not-connected"
    BAD_CONSISTENCY = "bad-consistency"
    BAD_SUCCESSION = "bad-succession"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and its place."""

    kind: Kind
    message: str
    file: str
    line: int | None = None
    """Counts from 1; None if it is about the whole file."""
    record: int | None = None
    """A record's id, where one is concerned; the first one of several."""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Portion:
    """The summary of one export."""

    file: str
    tenant_id: str | None
    """None: the records of all tenants."""
    size: int
    """How many records the log had."""
    records: int
    """How many of them the export has."""
    first_at: str | None
    last_at: str | None
    """When the first and the last of them were recorded; None without records."""
    after: int = 0
    """How many of the log's first records a whole export leaves out."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A checkpoint with a good signature, and what it signs."""

    size: int
    root: bytes
    at: str
    algorithm: str
    key_version: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key that a good signature was made with."""

    algorithm: str
    key_version: int
    fingerprint: str
    """SHA-256 of the raw public key, hexadecimal."""


@dataclass(frozen=True, slots=True)
class Continued:
    """A log that the verified one continues, after a restore from a backup."""

    log_id: str
    records: int
    """How many of its records the verified log has."""
    lost: int
    """How many more it had by the newest checkpoint that was given."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was verified, and the findings."""

    log_id: str | None
    continued: tuple[Continued, ...]
    """The oldest first."""
    portions: tuple[Portion, ...]
    checkpoints: tuple[Anchor, ...]
    """By size."""
    keys: tuple[SigningKey, ...]
    are_keys_trusted: bool
    """False: the keys came from the verified files, and prove only consistency."""
    findings: tuple[Finding, ...]
    """In the order of the files and their lines."""
    further: int
    """Findings beyond those that are listed."""
    notes: tuple[str, ...]
    """What was not compared, though it is no finding."""
    earlier: tuple["Report", ...] = ()
    """The logs of shards where the tenant was before, the first one first, where an export has the
    records of several. The findings are those of all logs, and are not repeated here."""

    @property
    def is_verified(self) -> bool:
        """Return whether there are no findings."""
        return not self.findings


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
        in_order = sorted(self._listed, key=lambda item: item[0][:2])
        return tuple(finding for _, finding in in_order)
