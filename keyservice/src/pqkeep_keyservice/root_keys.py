"""Rotates the root key while the service runs.

The key service reads the settings at its start, or on the operator's command. From then on it uses
each root key that the settings name. From then on it seals new seeds and makes new MACs. Seeds
under older root keys are resealed key by key. Each reseal is an ordinary change: it is repeated if
another change of the key was committed first. When none is left, the older root keys are dropped.
All progress is in the database, so a killed process continues at its next start.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

from pqkeep_keyservice import config
from pqkeep_keyservice.audit.log import AuditLog
from pqkeep_keyservice.config import RootKeySource
from pqkeep_keyservice.keys.changes import (
    CommitOutcome,
    KeyChange,
    KeyringChange,
    RootKeyAdded,
    RootKeysDropped,
    RulesChange,
)
from pqkeep_keyservice.keys.key_versions import KeyName
from pqkeep_keyservice.keys.keyring import KeyringId
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer, sealing_root_key_id
from pqkeep_keyservice.ledger.records import NewRecord
from pqkeep_keyservice.live.key_material import KeyCache, KeyMaterial, KeyringCache
from pqkeep_keyservice.live.rules import RuleCache
from pqkeep_keyservice.root_key_sources.sources import read_root_keys
from pqkeep_keyservice.storage.database import DatabaseUnavailableError
from pqkeep_keyservice.storage.root_keys import (
    count_to_reseal,
    list_keyrings_to_reseal,
    list_keys_to_reseal,
    list_rules_to_reseal,
    require_root_keys,
)
from pqkeep_keyservice.storage.store import KeyStore
from pqkeep_protocol.administration import ReloadRootKeys, RootKeys
from pqkeep_protocol.audit_events import KeyServiceEvent, Outcome
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

OPERATOR, KEY_SERVICE = "operator", "key-service"
KEYS_AT_ONCE = 16
"""Keys in one transaction."""
RETRY_SECONDS = 5.0


class RootKeyRotation:
    """Adds root keys, reseals seeds under the newest root key, and drops older root keys."""

    def __init__(  # noqa: PLR0913, PLR0917 - each once, in wiring.py
        self,
        settings_file: Path,
        sealer: Sealer,
        store: KeyStore,
        log: AuditLog,
        key_cache: KeyCache,
        keyring_cache: KeyringCache,
        rules: RuleCache,
        material: KeyMaterial,
        sources: Mapping[int, RootKeySource],
    ) -> None:
        """Start with a sealer's root keys, already checked by the store, and with their sources."""
        self._settings_file = settings_file
        self._sources = sources
        self._sealer = sealer
        self._store = store
        self._writer = store.writer
        self._log = log
        self._key_cache = key_cache
        self._keyring_cache = keyring_cache
        self._rules = rules
        self._material = material
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._damaged = 0

    async def reload(self, _: ReloadRootKeys) -> RootKeys:
        """Use the root keys in the current settings. Return the progress of the rotation."""
        try:
            sources = config.read(self._settings_file).root_key_sources
            async with self._lock:
                await self._use(await self._read(sources))
                self._sources = sources
            in_use = tuple(sorted(await self._store.list_root_key_check_values()))
            remaining = await self._store.database.query(count_to_reseal, self._sealer.newest)
        except ConfigError as error:
            _LOG.error("root keys not reloaded", error=str(error))
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
        except DatabaseUnavailableError:
            raise KeyServiceError(ErrorKind.UNAVAILABLE) from None
        damaged = min(remaining, self._damaged)
        return RootKeys(in_use=in_use, remaining=remaining, damaged=damaged)

    async def _read(self, sources: Mapping[int, RootKeySource]) -> Sealer:
        """Return a sealer with the root keys from these sources. Raises ConfigError.

        Keys with unchanged sources are not read again: a failing token must not lose a key that is
        in use. Reading runs in a thread, because a token or a command can be slow.
        """
        held = self._sealer.root_keys
        known = {
            root_key_id: held[root_key_id]
            for root_key_id, source in self._sources.items()
            if root_key_id in held and sources.get(root_key_id) == source
        }
        others = {
            root_key_id: source
            for root_key_id, source in sources.items()
            if root_key_id not in known
        }
        return Sealer(known | await asyncio.to_thread(read_root_keys, others))

    async def catch_up(self) -> None:
        """Read root keys that another key service has added meanwhile.

        Raises ConfigError if the settings do not name them, and DatabaseUnavailableError.
        """
        stored = set(await self._store.list_root_key_check_values())
        if stored <= self._sealer.root_key_ids:
            return
        sources = config.read(self._settings_file).root_key_sources
        async with self._lock:
            self._change(await self._read(sources))
            self._sources = sources

    async def start(self) -> None:
        """Store the newest root key before its first use. Raises DatabaseUnavailableError."""
        self._wake.set()
        if self._sealer.newest not in await self._store.list_root_key_check_values():
            await self._add_newest(self._sealer)

    async def run(self) -> None:
        """Reseal seeds under older root keys whenever there are any, until cancelled."""
        self._wake.set()
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                is_done = await self._reseal_all()
            except (KeyServiceError, DatabaseUnavailableError):
                is_done = False
            except Exception:  # noqa: BLE001 - retried, and the reload command shows the rest
                _LOG.exception("private keys could not be resealed")
                is_done = False
            if not is_done:
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _use(self, sealer: Sealer) -> None:
        check_values = await self._store.list_root_key_check_values()
        require_root_keys(sealer, check_values)
        if sealer.newest not in check_values:
            await self._add_newest(sealer)
        if sealer.root_key_ids == self._sealer.root_key_ids:
            return
        self._change(sealer)

    def _change(self, sealer: Sealer) -> None:
        self._sealer = sealer
        self._store.change_sealer(sealer)
        self._material.change_sealer(sealer)
        self._wake.set()

    async def _add_newest(self, sealer: Sealer) -> None:
        added = RootKeyAdded(sealer.newest, sealer.check_value(sealer.newest))
        record = _record(OPERATOR, sealer.newest, None, Outcome.BEGUN)
        try:
            outcome = await self._log.commit(record, added)
        except KeyServiceError:
            outcome = None
        if outcome is not CommitOutcome.DURABLE:
            raise DatabaseUnavailableError("the newest root key cannot be stored")
        _LOG.info("new keys are sealed under another root key", root_key=sealer.newest)

    async def _reseal_all(self) -> bool:
        """Reseal everything under an older root key. Return whether nothing is left."""
        newest = self._sealer.newest
        if set(await self._store.list_root_key_check_values()) == {newest}:
            return True
        after, damaged = None, 0
        while names := await self._store.database.query(
            list_keys_to_reseal, newest, after, KEYS_AT_ONCE
        ):
            are_damaged = await asyncio.gather(*(self._reseal_key(name) for name in names))
            damaged += sum(are_damaged)
            after = names[-1]
        for name in await self._store.database.query(list_keyrings_to_reseal, newest):
            damaged += await self._renew_keyring(name)
        for tenant in await self._store.database.query(list_rules_to_reseal, newest):
            damaged += await self._renew_rules(tenant)
        self._damaged = damaged
        record = _record(KEY_SERVICE, newest, None, Outcome.COMPLETED)
        if await self._log.commit(record, RootKeysDropped(newest)) is not CommitOutcome.DURABLE:
            return False
        await self._store.database.scrub()
        _LOG.info("every private key is sealed under the newest root key", root_key=newest)
        return True

    async def _renew_keyring(self, name: KeyringId) -> bool:
        """Renew a keyring's MAC. Return whether the keyring is damaged."""
        while True:
            epoch = self._writer.epoch
            try:
                keyring = await self._keyring_cache.get(name)
            except (DamagedKeyError, KeyServiceError):
                return True
            change = KeyringChange(keyring.with_new_mac())
            record = _record(KEY_SERVICE, self._sealer.newest, None, Outcome.SUCCESS)
            self._keyring_cache.invalidate(keyring)
            if await self._log.commit(record, change, epoch) is CommitOutcome.DURABLE:
                self._keyring_cache.update(change.new, epoch)
                return False

    async def _renew_rules(self, tenant: TenantId) -> bool:
        """Renew the MAC of a tenant's rules. Return whether they are damaged."""
        while True:
            epoch = self._writer.epoch
            try:
                rules = await self._store.find_rules(tenant)
            except DamagedKeyError:
                return True
            change = RulesChange(rules.with_new_mac())
            record = _record(KEY_SERVICE, self._sealer.newest, None, Outcome.SUCCESS)
            self._rules.invalidate(tenant)
            if await self._log.commit(record, change, epoch) is CommitOutcome.DURABLE:
                self._rules.update(change.new, epoch)
                return False

    async def _reseal_key(self, name: KeyName) -> bool:
        """Reseal a key's seeds and renew its MAC. Return whether the key is damaged."""
        newest = self._sealer.newest
        while True:
            epoch = self._writer.epoch
            try:
                versions = await self._key_cache.get(name)
            except DamagedKeyError:
                return True
            sealed, is_damaged = {}, False
            for entry in versions.entries:
                if entry.sealed is None or sealing_root_key_id(entry.sealed) == newest:
                    continue
                try:
                    sealed[entry.info.version] = self._material.reseal(name.tenant, entry)
                except DamagedKeyError:
                    is_damaged = True
            if is_damaged and not sealed:
                return True
            change = KeyChange(versions, versions.with_resealed(sealed))
            record = _record(KEY_SERVICE, newest, name, Outcome.SUCCESS)
            self._key_cache.invalidate(versions)
            if await self._log.commit(record, change, epoch) is CommitOutcome.DURABLE:
                self._key_cache.update(change.new, epoch)
                return is_damaged


def _record(principal: str, root_key_id: int, name: KeyName | None, outcome: Outcome) -> NewRecord:
    return NewRecord(
        tenant=INSTALLATION,
        principal=principal,
        operation=KeyServiceEvent.ROTATE_ROOT_KEY,
        algorithm=name and name.algorithm,
        key_version=None,
        outcome=outcome,
        request_id=f"root-key-{root_key_id}",
        source_address="",
        policy="",
        keyring=name and name.keyring,
    )
