"""Requests about the audit log. Only RecordEvents adds records to it.

A request returns the records of its tenant. INSTALLATION stands for all tenants.
"""

from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    MAX_KEYRING_NAME,
    PRINTABLE,
    KeyringName,
    KeyStatus,
    RecordedName,
    SomeVersion,
    TenantId,
)
from pqkeep_protocol.messages import MAX_WORDS, KeyPosition, Request, Result, Word
from pqkeep_protocol.rules import MAX_RULES, Rule, RuleName

MAX_PAGE = 500
"""Records, checkpoints or events in one message. With their proofs they fit into one frame."""

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Event(Struct, frozen=True, array_like=True, kw_only=True):
    """Something the gateway did or refused. ``audit_events.gateway_operation`` checks it."""

    id: UUID
    """The event's id. An event that is sent twice is recorded once."""
    at_us: Natural
    """The time of the event, in microseconds since 1970."""
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
    """The keyring's name. None if the event has no keyring."""
    campaign: RecordedName | None = None
    """The campaign's id. None if the event has no campaign."""
    target: Annotated[str, Meta(min_length=1, max_length=192, pattern=PRINTABLE)] | None = None
    """The imported list of keys elsewhere: its source's name and its digest."""


class EventRefusal(StrEnum):
    """Why an event is not recorded. The refusal is final: sending the event again does not help."""

    NOT_AN_EVENT = "not-an-event"
    """The gateway never records this operation with this outcome."""
    OUT_OF_TIME = "out-of-time"
    """``at_us`` is too far in the past or the future."""


class RefusedEvent(Struct, frozen=True, array_like=True):
    """An event that is not recorded."""

    id: UUID
    reason: EventRefusal


class Recorded(Result, frozen=True, kw_only=True, tag="recorded"):
    """The events are durably in the log, except for the refused ones."""

    refused: tuple[RefusedEvent, ...] = ()


class RecordEvents(Request[Recorded], frozen=True, kw_only=True, tag="record-events"):
    """Record events of the gateway. The tenant is INSTALLATION; each event names its own.

    Errors: UNAVAILABLE, which leaves open whether an event was recorded.
    """

    events: Annotated[tuple[Event, ...], Meta(max_length=MAX_PAGE)]


class Records(Result, frozen=True, kw_only=True, tag="records"):
    """One page of records. Each is the JSON text that was hashed into its leaf."""

    lines: tuple[bytes, ...]
    next: Natural | None
    """The id after which the next page starts. A page can be empty and still have one."""


MAX_OPERATIONS = 64
"""Operations in one search."""


class ListRecords(Request[Records], frozen=True, kw_only=True, tag="list-records"):
    """List records that match every filter, by id."""

    after: Natural | None = None
    before: Natural | None = None
    """Ids; the bounds themselves are not included."""
    newest_first: bool = False
    since_us: Natural | None = None
    until_us: Natural | None = None
    """Microseconds since 1970; ``since_us`` is included, ``until_us`` is not."""
    operations: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=32, pattern=PRINTABLE)], ...],
        Meta(max_length=MAX_OPERATIONS),
    ] = ()
    """Records of any of these operations; without one, of all."""
    keyring: KeyringName | None = None
    algorithm: Algorithm | None = None
    key_version: SomeVersion | None = None
    outcome: Annotated[str, Meta(max_length=32)] | None = None
    """REFUSED matches every refusal."""
    principal: Annotated[str, Meta(max_length=254)] | None = None
    """The principal as recorded, with or without an API key's name; or the name of an API key or
    operator alone."""
    source_address: Annotated[str, Meta(max_length=64)] | None = None
    """A client address as recorded, or a network such as 10.0.0.0/8."""
    request_id: Annotated[str, Meta(max_length=128)] | None = None
    page_views: bool = True
    """Whether to include ``audit_events.PAGE_VIEWS``: reads by people's portal pages."""
    rule: RecordedName | None = None
    campaign: RecordedName | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)] = 100


