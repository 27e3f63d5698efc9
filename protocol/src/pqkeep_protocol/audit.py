"""Requests about the audit log. They leave no record, except for the events of RecordEvents.

The tenant of a request is the one whose records are asked for; INSTALLATION is all of them.
"""

from enum import StrEnum
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import DEFAULT_KEYRING, PRINTABLE, KeyringName, SomeVersion, TenantId
from pqkeep_protocol.messages import KeyPosition, Request, Result

MAX_PAGE = 500
"""Records, checkpoints or events in one message: with their proofs they fit into a frame."""

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Event(Struct, frozen=True, array_like=True, kw_only=True):
    """Something the gateway did or refused. ``audit_events.gateway_operation`` says what is allowed."""

    id: UUID
    """The event's id: an event that is sent again is not recorded again."""
    at_us: Natural
    """When it happened, in microseconds since 1970."""
    tenant: TenantId
    principal: Annotated[str, Meta(max_length=128, pattern=PRINTABLE)]
    operation: Annotated[str, Meta(min_length=1, max_length=32, pattern=PRINTABLE)]
    algorithm: Annotated[str, Meta(max_length=32, pattern=PRINTABLE)] | None
    key_version: SomeVersion | None
    outcome: Annotated[str, Meta(min_length=1, max_length=32, pattern=PRINTABLE)]
    request_id: Annotated[str, Meta(max_length=128, pattern=PRINTABLE)]
    source_address: Annotated[str, Meta(max_length=64, pattern=PRINTABLE)]
    policy: Annotated[str, Meta(max_length=128, pattern=PRINTABLE)]
    keyring: KeyringName | None = None
    """None for what concerns no keyring."""


class EventRefusal(StrEnum):
    """Why an event is not recorded. It is final: the event is refused again however often it is sent."""

    NOT_AN_EVENT = "not-an-event"
    """The gateway records no such operation with such an outcome."""
    OUT_OF_TIME = "out-of-time"
    """``at_us`` is too far in the past or in the future."""


class RefusedEvent(Struct, frozen=True, array_like=True):
    """An event that is not recorded."""

    id: UUID
    reason: EventRefusal


class Recorded(Result, frozen=True, kw_only=True, tag="recorded"):
    """The events are in the log, durably, except for the refused ones."""

    refused: tuple[RefusedEvent, ...] = ()


class RecordEvents(Request[Recorded], frozen=True, kw_only=True, tag="record-events"):
    """Record events of the gateway. The tenant is INSTALLATION; each event names its own.

    Errors: UNAVAILABLE; whether any was recorded is unknown then.
    """

    events: Annotated[tuple[Event, ...], Meta(max_length=MAX_PAGE)]


class Records(Result, frozen=True, kw_only=True, tag="records"):
    """One page of records, each as the JSON text that its leaf is the hash of."""

    lines: tuple[bytes, ...]
    next: Natural | None
    """The id from which to go on, exclusive; a page can be empty and still have one."""


class ListRecords(Request[Records], frozen=True, kw_only=True, tag="list-records"):
    """List records that match every filter, by id."""

    after: Natural | None = None
    before: Natural | None = None
    """Ids, exclusive."""
    newest_first: bool = False
    since_us: Natural | None = None
    until_us: Natural | None = None
    """Microseconds since 1970: from, and before."""
    operation: Annotated[str, Meta(max_length=32)] | None = None
    keyring: KeyringName | None = None
    algorithm: Algorithm | None = None
    key_version: SomeVersion | None = None
    outcome: Annotated[str, Meta(max_length=32)] | None = None
    """REFUSED is every refusal."""
    principal: Annotated[str, Meta(max_length=254)] | None = None
    """As a record has it, an API key's without its name too; or the name of an API key or operator."""
    source_address: Annotated[str, Meta(max_length=64)] | None = None
    request_id: Annotated[str, Meta(max_length=128)] | None = None
    page_views: bool = True
    """Whether to list what ``audit_events.PAGE_VIEWS`` says people's pages read."""
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100


