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
from pqkeep_keyservice.keyring import SealedSeed
from pqkeep_keyservice.storage.sealing import Sealer, place
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyInfo, KeyVersion, TenantId

CAPACITY = 1_000
SECONDS = 60.0

KeyId = tuple[TenantId, Algorithm, KeyVersion]
T = TypeVar("T")


class KeyMaterial:
    """Usable keys. Damaged rows raise UnsealError."""

    def __init__(self, sealer: Sealer) -> None:
        """Start with nothing expanded."""
        self._sealer = sealer
        self._encapsulation: MutableMapping[KeyId, EncapsulationKey] = LRUCache(CAPACITY)
        self._verifying: MutableMapping[KeyId, VerifyingKey] = LRUCache(CAPACITY)
        self._decapsulation: TTLCache[KeyId, DecapsulationKey] = TTLCache(CAPACITY, SECONDS)
        self._signing: TTLCache[KeyId, SigningKey] = TTLCache(CAPACITY, SECONDS)

    def encapsulation_key(self, tenant: TenantId, info: KeyInfo) -> EncapsulationKey:
        """Return the public half of a KEM key."""
        load = KEMS[info.algorithm].load_public
        return _kept(self._encapsulation, _id(tenant, info), lambda: load(info.public_key))

    def verifying_key(self, tenant: TenantId, info: KeyInfo) -> VerifyingKey:
        """Return the public half of a signature key."""
        load = SIGNATURE_SCHEMES[info.algorithm].load_public
        return _kept(self._verifying, _id(tenant, info), lambda: load(info.public_key))

    def decapsulation_key(
        self, tenant: TenantId, info: KeyInfo, sealed: SealedSeed
    ) -> DecapsulationKey:
        """Return the private half of a KEM key."""
        load = KEMS[info.algorithm].load_seed
        return _kept(
            self._decapsulation,
            _id(tenant, info),
            lambda: self._expand(load, tenant, info, sealed),
        )

    def signing_key(self, tenant: TenantId, info: KeyInfo, sealed: SealedSeed) -> SigningKey:
        """Return the private half of a signature key."""
        load = SIGNATURE_SCHEMES[info.algorithm].load_seed
        return _kept(
            self._signing, _id(tenant, info), lambda: self._expand(load, tenant, info, sealed)
        )

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

    def forget(self, tenant: TenantId, info: KeyInfo) -> None:
        """Keep nothing of a private key."""
        self._decapsulation.pop(_id(tenant, info), None)
        self._signing.pop(_id(tenant, info), None)

    def expire(self) -> None:
        """Let go of the private keys whose time is over."""
        self._decapsulation.expire()
        self._signing.expire()

    def _expand(
        self, load: Callable[[Secret], T], tenant: TenantId, info: KeyInfo, sealed: SealedSeed
    ) -> T:
        where = place(tenant, info.algorithm, info.version, info.public_key)
        with self._sealer.unseal(sealed, where) as seed:
            return load(seed)


def _id(tenant: TenantId, info: KeyInfo) -> KeyId:
    return tenant, info.algorithm, info.version


def _kept(cache: MutableMapping[KeyId, T], key_id: KeyId, load: Callable[[], T]) -> T:
    known = cache.get(key_id)
    if known is None:
        known = cache[key_id] = load()
    return known