class CountBy(StrEnum):
    """The values by which records are counted."""

    PRINCIPAL = "principal"
    KEY = "key"
    """Keyring, algorithm and version, as far as the record has them."""
    ADDRESS = "address"
    OUTCOME = "outcome"
    OPERATION = "operation"
    HOUR = "hour"
    """An hour as the number of hours since 1970, in UTC."""
    DAY = "day"
    """A day as the number of days since 1970, in UTC."""


MAX_COUNTED_VALUES = 1_000


class RecordCount(Struct, frozen=True, array_like=True):
    """The number of records with one value."""

    value: str
    count: Natural


class RecordCounts(Result, frozen=True, kw_only=True, tag="record-counts"):
    """Records by a value, the most frequent first; times in their order, the newest first."""

    counts: tuple[RecordCount, ...]
    total: Natural
    """The records of all values, including those that are not listed."""
    values: Natural
    """The number of values, including those that are not listed."""
    next: Natural | None
    """The id from which on records were not counted. None: all matching records were counted."""


class CountRecords(Request[RecordCounts], frozen=True, kw_only=True, tag="count-records"):
    """Count the matching records by a value, among as many records as one search reads."""

    query: ListRecords
    """The filters, times, place and order. Its limit does not count."""
    by: CountBy
    limit: Annotated[int, Meta(ge=1, le=MAX_COUNTED_VALUES)] = 100

    def __post_init__(self) -> None:
        """Raise ValueError on a query of another tenant."""
        if self.query.tenant != self.tenant:
            raise ValueError("the query must be the tenant's")


class Proof(Struct, frozen=True, array_like=True):
    """One record and its inclusion proof (RFC 9162, 2.1.3)."""

    line: bytes
    path: tuple[Digest, ...]
    """Also empty if the log is damaged and has no proof."""


class FoundEvidence(Result, frozen=True, kw_only=True, tag="found-evidence"):
    """Records that match a query, their proofs, and the signed statement that no other does."""

    statement: bytes
    """JSON: log, tree, tenant, query, the range of ids, and the ids of the matching records."""
    key_version: SomeVersion
    signature: bytes
    """Dilithium3, by the key that signs checkpoints."""
    proofs: tuple[Proof, ...]
    through: Natural
    """The last id that the statement covers. The next one starts after it."""


class FindEvidence(Request[FoundEvidence], frozen=True, kw_only=True, tag="find-evidence"):
    """State which records after an id match a query, in the tree of a checkpoint.

    Errors: RECORD_NOT_FOUND unless a Dilithium3 checkpoint has this size.
    """

    query: ListRecords
    """The filters and times. The query's position, order and limit are ignored."""
    after: Natural
    size: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)]

    def __post_init__(self) -> None:
        """Raise ValueError on a query of another tenant, or a place after the tree."""
        if self.query.tenant != self.tenant or self.after >= self.size:
            raise ValueError("the query must be the tenant's, and start within the tree")


class Proofs(Result, frozen=True, kw_only=True, tag="proofs"):
    """Records with their proofs, by id."""

    proofs: tuple[Proof, ...]


class ProveRecords(Request[Proofs], frozen=True, kw_only=True, tag="prove-records"):
    """Prove that the records after an id are in the tree of the first ``size`` records.

    Errors: RECORD_NOT_FOUND if the tree is larger than the log.
    """

    after: Natural
    size: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    limit: Annotated[int, Meta(ge=1, le=MAX_PAGE)]


MAX_EXPORTED = 2_000
"""Records in one message of an export. Large records make a message shorter, to fit a frame."""


class ExportRecords(Request[Records], frozen=True, kw_only=True, tag="export-records"):
    """List all tenants' records after an id, up to the first ``size``, by id and without proofs.

    Errors: RECORD_NOT_FOUND if the log is smaller.
    """

    after: Natural
    size: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    limit: Annotated[int, Meta(ge=1, le=MAX_EXPORTED)]


class Subtrees(Result, frozen=True, kw_only=True, tag="subtrees"):
    """A tree's complete subtrees, the largest first: the state to which new leaves are appended."""

    hashes: tuple[Digest, ...]


