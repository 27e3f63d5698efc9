"""Between stored keys and usable ones: expands seeds and public keys, seals new seeds.

Expanded keys are kept for a short time, because expanding an ML-KEM-768 seed costs more than
twice what a decapsulation does. The root key is in the same memory for as long as the process
lives, so whoever can read that memory learns nothing more from a key that is kept expanded.
"""

from collections.abc import Callable, MutableMapping
from typing import TypeVar

from cachetools import LRUCache, TTLCache

from pqkeep_keyservice.crypto.kem import KEMS, DecapsulationKey, EncapsulationKey
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import SIGNATURE_SCHEMES, SigningKey, VerifyingKey
from pqkeep_keyservice.keys.keyring import KeyEntry, SealedSeed
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer, place
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyStatus, KeyVersion, TenantId

CAPACITY = 1_000
SECONDS = 60.0

KeyId = tuple[TenantId, Algorithm, KeyVersion, bytes]
"""With the public key: in a database that was put back, a version may have come to another."""
T = TypeVar("T")


class KeyMaterial:
    """Usable keys. Damaged rows raise DamagedKeyError."""

    def __init__(self, sealer: Sealer) -> None:
        """Start with nothing expanded."""
        self._sealer = sealer
        self._authentic: MutableMapping[KeyId, bool] = LRUCache(CAPACITY)
        self._encapsulation: MutableMapping[KeyId, EncapsulationKey] = LRUCache(CAPACITY)
        self._verifying: MutableMapping[KeyId, VerifyingKey] = LRUCache(CAPACITY)
        self._decapsulation: TTLCache[KeyId, DecapsulationKey] = TTLCache(CAPACITY, SECONDS)
        self._signing: TTLCache[KeyId, SigningKey] = TTLCache(CAPACITY, SECONDS)

    def encapsulation_key(self, tenant: TenantId, entry: KeyEntry) -> EncapsulationKey:
        """Return the public half of a KEM key."""
        self.authenticate(tenant, entry)
        load = KEMS[entry.info.algorithm].load_public
        return _cached(self._encapsulation, _id(tenant, entry), lambda: load(entry.info.public_key))

    def verifying_key(self, tenant: TenantId, entry: KeyEntry) -> VerifyingKey:
        """Return the public half of a signature key."""
        self.authenticate(tenant, entry)
        load = SIGNATURE_SCHEMES[entry.info.algorithm].load_public
        return _cached(self._verifying, _id(tenant, entry), lambda: load(entry.info.public_key))

    def decapsulation_key(self, tenant: TenantId, entry: KeyEntry) -> DecapsulationKey:
        """Return the private half of a KEM key."""
        load = KEMS[entry.info.algorithm].load_seed
        return _cached(
            self._decapsulation, _id(tenant, entry), lambda: self._expand(load, tenant, entry)
        )

    def signing_key(self, tenant: TenantId, entry: KeyEntry) -> SigningKey:
        """Return the private half of a signature key."""
        load = SIGNATURE_SCHEMES[entry.info.algorithm].load_seed
        return _cached(self._signing, _id(tenant, entry), lambda: self._expand(load, tenant, entry))

    def authenticate(self, tenant: TenantId, entry: KeyEntry) -> None:
        """Check, once, that a public key is the one that was stored with its seed.

        Without this, whoever can write to the database could have data encrypted to a key of his.
        An archived key has nothing left to check it against, and no use.
        """
        if entry.info.status is KeyStatus.ARCHIVED:
            return
        key_id = _id(tenant, entry)
        if not self._authentic.get(key_id):
            self._unseal(tenant, entry).wipe()
            self._authentic[key_id] = True

    def generate(
        self, tenant: TenantId, algorithm: Algorithm, version: KeyVersion
    ) -> tuple[bytes, SealedSeed]:
        """Make a key pair; return its public key and its seed, sealed for this version."""
        scheme = KEMS[algorithm] if algorithm in KEMS else SIGNATURE_SCHEMES[algorithm]
        private = scheme.generate()
        public_key = private.public_bytes()
        with private.seed() as seed:
            sealed = self._sealer.seal(seed, place(tenant, algorithm, version, public_key))
        return public_key, sealed

    def use(self, sealer: Sealer) -> None:
        """Seal and unseal with other root keys from now on. Expanded keys stay what they are."""
        self._sealer = sealer

    def reseal(self, tenant: TenantId, entry: KeyEntry) -> SealedSeed:
        """Return a seed under the newest root key."""
        info = entry.info
        with self._unseal(tenant, entry) as seed:
            where = place(tenant, info.algorithm, info.version, info.public_key)
            return self._sealer.seal(seed, where)

    def forget(self, tenant: TenantId, entry: KeyEntry) -> None:
        """Keep nothing of a private key."""
        self._decapsulation.pop(_id(tenant, entry), None)
        self._signing.pop(_id(tenant, entry), None)

    def expire(self) -> None:
        """Let go of the private keys whose time is over."""
        self._decapsulation.expire()
        self._signing.expire()

    def _expand(self, load: Callable[[Secret], T], tenant: TenantId, entry: KeyEntry) -> T:
        with self._unseal(tenant, entry) as seed:
            return load(seed)

    def _unseal(self, tenant: TenantId, entry: KeyEntry) -> Secret:
        info = entry.info
        if entry.sealed is None:
            raise DamagedKeyError
        where = place(tenant, info.algorithm, info.version, info.public_key)
        return self._sealer.unseal(entry.sealed, where)


def _id(tenant: TenantId, entry: KeyEntry) -> KeyId:
    info = entry.info
    return tenant, info.algorithm, info.version, info.public_key


def _cached(cache: MutableMapping[KeyId, T], key_id: KeyId, load: Callable[[], T]) -> T:
    known = cache.get(key_id)
    if known is None:
        known = cache[key_id] = load()
    return known
