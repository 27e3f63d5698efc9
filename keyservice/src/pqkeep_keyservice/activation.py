"""Makes the checks of a start before this key service serves as its database's only writer.

With each epoch of the database the checks of a start are made again, because another key service
may have been the writer in between. A key service that stands by has done everything else before:
self-tests, root keys, sockets.
"""

import asyncio
from uuid import UUID

from pqkeep_keyservice.audit.checkpoint_signer import CheckpointSigner
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.root_keys import RootKeyRotation
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import DEFAULT_SHARD
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

RETRY_SECONDS = 0.2


class Activation:
    """Makes the checks of a start in each epoch, and tells the writer when they are made."""

    def __init__(
        self,
        store: KeyStore,
        material: KeyMaterial,
        root_keys: RootKeyRotation,
        signer: CheckpointSigner,
    ) -> None:
        self._store = store
        self.writer = store.writer
        self._material = material
        self._root_keys = root_keys
        self._signer = signer
        self._changed = asyncio.Event()
        self.writer.on_change(self._changed.set)
        self._shard = DEFAULT_SHARD
        self.database_id: UUID | None = None
        """Which database it is; None until that is known."""

    async def start(self, shard: str = DEFAULT_SHARD) -> None:
        """Check what can be checked now. Raises ConfigError and DatabaseUnavailableError."""
        self._shard = shard
        if self.writer.epoch:
            await self._activate()
        else:
            self.database_id = await self._store.check_standing_by(shard)

    async def run(self) -> None:
        """Make the checks in each new epoch, until cancelled. Raises ConfigError."""
        while True:
            if self.writer.epoch in {0, self.writer.serving}:
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                await self._activate()
                _LOG.info("serving in a new epoch", epoch=self.writer.serving)
            except (DatabaseUnavailableError, KeyServiceError):  # which the database has logged
                await asyncio.sleep(RETRY_SECONDS)

    async def _activate(self) -> None:
        epoch = self.writer.epoch
        self._material.forget_private_keys()
        database_id = await self._store.claim_shard(self._shard)
        if self.database_id not in {None, database_id}:
            raise ConfigError("another database is at the address of the one that was there before")
        self.database_id = database_id
        await self._root_keys.catch_up()
        await self._store.check()
        await self._signer.check()
        await self._root_keys.start()
        self.writer.checked(epoch)