class Proof(Struct, frozen=True, array_like=True):
    """One record and its inclusion proof (RFC 9162, 2.1.3)."""

    line: bytes
    path: tuple[Digest, ...]
    """Empty also if the log is damaged, and there is no proof."""


class Proofs(Result, frozen=True, kw_only=True, tag="proofs"):
    """Records with their proofs, by id."""

    proofs: tuple[Proof, ...]


class ProveRecords(Request[Proofs], frozen=True, kw_only=True, tag="prove-records"):
    """Prove that records after an id are in the tree of the first ``size``; one, or a page.

    Errors: RECORD_NOT_FOUND if the tree is larger than the log.
    """

    after: Natural
    size: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)]


MAX_EXPORTED = 2_000
"""Records in one message of an export: there are fewer where they would fill a frame."""


class ExportRecords(Request[Records], frozen=True, kw_only=True, tag="export-records"):
    """List everybody's records after an id, up to the first ``size``, by id and without proofs.

    Errors: RECORD_NOT_FOUND if the log is smaller.
    """

    after: Natural
    size: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    limit: Annotated[int, Meta(ge=1, le=MAX_EXPORTED)]


class Subtrees(Result, frozen=True, kw_only=True, tag="subtrees"):
    """The complete subtrees of a tree, the largest first: what leaves are appended to."""

    hashes: tuple[Digest, ...]


class GetSubtrees(Request[Subtrees], frozen=True, kw_only=True, tag="get-subtrees"):
    """Return the complete subtrees of the tree of the first ``size``.

    Errors: RECORD_NOT_FOUND if the log is smaller, or damaged.
    """

    size: Natural


class Checkpoint(Struct, frozen=True, array_like=True, kw_only=True):
    """Size and root of the log at a time, signed by the key service."""

    log_id: UUID
    size: Natural
    root: Digest
    at_us: Natural
    algorithm: Algorithm
    key_version: SomeVersion
    signature: bytes


class Checkpoints(Result, frozen=True, kw_only=True, tag="checkpoints"):
    """Checkpoints, by size."""

    checkpoints: tuple[Checkpoint, ...]


class ListCheckpoints(Request[Checkpoints], frozen=True, kw_only=True, tag="list-checkpoints"):
    """List checkpoints larger than a size, or the newest one of each algorithm."""

    after: Natural | None
    """None: the newest ones."""
    algorithm: Algorithm | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 100


class NewCheckpoint(Result, frozen=True, kw_only=True, tag="new-checkpoint"):
    """A new checkpoint, which is stored."""

    checkpoint: Checkpoint


class SignCheckpoint(Request[NewCheckpoint], frozen=True, kw_only=True, tag="sign-checkpoint"):
    """Sign the log's current root, with Dilithium3 or SLH-DSA-SHA2-128s."""

    algorithm: Algorithm


class Consistency(Result, frozen=True, kw_only=True, tag="consistency"):
    """A consistency proof (RFC 9162, 2.1.4)."""

    path: tuple[Digest, ...]


class ProveConsistency(Request[Consistency], frozen=True, kw_only=True, tag="prove-consistency"):
    """Prove that the tree of one size grew into that of another.

    Errors: RECORD_NOT_FOUND unless ``first <= second``, and both are in the log.
    """

    first: Natural
    second: Natural


class ProveSuccessions(Request[Proofs], frozen=True, kw_only=True, tag="prove-successions"):
    """Prove the records by which the log continues others, in the tree of the first ``size``.

    There is one for each restore from a backup. Errors: RECORD_NOT_FOUND if the tree is larger than
    the log.
    """

    size: Annotated[int, Meta(ge=1, le=2**63 - 1)]


class AuditKey(Struct, frozen=True, array_like=True):
    """A key that checkpoints are verified with."""

    algorithm: Algorithm
    version: SomeVersion
    public_key: bytes


