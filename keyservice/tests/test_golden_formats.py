"""Stored data stays readable: fixed inputs give fixed bytes, computed without this project's code.

A vector fails if a label, a size or an order changes: such a change would lock every database.
"""

import json
from base64 import urlsafe_b64decode
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pqkeep_keyservice.audit import checkpoint_signer
from pqkeep_keyservice.crypto import dem
from pqkeep_keyservice.crypto.dem import key_info
from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.symmetric import SYMMETRIC
from pqkeep_keyservice.keys.key_mac import key_mac, require_authentic, rules_mac
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyVersions, SealedSeed
from pqkeep_keyservice.keys.rules import RuleSet
from pqkeep_keyservice.keys.sealing import Sealer, associated_data
from pqkeep_keyservice.operations.kem_dem import Purpose
from pqkeep_keyservice.operations.signing import HASH_CONTEXT, represent_digest
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, HashAlgorithm
from pqkeep_protocol.envelopes import read_header
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import Idempotency
from pqkeep_protocol.rules import rules_of

FOLDER = Path(__file__).parents[2] / "tests" / "vectors"
VECTORS: dict[str, Any] = json.loads((FOLDER / "formats-at-rest.json").read_text())
ENVELOPES = json.loads((FOLDER / "envelopes.json").read_text())["envelopes"]
NAMED = VECTORS["named_keyring"]
KEYRINGS = [(DEFAULT_KEYRING, VECTORS), (NAMED["keyring"], NAMED)]
TENANT = TenantId(UUID("00112233-4455-6677-8899-aabbccddeeff"))
KEM = Algorithm.ML_KEM_768
SEALER = Sealer({3: Secret(bytes(range(32)))})
SEED = bytes(range(64, 128))


@pytest.mark.parametrize(("keyring", "vectors"), KEYRINGS)
def test_a_sealed_seed_is_unsealed(keyring: str, vectors: dict[str, Any]) -> None:
    """An externally sealed seed is unsealed, and a seed sealed here has the same form."""
    stored = SealedSeed(bytes.fromhex(vectors["sealed_seed"]))
    place = associated_data(TENANT, keyring, KEM, KeyVersion(7), b"a public key")
    assert bytes(SEALER.unseal(stored, place).reveal()) == SEED
    sealed = SEALER.seal(Secret(SEED), place)
    assert (len(sealed), sealed[:2]) == (len(stored), stored[:2])


def test_the_check_value_is_what_it_was() -> None:
    """A root key has this check value."""
    assert SEALER.check_value(3).hex() == VECTORS["check_value"]


def test_the_mac_of_rules_is_what_it_was() -> None:
    """A rule with every field has this text, and this MAC."""
    rules = RuleSet(TENANT, rules_of(VECTORS["rules"]["text"]), 7)
    assert rules.text.decode() == VECTORS["rules"]["text"]
    assert rules_mac(SEALER, rules).hex() == VECTORS["rules"]["mac"]


@pytest.mark.parametrize(
    ("keyring", "mac", "until"),
    [
        (DEFAULT_KEYRING, VECTORS["keyring_mac"], None),
        (DEFAULT_KEYRING, VECTORS["keyring_mac_disabled_until"], datetime(2026, 4, 1, tzinfo=UTC)),
        (NAMED["keyring"], NAMED["mac"], None),
    ],
)
def test_the_mac_of_a_key_is_what_it_was(keyring: str, mac: str, until: datetime | None) -> None:
    """A key with every status, a schedule, a gap and an Idempotency-Key has this MAC."""
    retired_at, archive_at = datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 3, 1, tzinfo=UTC)

    def entry(version: int, status: KeyStatus, key: bytes, **more: Any) -> KeyEntry:
        created = datetime(2026, 1, 1, microsecond=min(version, 3), tzinfo=UTC)
        sealed = None if status is KeyStatus.ARCHIVED else SealedSeed(b"sealed")
        info = KeyInfo(
            *(KEM, KeyVersion(version), status, key, created, more.pop("archive_at", None)),
            disabled_until=until if status is KeyStatus.DISABLED else None,
        )
        return KeyEntry(info, sealed, **more)

    entries = (
        entry(1, KeyStatus.ARCHIVED, b"first", retired_at=retired_at),
        entry(
            2,
            KeyStatus.RETIRED,
            b"second",
            retired_at=retired_at,
            archive_at=archive_at,
            idempotency=Idempotency(b"k" * 32, b"r" * 32),
        ),
        entry(
            3,
            KeyStatus.DISABLED,
            b"more",
            retired_at=retired_at,
            disabled_from=KeyStatus.RETIRED,
        ),
        entry(1_000_001, KeyStatus.ACTIVE, b"third"),
    )
    versions = KeyVersions(TENANT, KEM, entries, revision=5, keyring=keyring)
    stored = bytes.fromhex(mac)
    assert key_mac(SEALER, versions) == stored
    require_authentic(SEALER, versions, stored)
    # what was computed for a version is not taken for the version that it becomes
    changed = versions.with_enabled(KeyVersion(3)).with_archived(KeyVersion(2))
    forgetful = replace(changed, entries=tuple(map(replace, changed.entries)))
    assert key_mac(SEALER, changed) == key_mac(SEALER, forgetful) != stored


