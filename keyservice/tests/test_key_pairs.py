"""If the halves of a key pair do not match, the key pair is not stored or used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.selftest import is_kem_pair, is_symmetric_key
from pqkeep_keyservice.crypto.signature import SignatureSchemes
from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS
from pqkeep_keyservice.crypto.symmetric import SYMMETRIC
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName
from pqkeep_keyservice.keys.sealed_keys import InconsistentKeyPairError, generate_key
from pqkeep_keyservice.keys.sealing import DamagedKeyError, Sealer, associated_data
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_protocol.algorithms import CURRENT, Algorithm
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyInfo, KeyStatus, KeyVersion, TenantId

V1 = KeyVersion(1)
IN_PROCESS = sorted({*CURRENT} - {*PARAMETER_SETS} - {*KEMS} - {*SYMMETRIC})


@dataclass(frozen=True)
class Mismatched:
    """A private key with another key's public half."""

    key: Any
    public_key: bytes

    def seed(self) -> Secret:
        """Return the private key's own seed."""
        return self.key.seed()  # type: ignore[no-any-return]

    def public_bytes(self) -> bytes:
        """Return the other key's public half."""
        return self.public_key


@dataclass(frozen=True)
class Faulty:
    """A scheme with a fault: its new key pairs do not match."""

    scheme: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scheme, name)

    def generate(self) -> Mismatched:
        """Return a private key with another key's public half."""
        return Mismatched(self.scheme.generate(), self.scheme.generate().public_bytes())


@pytest.mark.parametrize("algorithm", [*IN_PROCESS, Algorithm.SLH_DSA_SHA2_128F])
def test_a_new_signature_pair_that_does_not_fit_is_not_stored(
    algorithm: Algorithm, sealer: Sealer, schemes: SignatureSchemes, tenant: TenantId
) -> None:
    """A new seed is expanded, and its signature verified, before it is sealed."""
    scheme: Any = Faulty(schemes[algorithm])
    faulty = KeyMaterial(sealer, {algorithm: scheme})
    with pytest.raises(InconsistentKeyPairError):
        faulty.generate(KeyName(tenant, algorithm), V1)


@pytest.mark.parametrize("algorithm", KEMS)
def test_a_new_kem_pair_that_does_not_fit_is_not_stored(
    algorithm: Algorithm,
) -> None:
    """A new seed is expanded, and its decapsulation checked, before it is sealed."""
    kem: Any = KEMS[algorithm]
    is_pair = partial(is_kem_pair, kem)
    generate_key(kem, is_pair)
    with pytest.raises(InconsistentKeyPairError):
        generate_key(Faulty(kem), is_pair)


@pytest.mark.parametrize("algorithm", SYMMETRIC)
def test_a_new_symmetric_key_that_does_not_fit_is_not_stored(algorithm: Algorithm) -> None:
    """A new symmetric key is loaded, and its check value compared, before it is sealed."""
    scheme: Any = SYMMETRIC[algorithm]
    generate_key(scheme, is_symmetric_key)
    with pytest.raises(InconsistentKeyPairError):
        generate_key(Faulty(scheme), is_symmetric_key)


@pytest.mark.parametrize("algorithm", sorted({*CURRENT} - {*PARAMETER_SETS}))
def test_a_seed_of_another_public_key_is_not_used(
    algorithm: Algorithm, material: KeyMaterial, sealer: Sealer, tenant: TenantId
) -> None:
    """A seed that does not match its public key is refused at its first use."""
    public_key, _ = material.generate(KeyName(tenant, algorithm), V1)
    scheme: Any = KEMS.get(algorithm) or SYMMETRIC.get(algorithm) or material._schemes[algorithm]
    with scheme.generate().seed() as seed:
        sealed = sealer.seal(
            seed, associated_data(tenant, DEFAULT_KEYRING, algorithm, V1, public_key)
        )
    info = KeyInfo(algorithm, V1, KeyStatus.ACTIVE, public_key, datetime.now(UTC))
    entry = KeyEntry(info, sealed)
    material.authenticate(tenant, entry)  # the seal says nothing of what it holds
    load: Any = material.decapsulation_key if algorithm in KEMS else material.signing_key
    if algorithm in SYMMETRIC:
        load = material.symmetric_key
    with pytest.raises(DamagedKeyError, match="does not match its public key"):
        load(tenant, replace(entry))
