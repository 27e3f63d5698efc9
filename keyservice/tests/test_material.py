"""Expanded keys are kept, but not past their time, and never instead of the right ones."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.signature import SIGNATURE_SCHEMES
from pqkeep_keyservice.keyring import SealedSeed
from pqkeep_keyservice.storage.material import KeyMaterial
from pqkeep_keyservice.storage.sealing import UnsealError
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    ArchiveKey,
    Attribution,
    Decapsulate,
    Encapsulate,
    GenerateKey,
    KeyService,
    RetireKey,
)

NOTHING = SealedSeed(b"")


def generated(
    material: KeyMaterial, tenant: TenantId, algorithm: Algorithm
) -> tuple[KeyInfo, SealedSeed]:
    """Make a key pair as version 1."""
    public_key, sealed = material.generate(tenant, algorithm, KeyVersion(1))
    now = datetime.now(UTC)
    return KeyInfo(algorithm, KeyVersion(1), KeyStatus.ACTIVE, public_key, now), sealed


@pytest.mark.parametrize("algorithm", [*KEMS, *SIGNATURE_SCHEMES])
def test_a_forgotten_key_is_unsealed_again(
    algorithm: Algorithm, material: KeyMaterial, tenant: TenantId
) -> None:
    """An expanded private key is kept until it is forgotten; then only its seed can bring it back."""
    info, sealed = generated(material, tenant, algorithm)
    is_kem = algorithm in KEMS
    load = material.decapsulation_key if is_kem else material.signing_key
    with pytest.raises(UnsealError):  # generating keeps nothing
        load(tenant, info, NOTHING)
    key = load(tenant, info, sealed)
    assert key.public_bytes() == info.public_key
    assert load(tenant, info, NOTHING) is key
    material.expire()  # not yet
    assert load(tenant, info, NOTHING) is key
    material.forget(tenant, info)
    with pytest.raises(UnsealError):
        load(tenant, info, NOTHING)


def test_a_kept_key_is_its_tenants_only(material: KeyMaterial, tenant: TenantId) -> None:
    """What is kept for one tenant is not found for another with the same version."""
    info, sealed = generated(material, tenant, Algorithm.ML_KEM_768)
    material.decapsulation_key(tenant, info, sealed)
    with pytest.raises(UnsealError):
        material.decapsulation_key(TenantId(UUID(int=1)), info, sealed)


async def test_archiving_drops_the_expanded_key(
    keys: KeyService, material: KeyMaterial, tenant: TenantId, attribution: Attribution
) -> None:
    """Once archiving is answered, no expanded private key of that version is kept."""
    key: dict[str, Any] = {"tenant": tenant, "algorithm": Algorithm.ML_KEM_768}
    made = await keys.execute(GenerateKey(**key, quota=None), attribution)
    one = {**key, "version": made.key.version}
    encapsulated = await keys.execute(Encapsulate(**one), attribution)
    use = Decapsulate(**one, kem_ciphertext=encapsulated.kem_ciphertext)
    await keys.execute(use, attribution)
    await keys.execute(RetireKey(**one), attribution)
    material.decapsulation_key(tenant, made.key, NOTHING)  # is kept, so the seed is not needed
    await keys.execute(ArchiveKey(**one), attribution)
    with pytest.raises(UnsealError):
        material.decapsulation_key(tenant, made.key, NOTHING)