class AuditKeys(Result, frozen=True, kw_only=True, tag="audit-keys"):
    """All keys that ever signed checkpoints, and the log's id."""

    log_id: UUID
    keys: tuple[AuditKey, ...]
    note_key: str | None = None
    """The verifier key of the log's notes; None before the first checkpoint."""


class ListAuditKeys(Request[AuditKeys], frozen=True, kw_only=True, tag="list-audit-keys"):
    """List the keys that checkpoints are verified with."""


class Note(Result, frozen=True, kw_only=True, tag="note"):
    """A checkpoint as a signed note (C2SP tlog-checkpoint)."""

    text: str


class GetNote(Request[Note], frozen=True, kw_only=True, tag="get-note"):
    """Return the newest checkpoint as a note. Errors: RECORD_NOT_FOUND where there is none."""


class Usage(Result, frozen=True, kw_only=True, tag="usage"):
    """How often a key version was used, and when last; refusals do not count."""

    uses: Natural
    last_used_us: Natural | None


class GetUsage(Request[Usage], frozen=True, kw_only=True, tag="get-usage"):
    """Count the uses of a key version. Errors: KEY_NOT_FOUND."""

    keyring: KeyringName = DEFAULT_KEYRING
    algorithm: Algorithm
    version: SomeVersion


MAX_USAGE_LISTED = 10_000
"""Key versions in one message: less than a quarter of a frame."""


class KeyVersionUsage(Struct, frozen=True, array_like=True):
    """How often a key version was used, and when last (microseconds since 1970)."""

    algorithm: Algorithm
    version: SomeVersion
    uses: Natural
    last_used_us: Natural


class UsageList(Result, frozen=True, kw_only=True, tag="usage-list"):
    """Key versions that were used, by algorithm, then version."""

    usage: tuple[KeyVersionUsage, ...]
    total: Natural
    """How many there are, on all pages."""
    has_more: bool


class ListUsage(Request[UsageList], frozen=True, kw_only=True, tag="list-usage"):
    """List a keyring's key versions that were ever used, archived ones too."""

    keyring: KeyringName = DEFAULT_KEYRING
    algorithm: Algorithm | None
    after: KeyPosition | None = None
    """The last key of the page before."""
    limit: Annotated[int, Meta(ge=1, le=MAX_USAGE_LISTED)] = MAX_USAGE_LISTED


REFUSED = "refused"
"""In place of an operation: whatever was refused."""


class OperationCount(Struct, frozen=True, array_like=True):
    """How often an operation succeeded in some hours, or how much was refused in them."""

    hour: Natural
    """The first of the hours, counted from 1970."""
    operation: str
    """An Operation, or REFUSED."""
    count: Natural


class OperationCounts(Result, frozen=True, kw_only=True, tag="operation-counts"):
    """What happened in buckets of some hours each, in any order; nothing is left out but zeros."""

    counts: tuple[OperationCount, ...]


class CountOperations(Request[OperationCounts], frozen=True, kw_only=True, tag="count-operations"):
    """Count operations since an hour. Hours are kept for forty days."""

    since_hour: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    """Counted from 1970."""
    hours: Annotated[int, Meta(ge=1, le=24)]
    """In each bucket; a day's begins at midnight UTC."""


AnyAuditRequest = (
    RecordEvents
    | ListRecords
    | ProveRecords
    | ListCheckpoints
    | SignCheckpoint
    | ProveConsistency
    | ProveSuccessions
    | ExportRecords
    | GetSubtrees
    | ListAuditKeys
    | GetNote
    | GetUsage
    | ListUsage
    | CountOperations
)
AnyAuditResult = (
    Recorded
    | Records
    | Proofs
    | Subtrees
    | Checkpoints
    | NewCheckpoint
    | Consistency
    | AuditKeys
    | Note
    | Usage
    | UsageList
    | OperationCounts
)
