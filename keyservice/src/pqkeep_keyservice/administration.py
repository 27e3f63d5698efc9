"""Answers the operator's commands."""

from pqkeep_keyservice import clock
from pqkeep_keyservice.moves import TenantMoves
from pqkeep_keyservice.root_keys import RootKeyRotation
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.administration import (
    AnnounceBackup,
    AnyAdministrationRequest,
    AnyAdministrationResult,
    NewestBackup,
    ReloadRootKeys,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError


class Administration:
    """Reads root keys again, notes backups, and moves tenants."""

    def __init__(self, root_keys: RootKeyRotation, store: KeyStore, moves: TenantMoves) -> None:
        self._root_keys = root_keys
        self._moves = moves
        self._store = store

    async def answer(self, request: AnyAdministrationRequest) -> AnyAdministrationResult:
        """Do what a command asks. Raises KeyServiceError."""
        match request:
            case ReloadRootKeys():
                return await self._root_keys.reload(request)
            case AnnounceBackup():
                return await self._announce(request)
            case _:
                return await self._moves.answer(request)

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
