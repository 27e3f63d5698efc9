"""Administration requests: what the operator's commands send to the key service."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from msgspec import Meta, Struct

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyringName, KeyVersion, ShardName, TenantId
from pqkeep_protocol.messages import Request, Result

Count = Annotated[int, Meta(ge=0)]


class RootKeys(Result, frozen=True, kw_only=True, tag="root-keys"):
    """The progress of a rotation of the root key."""

    in_use: tuple[int, ...]
    """Ids of the root keys that may still seal private keys, in order."""
    remaining: Count
    """Keys with a private key or a MAC that is not yet under the newest root key."""
    damaged: Count
    """How many of the remaining keys are damaged: they differ from what was stored."""


class ReloadRootKeys(Request[RootKeys], frozen=True, kw_only=True, tag="reload-root-keys"):
    """Read the settings again, and use the root keys that they name.

    The tenant is INSTALLATION. Errors: UNAVAILABLE if the root keys are wrong. Then nothing
    changes, and the key service's log has the reason.
    """


class NewestBackup(Result, frozen=True, kw_only=True, tag="newest-backup"):
    """The newest announced backup: the two parts of its number, and its time."""

    generation: Count
    records: Count
    created_at_us: Count
    """Microseconds since 1970."""


class AnnounceBackup(Request[NewestBackup], frozen=True, kw_only=True, tag="announce-backup"):
    """Note a complete backup, unless a newer one is noted already.

    The tenant is INSTALLATION. Errors: RECORD_NOT_FOUND if the backup cannot be of this database:
    it has another log id, more records than the log, or a time in the future.
    """

    log_id: UUID
    generation: Count
    records: Count
    created_at_us: Count
    """Microseconds since 1970."""


Generation = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""The number of a tenant's move between shards, counted from 1."""

BundleDigest = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""SHA-256 of a bundle."""

BUNDLE_PART = 1024 * 1024
"""Bytes in each part of a bundle. The last part can be shorter."""
MAX_BUNDLE = 64 * BUNDLE_PART
"""The most bytes in a bundle: some 20,000 key versions."""

BundleSize = Annotated[int, Meta(ge=1, le=MAX_BUNDLE)]
PartNumber = Annotated[int, Meta(ge=0, lt=MAX_BUNDLE // BUNDLE_PART)]


class MoveRefusal(StrEnum):
    """Why a step of a tenant's move is refused. A refused step changes nothing."""

    NO_TRANSFER_KEY = "no-transfer-key"
    """The key service's settings name no transfer_key_file."""
    SAME_SHARD = "same-shard"
    """The tenant is already in the target shard."""
    OTHER_TARGET = "other-target"
    """The tenant is already moving to another shard."""
    BUSY = "busy"
    """The tenant's calls did not end in time, or a key change is in progress."""
    INTERRUPTED = "interrupted"
    """The key service lost its database during the step, and has reconnected since."""
    DAMAGED = "damaged"
    """A stored row of the tenant is damaged. The key service's log names it."""
    TOO_LARGE = "too-large"
    """The tenant's bundle would be larger than MAX_BUNDLE."""
    NOT_MOVING = "not-moving"
    """The tenant has not left this shard, or left it in another move."""
    BUNDLE_INVALID = "bundle-invalid"
    """The data is not a complete bundle from a shard of this installation."""
    BUNDLE_MISDIRECTED = "bundle-misdirected"
    """The bundle is for another shard or another tenant."""
    BUNDLE_OUTDATED = "bundle-outdated"
    """The tenant was moved again after this bundle was made."""
    TENANT_IS_HERE = "tenant-is-here"
    """This shard already has keys of the tenant."""
    RECEIPT_INVALID = "receipt-invalid"
    """The receipt or renunciation is not the target shard's, or not for this bundle."""
    HAS_ARRIVED = "has-arrived"
    """The tenant has arrived at the target shard: its move cannot be cancelled."""


class MoveRefused(Result, frozen=True, kw_only=True, tag="move-refused"):
    """A step of a tenant's move is refused."""

    reason: MoveRefusal


class Receipt(Struct, frozen=True, array_like=True, kw_only=True):
    """A shard's statement about a bundle: it has stored it durably, or will never accept it.

    A receipt's MAC has a different key than the MAC of a statement of the second kind (a
    renunciation).
    """

    tenant: TenantId
    source: ShardName
    target: ShardName
    generation: Generation
    sha256: BundleDigest
    mac: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """HMAC-SHA-256 of the other fields, under a key that only key services can derive."""


class ExportedTenant(Result, frozen=True, kw_only=True, tag="exported-tenant"):
    """A tenant that has left: its target shard, and the contents of its bundle."""

    source: ShardName
    target: ShardName
    generation: Generation
    sha256: BundleDigest
    size: Count
    """Bytes in the bundle; 0 once it is destroyed."""
    keys: Count
    """Key versions in the bundle."""
    finished: bool
    """Whether the source shard has the receipt."""


