"""Keys in memory, as stored and expanded, so that a request needs no query.

This module expands seeds and public keys, and generates sealed keys.

Expanded keys are cached for a short time, because expanding an ML-KEM-768 seed takes more than
twice as long as a decapsulation. The root key stays in the same memory for the life of the process.
So an attacker who can read the memory learns nothing more from a cached key.
"""

from collections.abc import Awaitable, Callable, Hashable, MutableMapping
from functools import partial
from typing import Generic, Protocol, TypeAlias, TypeVar

from cachetools import LRUCache, TTLCache
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from pqkeep_keyservice.crypto import legacy
from pqkeep_keyservice.crypto.kem import KEMS, DecapsulationKey, EncapsulationKey
from pqkeep_keyservice.crypto.legacy import DecryptionKey
from pqkeep_keyservice.crypto.mldsa import ML_DSA_44
from pqkeep_keyservice.crypto.mldsa import SigningKey as NoteKey
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.selftest import is_kem_pair, is_signature_pair, is_symmetric_key
from pqkeep_keyservice.crypto.signature import SignatureSchemes, SigningKey, VerifyingKey
from pqkeep_keyservice.crypto.symmetric import SYMMETRIC, SymmetricKey
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
    """A named value that counts its changes."""

    @property
    def name(self) -> N_co:
        """The value's name."""
        ...

    @property
    def revision(self) -> int:
        """The number of changes."""
        ...


V = TypeVar("V", bound=Revisioned[Hashable])