@pytest.mark.parametrize("name", VECTORS["dem"])
@pytest.mark.parametrize(("keyring", "vectors"), KEYRINGS)
def test_encrypted_data_is_decrypted(keyring: str, vectors: dict[str, Any], name: str) -> None:
    """Data encrypted externally for a purpose of a key version is decrypted."""
    algorithm, purpose = name.split()
    info = key_info(purpose.encode(), TENANT, Algorithm(algorithm), KeyVersion(7), keyring)
    hkdf_hash = KEMS[Algorithm(algorithm)].hkdf_hash
    sealed = bytes.fromhex(vectors["dem"][name])
    assert dem.decrypt(hkdf_hash, bytes(range(32)), sealed, info=info) == b"hello, world"


@pytest.mark.parametrize("name", VECTORS["symmetric"])
@pytest.mark.parametrize(("keyring", "vectors"), KEYRINGS)
def test_what_symmetric_keys_made_is_read(keyring: str, vectors: dict[str, Any], name: str) -> None:
    """Ciphertexts and MACs that were made externally for a key version are read."""
    algorithm, purpose = name.split()
    scheme = SYMMETRIC[Algorithm(algorithm)]
    key = scheme.load_seed(Secret(bytes(range(scheme.size))))
    assert key.public_bytes().hex() == VECTORS["key_check_value"][algorithm]
    info = key_info(purpose.encode(), TENANT, Algorithm(algorithm), KeyVersion(7), keyring)
    output = bytes.fromhex(vectors["symmetric"][name])
    if purpose == "mac":
        assert key.is_mac(output, b"hello, world", info=info)
    else:
        assert key.decrypt(output, info=info, associated_data=b"") == b"hello, world"


@pytest.mark.parametrize("name", VECTORS["derived"])
@pytest.mark.parametrize(("keyring", "vectors"), KEYRINGS)
def test_what_derived_keys_made_is_read(keyring: str, vectors: dict[str, Any], name: str) -> None:
    """Data that was encrypted externally with a context and associated data is decrypted."""
    algorithm, purpose = name.split()
    context = b"customers/42"
    place = (TENANT, Algorithm(algorithm), KeyVersion(7), keyring)
    bound: Any = {
        "info": key_info(purpose.encode(), *place, context),
        "associated_data": dem.bound_context(context, b"iban"),
    }
    assert bound["associated_data"].hex() == VECTORS["derived_associated_data"]
    sealed, secret = bytes.fromhex(vectors["derived"][name]), bytes(range(32))
    if algorithm in SYMMETRIC:
        key = SYMMETRIC[Algorithm(algorithm)].load_seed(Secret(secret))
        assert key.decrypt(sealed, **bound) == b"hello, world"
    else:
        hkdf_hash = KEMS[Algorithm(algorithm)].hkdf_hash
        assert dem.decrypt(hkdf_hash, secret, sealed, **bound) == b"hello, world"


def test_every_kem_and_purpose_has_a_vector() -> None:
    """Each KEM has a vector for each purpose."""
    bare = set(Purpose) - {Purpose.ENVELOPE, Purpose.MAC}
    expected = {f"{kem} {purpose.value.decode()}" for kem in KEMS for purpose in bare}
    assert set(VECTORS["dem"]) == set(NAMED["dem"]) == expected
    assert {envelope["algorithm"] for envelope in ENVELOPES} == set(KEMS)


@pytest.mark.parametrize("vector", ENVELOPES, ids=lambda vector: vector["algorithm"])
def test_an_envelope_is_what_it_was(vector: dict[str, Any]) -> None:
    """A fixed envelope names its key, and opens with the private key's seed."""
    text = vector["envelope"].removeprefix("pqk1.")
    data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    header = read_header(data)
    kem = KEMS[header.algorithm]
    assert (header.algorithm, header.version, header.keyring) == (
        vector["algorithm"],
        vector["key_version"],
        vector["keyring"],
    )
    blob = data[len(header.encoded()) :]
    size = ALGORITHMS[header.algorithm].output_size
    private = kem.load_seed(Secret(bytes.fromhex(vector["private_key"])))
    secret = private.decapsulate(blob[:size])
    assert secret.hex() == vector["shared_secret"]
    place = (TENANT, header.algorithm, header.version, header.keyring)
    opened = dem.decrypt(
        kem.hkdf_hash,
        secret,
        blob[size:],
        info=key_info(Purpose.ENVELOPE.value, *place),
        associated_data=header.bound() + bytes.fromhex(vector["associated_data"]),
    )
    assert opened.decode() == vector["plaintext"]


@pytest.mark.parametrize("hash_algorithm", HashAlgorithm)
def test_what_is_signed_for_a_digest_is_what_it_was(hash_algorithm: HashAlgorithm) -> None:
    """A digest of zeros has this signing input and context."""
    signed = VECTORS["prehash"][hash_algorithm]
    digest = bytes(len(bytes.fromhex(signed)) - 11)
    assert represent_digest(hash_algorithm, digest).hex() == signed
    assert HASH_CONTEXT == b"pqkeep/v1/sign-hash"


def test_what_a_checkpoint_signs_is_what_it_was() -> None:
    """A checkpoint's signature covers this text in this context."""
    text = checkpoint_signer.signed_text(TENANT, 42, bytes(range(32)), 1_767_225_600_000_001)
    assert text.decode() == VECTORS["checkpoint"]
    assert checkpoint_signer.CONTEXT == b"pqkeep/v1/audit-checkpoint"