class GetSubtrees(Request[Subtrees], frozen=True, kw_only=True, tag="get-subtrees"):
    """Return the complete subtrees of the tree of the first ``size`` records.

    Errors: RECORD_NOT_FOUND if the log is smaller, or damaged.
    """

    size: Natural


class Cosignature(Struct, frozen=True, array_like=True):
    """A witness's cosignature of a checkpoint (C2SP tlog-cosignature)."""

    witness: str
    """The name of the witness's key."""
    origin: str
    """The log's name that the witness cosigned."""
    signature: bytes
    """Key id (4 bytes), time (8 bytes, seconds since 1970) and signature."""


class Checkpoint(Struct, frozen=True, array_like=True, kw_only=True):
    """A signed size and root of the log at one time."""

    log_id: UUID
    size: Natural
    root: Digest
    at_us: Natural
    algorithm: Algorithm
    key_version: SomeVersion
    signature: bytes
    cosignatures: tuple[Cosignature, ...] = ()
    """Those of witnesses, if the request lists checkpoints. Only Dilithium3 checkpoints have some.
    """


class Checkpoints(Result, frozen=True, kw_only=True, tag="checkpoints"):
    """Checkpoints, by size."""

    checkpoints: tuple[Checkpoint, ...]


class ListCheckpoints(Request[Checkpoints], frozen=True, kw_only=True, tag="list-checkpoints"):
    """List checkpoints larger than a size, or the newest one of each algorithm."""

    after: Natural | None
    """The checkpoints must be larger than this size. None: the newest ones."""
    cosigned: bool = False
    """With ``after=None``: the newest checkpoint that each witness cosigned, instead of the newest
    of each algorithm."""
    algorithm: Algorithm | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 100


class NewCheckpoint(Result, frozen=True, kw_only=True, tag="new-checkpoint"):
    """A new checkpoint, already stored."""

    checkpoint: Checkpoint


class SignCheckpoint(Request[NewCheckpoint], frozen=True, kw_only=True, tag="sign-checkpoint"):
    """Sign the log's current root, with Dilithium3 or SLH-DSA-SHA2-128s."""

    algorithm: Algorithm
    now: bool = False
    """Sign it with the present time, even if the newest checkpoint covers the same records."""


class Consistency(Result, frozen=True, kw_only=True, tag="consistency"):
    """A consistency proof (RFC 9162, 2.1.4)."""

    path: tuple[Digest, ...]


class ProveConsistency(Request[Consistency], frozen=True, kw_only=True, tag="prove-consistency"):
    """Prove that the tree of one size is a prefix of the tree of another.

    Errors: RECORD_NOT_FOUND unless ``first <= second`` and the log has both sizes.
    """

    first: Natural
    second: Natural


class ProveSuccessions(Request[Proofs], frozen=True, kw_only=True, tag="prove-successions"):
    """Prove the records that link this log to its predecessors, in the tree of the first ``size``.

    Each restore from a backup adds one. Errors: RECORD_NOT_FOUND if the tree is larger than the
    log.
    """

    size: Annotated[int, Meta(ge=1, le=2**63 - 1)]


class AuditKey(Struct, frozen=True, array_like=True):
    """A public key that verifies checkpoints."""

    algorithm: Algorithm
    version: SomeVersion
    public_key: bytes


class AuditKeys(Result, frozen=True, kw_only=True, tag="audit-keys"):
    """The log's id, and all keys that have ever signed its checkpoints."""

    log_id: UUID
    keys: tuple[AuditKey, ...]
    note_key: str | None = None
    """The verifier key of the log's notes; None before the first checkpoint."""


class ListAuditKeys(Request[AuditKeys], frozen=True, kw_only=True, tag="list-audit-keys"):
    """List the public keys that verify checkpoints."""


class Note(Result, frozen=True, kw_only=True, tag="note"):
    """A checkpoint as a signed note (C2SP tlog-checkpoint)."""

    text: str


class GetNote(Request[Note], frozen=True, kw_only=True, tag="get-note"):
    """Return the newest checkpoint as a note. Errors: RECORD_NOT_FOUND without a checkpoint."""

    covering: Natural | None = None
    """A record's id: return the newest note that covers it and that a witness cosigned, if any."""


