"""Runs the start checks before this key service becomes its database's only active writer.

Another key service may have written between two epochs, so each epoch repeats the checks. A standby
has already done the rest of the start: self-tests, root keys, sockets.
"""

import asyncio
from uuid import UUID

from pqkeep_keyservice.audit.checkpoint_signer import CheckpointSigner
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_keyservice.live.rules import RuleCache
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
    """Runs the start checks in each epoch, and reports them to the writer."""

    def __init__(
        self,
        store: KeyStore,
        material: KeyMaterial,
        root_keys: RootKeyRotation,
        signer: CheckpointSigner,
        rules: RuleCache,
    ) -> None:
        self._store = store
        self.writer = store.writer
        self._material = material
        self._root_keys = root_keys
        self._signer = signer
        self._rules = rules
        self._changed = asyncio.Event()
        self.writer.on_change(self._changed.set)
        self._shard = DEFAULT_SHARD
        self.database_id: UUID | None = None
        """The database's id; None until it is known."""

    async def start(self, shard: str = DEFAULT_SHARD) -> None:
        """Run the checks that are possible now. Raises ConfigError and DatabaseUnavailableError."""
        self._shard = shard
        if self.writer.epoch:
            await self._activate()
        else:
            self.database_id = await self._store.check_standing_by(shard)

    async def run(self) -> None:
        """Run the checks in each new epoch, until cancelled. Raises ConfigError."""
        while True:
            if self.writer.epoch in {0, self.writer.serving}:
                self._changed.clear()
                await self._changed.wait()
                continue
            try:
                await self._activate()
                _LOG.info("serving in a new epoch", epoch=self.writer.serving)
            except (DatabaseUnavailableError, KeyServiceError):  # already logged by the database
                await asyncio.sleep(RETRY_SECONDS)

    async def _activate(self) -> None:
        epoch = self.writer.epoch
        self._material.forget_private_keys()
        database_id = await self._store.claim_shard(self._shard)
        if self.database_id not in {None, database_id}:
            raise ConfigError(
                "the database was replaced by another one: correct its address, and start again"
            )
        self.database_id = database_id
        await self._root_keys.catch_up()
        await self._store.check()
        await self._rules.load()
        await self._signer.check()
        await self._root_keys.start()
        self.writer.checked(epoch)
