"""The result of a verification.

All findings are counted, and the first MOST are listed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple


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
    BAD_COSIGNATURE = "bad-cosignature"
    NOT_WITNESSED = "not-witnessed"
    NOT_INCLUDED = "not-included"
    ANOTHER_QUERY = "another-query"
    NOT_STATED = "not-stated"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One error, and its place."""

    kind: Kind
    message: str
    file: str
    line: int | None = None
    """The line number, from 1. None if the finding is about the whole file."""
    record: int | None = None
    """The id of the record, or of the first of several records. None if no record is concerned."""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place}: {self.kind}: {self.message}"


@dataclass(frozen=True, slots=True)
class Portion:
    """The summary of one export."""

    file: str
    tenant_id: str | None
    """The tenant's id. None for the records of all tenants."""
    size: int
    """The number of records in the log."""
    records: int
    """The number of records in the export."""
    first_at: str | None
    last_at: str | None
    """The times of the first and the last record in the export. None without records."""
    after: int = 0
    """The number of the log's first records that are not in a whole export."""
    query: Mapping[str, Any] | None = None
    """The query of evidence. None for an export, which has all records."""


@dataclass(frozen=True, slots=True)
class Anchor:
    """A checkpoint with a valid signature, and the tree that it signs."""

    size: int
    root: bytes
    at: str
    algorithm: str
    key_version: int
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Witnessed:
    """The largest tree of the verified log that a witness cosigned."""

    witness: str
    origin: str
    """The log's name for the witness."""
    size: int
    at: str
    """The time at which the witness cosigned it."""


@dataclass(frozen=True, slots=True)
class ProvenRecord:
    """A record that a tlog-proof shows to be in the log."""

    file: str
    id: int
    operation: str
    recorded_at: str
    origin: str
    size: int
    """The number of records of the proof's checkpoint."""
    witnessed: tuple[Witnessed, ...]


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A public key that made a valid signature."""

    algorithm: str
    key_version: int
    fingerprint: str
    """The SHA-256 hash of the raw public key, in hexadecimal."""


@dataclass(frozen=True, slots=True)
class Continued:
    """An earlier log that the verified log continues, after a restore from a backup."""

    log_id: str
    records: int
    """The number of its records in the verified log."""
    lost: int
    """The number of its lost records, by the newest checkpoint among the files."""


@dataclass(frozen=True, slots=True)
class Report:
    """The verified facts, and the findings."""

    log_id: str | None
    continued: tuple[Continued, ...]
    """The earlier logs that this log continues, the oldest first."""
    portions: tuple[Portion, ...]
    checkpoints: tuple[Anchor, ...]
    """The verified checkpoints, sorted by size."""
    keys: tuple[SigningKey, ...]
    are_keys_trusted: bool
    """False if the keys came from the verified files. Then only consistency was verified."""
    findings: tuple[Finding, ...]
    """The findings in the order of files and lines."""
    further: int
    """The number of findings that are not listed."""
    notes: tuple[str, ...]
    """Notes on facts that were not verified. They are not findings."""
    witnessed: tuple[Witnessed, ...] = ()
    """The witnesses that cosigned the log, the largest tree first."""
    proofs: tuple[ProvenRecord, ...] = ()
    earlier: tuple["Report", ...] = ()
    """The logs of earlier shards of the tenant, the first one first. Empty unless an export has the
    records of several logs. ``findings`` has the findings of all logs.
    """

    counts: Mapping[str, Any] | None = None
    """What the records of a migration report show, in the form of its ``counts.json``."""

    @property
    def is_verified(self) -> bool:
        """Return True if there are no findings."""
        return not self.findings


MOST = 1_000


class Place(NamedTuple):
    """A line of a file."""

    order: int
    """The number of the file."""
    line: int
    """The line number. 0 is the whole file."""
    file: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class Findings:
    """Findings so far."""

    def __init__(self) -> None:
        self._listed: list[tuple[Place, Finding]] = []
        self._further = 0

    def add(self, kind: Kind, message: str, place: Place, record: int | None = None) -> None:
        """Add a finding. Beyond MOST, only count it."""
        if len(self._listed) == MOST:
            self._further += 1
            return
        finding = Finding(kind, message, place.file, place.line or None, record)
        self._listed.append((place, finding))

    def count_unlisted(self, count: int) -> None:
        """Count findings without listing them."""
        self._further += count

    @property
    def count(self) -> int:
        """The number of findings."""
        return len(self._listed) + self._further

    @property
    def further(self) -> int:
        """The number of findings that are not listed."""
        return self._further

    def listed(self) -> tuple[Finding, ...]:
        """Return the listed findings, by file and line."""
        in_order = sorted(self._listed, key=lambda item: item[0][:2])
        return tuple(finding for _, finding in in_order)