class ExportTenant(Request[ExportedTenant], frozen=True, kw_only=True, tag="export-tenant"):
    """Seal everything stored for a tenant into a bundle, and refuse the tenant's calls from now on.

    A repeated request returns the same result. Errors: UNAVAILABLE, which leaves open whether the
    tenant has left. Its calls are refused until that is known.
    """

    target: ShardName


class BundlePart(Result, frozen=True, kw_only=True, tag="bundle-part"):
    """A part of a bundle: BUNDLE_PART bytes, or fewer at its end."""

    data: Annotated[bytes, Meta(max_length=BUNDLE_PART)]


class ReadBundle(Request[BundlePart], frozen=True, kw_only=True, tag="read-bundle"):
    """Read a part of the bundle of a tenant that has left."""

    sha256: BundleDigest
    part: PartNumber


class ImportProgress(Result, frozen=True, kw_only=True, tag="import-progress"):
    """The number of the next part to send, or the receipt."""

    part: Count
    receipt: Receipt | None


class ImportTenant(Request[ImportProgress], frozen=True, kw_only=True, tag="import-tenant"):
    """Send one part of a bundle, in order. The last part completes the import.

    If the bundle is already imported, any part returns the receipt. A part without data is a query:
    it returns the progress, or is refused if the tenant could not arrive.
    Errors: UNAVAILABLE, which leaves open whether the tenant has arrived. Repeat the request then.
    """

    sha256: BundleDigest
    size: BundleSize
    part: PartNumber
    data: Annotated[bytes, Meta(max_length=BUNDLE_PART)]


class MoveFinished(Result, frozen=True, kw_only=True, tag="move-finished"):
    """The bundle is destroyed."""


class FinishMove(Request[MoveFinished], frozen=True, kw_only=True, tag="finish-move"):
    """Destroy a received bundle at the source shard. A repeated request returns the same result."""

    receipt: Receipt


class Renounced(Result, frozen=True, kw_only=True, tag="renounced"):
    """The shard's statement that it does not have a bundle, and will never take it."""

    renunciation: Receipt


class RenounceTenant(Request[Renounced], frozen=True, kw_only=True, tag="renounce-tenant"):
    """Promise never to import a tenant by this move. A repeated request returns the same result.

    Errors: UNAVAILABLE, which leaves open whether the promise is stored. Repeat the request then.
    """

    source: ShardName
    generation: Generation
    sha256: BundleDigest


class MoveCancelled(Result, frozen=True, kw_only=True, tag="move-cancelled"):
    """The result of a cancellation. If the tenant is still away, it names the unfinished move."""

    cancelled: bool
    """Whether the tenant is back. If not, nothing changed: the bundle was handed out, and the
    target shard may have it."""
    target: ShardName
    generation: Generation
    sha256: BundleDigest


class CancelMove(Request[MoveCancelled], frozen=True, kw_only=True, tag="cancel-move"):
    """Take back a tenant that has left, if the target shard cannot have it.

    That is certain if the bundle was never handed out, or with the target shard's renunciation.
    Errors: UNAVAILABLE, which leaves open whether the tenant is back. Repeat the request then.
    """

    renunciation: Receipt | None = None


class Moves(Result, frozen=True, kw_only=True, tag="moves"):
    """This shard's name, and the tenants that left but have a bundle here."""

    shard: ShardName
    tenants: tuple[TenantId, ...]


class ListMoves(Request[Moves], frozen=True, kw_only=True, tag="list-moves"):
    """List unfinished moves away from this shard. The tenant is INSTALLATION."""


AnyMoveRequest = (
    ExportTenant | ReadBundle | ImportTenant | FinishMove | RenounceTenant | CancelMove | ListMoves
)
AnyMoveResult = (
    ExportedTenant
    | BundlePart
    | ImportProgress
    | MoveFinished
    | Renounced
    | MoveCancelled
    | Moves
    | MoveRefused
)
MAX_ARCHIVES_LISTED = 500


class ScheduledArchive(Struct, frozen=True, array_like=True, order=True):
    """A key version that is to be archived at a time."""

    tenant: TenantId
    keyring: KeyringName
    algorithm: Algorithm
    version: KeyVersion
    at: Annotated[datetime, Meta(tz=True)]


class ScheduledArchives(Result, frozen=True, kw_only=True, tag="scheduled-archives"):
    """One page of key versions, by tenant, keyring, algorithm and version."""

    archives: tuple[ScheduledArchive, ...]
    has_more: bool


class ListScheduledArchives(
    Request[ScheduledArchives], frozen=True, kw_only=True, tag="list-scheduled-archives"
):
    """List the key versions that are to be archived. The tenant is INSTALLATION."""

    after: ScheduledArchive | None = None
    """The last one of the page before."""


AnyAdministrationRequest = ReloadRootKeys | AnnounceBackup | ListScheduledArchives | AnyMoveRequest
AnyAdministrationResult = RootKeys | NewestBackup | ScheduledArchives | AnyMoveResult
