"""Keys in memory, so that a request needs no query: as they are stored, and expanded.

Between stored keys and usable ones: expands seeds and public keys, generates sealed keys.

Expanded keys are cached for a short time, because expanding an ML-KEM-768 seed costs more than
twice what a decapsulation does. The root key is in the same memory for as long as the process
lives, so whoever can read that memory learns nothing more from a cached key.
"""

from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar

from cachetools import LRUCache, TTLCache
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pqkeep_keyservice.crypto.kem import KEMS, DecapsulationKey, EncapsulationKey
from pqkeep_keyservice.crypto.mldsa import ML_DSA_44
from pqkeep_keyservice.crypto.mldsa import SigningKey as NoteKey
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.selftest import is_kem_pair, is_signature_pair
from pqkeep_keyservice.crypto.signature import SignatureSchemes, SigningKey, VerifyingKey
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions, SealedSeed
from pqkeep_keyservice.keys.keyring import Keyring, KeyringId
from pqkeep_keyservice.keys.sealed_keys import (
    generate_key,
    load_key,
    require_pair,
    reseal_key,
    unseal_key,
)
from pqkeep_keyservice.keys.sealing import Sealer, associated_data
from pqkeep_keyservice.storage.writer import Writer
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyInfo, KeyringName, KeyStatus, KeyVersion, TenantId

CACHED = 10_000

N = TypeVar("N", bound=Hashable)
N_co = TypeVar("N_co", bound=Hashable, covariant=True)


class Revisioned(Protocol[N_co]):
    """What has a name and counts its changes."""

    @property
    def name(self) -> N_co:
        """Which one it is."""
        ...

    @property
    def revision(self) -> int:
        """How often it was changed."""
        ...


V = TypeVar("V", bound=Revisioned[Hashable])


class RevisionCache(Generic[N, V]):
    """The current values. Within one epoch, this process is the only one that changes them."""

    def __init__(self, writer: Writer, find: Callable[[N], Awaitable[V]]) -> None:
        """Cache what ``find`` returns, until the writer's epoch ends."""
        self._writer = writer
        self._find = find
        self._cached: dict[Hashable, V] = {}
        """The oldest first. Which was used last is not noted: that takes longer than all the rest."""
        writer.on_change(self.clear)

    def clear(self) -> None:
        """Forget everything."""
        self._cached.clear()

    def known(self, name: N) -> V | None:
        """Return the current value, if it is in memory."""
        return self._cached.get(name)

    async def get(self, name: N) -> V:
        """Return the current value. Raises DatabaseUnavailableError and what ``find`` raises."""
        cached = self._cached.get(name)
        if cached is not None:
            return cached
        epoch = self._writer.epoch
        return self.update(await self._find(name), epoch)

    def update(self, value: V, epoch: int) -> V:
        """Cache a value unless a newer revision is cached; return the newer of the two.

        A value of an epoch that is over is returned and not cached.
        """
        if epoch != self._writer.epoch:
            return value
        cached = self._cached.get(value.name)
        if cached is not None and cached.revision > value.revision:
            return cached
        if cached is None and len(self._cached) >= CACHED:
            del self._cached[next(iter(self._cached))]
        self._cached[value.name] = value
        return value

    def invalidate(self, value: V) -> None:
        """Load the value from the store the next time."""
        self._cached.pop(value.name, None)


KeyCache: TypeAlias = RevisionCache[KeyName, KeyVersions]
"""The versions of each key, none if there is no key. Raises DamagedKeyError."""
KeyringCache: TypeAlias = RevisionCache[KeyringId, Keyring]
"""Keyrings. Raises KEYRING_NOT_FOUND and DamagedKeyError."""


CAPACITY = 1_000
PUBLIC_CAPACITY = 10_000
"""As many as keys in memory: an expanded public key takes 7 to 11 KB."""
SECONDS = 60.0

KeyId = tuple[TenantId, KeyringName, Algorithm, KeyVersion, bytes]
"""With the public key: in a database that was restored, a version may belong to another key."""
T = TypeVar("T")


