"""Expanded keys are cached for a limited time, and never mixed up."""

import gc
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs
from tests.sampling import fast_algorithms_first

from pqkeep_keyservice.crypto.kem import KEMS, DecapsulationKey
from pqkeep_keyservice.crypto.signature import SigningKey
from pqkeep_keyservice.crypto.symmetric import SYMMETRIC, SymmetricKey
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, SealedSeed
from pqkeep_keyservice.keys.sealing import DamagedKeyError
from pqkeep_keyservice.live.key_material import KeyMaterial
from pqkeep_protocol.algorithms import CURRENT, KEY_PAIRS, Algorithm
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Decapsulate,
    Encapsulate,
    GenerateKey,
    KeyService,
    RetireKey,
    ScheduleArchive,
)

NOTHING = SealedSeed(b"")
Load = Callable[[TenantId, KeyEntry], DecapsulationKey | SigningKey | SymmetricKey]


def generated(material: KeyMaterial, tenant: TenantId, algorithm: Algorithm) -> KeyEntry:
    """Generate a key pair as version 1."""
    public_key, sealed = material.generate(KeyName(tenant, algorithm), KeyVersion(1))
    now = datetime.now(UTC)
    info = KeyInfo(algorithm, KeyVersion(1), KeyStatus.ACTIVE, public_key, now)
    return KeyEntry(info, sealed)


def seedless(entry: KeyEntry) -> KeyEntry:
    """Return the entry with an unusable seed, so that only a cached key works."""
    return replace(entry, sealed=NOTHING)


@pytest.mark.parametrize("algorithm", fast_algorithms_first(CURRENT))
def test_a_forgotten_key_is_unsealed_again(
    algorithm: Algorithm, material: KeyMaterial, tenant: TenantId
) -> None:
    """An expanded key stays cached until it is forgotten, even if its row is read again."""
    entry = generated(material, tenant, algorithm)
    load: Load = material.decapsulation_key if algorithm in KEMS else material.signing_key
    if algorithm in SYMMETRIC:
        load = material.symmetric_key
    with pytest.raises(DamagedKeyError):  # generating keeps nothing
        load(tenant, seedless(entry))
    key = load(tenant, entry)
    assert key.public_bytes() == entry.info.public_key
    assert load(tenant, seedless(entry)) is key
    material.expire()  # not yet
    assert load(tenant, seedless(entry)) is key
    material.forget_private_key(tenant, replace(entry, info=structs.replace(entry.info)))
    with pytest.raises(DamagedKeyError):
        load(tenant, seedless(entry))


def test_a_kept_key_is_its_tenants_only(material: KeyMaterial, tenant: TenantId) -> None:
    """A tenant's cached key is not used for another tenant's same version."""
    entry = generated(material, tenant, Algorithm.ML_KEM_768)
    material.decapsulation_key(tenant, entry)
    with pytest.raises(DamagedKeyError):
        material.decapsulation_key(TenantId(UUID(int=1)), entry)


def test_a_public_key_is_authentic_for_its_own_place_only(
    material: KeyMaterial, tenant: TenantId
) -> None:
    """A verified public key does not make another one in the same entry trusted."""
    entry = generated(material, tenant, Algorithm.ML_KEM_768)
    other = generated(material, tenant, Algorithm.ML_KEM_768)
    material.authenticate(tenant, entry)
    material.authenticate(tenant, seedless(entry))  # once was enough
    forged = replace(entry, info=structs.replace(entry.info, public_key=other.info.public_key))
    for who, what in (
        (tenant, forged),
        (TenantId(UUID(int=1)), entry),
        (tenant, replace(entry, info=structs.replace(entry.info, version=KeyVersion(2)))),
        (tenant, KeyEntry(forged.info, None)),
    ):
        with pytest.raises(DamagedKeyError):
            material.authenticate(who, what)
        with pytest.raises(DamagedKeyError):
            material.encapsulation_key(who, what)


@pytest.mark.parametrize("algorithm", fast_algorithms_first(KEY_PAIRS))
def test_another_key_of_the_same_version_is_another(
    algorithm: Algorithm, material: KeyMaterial, tenant: TenantId
) -> None:
    """After a restore, a new key of an old version number uses nothing cached of the old one."""
    is_kem = algorithm in KEMS
    public = material.encapsulation_key if is_kem else material.verifying_key
    private: Load = material.decapsulation_key if is_kem else material.signing_key
    first, second = (generated(material, tenant, algorithm) for _ in range(2))
    assert public(tenant, first) is public(tenant, first)
    assert public(tenant, first) is not public(tenant, second)
    for entry in (first, second):
        assert private(tenant, entry).public_bytes() == entry.info.public_key


def test_a_public_key_keeps_no_private_one(material: KeyMaterial, tenant: TenantId) -> None:
    """The cache of public keys keeps no entry, so a destroyed sealed seed is freed."""
    entry = generated(material, tenant, Algorithm.ML_KEM_768)
    material.encapsulation_key(tenant, entry)
    public_key = entry.info.public_key
    del entry
    entries = [live for live in gc.get_objects() if isinstance(live, KeyEntry)]
    assert not any(entry.info.public_key == public_key for entry in entries)


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
async def test_archiving_drops_the_expanded_key(
    keys: KeyService, material: KeyMaterial, tenant: TenantId, attribution: Attribution
) -> None:
    """After archiving, no expanded private key of the version is cached."""
    key: dict[str, Any] = {"tenant": tenant, "algorithm": Algorithm.ML_KEM_768}
    made = await keys.execute(GenerateKey(**key, quota=None), attribution)
    one = {**key, "version": made.key.version}
    encapsulated = await keys.execute(Encapsulate(**one), attribution)
    use = Decapsulate(**one, kem_ciphertext=encapsulated.kem_ciphertext)
    await keys.execute(use, attribution)
    await keys.execute(RetireKey(**one), attribution)
    entry = KeyEntry(made.key, NOTHING)
    material.decapsulation_key(tenant, entry)  # is kept, so the seed is not needed
    await keys.execute(ScheduleArchive(days=0, **one), attribution)
    with pytest.raises(DamagedKeyError):
        material.decapsulation_key(tenant, entry)