MAX_WITNESS_RESPONSE = 64 * 1024
"""Bytes of a witness's response."""


class Submission(Struct, frozen=True, array_like=True):
    """A checkpoint for one witness (C2SP tlog-witness, add-checkpoint)."""

    id: UUID
    url: str
    """The address to which the body is posted."""
    body: bytes


class Submissions(Result, frozen=True, kw_only=True, tag="submissions"):
    """The submissions that are due."""

    submissions: tuple[Submission, ...]


class TakeSubmissions(Request[Submissions], frozen=True, kw_only=True, tag="take-submissions"):
    """Take the submissions to witnesses that are due. Each is given to one gateway at a time."""


class Reported(Result, frozen=True, kw_only=True, tag="reported"):
    """The key service has the response. It does not say whether the response was good."""


class ReportSubmission(Request[Reported], frozen=True, kw_only=True, tag="report-submission"):
    """Bring a witness's response to a submission. An unknown or late one changes nothing."""

    id: UUID
    status: Annotated[int, Meta(ge=0, le=999)]
    """The status of the HTTP response; 0 without a response."""
    content: Annotated[bytes, Meta(max_length=MAX_WITNESS_RESPONSE)] = b""
    error: Annotated[str, Meta(max_length=256)] = ""
    """The reason for a missing response."""


class WitnessProblem(StrEnum):
    """Why a witness does not cosign."""

    UNREACHABLE = "unreachable"
    BAD_RESPONSE = "bad-response"
    """Its response is not a valid cosignature of the checkpoint."""
    UNKNOWN_LOG = "unknown-log"
    """The witness does not know the log's name."""
    UNKNOWN_KEY = "unknown-key"
    """The witness does not know the log's key: it is another log, or was restored."""
    CONFLICT = "conflict"
    """The witness has cosigned another history of the log."""


class WitnessState(Struct, frozen=True, array_like=True, kw_only=True):
    """A witness, and the last checkpoint that it cosigned."""

    name: str
    origin: str
    size: Natural | None
    """The records of that checkpoint. None before the first."""
    at: Natural | None
    """The time of the cosignature in seconds since 1970."""
    problem: WitnessProblem | None
    """None if the last submission was cosigned, or there was none yet."""


class WitnessStates(Result, frozen=True, kw_only=True, tag="witness-states"):
    """The witnesses in the settings, in their order."""

    witnesses: tuple[WitnessState, ...]


class ListWitnesses(Request[WitnessStates], frozen=True, kw_only=True, tag="list-witnesses"):
    """List the witnesses of the log."""


RE_ENCRYPT_TARGET = "re-encrypt-target"
"""Stands for re-encryptions to a key, in place of an operation. RE_ENCRYPT counts the
re-encryptions from a key."""
OTHER_PRINCIPALS = "other"
"""Stands for all principals beyond the most that are counted in a month."""


class Usage(Result, frozen=True, kw_only=True, tag="usage"):
    """The number of uses of a key version, and the last one. Refusals do not count."""

    uses: Natural
    last_used_us: Natural | None


class GetUsage(Request[Usage], frozen=True, kw_only=True, tag="get-usage"):
    """Return the usage of a key version. Errors: KEY_NOT_FOUND."""

    keyring: KeyringName = DEFAULT_KEYRING
    algorithm: Algorithm
    version: SomeVersion


MAX_USAGE_LISTED = 10_000
"""Key versions in one message. They take less than a quarter of a frame."""


class KeyVersionUsage(Struct, frozen=True, array_like=True):
    """The number of uses of a key version, and the last use's time (microseconds since 1970)."""

    algorithm: Algorithm
    version: SomeVersion
    uses: Natural
    last_used_us: Natural


class UsageList(Result, frozen=True, kw_only=True, tag="usage-list"):
    """Used key versions, by algorithm, then version."""

    usage: tuple[KeyVersionUsage, ...]
    total: Natural
    """The number on all pages."""
    has_more: bool


