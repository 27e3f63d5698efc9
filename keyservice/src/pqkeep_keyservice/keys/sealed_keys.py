"""Key pairs whose private half is sealed: generated, and unsealed again."""

from pqkeep_keyservice.crypto.kem import Kem
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import SignatureScheme
from pqkeep_keyservice.keys.keyring import KeyEntry, SealedSeed
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer, associated_data
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyVersion, TenantId


def generate_sealed_key(
    sealer: Sealer,
    scheme: Kem | SignatureScheme,
    tenant: TenantId,
    algorithm: Algorithm,
    version: KeyVersion,
) -> tuple[bytes, SealedSeed]:
    """Generate a key pair; return its public key, and its seed sealed for this version."""
    private = scheme.generate()
    public_key = private.public_bytes()
    with private.seed() as seed:
        sealed = sealer.seal(seed, associated_data(tenant, algorithm, version, public_key))
    return public_key, sealed


def unseal_key(sealer: Sealer, tenant: TenantId, entry: KeyEntry) -> Secret:
    """Return a key's seed. Raises DamagedKeyError."""
    if entry.sealed is None:
        raise DamagedKeyError
    return sealer.unseal(entry.sealed, _associated_data(tenant, entry))


def reseal_key(sealer: Sealer, tenant: TenantId, entry: KeyEntry) -> SealedSeed:
    """Return a key's seed, sealed under the newest root key. Raises DamagedKeyError."""
    with unseal_key(sealer, tenant, entry) as seed:
        return sealer.seal(seed, _associated_data(tenant, entry))


def _associated_data(tenant: TenantId, entry: KeyEntry) -> bytes:
    info = entry.info
    return associated_data(tenant, info.algorithm, info.version, info.public_key)