class KeyMaterial:
    """Expanded keys and the sealer. Raises DamagedKeyError on damaged rows."""

    def __init__(self, sealer: Sealer, schemes: SignatureSchemes) -> None:
        self._sealer = sealer
        self._schemes = schemes
        self._authentic: MutableMapping[KeyId, bool] = LRUCache(PUBLIC_CAPACITY)
        self._encapsulation: dict[int, tuple[KeyInfo, EncapsulationKey]] = {}
        """By the identity of what was authenticated: nothing of it can change. Not of the entry,
        whose sealed seed would stay in memory once it is destroyed."""
        self._verifying: MutableMapping[KeyId, VerifyingKey] = LRUCache(PUBLIC_CAPACITY)
        self._decapsulation: _PrivateKeys[DecapsulationKey] = _PrivateKeys()
        self._signing: _PrivateKeys[SigningKey] = _PrivateKeys()

    def encapsulation_key(self, tenant: TenantId, entry: KeyEntry) -> EncapsulationKey:
        """Return the public half of a KEM key."""
        known = self._encapsulation.get(id(entry.info))
        if known is not None:
            return known[1]
        self.authenticate(tenant, entry)
        key = KEMS[entry.info.algorithm].load_public(entry.info.public_key)
        if len(self._encapsulation) >= PUBLIC_CAPACITY:
            del self._encapsulation[next(iter(self._encapsulation))]  # the oldest one
        self._encapsulation[id(entry.info)] = entry.info, key
        return key

    def verifying_key(self, tenant: TenantId, entry: KeyEntry) -> VerifyingKey:
        """Return the public half of a signature key."""
        self.authenticate(tenant, entry)
        load = self._schemes[entry.info.algorithm].load_public
        return _cached(self._verifying, _id(tenant, entry), lambda: load(entry.info.public_key))

    def supplied_verifying_key(self, algorithm: Algorithm, public_key: bytes) -> VerifyingKey:
        """Return a verifying key that is nobody's here, and is not kept. Raises ValueError."""
        return self._schemes[algorithm].load_public(public_key)

    def decapsulation_key(self, tenant: TenantId, entry: KeyEntry) -> DecapsulationKey:
        """Return the private half of a KEM key."""
        kem = KEMS[entry.info.algorithm]
        return self._decapsulation.get(
            tenant,
            entry,
            lambda: load_key(kem, self.unseal(tenant, entry), entry.info.public_key),
        )

    def signing_key(self, tenant: TenantId, entry: KeyEntry) -> SigningKey:
        """Return the private half of a signature key."""
        scheme = self._schemes[entry.info.algorithm]
        return self._signing.get(
            tenant,
            entry,
            lambda: load_key(scheme, self.unseal(tenant, entry), entry.info.public_key),
        )

    def note_key(self, tenant: TenantId, entry: KeyEntry) -> NoteKey:
        """Return the key that signs notes beside a key that signs checkpoints."""
        with self.unseal(tenant, entry) as seed:
            return derive_note_key(seed)

    def authenticate(self, tenant: TenantId, entry: KeyEntry) -> None:
        """Check, once, that a public key is the one that was stored with its seed.

        Without this, an attacker with write access to the database could have data encrypted to a
        key of their own. An archived key has no seed to check against, and cannot be used.
        """
        if entry.info.status is KeyStatus.ARCHIVED:
            return
        key_id = _id(tenant, entry)
        if not self._authentic.get(key_id):
            self.unseal(tenant, entry).wipe()
            self._authentic[key_id] = True

    def generate(self, name: KeyName, version: KeyVersion) -> tuple[bytes, SealedSeed]:
        """Generate a key pair; return its public key, and its seed sealed for this version.

        Raises InconsistentKeyPairError.
        """
        kem = KEMS.get(name.algorithm)
        if kem is not None:
            public_key, seed = generate_key(kem, partial(is_kem_pair, kem))
        else:
            scheme = self._schemes[name.algorithm]
            public_key, seed = generate_key(scheme, partial(is_signature_pair, scheme))
        return public_key, self.seal(seed, name, version, public_key)

    def adopt(self, name: KeyName, version: KeyVersion, seed: Secret) -> tuple[bytes, SealedSeed]:
        """Return the public key of a private key made elsewhere, and that key sealed; wipe it.

        Raises InconsistentKeyPairError.
        """
        with seed:
            kem = KEMS.get(name.algorithm)
            if kem is not None:
                public_key = require_pair(kem, partial(is_kem_pair, kem), seed)
            else:
                scheme = self._schemes[name.algorithm]
                public_key = require_pair(scheme, partial(is_signature_pair, scheme), seed)
            return public_key, self.seal(seed, name, version, public_key)

    def seal(
        self, seed: Secret, name: KeyName, version: KeyVersion, public_key: bytes
    ) -> SealedSeed:
        """Return a new key's seed, sealed for this version. Wipes the seed."""
        with seed:
            place = associated_data(name.tenant, name.keyring, name.algorithm, version, public_key)
            return self._sealer.seal(seed, place)

    def unseal(self, tenant: TenantId, entry: KeyEntry) -> Secret:
        """Return a key's seed."""
        return unseal_key(self._sealer, tenant, entry)

    def change_sealer(self, sealer: Sealer) -> None:
        """Seal and unseal with other root keys from now on. Expanded keys stay in the cache."""
        self._sealer = sealer

    def reseal(self, tenant: TenantId, entry: KeyEntry) -> SealedSeed:
        """Return a seed, sealed under the newest root key."""
        return reseal_key(self._sealer, tenant, entry)

    def forget_private_key(self, tenant: TenantId, entry: KeyEntry) -> None:
        """Remove an expanded private key from the cache."""
        self._decapsulation.forget(tenant, entry)
        self._signing.forget(tenant, entry)

    def forget_private_keys(self) -> None:
        """Remove all expanded private keys: another key service may have destroyed some."""
        self._decapsulation.clear()
        self._signing.clear()

    def expire(self) -> None:
        """Remove the expanded private keys whose time is over."""
        self._decapsulation.expire()
        self._signing.expire()


