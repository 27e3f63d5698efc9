"""Executes administration requests: the operator's commands, and requests without a single key."""

from contextlib import suppress

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.live.key_material import KeyringCache
from pqkeep_keyservice.moves import TenantMoves
from pqkeep_keyservice.root_keys import RootKeyRotation
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.key_versions import list_archives
from pqkeep_keyservice.storage.keyrings import list_deleted_keyrings, list_destructions
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.administration import (
    MAX_ARCHIVES_LISTED,
    AnnounceBackup,
    AnyAdministrationRequest,
    AnyAdministrationResult,
    ListScheduledArchives,
    NewestBackup,
    ReloadRootKeys,
    ScheduledArchives,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_KEYRING
from pqkeep_protocol.messages import (
    MAX_DESTRUCTIONS_LISTED,
    Destructions,
    ListDestructions,
    ScheduledDestruction,
)


class Administration:
    """Reloads root keys, notes backups, lists destructions, and moves tenants."""

    def __init__(
        self,
        root_keys: RootKeyRotation,
        store: KeyStore,
        moves: TenantMoves,
        keyring_cache: KeyringCache,
    ) -> None:
        self._keyring_cache = keyring_cache
        self._root_keys = root_keys
        self._moves = moves
        self._store = store

    async def respond(self, request: AnyAdministrationRequest) -> AnyAdministrationResult:
        """Execute a request. Raises KeyServiceError."""
        match request:
            case ReloadRootKeys():
                return await self._root_keys.reload(request)
            case AnnounceBackup():
                return await self._announce(request)
            case ListScheduledArchives():
                return await self._list_archives(request)
            case _:
                return await self._moves.respond(request)

    async def _list_archives(self, request: ListScheduledArchives) -> ScheduledArchives:
        limit = MAX_ARCHIVES_LISTED
        try:
            found = await self._store.database.query(list_archives, request.after, limit + 1)
        except DatabaseUnavailableError:
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
        return ScheduledArchives(archives=tuple(found[:limit]), has_more=len(found) > limit)

    async def _announce(self, backup: AnnounceBackup) -> NewestBackup:
        if backup.created_at_us > clock.now_us():
            raise KeyServiceError(ErrorKind.RECORD_NOT_FOUND)
        try:
            newest = await self._store.announce_backup(backup)
        except DatabaseUnavailableError:
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
        if newest is None:
            raise KeyServiceError(ErrorKind.RECORD_NOT_FOUND)
        return newest

    async def list_destructions(self, request: ListDestructions) -> Destructions:
        """Return a page of destructions: of tenants, or of keyrings. Skip damaged keyrings.

        Raises UNAVAILABLE.
        """
        scheduled: list[ScheduledDestruction] = []
        limit, has_more, after = MAX_DESTRUCTIONS_LISTED, True, None
        if request.after is not None:
            after = KeyringId(request.after, request.after_keyring or DEFAULT_KEYRING)
        try:
            while has_more and not scheduled:  # callers stop at an empty page
                names = await self._destroyed(request, after, limit + 1)
                has_more = len(names) > limit
                for name in names[:limit]:
                    after = name
                    with suppress(DamagedKeyError, KeyServiceError):
                        planned = (await self._keyring_cache.get(name)).destruction
                        if planned is not None:
                            found = ScheduledDestruction(name.tenant, planned, name.keyring)
                            scheduled.append(found)
        except DatabaseUnavailableError:
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
        return Destructions(destructions=tuple(scheduled), has_more=has_more)

    async def _destroyed(
        self, request: ListDestructions, after: KeyringId | None, limit: int
    ) -> list[KeyringId]:
        """Return the keyrings that store the destructions."""
        query = self._store.database.query
        if request.keyrings:
            return await query(list_deleted_keyrings, after, limit)
        last = None if after is None else after.tenant
        tenants = await query(list_destructions, request.tenant, last, limit)
        return [KeyringId(tenant, DEFAULT_KEYRING) for tenant in tenants]
