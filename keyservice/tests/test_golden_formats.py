"""What is stored is read for ever: fixed inputs give fixed bytes, made without this project's code.

Each vector fails if a label, a size or an order changes: such a change would lock every database.
"""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pqkeep_keyservice.audit import checkpoint_signer
from pqkeep_keyservice.crypto import dem, prehash
from pqkeep_keyservice.crypto.binding import key_info
from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.keys.keyring import KeyEntry, Keyring, SealedSeed
from pqkeep_keyservice.keys.keyring_mac import keyring_mac, require_authentic
from pqkeep_keyservice.keys.sealing import Sealer, associated_data
from pqkeep_keyservice.operations.kem_dem import Purpose
from pqkeep_protocol.algorithms import Algorithm, HashAlgorithm
from pqkeep_protocol.keys import KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import Idempotency

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "tests" / "vectors" / "formats-at-rest.json").read_text()
)
TENANT = TenantId(UUID("00112233-4455-6677-8899-aabbccddeeff"))
KEM = Algorithm.ML_KEM_768
SEALER = Sealer({3: Secret(bytes(range(32)))})
SEED = bytes(range(64, 128))


def test_a_sealed_seed_is_unsealed() -> None:
    """A seed that was sealed elsewhere is unsealed, and one that is sealed here has its form."""
    stored = SealedSeed(bytes.fromhex(VECTORS["sealed_seed"]))
    place = associated_data(TENANT, KEM, KeyVersion(7), b"a public key")
    assert bytes(SEALER.unseal(stored, place).reveal()) == SEED
    sealed = SEALER.seal(Secret(SEED), place)
    assert (len(sealed), sealed[:2]) == (len(stored), stored[:2])


def test_the_check_value_is_what_it_was() -> None:
    """A root key has this check value."""
    assert SEALER.check_value(3).hex() == VECTORS["check_value"]


def test_the_mac_of_a_keyring_is_what_it_was() -> None:
    """A keyring with every status, a gap and an Idempotency-Key has this MAC."""

    def entry(version: int, status: KeyStatus, key: bytes, **more: Any) -> KeyEntry:
        created = datetime(2026, 1, 1, microsecond=min(version, 3), tzinfo=UTC)
        sealed = None if status is KeyStatus.ARCHIVED else SealedSeed(b"sealed")
        return KeyEntry(KeyInfo(KEM, KeyVersion(version), status, key, created), sealed, **more)

    entries = (
        entry(1, KeyStatus.ARCHIVED, b"first"),
        entry(2, KeyStatus.RETIRED, b"second", idempotency=Idempotency(b"k" * 32, b"r" * 32)),
        entry(1_000_001, KeyStatus.ACTIVE, b"third"),
    )
    keyring = Keyring(TENANT, KEM, entries, revision=5)
    stored = bytes.fromhex(VECTORS["keyring_mac"])
    assert keyring_mac(SEALER, keyring) == stored
    require_authentic(SEALER, keyring, stored)


@pytest.mark.parametrize("name", VECTORS["dem"])
def test_encrypted_data_is_decrypted(name: str) -> None:
    """Data that was encrypted elsewhere for a purpose of a key version is decrypted."""
    algorithm, purpose = name.split()
    info = key_info(purpose.encode(), TENANT, Algorithm(algorithm), KeyVersion(7))
    hkdf_hash = KEMS[Algorithm(algorithm)].hkdf_hash
    sealed = bytes.fromhex(VECTORS["dem"][name])
    assert dem.decrypt(hkdf_hash, bytes(range(32)), sealed, info=info) == b"hello, world"


def test_every_kem_and_purpose_has_a_vector() -> None:
    """There is a vector of each KEM with each purpose."""
    assert set(VECTORS["dem"]) == {
        f"{kem} {each.value.decode()}" for kem in KEMS for each in Purpose
    }


@pytest.mark.parametrize("hash_algorithm", HashAlgorithm)
def test_what_is_signed_for_a_digest_is_what_it_was(hash_algorithm: HashAlgorithm) -> None:
    """A digest of zeros is signed as these bytes, under this context."""
    signed = VECTORS["prehash"][hash_algorithm]
    digest = bytes(len(bytes.fromhex(signed)) - 11)
    assert prehash.represent(hash_algorithm, digest).hex() == signed
    assert prehash.CONTEXT == b"pqkeep/v1/sign-hash"


def test_what_a_checkpoint_signs_is_what_it_was() -> None:
    """A checkpoint's signature is over this text, under this context."""
    text = checkpoint_signer.signed_text(TENANT, 42, bytes(range(32)), 1_767_225_600_000_001)
    assert text.decode() == VECTORS["checkpoint"]
    assert checkpoint_signer.CONTEXT == b"pqkeep/v1/audit-checkpoint"
