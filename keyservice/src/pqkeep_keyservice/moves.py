"""Moves tenants between shards, step by step, as the operator's command asks.

A tenant leaves in one transaction. It replaces the tenant's rows with a bundle that only key
services can open, and records the departure. From then on its calls are refused. The tenant arrives
exactly once, in one transaction of the target shard. It arrives only if that shard knows of no
later move. With the target's receipt, the source destroys the bundle.

A move can be cancelled if the bundle was never handed out, or with the target's renunciation: its
statement that it has not taken the bundle and never will. Each step can be repeated after a crash,
and then returns the same result.

A private key is in memory unsealed only while it is resealed, from this shard's seal to the
bundle's or back.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeGuard, TypeVar, assert_never

from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.keys.changes import (
    BundleDestroyed,
    Change,
    CommitOutcome,
    TenantArrived,
    TenantLeft,
)
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions
from pqkeep_keyservice.keys.keyring import Keyring
from pqkeep_keyservice.keys.rules import RuleSet
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.keys.tenant_bundle import (
    BundleContent,
    BundleSeal,
    InvalidBundleError,
    Move,
    MovedCount,
    MovedKey,
    MovedKeyring,
    MovedMoves,
    MovedRules,
    MovedUse,
    MovedVersion,
    TransferKey,
    bundle_digest,
)
from pqkeep_keyservice.ledger.campaigns import tenant_moves
from pqkeep_keyservice.ledger.key_usage import tenant_counts
from pqkeep_keyservice.ledger.moves import RecordedMove, find_last_move, move_record
from pqkeep_keyservice.ledger.uses import tenant_uses
from pqkeep_keyservice.live.key_material import KeyCache, KeyMaterial, KeyringCache
from pqkeep_keyservice.live.rules import RuleCache
from pqkeep_keyservice.live.tenant_gate import TenantGate
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.key_versions import list_keys
from pqkeep_keyservice.storage.rules import stored_revision
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_keyservice.storage.tenants import (
    bundle_size,
    find_bundle_part,
    has_tenant,
    list_bundles,
    recorded_revisions,
)
from pqkeep_protocol.administration import (
    BUNDLE_PART,
    MAX_BUNDLE,
    AnyMoveRequest,
    AnyMoveResult,
    BundlePart,
    CancelMove,
    ExportedTenant,
    ExportTenant,
    FinishMove,
    ImportProgress,
    ImportTenant,
    ListMoves,
    MoveCancelled,
    MoveFinished,
    MoveRefusal,
    MoveRefused,
    Moves,
    ReadBundle,
    Renounced,
    RenounceTenant,
)
from pqkeep_protocol.audit_events import Outcome
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

DRAIN_SECONDS = 15.0
"""How long a move waits for the tenant's calls in flight."""
TRIES = 5
"""The number of tries of a step if a root key rotation changes the tenant's keys meanwhile."""

T = TypeVar("T")


class _RefusedError(Exception):
    def __init__(self, reason: MoveRefusal) -> None:
        super().__init__(reason.value)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _Received:
    """The received parts of a bundle."""

    tenant: TenantId
    sha256: bytes
    size: int
    data: bytearray

    @property
    def part(self) -> int:
        return len(self.data) // BUNDLE_PART