class RevisionCache(Generic[N, V]):
    """The current values. During an epoch, only this process changes them."""

    def __init__(self, writer: Writer, find: Callable[[N], Awaitable[V]]) -> None:
        """Cache the results of ``find`` until the writer's epoch ends."""
        self._writer = writer
        self._find = find
        self._cached: dict[Hashable, V] = {}
        """The oldest first. The oldest first. The order of last use is not kept: it would cost more
        than all other work here."""
        writer.on_change(self.clear)

    def clear(self) -> None:
        """Drop all values."""
        self._cached.clear()

    def known(self, name: N) -> V | None:
        """Return the current value, or None if it is not in memory."""
        return self._cached.get(name)

    async def get(self, name: N) -> V:
        """Return the current value. Raises DatabaseUnavailableError and the errors of ``find``."""
        cached = self._cached.get(name)
        if cached is not None:
            return cached
        epoch = self._writer.epoch
        return self.update(await self._find(name), epoch)

    def update(self, value: V, epoch: int) -> V:
        """Cache a value unless a newer revision is cached. Return the newer of the two.

        A value from an earlier epoch is returned and not cached.
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
        """Drop a value, so that the next ``get`` loads it."""
        self._cached.pop(value.name, None)


KeyCache: TypeAlias = RevisionCache[KeyName, KeyVersions]
"""The versions of each key, empty if there is no key. Raises DamagedKeyError."""
KeyringCache: TypeAlias = RevisionCache[KeyringId, Keyring]
"""Keyrings. Raises KEYRING_NOT_FOUND and DamagedKeyError."""


CAPACITY = 1_000
PUBLIC_CAPACITY = 10_000
"""Entries of the cache: as many as keys in memory. An expanded public key takes 7 to 11 KB."""
SECONDS = 60.0

KeyId = tuple[TenantId, KeyringName, Algorithm, KeyVersion, bytes]
"""Includes the public key: after a restore, a version number may belong to another key."""
T = TypeVar("T")


class KeyMaterial:
    """Expanded keys and the sealer. Raises DamagedKeyError on damaged rows."""

    def __init__(self, sealer: Sealer, schemes: SignatureSchemes) -> None:
        self._sealer = sealer
        self._schemes = schemes
        self._authentic: MutableMapping[KeyId, bool] = LRUCache(PUBLIC_CAPACITY)
        self._encapsulation: dict[int, tuple[KeyInfo, EncapsulationKey]] = {}
        """By the identity of the authenticated KeyInfo, which is immutable. Not by the entry: that
        would keep its sealed seed in memory after the seed's destruction."""
        self._verifying: MutableMapping[KeyId, VerifyingKey] = LRUCache(PUBLIC_CAPACITY)
        self._decapsulation: _PrivateKeys[DecapsulationKey] = _PrivateKeys()
        self._signing: _PrivateKeys[SigningKey] = _PrivateKeys()
        self._decryption: _PrivateKeys[DecryptionKey] = _PrivateKeys()
        self._symmetric: _PrivateKeys[SymmetricKey] = _PrivateKeys()

    def encapsulation_key(self, tenant: TenantId, entry: KeyEntry) -> EncapsulationKey:
        """Return the public half of a KEM key."""
        known = self._encapsulation.get(id(entry.info))
        if known is not None:
            return known[1]
        self.authenticate(tenant, entry)
        key = KEMS[entry.info.algorithm].load_public(entry.info.public_key)
        if len(self._encapsulation) >= PUBLIC_CAPACITY:
            del self._encapsulation[next(iter(self._encapsulation))]  # the oldest entry
        self._encapsulation[id(entry.info)] = entry.info, key
        return key

    def verifying_key(self, tenant: TenantId, entry: KeyEntry) -> VerifyingKey:
        """Return the public half of a signature key."""
        self.authenticate(tenant, entry)
        algorithm = entry.info.algorithm
        load = (legacy.VERIFICATION.get(algorithm) or self._schemes[algorithm]).load_public
        return _cached(self._verifying, _id(tenant, entry), lambda: load(entry.info.public_key))

    def supplied_verifying_key(self, algorithm: Algorithm, public_key: bytes) -> VerifyingKey:
        """Return a supplied verifying key. It is not cached. Raises ValueError."""
        return self._schemes[algorithm].load_public(public_key)

    def decapsulation_key(self, tenant: TenantId, entry: KeyEntry) -> DecapsulationKey:
        """Return the private half of a KEM key."""
        kem = KEMS[entry.info.algorithm]
        return self._decapsulation.get(
            tenant,
            entry,
            lambda: load_key(kem, self.unseal(tenant, entry), entry.info.public_key),
        )

    def decryption_key(self, tenant: TenantId, entry: KeyEntry) -> DecryptionKey:
        """Return the private half of a legacy key that decrypts."""
        scheme = legacy.DECRYPTION[entry.info.algorithm]
        return self._decryption.get(
            tenant,
            entry,
            lambda: load_key(scheme, self.unseal(tenant, entry), entry.info.public_key),
        )

    def signing_key(self, tenant: TenantId, entry: KeyEntry) -> SigningKey:
        """Return the private half of a signature key."""
        scheme = self._schemes[entry.info.algorithm]
        return self._signing.get(
            tenant,
            entry,
            lambda: load_key(scheme, self.unseal(tenant, entry), entry.info.public_key),
        )

    def symmetric_key(self, tenant: TenantId, entry: KeyEntry) -> SymmetricKey:
        """Return a symmetric key."""
        scheme = SYMMETRIC[entry.info.algorithm]
        return self._symmetric.get(
            tenant,
            entry,
            lambda: load_key(scheme, self.unseal(tenant, entry), entry.info.public_key),
        )

    def note_key(self, tenant: TenantId, entry: KeyEntry) -> NoteKey:
        """Return the key for notes that derives from a checkpoint key."""
        with self.unseal(tenant, entry) as seed:
            return derive_note_key(seed)

    def authenticate(self, tenant: TenantId, entry: KeyEntry) -> None:
        """Check once that a public key was stored together with its seed.

        Otherwise an attacker with write access to the database could have data encrypted to their
        own key. An archived key has no seed to check against, and is never used.
        """
        if entry.info.status is KeyStatus.ARCHIVED:
            return
        key_id = _id(tenant, entry)
        if not self._authentic.get(key_id):
            self.unseal(tenant, entry).wipe()
            self._authentic[key_id] = True

    def generate(self, name: KeyName, version: KeyVersion) -> tuple[bytes, SealedSeed]:
        """Generate a key pair. Return its public key, and its seed sealed for this version.

        A symmetric key has its check value in the place of a public key. Raises
        InconsistentKeyPairError.
        """
        if (kem := KEMS.get(name.algorithm)) is not None:
            public_key, seed = generate_key(kem, partial(is_kem_pair, kem))
        elif (symmetric := SYMMETRIC.get(name.algorithm)) is not None:
            public_key, seed = generate_key(symmetric, is_symmetric_key)
        else:
            scheme = self._schemes[name.algorithm]
            public_key, seed = generate_key(scheme, partial(is_signature_pair, scheme))
        return public_key, self.seal(seed, name, version, public_key)

    def adopt(self, name: KeyName, version: KeyVersion, seed: Secret) -> tuple[bytes, SealedSeed]:
        """Return an imported private key's public key, and the sealed private key. Wipes ``seed``.

        Of a legacy key that verifies, ``seed`` is a document with the public key. Raises
        InconsistentKeyPairError and PrivateKeyError.
        """
        with seed:
            kem = KEMS.get(name.algorithm)
            verification = legacy.VERIFICATION.get(name.algorithm)
            if verification is not None:
                public_key, stored = verification.adopt(seed)
                return public_key, self.seal(stored, name, version, public_key)
            if kem is not None:
                public_key = require_pair(kem, partial(is_kem_pair, kem), seed)
            else:
                scheme = self._schemes[name.algorithm]
                public_key = require_pair(scheme, partial(is_signature_pair, scheme), seed)
            return public_key, self.seal(seed, name, version, public_key)

    def seal(
        self, seed: Secret, name: KeyName, version: KeyVersion, public_key: bytes
    ) -> SealedSeed:
        """Return a new key's seed sealed for this version. Wipes the seed."""
        with seed:
            place = associated_data(name.tenant, name.keyring, name.algorithm, version, public_key)
            return self._sealer.seal(seed, place)

    def unseal(self, tenant: TenantId, entry: KeyEntry) -> Secret:
        """Return a key's unsealed seed."""
        return unseal_key(self._sealer, tenant, entry)

    def change_sealer(self, sealer: Sealer) -> None:
        """Use other root keys from now on. Expanded keys stay in the cache."""
        self._sealer = sealer

    def reseal(self, tenant: TenantId, entry: KeyEntry) -> SealedSeed:
        """Return a seed sealed under the newest root key."""
        return reseal_key(self._sealer, tenant, entry)

    def forget_private_key(self, tenant: TenantId, entry: KeyEntry) -> None:
        """Remove an expanded private key from the cache."""
        self._decapsulation.forget(tenant, entry)
        self._signing.forget(tenant, entry)
        self._decryption.forget(tenant, entry)
        self._symmetric.forget(tenant, entry)

    def forget_private_keys(self) -> None:
        """Remove all expanded private keys. Another key service may have destroyed some."""
        self._decapsulation.clear()
        self._signing.clear()
        self._decryption.clear()
        self._symmetric.clear()

    def expire(self) -> None:
        """Remove expired private keys."""
        self._decapsulation.expire()
        self._signing.expire()
        self._decryption.expire()
        self._symmetric.expire()