class _PrivateKeys(Generic[T]):
    """Expanded private keys, each for SECONDS, by the identity of what the store says of them."""

    def __init__(self) -> None:
        self._keys: TTLCache[int, tuple[TenantId, KeyInfo, T]] = TTLCache(CAPACITY, SECONDS)

    def get(self, tenant: TenantId, entry: KeyEntry, load: Callable[[], T]) -> T:
        """Return a key; load it where it is unknown or has expired."""
        try:
            owner, _, key = self._keys[id(entry.info)]
        except KeyError:
            pass
        else:
            if owner == tenant:
                return key
        key = load()
        self._keys[id(entry.info)] = tenant, entry.info, key
        return key

    def forget(self, tenant: TenantId, entry: KeyEntry) -> None:
        """Remove a key, however often the store was read since it was loaded."""
        name = _id(tenant, entry)
        for identity, (owner, info, _) in list(self._keys.items()):
            if (owner, info.keyring, info.algorithm, info.version, info.public_key) == name:
                self._keys.pop(identity, None)

    def clear(self) -> None:
        """Remove all keys."""
        self._keys.clear()

    def expire(self) -> None:
        """Remove the keys that have expired."""
        self._keys.expire()


def _id(tenant: TenantId, entry: KeyEntry) -> KeyId:
    info = entry.info
    return tenant, info.keyring, info.algorithm, info.version, info.public_key


def _cached(cache: MutableMapping[KeyId, T], key_id: KeyId, load: Callable[[], T]) -> T:
    key = cache.get(key_id)
    if key is None:
        key = cache[key_id] = load()
    return key


_NOTE_INFO = b"pqkeep/v1/signed-note"
_NOTE_SEED_SIZE = 32


def derive_note_key(seed: Secret) -> NoteKey:
    """Return the ML-DSA-44 key that signs notes, from the seed of a key that signs checkpoints.

    It is HKDF-SHA-256(seed of the checkpoint key, salt = "", info = "pqkeep/v1/signed-note", 32): sealed,
    backed up and replaced with that key. Nothing further is stored.
    """
    kdf = HKDF(SHA256(), length=_NOTE_SEED_SIZE, salt=None, info=_NOTE_INFO)
    with Secret(kdf.derive(seed.reveal())) as derived:
        return ML_DSA_44.load_seed(derived)
