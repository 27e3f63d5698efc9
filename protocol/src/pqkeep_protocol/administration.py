"""Requests of an operator's command to the key service."""

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
    """Ids of the root keys that private keys are sealed under, or may be, in order."""
    remaining: Count
    """Keys that are not wholly under the newest yet: a private key or the MAC."""
    damaged: Count
    """How many of them are not what was stored."""


class ReloadRootKeys(Request[RootKeys], frozen=True, kw_only=True, tag="reload-root-keys"):
    """Read the settings again, and use the root keys they name.

    The tenant is INSTALLATION. Errors: UNAVAILABLE if the root keys are not the right ones; the key
    service's log says why, and nothing is changed.
    """


class NewestBackup(Result, frozen=True, kw_only=True, tag="newest-backup"):
    """The newest backup that was announced: the parts of its number, and when it was made."""

    generation: Count
    records: Count
    created_at_us: Count
    """Microseconds since 1970."""


class AnnounceBackup(Request[NewestBackup], frozen=True, kw_only=True, tag="announce-backup"):
    """Note that a backup is complete, unless a newer one is noted already.

    The tenant is INSTALLATION. Errors: RECORD_NOT_FOUND if it cannot be a backup of what the key
    service has: its log is another one or has fewer records, or the time has not come.
    """

    log_id: UUID
    generation: Count
    records: Count
    created_at_us: Count
    """Microseconds since 1970."""


Generation = Annotated[int, Meta(ge=1, le=2**31 - 1)]
"""How often a tenant was moved between shards, with this time."""

BundleDigest = Annotated[bytes, Meta(min_length=32, max_length=32)]
"""SHA-256 of a bundle."""

BUNDLE_PART = 1024 * 1024
"""Bytes in each part of a bundle but the last."""
MAX_BUNDLE = 64 * BUNDLE_PART
"""Bytes in a bundle: some 20,000 key versions."""

BundleSize = Annotated[int, Meta(ge=1, le=MAX_BUNDLE)]
PartNumber = Annotated[int, Meta(ge=0, lt=MAX_BUNDLE // BUNDLE_PART)]


class MoveRefusal(StrEnum):
    """Why a step of a tenant's move is refused. Nothing was changed."""

    NO_TRANSFER_KEY = "no-transfer-key"
    """The key service's settings name no transfer_key_file."""
    SAME_SHARD = "same-shard"
    """The tenant is to move to the shard that it would leave."""
    OTHER_TARGET = "other-target"
    """The tenant is on its way to another shard than that."""
    BUSY = "busy"
    """The tenant's calls did not end in time, or its keys are being changed."""
    INTERRUPTED = "interrupted"
    """The key service lost its database after the step had begun, and has it again."""
    DAMAGED = "damaged"
    """Something that is stored for the tenant is not what was stored; the key service's log says what."""
    TOO_LARGE = "too-large"
    """The tenant has more than MAX_BUNDLE."""
    NOT_MOVING = "not-moving"
    """The tenant has not left this shard, or has left it in another move."""
    BUNDLE_INVALID = "bundle-invalid"
    """Not a whole bundle as a shard of this installation made it."""
    BUNDLE_MISDIRECTED = "bundle-misdirected"
    """A bundle for another shard, or of another tenant."""
    BUNDLE_OUTDATED = "bundle-outdated"
    """The tenant has been moved since that bundle was made."""
    TENANT_IS_HERE = "tenant-is-here"
    """This shard has keys of the tenant already."""
    RECEIPT_INVALID = "receipt-invalid"
    """Not the receipt, or the renunciation, of the shard that the tenant was to move to, for what left."""
    HAS_ARRIVED = "has-arrived"
    """The tenant has arrived at the other shard, so that its move cannot be cancelled."""


class MoveRefused(Result, frozen=True, kw_only=True, tag="move-refused"):
    """A step of a tenant's move is refused."""

    reason: MoveRefusal


class Receipt(Struct, frozen=True, array_like=True, kw_only=True):
    """The statement of a shard that it has what was in a bundle, durably, or never will.

    Which of the two, the key of its MAC says.
    """

    tenant: TenantId
    source: ShardName
    target: ShardName
    generation: Generation
    sha256: BundleDigest
    mac: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """HMAC-SHA-256 of everything else, under a key that only key services can derive."""


class ExportedTenant(Result, frozen=True, kw_only=True, tag="exported-tenant"):
    """A tenant that has left: what is in its bundle, and where it goes."""

    source: ShardName
    target: ShardName
    generation: Generation
    sha256: BundleDigest
    size: Count
    """Bytes in the bundle; 0 once it is destroyed."""
    keys: Count
    """Key versions in the bundle."""
    finished: bool
    """Whether the source has had the receipt."""


class ExportTenant(Request[ExportedTenant], frozen=True, kw_only=True, tag="export-tenant"):
    """Seal all that is kept for a tenant into a bundle, and refuse its calls from then on.

    Asked again, it says the same. Errors: UNAVAILABLE; whether the tenant has left is unknown then,
    and its calls are refused until it is known.
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
    """The part that is needed next, or the receipt."""

    part: Count
    receipt: Receipt | None


class ImportTenant(Request[ImportProgress], frozen=True, kw_only=True, tag="import-tenant"):
    """Bring a part of a bundle, each after the one before; the last one makes the tenant this shard's.

    A bundle that was received is answered with its receipt, whichever part is brought; a part without
    data only asks, also before there is a bundle: it is refused where the tenant could not arrive.
    Errors: UNAVAILABLE; whether the tenant has arrived is unknown then, and asking again tells.
    """

    sha256: BundleDigest
    size: BundleSize
    part: PartNumber
    data: Annotated[bytes, Meta(max_length=BUNDLE_PART)]


class MoveFinished(Result, frozen=True, kw_only=True, tag="move-finished"):
    """The bundle is destroyed."""


class FinishMove(Request[MoveFinished], frozen=True, kw_only=True, tag="finish-move"):
    """Destroy the bundle that a receipt is for. Asked again, it says the same."""

    receipt: Receipt


class Renounced(Result, frozen=True, kw_only=True, tag="renounced"):
    """The shard's statement that it does not have what is in a bundle, and will never take it."""

    renunciation: Receipt


class RenounceTenant(Request[Renounced], frozen=True, kw_only=True, tag="renounce-tenant"):
    """Never take a tenant by this move. Asked again, it says the same.

    Errors: UNAVAILABLE; whether it is renounced is unknown then, and asking again tells.
    """

    source: ShardName
    generation: Generation
    sha256: BundleDigest


class MoveCancelled(Result, frozen=True, kw_only=True, tag="move-cancelled"):
    """The tenant has come back, or what its move was if that is not proved to be possible."""

    cancelled: bool
    """Whether the tenant is here again. Otherwise the bundle was handed out, and the other shard may
    have it: nothing was changed."""
    target: ShardName
    generation: Generation
    sha256: BundleDigest


class CancelMove(Request[MoveCancelled], frozen=True, kw_only=True, tag="cancel-move"):
    """Take a tenant back that has left, where the other shard cannot have it.

    That is so if the bundle was never handed out, or by the other shard's renunciation. Errors:
    UNAVAILABLE; whether the tenant is back is unknown then, and asking again tells.
    """

    renunciation: Receipt | None = None


class Moves(Result, frozen=True, kw_only=True, tag="moves"):
    """The tenants whose bundles are still here, and the shard's name."""

    shard: ShardName
    tenants: tuple[TenantId, ...]


class ListMoves(Request[Moves], frozen=True, kw_only=True, tag="list-moves"):
    """List moves away from here that are not finished. The tenant is INSTALLATION."""


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