class ListUsage(Request[UsageList], frozen=True, kw_only=True, tag="list-usage"):
    """List a keyring's key versions that were ever used, including archived ones."""

    keyring: KeyringName = DEFAULT_KEYRING
    algorithm: Algorithm | None
    after: KeyPosition | None = None
    """The last key of the previous page."""
    limit: Annotated[int, Meta(ge=1, le=MAX_USAGE_LISTED)] = MAX_USAGE_LISTED
    legacy: bool = False
    """List legacy keys too. A legacy ``algorithm`` lists its keys in any case."""


class CountedLog(Struct, frozen=True, array_like=True):
    """The checkpoint up to which uses are counted."""

    log_id: UUID
    size: Natural
    root: Digest
    at_us: Natural


class OperationUses(Struct, frozen=True, array_like=True):
    """The number of uses by one operation, with the first and the last time."""

    operation: str
    """An Operation, or RE_ENCRYPT_TARGET."""
    uses: Natural
    first_used_us: Natural
    last_used_us: Natural


class PrincipalUses(Struct, frozen=True, array_like=True):
    """The number of uses by one principal and operation, with the first and the last time."""

    principal: str
    """A principal as in records, or OTHER_PRINCIPALS."""
    operation: str
    uses: Natural
    first_used_us: Natural
    last_used_us: Natural


class UnattributedUses(Struct, frozen=True, array_like=True):
    """The uses of supplied public keys that are not the tenant's own."""

    algorithm: Algorithm
    operation: str
    uses: Natural
    first_used_us: Natural
    last_used_us: Natural


MAX_PRINCIPALS_LISTED = 100
"""Principals of one key version in an inventory. With MAX_INVENTORY_LISTED they fit into a frame."""
MAX_INVENTORY_LISTED = 50
MAX_BRIEF_LISTED = 1_000
"""Key versions in an inventory without principals."""
MAX_INVENTORY_OFFSET = 1_000_000
MAX_USES_LISTED = 1000


class InventoryKey(Struct, frozen=True, array_like=True, kw_only=True):
    """A key version of any status, and its uses."""

    keyring: KeyringName
    algorithm: Algorithm
    version: SomeVersion
    status: KeyStatus
    created_at: datetime
    retired_at: datetime | None
    archive_at: datetime | None
    imported: bool
    disabled_until: datetime | None
    rotation_at: datetime | None
    """The time of its automatic rotation. None: no rotation is scheduled."""
    has_private_key: bool
    """Whether the private or symmetric key exists. Otherwise it is destroyed."""
    fingerprint: Annotated[bytes, Meta(max_length=32)]
    """SHA-256 of the public key; of a symmetric key its check value."""
    is_keyring_deleted: bool
    labels: dict[str, str]
    """The keyring's labels with agreed names."""
    operations: tuple[OperationUses, ...]
    """The uses of each operation."""
    principals: tuple[PrincipalUses, ...]
    """By principal, then operation: at most the requested number."""
    has_more_principals: bool


class Inventory(Result, frozen=True, kw_only=True, tag="inventory"):
    """A page of the key versions of all keyrings, in the requested order."""

    counted: CountedLog
    since_us: Natural
    """The first microsecond of the counted uses."""
    keys: tuple[InventoryKey, ...]
    total: Natural
    has_more: bool
    unattributed: tuple[UnattributedUses, ...]
    has_other_principals: bool
    """Whether a use on the page has OTHER_PRINCIPALS."""
    rules: tuple[Rule, ...] | None = ()
    """The tenant's rules, by name. None: they are damaged."""


class InventorySort(StrEnum):
    """The orders of an inventory. Equal rows, and those without a value, are ordered by name."""

    NAME = "name"
    """Sorted by keyring, algorithm and version."""
    ALGORITHM = "algorithm"
    STATUS = "status"
    CREATED = "created"
    LAST_USED = "last-used"
    USES = "uses"
    ROTATION = "rotation"
    DESTRUCTION = "destruction"


