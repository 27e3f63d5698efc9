"""Key pairs whose private half is sealed: generated, and loaded again."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.keyring import KeyEntry, SealedSeed
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer, associated_data
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyVersion, TenantId


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


class Scheme(Protocol[P_co]):
    """A Kem or a SignatureScheme."""

    def generate(self) -> P_co:
        """Generate a key pair."""
        ...

    def load_seed(self, seed: Secret) -> P_co:
        """Expand a stored seed."""
        ...


class InconsistentKeyPairError(Exception):
    """The halves of a new key pair do not belong together. It is not used."""


def generate_sealed_key(
    sealer: Sealer,
    scheme: Scheme[P],
    is_pair: Callable[[P, bytes], bool],
    tenant: TenantId,
    algorithm: Algorithm,
    version: KeyVersion,
) -> tuple[bytes, SealedSeed]:
    """Generate a key pair; return its public key, and its seed sealed for this version.

    What the seed expands to is tested with the public key before. Raises InconsistentKeyPairError.
    """
    private = scheme.generate()
    public_key = private.public_bytes()
    with private.seed() as seed:
        if not is_pair(scheme.load_seed(seed), public_key):
            raise InconsistentKeyPairError
        sealed = sealer.seal(seed, associated_data(tenant, algorithm, version, public_key))
    return public_key, sealed


def unseal_key(sealer: Sealer, tenant: TenantId, entry: KeyEntry) -> Secret:
    """Return a key's seed. Raises DamagedKeyError."""
    if entry.sealed is None:
        raise DamagedKeyError("a private key is missing")
    return sealer.unseal(entry.sealed, _associated_data(tenant, entry))


def load_sealed_key(sealer: Sealer, scheme: Scheme[P], tenant: TenantId, entry: KeyEntry) -> P:
    """Return a key's expanded private half, if its public key is the entry's.

    Raises DamagedKeyError.
    """
    with unseal_key(sealer, tenant, entry) as seed:
        private = scheme.load_seed(seed)
    if private.public_bytes() != entry.info.public_key:
        raise DamagedKeyError("a private key does not belong to its public key")
    return private


def reseal_key(sealer: Sealer, tenant: TenantId, entry: KeyEntry) -> SealedSeed:
    """Return a key's seed, sealed under the newest root key. Raises DamagedKeyError."""
    with unseal_key(sealer, tenant, entry) as seed:
        return sealer.seal(seed, _associated_data(tenant, entry))


def _associated_data(tenant: TenantId, entry: KeyEntry) -> bytes:
    info = entry.info
    return associated_data(tenant, info.algorithm, info.version, info.public_key)