class _PrivateKeys(Generic[T]):
    """Expanded private keys, kept for SECONDS, by the identity of their KeyInfo."""

    def __init__(self) -> None:
        self._keys: TTLCache[int, tuple[TenantId, KeyInfo, T]] = TTLCache(CAPACITY, SECONDS)

    def get(self, tenant: TenantId, entry: KeyEntry, load: Callable[[], T]) -> T:
        """Return a key, and load it if it is missing or expired."""
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
        """Remove a key, even if several reads of the store have cached it."""
        name = _id(tenant, entry)
        for identity, (owner, info, _) in list(self._keys.items()):
            if (owner, info.keyring, info.algorithm, info.version, info.public_key) == name:
                self._keys.pop(identity, None)

    def clear(self) -> None:
        """Remove all keys."""
        self._keys.clear()

    def expire(self) -> None:
        """Remove expired keys."""
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
    """Return the ML-DSA-44 key for notes, derived from a checkpoint key's seed.

    HKDF-SHA-256(seed of the checkpoint key, salt = "", info = "pqkeep/v1/signed-note", 32). It is
    sealed, backed up and replaced together with that key, and needs no storage of its own.
    """
    kdf = HKDF(SHA256(), length=_NOTE_SEED_SIZE, salt=None, info=_NOTE_INFO)
    with Secret(kdf.derive(seed.reveal())) as derived:
        return ML_DSA_44.load_seed(derived)