class ListInventory(Request[Inventory], frozen=True, kw_only=True, tag="list-inventory"):
    """List key versions, including archived ones and those of deleted keyrings.

    A key version must match every filter. Uses are counted up to a checkpoint. Errors:
    RECORD_NOT_FOUND if there is no checkpoint.
    """

    since_us: Natural | None = None
    """Count only uses since the start of this day.

    For days long ago, the count begins with the month.
    """
    keyring: KeyringName | None = None
    not_keyring: KeyringName | None = None
    algorithms: Annotated[tuple[Algorithm, ...], Meta(max_length=64)] = ()
    """Empty: all. The same is true of the statuses."""
    statuses: Annotated[tuple[KeyStatus, ...], Meta(max_length=8)] = ()
    words: Annotated[tuple[Word, ...], Meta(max_length=MAX_WORDS)] = ()
    """Each must be a part of ``keyring/algorithm vN``. Case does not matter."""
    created_before_us: Natural | None = None
    created_since_us: Natural | None = None
    used_since_us: Natural | None = None
    unused_since_us: Natural | None = None
    """Without a use since then, also if it was never used."""
    used_by: Annotated[str, Meta(min_length=1, max_length=254)] | None = None
    """A principal, as in ListRecords. ``used_since_us`` and ``unused_since_us`` then refer to that
    principal's uses."""
    not_used_by: Annotated[str, Meta(min_length=1, max_length=254)] | None = None
    rotated_before_us: Natural | None = None
    """Rotated automatically before this time."""
    destroyed_before_us: Natural | None = None
    """Scheduled for destruction before this time."""
    is_scheduled: bool | None = None
    """Whether it is scheduled for destruction."""
    is_imported: bool | None = None
    is_keyring_deleted: bool | None = None
    is_legacy: bool | None = None
    """Whether the algorithm is a legacy one. None for these four: both."""
    sort: InventorySort = InventorySort.NAME
    is_descending: bool = False
    after: KeyPosition | None = None
    """The last key of the previous page. Only in the order of names."""
    offset: Annotated[int, Meta(ge=0, le=MAX_INVENTORY_OFFSET)] = 0
    """The number of key versions before the page."""
    principals: Annotated[int, Meta(ge=0, le=MAX_PRINCIPALS_LISTED)] = MAX_PRINCIPALS_LISTED
    """The most principals of each key version."""
    limit: Annotated[int, Meta(ge=1, le=MAX_BRIEF_LISTED)] = MAX_INVENTORY_LISTED

    def __post_init__(self) -> None:
        """Raise ValueError on a position in another order, or on too many entries for a frame."""
        if self.after is not None and (self.sort is not InventorySort.NAME or self.is_descending):
            raise ValueError("give a position only in the order of names")
        if self.limit > MAX_INVENTORY_LISTED and self.principals:
            raise ValueError(f"give at most {MAX_INVENTORY_LISTED} with principals")


class UsesList(Result, frozen=True, kw_only=True, tag="uses-list"):
    """A page of uses, by principal, then operation."""

    counted: CountedLog
    since_us: Natural
    uses: tuple[PrincipalUses, ...]
    has_more: bool


class UsesPosition(Struct, frozen=True, array_like=True):
    """A place in a list of uses."""

    principal: Annotated[str, Meta(max_length=128)]
    operation: Annotated[str, Meta(max_length=32)]


class ListUses(Request[UsesList], frozen=True, kw_only=True, tag="list-uses"):
    """List the uses of a key version, or of supplied public keys that are not the tenant's own.

    Errors: RECORD_NOT_FOUND if there is no checkpoint.
    """

    keyring: KeyringName | None
    algorithm: Algorithm
    version: SomeVersion | None
    """The version. None, like the keyring, for supplied keys."""
    since_us: Natural | None = None
    after: UsesPosition | None = None
    """The last use of the previous page."""
    limit: Annotated[int, Meta(ge=1, le=MAX_USES_LISTED)] = MAX_USES_LISTED

    def __post_init__(self) -> None:
        """Raise ValueError on a keyring without a version, or the reverse."""
        if (self.keyring is None) is not (self.version is None):
            raise ValueError("give keyring and version, or neither")


MAX_FOUND = 20
"""Keyrings that one search returns."""


class FoundKeyrings(Result, frozen=True, kw_only=True, tag="found-keyrings"):
    """Names of keyrings, which nothing authenticates."""

    names: tuple[KeyringName, ...]


