"""Generates, tests, seals and loads key pairs."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.key_versions import KeyEntry, SealedSeed
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer, associated_data
from pqkeep_protocol.keys import TenantId


class PrivateKey(Protocol):
    """A DecapsulationKey or a SigningKey."""

    def seed(self) -> Secret:
        """Return the private key in its stored form."""
        ...

    def public_bytes(self) -> bytes:
        """Return the public key."""
        ...


P = TypeVar("P", bound=PrivateKey)
P_co = TypeVar("P_co", bound=PrivateKey, covariant=True)


class LoadedKey(Protocol):
    """A private key that was stored with its public key."""

    def public_bytes(self) -> bytes:
        """Return the public key."""
        ...


L = TypeVar("L", bound=LoadedKey)
L_co = TypeVar("L_co", bound=LoadedKey, covariant=True)


class StoredScheme(Protocol[L_co]):
    """A scheme with stored keys."""

    def load_seed(self, seed: Secret) -> L_co:
        """Expand a stored seed."""
        ...


class Scheme(StoredScheme[P_co], Protocol[P_co]):
    """A Kem or a SignatureScheme."""

    def generate(self) -> P_co:
        """Generate a key pair."""
        ...


class InconsistentKeyPairError(Exception):
    """The halves of a new key pair do not match. The pair is not used."""


def generate_key(scheme: Scheme[P], is_pair: Callable[[P, bytes], bool]) -> tuple[bytes, Secret]:
    """Generate a key pair, and return its public key and seed.

    The expanded seed is tested with the public key first. Raises InconsistentKeyPairError.
    """
    private = scheme.generate()
    public_key = private.public_bytes()
    seed = private.seed()
    if not is_pair(scheme.load_seed(seed), public_key):
        seed.wipe()
        raise InconsistentKeyPairError
    return public_key, seed


def require_pair(scheme: Scheme[P], is_pair: Callable[[P, bytes], bool], seed: Secret) -> bytes:
    """Return the public key of an imported private key, after a test of both.

    Raises InconsistentKeyPairError if the seed is not a private key of the scheme.
    """
    try:
        private = scheme.load_seed(seed)
    except ValueError:
        raise InconsistentKeyPairError from None
    public_key = private.public_bytes()
    if not is_pair(private, public_key):
        raise InconsistentKeyPairError
    return public_key


def unseal_key(sealer: Sealer, tenant: TenantId, entry: KeyEntry) -> Secret:
    """Return a key's unsealed seed. Raises DamagedKeyError."""
    if entry.sealed is None:
        raise DamagedKeyError("a private key is missing")
    return sealer.unseal(entry.sealed, _associated_data(tenant, entry))


def load_key(scheme: StoredScheme[L], seed: Secret, public_key: bytes) -> L:
    """Return a key's expanded private half, and wipe the seed.

    Raises DamagedKeyError if the private half does not match the public key.
    """
    with seed:
        private = scheme.load_seed(seed)
    if private.public_bytes() != public_key:
        raise DamagedKeyError("a private key does not match its public key")
    return private


def reseal_key(sealer: Sealer, tenant: TenantId, entry: KeyEntry) -> SealedSeed:
    """Return a key's seed, sealed under the newest root key. Raises DamagedKeyError."""
    with unseal_key(sealer, tenant, entry) as seed:
        return sealer.seal(seed, _associated_data(tenant, entry))


def _associated_data(tenant: TenantId, entry: KeyEntry) -> bytes:
    info = entry.info
    return associated_data(tenant, info.keyring, info.algorithm, info.version, info.public_key)
