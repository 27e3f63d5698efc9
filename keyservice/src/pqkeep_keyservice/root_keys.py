"""Changes the root key while the service runs.

A root key is taken up when the settings name it, at the start or when an operator's command asks
for that. From then on it seals what is new, and what older ones sealed is sealed again, a keyring
at a time, each as a change like any other: where somebody else changed the keyring first, it is
tried again. When nothing is left the older root keys are dropped. All of it is in the database, so
a process that is killed goes on where it was.
"""

import asyncio
from pathlib import Path

from pqkeep_keyservice import config
from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.config import Config
from pqkeep_keyservice.keys.changes import (
    CommitOutcome,
    KeyringChange,
    RootKeyAdded,
    RootKeysDropped,
)
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer, read_sealer, sealing_root_key_id
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.live.keyring_cache import KeyringCache
from pqkeep_keyservice.live.resources import Resources
from pqkeep_keyservice.live.slhdsa_process import Setup
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.root_keys import (
    count_keys_to_reseal,
    list_keyrings_to_reseal,
    require_root_keys,
)
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.administration import ReloadRootKeys, RootKeys
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

OPERATOR, KEY_SERVICE = "operator", "key-service"
AT_ONCE = 16
"""Keyrings in one transaction."""
RETRY_SECONDS = 5.0


def setup_of(settings: Config) -> Setup:
    """Return what SLH-DSA's workers need to know."""
    root_keys = tuple(settings.root_key_files.items())
    return Setup(root_keys, settings.slh_dsa, settings.openssl_library)


class RootKeyChanger:
    """Takes root keys up, and has everything sealed under the newest."""

    def __init__(
        self,
        settings: Path,
        sealer: Sealer,
        store: KeyStore,
        keyrings: KeyringCache,
        resources: Resources,
        log: AuditLog,
    ) -> None:
        """Begin with the root keys of a sealer, of which the store was checked."""
        self._settings = settings
        self._sealer = sealer
        self._store = store
        self._keyrings = keyrings
        self._resources = resources
        self._log = log
        self._turn = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._damaged = 0

    async def answer(self, _: ReloadRootKeys) -> RootKeys:
        """Take up what the settings name now, and tell how far things are."""
        try:
            settings = config.read(self._settings)
            sealer = read_sealer(settings.root_key_files)
            async with self._turn:
                await self._take_up(sealer, setup_of(settings))
            in_use = tuple(sorted(await self._store.list_root_key_check_values()))
            left = await self._store.query(count_keys_to_reseal, self._sealer.newest)
        except ConfigError as error:
            _LOG.error("root keys not reloaded", error=str(error))
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
        except DatabaseUnavailableError:
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
        return RootKeys(in_use=in_use, left=left, damaged=min(left, self._damaged))

    async def begin(self) -> None:
        """Note the newest root key before anything is sealed with it. Raises KeyServiceError."""
        if await self._is_new(self._sealer):
            await self._note(self._sealer)

    async def run(self) -> None:
        """Seal again what is sealed under older root keys, whenever there is such, until cancelled."""
        self._wanted.set()
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                is_over = await self._reseal_all()
            except (KeyServiceError, DatabaseUnavailableError):
                is_over = False
            except Exception:  # noqa: BLE001 - it is tried again, and the command says what is left
                _LOG.exception("private keys could not be sealed again")
                is_over = False
            if not is_over:
                await asyncio.sleep(RETRY_SECONDS)
                self._wanted.set()

    async def _take_up(self, sealer: Sealer, setup: Setup) -> None:
        check_values = await self._store.list_root_key_check_values()
        require_root_keys(sealer, check_values)
        if sealer.root_key_ids == self._sealer.root_key_ids:
            return
        if sealer.newest not in check_values:
            await self._note(sealer)
        self._sealer = sealer
        self._resources.material.use(sealer)
        self._resources.slh_dsa.use(setup)
        self._wanted.set()

    async def _is_new(self, sealer: Sealer) -> bool:
        check_values = await self._store.list_root_key_check_values()
        return sealer.newest not in check_values

    async def _note(self, sealer: Sealer) -> None:
        added = RootKeyAdded(sealer.newest, sealer.check_value(sealer.newest))
        new_record = _record(OPERATOR, sealer.newest, None, Outcome.BEGUN)
        await self._log.commit(new_record, added)
        _LOG.info("new keys are sealed under another root key", root_key=sealer.newest)

    async def _reseal_all(self) -> bool:
        """Return whether there is nothing left under an older root key."""
        newest = self._sealer.newest
        if set(await self._store.list_root_key_check_values()) == {newest}:
            return True
        after, damaged = None, 0
        while some := await self._store.query(list_keyrings_to_reseal, newest, after, AT_ONCE):
            outcomes = await asyncio.gather(*(self._reseal_keyring(*name) for name in some))
            damaged += sum(outcomes)
            after = some[-1]
        self._damaged = damaged
        new_record = _record(KEY_SERVICE, newest, None, Outcome.COMPLETED)
        if await self._log.commit(new_record, RootKeysDropped(newest)) is not CommitOutcome.DURABLE:
            return False
        await self._log.scrub()
        _LOG.info("every private key is sealed under the newest root key", root_key=newest)
        return True

    async def _reseal_keyring(self, tenant: TenantId, algorithm: Algorithm) -> int:
        """Seal a keyring's seeds again; return how many could not be unsealed."""
        newest = self._sealer.newest
        while True:
            epoch = self._keyrings.epoch
            keyring = await self._keyrings.get(tenant, algorithm)
            sealed, damaged = {}, 0
            for entry in keyring.entries:
                if entry.sealed is None or sealing_root_key_id(entry.sealed) == newest:
                    continue
                try:
                    sealed[entry.info.version] = self._resources.material.reseal(tenant, entry)
                except DamagedKeyError:
                    damaged += 1
            if not sealed:
                return damaged
            new = keyring.with_resealed(sealed)
            new_record = _record(KEY_SERVICE, newest, algorithm, Outcome.SUCCESS)
            self._keyrings.forget(keyring)
            if (
                await self._log.commit(new_record, KeyringChange(keyring, new), epoch)
                is CommitOutcome.DURABLE
            ):
                self._keyrings.put(new, epoch)
                return damaged


def _record(
    principal: str, root_key_id: int, algorithm: Algorithm | None, outcome: Outcome
) -> NewRecord:
    return NewRecord(
        tenant=INSTALLATION,
        principal=principal,
        operation=KeyServiceEvent.ROTATE_ROOT_KEY,
        algorithm=algorithm,
        key_version=None,
        outcome=outcome,
        request_id=f"root-key-{root_key_id}",
        source_address="",
        policy="",
    )