class FindKeyrings(Request[FoundKeyrings], frozen=True, kw_only=True, tag="find-keyrings"):
    """Find a tenant's keyrings by a part of their name, ignoring case.

    Names that begin with the text come first. Deleted keyrings are left out.
    """

    text: Annotated[str, Meta(min_length=1, max_length=MAX_KEYRING_NAME)]
    limit: Annotated[int, Meta(ge=1, le=MAX_FOUND)] = MAX_FOUND


REFUSED = "refused"
"""Stands for every refusal, in place of an operation."""


class OperationCount(Struct, frozen=True, array_like=True):
    """The number of one operation's successes in a range of hours, or of all refusals."""

    hour: Natural
    """The bucket's first hour, counted from 1970."""
    operation: str
    """An Operation, or REFUSED."""
    count: Natural


class OperationCounts(Result, frozen=True, kw_only=True, tag="operation-counts"):
    """The counts of all buckets, in any order. Zeros are left out."""

    counts: tuple[OperationCount, ...]


class CountOperations(Request[OperationCounts], frozen=True, kw_only=True, tag="count-operations"):
    """Count operations since an hour. Hours are kept for forty days."""

    since_hour: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    """The first counted hour, as the number of hours since 1970."""
    hours: Annotated[int, Meta(ge=1, le=24)]
    """Hours in a bucket. A bucket of 24 hours begins at midnight UTC."""


PREVIEW_DAYS = 30
"""The days of the uses that a preview compares with rules."""
MAX_PREVIEWED = 5_000


class PreviewedUse(Struct, frozen=True, array_like=True):
    """The uses by one principal that a rule would have refused."""

    rule: RuleName
    """The first of the rules that would have refused them."""
    principal: str
    """A principal as in records, or OTHER_PRINCIPALS."""
    keyring: KeyringName | None
    """None for public keys that are not the tenant's own."""
    algorithm: Algorithm
    operation: str
    """An Operation, or RE_ENCRYPT_TARGET."""
    uses: Natural
    first_used_us: Natural
    last_used_us: Natural


class RulePreview(Result, frozen=True, kw_only=True, tag="rule-preview"):
    """What rules would have refused, most uses first: at most MAX_PREVIEWED."""

    since_us: Natural
    """The first microsecond of the compared uses."""
    uses: tuple[PreviewedUse, ...]
    has_more: bool


class PreviewRules(Request[RulePreview], frozen=True, kw_only=True, tag="preview-rules"):
    """Return the uses of the last PREVIEW_DAYS days that rules would have refused.

    The dates of the rules do not count. Uses up to the newest checkpoint do.
    """

    rules: Annotated[tuple[Rule, ...], Meta(min_length=1, max_length=MAX_RULES)]


MAX_SURVEYED = 5
"""Keys that a survey names of each kind."""
SurveyDays = Annotated[int, Meta(ge=1, le=3650)]


class NotableKey(Struct, frozen=True, array_like=True):
    """A key version, or a deleted keyring, and a time in microseconds since 1970."""

    keyring: KeyringName
    algorithm: Algorithm | None
    """The algorithm. None, like the version, for a whole keyring."""
    version: SomeVersion | None
    at_us: Natural


class NotableKeys(Struct, frozen=True, array_like=True):
    """Key versions with one problem: their number, and the first ones by time."""

    count: Natural
    newest_us: Natural
    """The time of the last one."""
    first: tuple[NotableKey, ...]
    """The first key versions, at most MAX_SURVEYED."""


class DeniedUses(Struct, frozen=True, array_like=True):
    """A rule that will deny soon, and the uses that it would have refused in PREVIEW_DAYS days."""

    rule: RuleName
    deny_from: datetime
    uses: Annotated[int, Meta(ge=1)]