class TenantMoves:
    """Executes the requests that make up a move."""

    def __init__(  # noqa: PLR0913, PLR0917 - each once, in wiring.py
        self,
        shard: str,
        transfer_key: Callable[[], TransferKey | None],
        store: KeyStore,
        log: AuditLog,
        gate: TenantGate,
        key_cache: KeyCache,
        keyring_cache: KeyringCache,
        rules: RuleCache,
        material: KeyMaterial,
    ) -> None:
        """Take the reader of the transfer key. It raises ConfigError.

        Each step reads the key again, because data sealed by a replaced key cannot be opened.
        """
        self._shard = shard
        self._transfer_key = transfer_key
        self._store = store
        self._log = log
        self._gate = gate
        self._key_cache = key_cache
        self._keyring_cache = keyring_cache
        self._rules = rules
        self._material = material
        self._lock = asyncio.Lock()
        self._epoch = 0
        """The epoch in which the current step began. Its reads are valid only in this epoch."""
        self._received: _Received | None = None

    async def respond(self, request: AnyMoveRequest) -> AnyMoveResult:
        """Execute one step. Raises UNAVAILABLE."""
        try:
            async with self._lock:
                self._epoch = self._store.writer.epoch
                return await self._answer(request)
        except _RefusedError as refused:
            reason = refused.reason
        except DamagedKeyError as damage:
            _LOG.error("a tenant cannot be moved", tenant=str(request.tenant), damage=str(damage))
            reason = MoveRefusal.DAMAGED
        except InvalidBundleError:
            reason = MoveRefusal.BUNDLE_INVALID
        except DatabaseUnavailableError:
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
        _LOG.warning("refused to move a tenant", tenant=str(request.tenant), reason=reason.value)
        return MoveRefused(reason=reason)

    async def _answer(  # noqa: PLR0911 - one flat table
        self, request: AnyMoveRequest
    ) -> AnyMoveResult:
        match request:
            case ListMoves():
                tenants = await self._store.database.query(list_bundles)
                return Moves(shard=self._shard, tenants=tenants)
            case ExportTenant():
                return await self._export(request)
            case ReadBundle():
                return await self._read(request)
            case ImportTenant():
                return await self._import(request)
            case FinishMove():
                return await self._finish(request)
            case RenounceTenant():
                return await self._renounce(request)
            case CancelMove():
                return await self._cancel(request)
            case _:
                assert_never(request)

    async def _last_move(self, tenant: TenantId) -> RecordedMove | None:
        return await self._store.database.read(find_last_move, tenant)

    # --- Departure ------------------------------------------------------------------------

    async def _export(self, request: ExportTenant) -> ExportedTenant:
        transfer_key = self._require_transfer_key()
        tenant, target = request.tenant, request.target
        if target == self._shard or tenant == INSTALLATION:
            raise _RefusedError(MoveRefusal.SAME_SHARD)
        last = await self._last_move(tenant)
        if last is None or not last.is_out:
            generation = 1 if last is None else last.generation + 1
            move = Move(tenant, self._shard, target, generation)
            last = await self._commit_again(tenant, lambda: self._leave(transfer_key, move))
            await self._store.database.scrub()
        if last.target != target:
            raise _RefusedError(MoveRefusal.OTHER_TARGET)
        return ExportedTenant(
            source=last.source,
            target=last.target,
            generation=last.generation,
            sha256=last.sha256,
            size=await self._store.database.read(bundle_size, tenant),
            keys=last.key_versions,
            finished=last.is_finished,
        )

    async def _leave(self, transfer_key: TransferKey, move: Move) -> RecordedMove | None:
        change, content = await self._collect(transfer_key.new_seal(move))
        if len(change.bundle) > MAX_BUNDLE:
            raise _RefusedError(MoveRefusal.TOO_LARGE)
        left = RecordedMove(
            move.tenant,
            is_out=True,
            outcome=Outcome.BEGUN,
            source=move.source,
            target=move.target,
            generation=move.generation,
            sha256=bundle_digest(change.bundle),
            key_versions=content.key_versions,
        )
        if not await self._is_durable(left, change):
            return None
        for versions in change.keys:
            self._key_cache.invalidate(versions)
            for entry in versions.entries:
                self._material.forget_private_key(move.tenant, entry)
        for keyring in change.keyrings:
            self._keyring_cache.invalidate(keyring)
        self._rules.invalidate(move.tenant)
        return left

    async def _collect(self, seal: BundleSeal) -> tuple[TenantLeft, BundleContent]:
        """Return all data of a tenant with a closed gate. Raises DamagedKeyError."""
        tenant = seal.move.tenant
        names = await self._store.database.read(list_keys, tenant)
        keys = [await self._store.find_key_versions(name) for name in names]
        keyrings = [
            keyring for keyring in await self._store.list_keyrings(tenant) if keyring.revision
        ]
        rules = await self._store.find_rules(tenant)
        left_rules = rules.with_new_mac() if rules.revision else None
        await self._store.count_all()
        uses = await self._store.database.read(tenant_uses, tenant)
        counts = await self._store.database.read(tenant_counts, tenant)
        moves = await self._store.database.read(tenant_moves, tenant)
        left_keys = tuple(replace(key, revision=key.revision + 1) for key in keys)
        left_keyrings = tuple(
            replace(keyring, revision=keyring.revision + 1) for keyring in keyrings
        )
        content = BundleContent(
            keyrings=tuple(
                MovedKeyring(keyring.info, keyring.revision, keyring.destruction)
                for keyring in left_keyrings
            ),
            keys=await asyncio.to_thread(leaving_keys, self._material, seal, left_keys),
            uses=tuple(MovedUse(*row) for row in uses),
            counts=tuple(MovedCount(*row) for row in counts),
            moves=tuple(MovedMoves(*row) for row in moves),
            rules=None if left_rules is None else MovedRules(left_rules.rules, left_rules.revision),
        )
        bundle = await asyncio.to_thread(seal.seal, content)
        return TenantLeft(tenant, left_keys, left_keyrings, left_rules, bundle), content

    async def _read(self, request: ReadBundle) -> BundlePart:
        last = await self._last_move(request.tenant)
        if last is None or not last.is_out or last.sha256 != request.sha256:
            raise _RefusedError(MoveRefusal.NOT_MOVING)
        data = await self._store.database.read(find_bundle_part, request.tenant, request.part)
        if data is None:
            raise _RefusedError(MoveRefusal.NOT_MOVING)
        if last.outcome is Outcome.BEGUN:  # from now on the target shard may have the bundle
            handed_out = last._replace(outcome=Outcome.HANDED_OUT)
            if not await self._is_durable(handed_out, None):
                raise KeyServiceError(ErrorKind.UNAVAILABLE)
        return BundlePart(data=data)

    async def _finish(self, request: FinishMove) -> MoveFinished:
        receipt, tenant = request.receipt, request.tenant
        last = await self._last_move(tenant)
        if last is None or not last.is_out:
            raise _RefusedError(MoveRefusal.NOT_MOVING)
        if not self._require_transfer_key().is_receipt(receipt, _move(last), last.sha256):
            raise _RefusedError(MoveRefusal.RECEIPT_INVALID)
        if not last.is_finished:
            finished = last._replace(outcome=Outcome.COMPLETED)
            if not await self._is_durable(finished, BundleDestroyed(tenant)):
                raise KeyServiceError(ErrorKind.UNAVAILABLE)
            await self._store.database.scrub()
        return MoveFinished()

    # --- Return ---------------------------------------------------------------------------

    async def _cancel(self, request: CancelMove) -> MoveCancelled:
        transfer_key, tenant = self._require_transfer_key(), request.tenant
        last = await self._last_move(tenant)
        if last is None or (last.is_out and last.source != self._shard):
            raise _RefusedError(MoveRefusal.NOT_MOVING)
        if not last.is_out:
            if last.source != last.target:
                raise _RefusedError(MoveRefusal.NOT_MOVING)
            return _cancelled(last, cancelled=True)
        if last.is_finished:
            raise _RefusedError(MoveRefusal.HAS_ARRIVED)
        if request.renunciation is None:
            if last.outcome is not Outcome.BEGUN:
                return _cancelled(last, cancelled=False)
        elif not transfer_key.is_renunciation(request.renunciation, _move(last), last.sha256):
            raise _RefusedError(MoveRefusal.RECEIPT_INVALID)
        seal, content = await self._open_own_bundle(transfer_key, last)
        back = RecordedMove(
            tenant,
            is_out=False,
            outcome=Outcome.COMPLETED,
            source=last.source,
            target=last.source,
            generation=last.generation + 1,
            sha256=last.sha256,
            key_versions=content.key_versions,
        )
        await self._commit_again(tenant, lambda: self._arrive(back, seal, content))
        await self._store.database.scrub()
        return _cancelled(last, cancelled=True)

    async def _open_own_bundle(
        self, transfer_key: TransferKey, last: RecordedMove
    ) -> tuple[BundleSeal, BundleContent]:
        parts = [
            await self._store.database.read(find_bundle_part, last.tenant, part)
            for part in range(
                -(-await self._store.database.read(bundle_size, last.tenant) // BUNDLE_PART)
            )
        ]
        bundle = b"".join(part or b"" for part in parts)
        if bundle_digest(bundle) != last.sha256:
            raise InvalidBundleError
        seal = transfer_key.read_header(bundle)
        return seal, await asyncio.to_thread(seal.open, bundle)

    async def _renounce(self, request: RenounceTenant) -> Renounced:
        transfer_key, tenant = self._require_transfer_key(), request.tenant
        if request.source == self._shard or tenant == INSTALLATION:
            raise _RefusedError(MoveRefusal.SAME_SHARD)
        renounced = RecordedMove(
            tenant,
            is_out=True,
            outcome=Outcome.CANCELLED,
            source=request.source,
            target=self._shard,
            generation=request.generation,
            sha256=request.sha256,
            key_versions=0,
        )
        last = await self._last_move(tenant)
        if last != renounced:
            if last is not None and last.generation >= request.generation:
                raise _RefusedError(MoveRefusal.HAS_ARRIVED)

            async def close() -> bool | None:
                return await self._is_durable(renounced, None) or None

            await self._commit_again(tenant, close)
        return Renounced(renunciation=transfer_key.renunciation(_move(renounced), request.sha256))

    # --- Arrival --------------------------------------------------------------------------

    async def _import(self, request: ImportTenant) -> ImportProgress:
        transfer_key = self._require_transfer_key()
        last = await self._last_move(request.tenant)
        if _is_arrival_of(last, request.sha256):
            return ImportProgress(part=0, receipt=transfer_key.receipt(_move(last), last.sha256))
        if not request.data and (last is None or last.is_out):
            await self._require_absent(request.tenant)  # a query before the tenant leaves its shard
        received = self._received
        if (
            received is None
            or request.part == 0
            or (received.tenant, received.sha256, received.size)
            != (request.tenant, request.sha256, request.size)
        ):
            data = bytearray()
            received = _Received(request.tenant, request.sha256, request.size, data)
            self._received = received
        if request.part != received.part or not request.data:
            return ImportProgress(part=received.part, receipt=None)
        received.data.extend(request.data)
        if len(request.data) == BUNDLE_PART and len(received.data) < received.size:
            return ImportProgress(part=received.part, receipt=None)
        self._received = None
        bundle = bytes(received.data)
        if len(bundle) != received.size or bundle_digest(bundle) != received.sha256:
            raise InvalidBundleError
        return await self._receive(transfer_key, request.tenant, bundle, last)

    async def _receive(
        self, transfer_key: TransferKey, tenant: TenantId, bundle: bytes, last: RecordedMove | None
    ) -> ImportProgress:
        seal = transfer_key.read_header(bundle)
        content = await asyncio.to_thread(seal.open, bundle)
        move = seal.move
        if (move.tenant, move.target) != (tenant, self._shard):
            raise _RefusedError(MoveRefusal.BUNDLE_MISDIRECTED)
        if last is not None and move.generation <= last.generation:
            raise _RefusedError(MoveRefusal.BUNDLE_OUTDATED)
        arrived = RecordedMove(
            tenant,
            is_out=False,
            outcome=Outcome.COMPLETED,
            source=move.source,
            target=move.target,
            generation=move.generation,
            sha256=bundle_digest(bundle),
            key_versions=content.key_versions,
        )
        await self._commit_again(tenant, lambda: self._arrive(arrived, seal, content))
        return ImportProgress(part=0, receipt=transfer_key.receipt(move, arrived.sha256))

    async def _require_absent(self, tenant: TenantId) -> None:
        if await self._store.database.read(has_tenant, tenant):
            raise _RefusedError(MoveRefusal.TENANT_IS_HERE)

    async def _arrive(
        self, arrived: RecordedMove, seal: BundleSeal, content: BundleContent
    ) -> RecordedMove | None:
        tenant = arrived.tenant
        await self._require_absent(tenant)
        names = [
            *((keyring.info.name, None) for keyring in content.keyrings),
            *((key.keyring, key.algorithm) for key in content.keys),
        ]
        recorded = await self._store.database.read(recorded_revisions, tenant, names)
        keyrings = tuple(
            Keyring(
                tenant,
                keyring.info,
                max(keyring.revision, recorded[keyring.info.name, None]) + 1,
                keyring.destruction,
            )
            for keyring in content.keyrings
        )
        keys = await asyncio.to_thread(
            arriving_keys, self._material, seal, content.keys, self._store.generation
        )
        keys = tuple(
            replace(key, revision=max(key.revision, recorded[key.keyring, key.algorithm]) + 1)
            for key in keys
        )
        rules = None
        if content.rules is not None:
            revision = await self._store.database.read(stored_revision, tenant)
            revision = max(content.rules.revision, revision) + 1
            rules = RuleSet(tenant, content.rules.rules, revision)
        change = TenantArrived(
            tenant, keys, keyrings, rules, content.uses, content.counts, content.moves
        )
        if not await self._is_durable(arrived, change):
            return None
        for versions in keys:
            self._key_cache.update(versions, self._epoch)
        for keyring in keyrings:
            self._keyring_cache.update(keyring, self._epoch)
        if rules is not None:
            self._rules.update(rules, self._epoch)
        return arrived

    # --- Common ---------------------------------------------------------------------------

    def _require_transfer_key(self) -> TransferKey:
        try:
            transfer_key = self._transfer_key()
        except ConfigError as error:
            _LOG.error("the transfer key cannot be read", error=str(error))
            transfer_key = None
        if transfer_key is None:
            raise _RefusedError(MoveRefusal.NO_TRANSFER_KEY)
        return transfer_key

    async def _commit_again(self, tenant: TenantId, step: Callable[[], Awaitable[T | None]]) -> T:
        """Run a step while no call of the tenant is in flight, and again while it is stale."""
        deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
        try:
            async with self._gate.closed(tenant, deadline):
                for _ in range(TRIES):
                    if (done := await step()) is not None:
                        return done
                    if self._store.writer.epoch != self._epoch:
                        raise _RefusedError(MoveRefusal.INTERRUPTED)
        except KeyServiceError as error:
            if error.kind is not ErrorKind.DEADLINE_EXCEEDED:
                raise
        raise _RefusedError(MoveRefusal.BUSY)

    async def _is_durable(self, move: RecordedMove, change: Change | None) -> bool:
        """Commit a step in the epoch of its start. Return whether it is durable.

        Raises UNAVAILABLE, which leaves open whether it was committed.
        """
        outcome = await self._log.commit(move_record(move), change, self._epoch)
        return outcome is CommitOutcome.DURABLE


def _move(recorded: RecordedMove) -> Move:
    return Move(recorded.tenant, recorded.source, recorded.target, recorded.generation)


def _cancelled(move: RecordedMove, *, cancelled: bool) -> MoveCancelled:
    return MoveCancelled(
        cancelled=cancelled,
        target=move.target,
        generation=move.generation,
        sha256=move.sha256,
    )


def _is_arrival_of(last: RecordedMove | None, sha256: bytes) -> TypeGuard[RecordedMove]:
    """Return whether a tenant has arrived with this bundle, other than by a cancelled move."""
    return (
        last is not None
        and not last.is_out
        and last.source != last.target
        and last.sha256 == sha256
    )


def leaving_keys(
    material: KeyMaterial, seal: BundleSeal, keys: Iterable[KeyVersions]
) -> tuple[MovedKey, ...]:
    """Return keys in the form for a bundle. Raises DamagedKeyError."""

    def version(entry: KeyEntry) -> MovedVersion:
        seed = None
        if entry.sealed is not None:
            seed = seal.seal_seed(material.unseal(seal.move.tenant, entry), entry.info)
        return MovedVersion(
            entry.info, seed, entry.idempotency, entry.disabled_from, entry.retired_at
        )

    return tuple(
        MovedKey(key.keyring, key.algorithm, key.revision, tuple(map(version, key.entries)))
        for key in keys
    )


def arriving_keys(
    material: KeyMaterial, seal: BundleSeal, keys: Iterable[MovedKey], generation: int
) -> tuple[KeyVersions, ...]:
    """Return a bundle's keys in the form for this database. Raises InvalidBundleError."""
    tenant = seal.move.tenant

    def entry(name: KeyName, moved: MovedVersion) -> KeyEntry:
        sealed = None
        if moved.seed is not None:
            seed = seal.open_seed(moved.seed, moved.info)
            sealed = material.seal(
                seed, name, KeyVersion(moved.info.version), moved.info.public_key
            )
        return KeyEntry(
            moved.info, sealed, moved.idempotency, moved.disabled_from, moved.retired_at
        )

    def key(moved: MovedKey) -> KeyVersions:
        name = KeyName(tenant, moved.algorithm, moved.keyring)
        entries = tuple(entry(name, version) for version in moved.versions)
        return KeyVersions(
            tenant, moved.algorithm, entries, moved.revision, generation, moved.keyring
        )

    return tuple(map(key, keys))