class KeySurvey(Result, frozen=True, kw_only=True, tag="key-survey"):
    """What a tenant should know about its keys."""

    old: NotableKeys
    """Active versions beyond their keyring's rotation days, or ``old_days``. Times: when they
    passed it."""
    unused: NotableKeys
    """Active versions without a use for ``unused_days``. Times: when these days were over."""
    scheduled: NotableKeys
    """Versions and deleted keyrings that will be destroyed. Times: of the destruction."""
    denied: tuple[DeniedUses, ...]
    """The earliest denial first."""


class SurveyKeys(Request[KeySurvey], frozen=True, kw_only=True, tag="survey-keys"):
    """Return which keys of a tenant are old, unused or scheduled for destruction.

    Uses count up to the newest checkpoint.
    """

    old_days: SurveyDays
    unused_days: SurveyDays
    denied_days: SurveyDays
    """Rules that deny within these days are compared with uses."""


class KeyVersionSet(Struct, frozen=True, array_like=True):
    """Some versions of one key."""

    keyring: KeyringName
    algorithm: Algorithm
    versions: Annotated[tuple[SomeVersion, ...], Meta(max_length=MAX_PAGE)] | None = None
    """The versions. None: every version."""
    below: SomeVersion | None = None
    """Only versions below this one; None: without a limit."""

    def has(self, keyring: str, algorithm: str, version: int) -> bool:
        """Return whether a key version is in the set."""
        return (
            (self.keyring, self.algorithm) == (keyring, algorithm)
            and (self.versions is None or version in self.versions)
            and (self.below is None or version < self.below)
        )


class MovedVersions(Struct, frozen=True, array_like=True):
    """The re-encryptions of a campaign from one key version to another."""

    keyring: KeyringName
    algorithm: Algorithm
    version: SomeVersion
    target_keyring: KeyringName
    target_algorithm: Algorithm
    target_version: SomeVersion
    count: int
    first_us: Natural
    last_us: Natural


class RefusedUses(Struct, frozen=True, array_like=True):
    """A principal's refused uses of a key version."""

    principal: str
    keyring: KeyringName
    algorithm: Algorithm
    version: SomeVersion | None
    """The requested version. None: the caller asked for the active version."""
    count: int
    last_us: Natural


class Migration(Result, frozen=True, kw_only=True, tag="migration"):
    """What the log has of a campaign."""

    moved: tuple[MovedVersions, ...]
    last_used_us: Natural | None
    """The newest use of a source; None if it was never used."""
    refused: tuple[RefusedUses, ...]
    """The refused uses, the newest first."""
    is_whole: bool = True
    """Whether ``refused`` has all refused uses."""


class GetMigration(Request[Migration], frozen=True, kw_only=True, tag="get-migration"):
    """Return what a campaign has moved, the last use of its sources, and refused uses.

    A refused use is one of a missing or disabled key version.
    """

    campaign: RecordedName
    sources: Annotated[tuple[KeyVersionSet, ...], Meta(max_length=100)]
    refused: Annotated[tuple[KeyVersionSet, ...], Meta(max_length=100)] = ()
    """Refused uses are listed for these key versions."""
    since_us: Natural = 0
    until_us: Natural = 0
    """The times of the refused uses; ``until_us`` is not included."""


AnyAuditRequest = (
    RecordEvents
    | ListRecords
    | CountRecords
    | FindEvidence
    | ProveRecords
    | ListCheckpoints
    | SignCheckpoint
    | ProveConsistency
    | ProveSuccessions
    | ExportRecords
    | GetSubtrees
    | ListAuditKeys
    | GetNote
    | TakeSubmissions
    | ReportSubmission
    | ListWitnesses
    | GetUsage
    | ListUsage
    | PreviewRules
    | SurveyKeys
    | ListInventory
    | ListUses
    | FindKeyrings
    | CountOperations
    | GetMigration
)
AnyAuditResult = (
    Recorded
    | Records
    | RecordCounts
    | FoundEvidence
    | Proofs
    | Subtrees
    | Checkpoints
    | NewCheckpoint
    | Consistency
    | AuditKeys
    | Note
    | Submissions
    | Reported
    | WitnessStates
    | Usage
    | UsageList
    | RulePreview
    | KeySurvey
    | Inventory
    | UsesList
    | FoundKeyrings
    | OperationCounts
    | Migration
)
