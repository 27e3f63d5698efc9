"""Every operation with keys, by both clients, against the real service."""

import asyncio
import base64
import hashlib
import inspect
import json
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, assert_type

import pytest

from pqkeep import (
    Algorithm,
    AsyncClient,
    AuditRecord,
    Ciphertext,
    Client,
    DecryptionError,
    HashAlgorithm,
    HashAlgorithmError,
    InvalidRequestError,
    Key,
    NotFoundError,
    Rotation,
    UnreadableInputError,
    UnwrappingError,
)
from pqkeep.algorithms import LEGACY
from pqkeep.resources.kem import Kem

KEM = "Kyber768"
SIGNATURE = "Dilithium3"


def test_encryption(client: Client) -> None:
    """Decrypt returns the plaintext of encrypt, with the active key and the default KEM."""
    client.keys.generate(KEM)
    sealed = client.kem.encrypt(b"attack at dawn")
    assert (sealed.key_version, sealed.algorithm) == (1, KEM)
    assert client.kem.decrypt(sealed.ciphertext, key_version=1) == b"attack at dawn"


@pytest.mark.parametrize("plaintext", [b"", bytes(range(256)) * 4096], ids=["empty", "1 MiB"])
def test_plaintext_sizes(client: Client, plaintext: bytes) -> None:
    """Empty plaintexts, and all byte values up to the largest size, are restored."""
    client.keys.generate(KEM)
    sealed = client.kem.encrypt(plaintext, algorithm=KEM, key_version=1)
    opened = client.kem.decrypt(sealed.ciphertext, algorithm=KEM, key_version=1)
    assert opened == plaintext


def test_encapsulation(client: Client) -> None:
    """Both sides of an encapsulation have the same 32 bytes; two encapsulations differ."""
    client.keys.generate(KEM)
    one = client.kem.encapsulate(key_version=1)
    two = client.kem.encapsulate(key_version=1, algorithm=KEM)
    assert client.kem.decapsulate(one.kem_ciphertext, key_version=1) == one.shared_secret
    assert len(one.kem_ciphertext) == 1088
    assert len(one.shared_secret) == 32
    assert one.shared_secret != two.shared_secret
    assert (one.key_version, one.algorithm) == (1, KEM)


def test_implicit_rejection(client: Client) -> None:
    """A changed KEM ciphertext gives another secret, and no error."""
    client.keys.generate(KEM)
    made = client.kem.encapsulate(key_version=1)
    changed = bytes([made.kem_ciphertext[0] ^ 1]) + made.kem_ciphertext[1:]
    assert client.kem.decapsulate(changed, key_version=1) != made.shared_secret


def test_deterministic_mode(client: Client) -> None:
    """Mode and salt reach the service, and each ciphertext is still new."""
    client.keys.generate(KEM)
    one = client.kem.encrypt(b"a secret", mode="deterministic", salt=b"salt")
    two = client.kem.encrypt(b"a secret", mode="deterministic", salt=b"salt")
    assert one.ciphertext != two.ciphertext
    assert client.kem.decrypt(one.ciphertext, key_version=1) == b"a secret"
    with pytest.raises(InvalidRequestError) as caught:
        client.kem.encrypt(b"a secret", mode="deterministic")
    assert (caught.value.error_code, caught.value.field) == ("ERR_INVALID_001", "salt")


@pytest.mark.parametrize("algorithm", ["Kyber768", "X-Wing"])
def test_key_wrap(client: Client, algorithm: str) -> None:
    """A wrapped key differs from the key, and unwraps to it."""
    client.keys.generate(algorithm)
    wrapped = client.kem.wrap(bytes(range(32)), key_version=1, algorithm=algorithm)
    assert (wrapped.key_version, wrapped.algorithm) == (1, algorithm)
    assert wrapped.wrapping_method == "KEM-DEM"
    assert bytes(range(32)) not in wrapped.wrapped_key
    opened = client.kem.unwrap(wrapped.wrapped_key, key_version=1, algorithm=algorithm)
    assert opened == bytes(range(32))


def test_signatures(client: Client) -> None:
    """A signature is valid only for its message."""
    client.keys.generate(SIGNATURE)
    signed = client.signatures.sign(b"a contract")
    assert (signed.key_version, signed.algorithm) == (1, SIGNATURE)
    assert client.signatures.verify(b"a contract", signed.signature, key_version=1) is True
    assert client.signatures.verify(b"another", signed.signature, key_version=1) is False
    assert client.signatures.verify(b"a contract", b"no signature", key_version=1) is False


def test_bound_to_a_place(client: Client) -> None:
    """Bound ciphertexts, wrapped keys and envelopes open only with the same associated data."""
    client.keys.generate(KEM)
    row: Any = {"associated_data": b"customers/42"}
    other: Any = {"associated_data": b"customers/43"}
    sealed = client.kem.encrypt(b"a secret", **row).ciphertext
    wrapped = client.kem.wrap(bytes(32), key_version=1, **row).wrapped_key
    made = client.kem.encrypt_to_envelope(b"a secret", **row)
    assert (made.key_version, made.algorithm, made.envelope[:5]) == (1, KEM, "pqk1.")
    assert client.kem.decrypt(sealed, key_version=1, **row) == b"a secret"
    assert client.kem.unwrap(wrapped, key_version=1, **row) == bytes(32)
    assert client.kem.decrypt_envelope(made.envelope, **row) == b"a secret"
    with pytest.raises(DecryptionError):
        client.kem.decrypt(sealed, key_version=1, **other)
    with pytest.raises(UnwrappingError):
        client.kem.unwrap(wrapped, key_version=1, **other)
    with pytest.raises(DecryptionError):
        client.kem.decrypt_envelope(made.envelope)
    with pytest.raises(DecryptionError):
        client.kem.decrypt_envelope("no envelope", **row)


def test_contexts_and_mu(client: Client) -> None:
    """Verification needs the same context; a mu can replace its message."""
    public_key = client.keys.generate(SIGNATURE).public_key
    signed = client.signatures.sign(b"a contract", context=b"contracts").signature
    verify = partial(client.signatures.verify, b"a contract", key_version=1)
    assert verify(signed, context=b"contracts") is True
    assert verify(signed) is False
    key_hash = hashlib.shake_256(public_key).digest(64)
    mu = hashlib.shake_256(key_hash + b"\0\0a contract").digest(64)
    by_mu = client.signatures.sign_mu(mu)
    assert (by_mu.key_version, by_mu.algorithm) == (1, SIGNATURE)
    assert verify(by_mu.signature) is True
    assert client.signatures.verify_mu(mu, by_mu.signature, key_version=1) is True
    assert client.signatures.verify_mu(mu[::-1], by_mu.signature, key_version=1) is False


def test_keys_of_others(client: Client) -> None:
    """A public key as bytes or PEM can replace a version, for encryption and verification."""
    kem_key = client.keys.generate(KEM).public_key
    pem = client.keys.public_key(KEM, key_version=1, format="pem").public_key
    assert isinstance(pem, str)
    for key in (kem_key, pem):
        sealed = client.kem.encrypt_to_public_key(b"a secret", key, associated_data=b"row")
        assert client.kem.decrypt(sealed, key_version=1, associated_data=b"row") == b"a secret"
        made = client.kem.encapsulate_to_public_key(key)
        assert client.kem.decapsulate(made.kem_ciphertext, key_version=1) == made.shared_secret
    theirs = client.keys.generate(SIGNATURE).public_key
    digest = hashlib.sha256(b"a contract").digest()
    signed = client.signatures.sign(b"a contract").signature
    hashed = client.signatures.sign_hash(digest, hash_algorithm="SHA-256").signature
    by_mu = client.signatures.sign_mu(bytes(64)).signature
    assert client.signatures.verify(b"a contract", signed, public_key=theirs) is True
    assert client.signatures.verify_mu(bytes(64), by_mu, public_key=theirs) is True
    assert client.signatures.verify_hash(
        digest, hashed, hash_algorithm="SHA-256", public_key=theirs
    )
    assert client.signatures.verify(b"another", signed, public_key=theirs) is False


def test_named_signature_algorithm(client: Client) -> None:
    """Algorithm and version can be named, to sign and to verify."""
    client.keys.generate(SIGNATURE)
    signed = client.signatures.sign(b"", algorithm=SIGNATURE, key_version=1)
    assert client.signatures.verify(b"", signed.signature, algorithm=SIGNATURE, key_version=1)


@pytest.mark.parametrize("name", HashAlgorithm)
def test_hash_signatures(client: Client, name: HashAlgorithm) -> None:
    """A signature over a hash is valid only for that hash."""
    client.keys.generate(SIGNATURE)
    digest = hashlib.new(name.replace("-", ""), b"a contract").digest()
    signed = client.signatures.sign_hash(digest, hash_algorithm=name)
    assert (signed.key_version, signed.algorithm, signed.hash_algorithm) == (1, SIGNATURE, name)

    def holds(digest: bytes) -> bool:
        return client.signatures.verify_hash(
            digest, signed.signature, hash_algorithm=name, key_version=1
        )

    assert holds(digest) is True
    assert holds(digest[::-1]) is False


@pytest.mark.parametrize("name", [*HashAlgorithm, None])
def test_file_signatures(client: Client, tmp_path: Path, name: HashAlgorithm | None) -> None:
    """A file's signature is over its hash: SHA-512 by default."""
    client.keys.generate(SIGNATURE)
    path = tmp_path / "contract"
    path.write_bytes(b"clause\n" * 100_000)
    chosen: Any = {} if name is None else {"hash_algorithm": name}
    signed = client.signatures.sign_file(path, **chosen)
    used = name or HashAlgorithm.SHA_512
    assert signed.hash_algorithm == used
    assert client.signatures.verify_hash(
        hashlib.new(used.replace("-", ""), path.read_bytes()).digest(),
        signed.signature,
        hash_algorithm=used,
        key_version=1,
    )

    def holds() -> bool:
        return client.signatures.verify_file(path, signed.signature, key_version=1, **chosen)

    assert holds() is True
    path.write_bytes(path.read_bytes() + b"one more")
    assert holds() is False


def test_files_that_cannot_be_signed(client: Client, tmp_path: Path) -> None:
    """A missing file raises OSError, an unknown hash HashAlgorithmError."""
    with pytest.raises(FileNotFoundError):
        client.signatures.sign_file(tmp_path / "lost")
    with pytest.raises(HashAlgorithmError):
        client.signatures.sign_file(Path(__file__), hash_algorithm="MD5")


def test_generated_key(client: Client) -> None:
    """A new key is version 1, active, created now, and can be read again."""
    made = client.keys.generate(KEM)
    assert (made.key_version, made.algorithm, made.status) == (1, KEM, "active")
    assert len(made.public_key) == 1184
    assert abs(datetime.now(UTC) - made.created_at) < timedelta(minutes=1)
    assert client.keys.active(KEM) == client.keys.get(KEM, key_version=1) == made


def test_rotation(client: Client) -> None:
    """After a rotation the new key encrypts, and the old one still decrypts."""
    client.keys.generate(KEM)
    before = client.kem.encrypt(b"old")
    rotation = client.keys.rotate(KEM)
    assert (rotation.old_key_version, rotation.key_version, rotation.algorithm) == (1, 2, KEM)
    assert client.keys.active(KEM).public_key == rotation.public_key
    assert client.kem.encrypt(b"new").key_version == 2
    assert client.kem.decrypt(before.ciphertext, key_version=before.key_version) == b"old"


def test_retirement(client: Client) -> None:
    """A retired key verifies and cannot sign."""
    made = client.keys.generate(SIGNATURE)
    signed = client.signatures.sign(b"a contract")
    retired = client.keys.retire(SIGNATURE, key_version=1)
    assert (retired.status, retired.public_key) == ("retired", made.public_key)
    assert client.signatures.verify(b"a contract", signed.signature, key_version=1)
    with pytest.raises(NotFoundError):
        client.signatures.sign(b"a contract", key_version=1)


def test_disabling(client: Client) -> None:
    """A disabled key does nothing until it is enabled."""
    client.keys.generate(KEM)
    sealed = client.kem.encrypt(b"old")
    assert client.keys.disable(KEM, key_version=1).status == "disabled"
    assert [key.status for key in client.keys.list(status="disabled")] == ["disabled"]
    for use in (
        lambda: client.kem.encrypt(b"new"),
        lambda: client.kem.decrypt(sealed.ciphertext, key_version=1),
        lambda: client.keys.active(KEM),
    ):
        with pytest.raises(NotFoundError):
            use()
    assert client.keys.enable(KEM, key_version=1).status == "active"
    assert client.kem.decrypt(sealed.ciphertext, key_version=1) == b"old"


def test_keeping_a_key(client: Client) -> None:
    """A key has no archive time after its destruction was cancelled."""
    client.keys.generate(KEM)
    kept = client.keys.cancel_archive(KEM, key_version=1)
    assert (kept.status, kept.archive_at) == ("active", None)


def test_list(client: Client) -> None:
    """A list has all keys, or is filtered by algorithm, status, or both."""
    assert client.keys.list() == ()
    client.keys.generate(KEM)
    client.keys.rotate(KEM)
    client.keys.generate(SIGNATURE)

    def found(keys: tuple[Key, ...]) -> set[tuple[str, int]]:
        return {(key.algorithm, key.key_version) for key in keys}

    assert found(client.keys.list()) == {(KEM, 1), (KEM, 2), (SIGNATURE, 1)}
    assert found(client.keys.list(algorithm=KEM)) == {(KEM, 1), (KEM, 2)}
    assert found(client.keys.list(status="active")) == {(KEM, 2), (SIGNATURE, 1)}
    assert found(client.keys.list(algorithm=KEM, status="retired")) == {(KEM, 1)}


def test_usage(client: Client) -> None:
    """Usage counts successful operations, with the time of the last."""
    client.keys.generate(KEM)
    unused = client.keys.usage(KEM, key_version=1)
    assert (unused.key_version, unused.algorithm) == (1, KEM)
    assert (unused.uses, unused.last_used_at) == (0, None)
    client.kem.encrypt(b"")
    client.kem.encrypt(b"")
    used = client.keys.usage(KEM, key_version=1)
    assert used.uses == 2
    assert used.last_used_at is not None
    assert abs(datetime.now(UTC) - used.last_used_at) < timedelta(minutes=1)
    client.keys.generate(SIGNATURE)
    assert client.keys.list_usage() == client.keys.list_usage(algorithm=KEM) == (used,)
    assert client.keys.list_usage(algorithm=SIGNATURE) == ()


def test_usage_of_a_tenant(client: Client) -> None:
    """A tenant's usage has the last hours and the plan's quota."""
    client.keys.generate(KEM)
    client.kem.encrypt(b"")
    used = client.usage.get()
    assert (used.period, len(used.buckets), used.total) == ("24h", 24, 2)
    assert sum(bucket.operations.get("encrypt", 0) for bucket in used.buckets) == 1
    assert used.buckets[-1].start <= datetime.now(UTC)
    assert (used.requests_per_minute or 0) > 0
    assert len(client.usage.get(period="30d").buckets) == 30


def test_every_algorithm(client: Client) -> None:
    """Every algorithm of the client is one of the service's; legacy ones generate no keys."""
    for algorithm in LEGACY:
        assert client.keys.list(algorithm=algorithm) == ()
    for algorithm in set(Algorithm) - LEGACY:
        assert client.keys.generate(algorithm).algorithm == algorithm


def test_health(client: Client) -> None:
    """The service reports that it is ready."""
    assert client.status.health().status == "ok"


def test_threads_share_a_client(base_url: str, api_key: str) -> None:
    """Threads that share a client get the responses to their own requests."""
    with Client(base_url, api_key) as client, ThreadPoolExecutor(16) as threads:
        client.keys.generate(KEM)

        def round_trip(number: int) -> bool:
            plaintext = str(number).encode()
            sealed = client.kem.encrypt(plaintext)
            return client.kem.decrypt(sealed.ciphertext, key_version=1) == plaintext

        assert all(threads.map(round_trip, range(200)))


async def test_tasks_share_a_client(base_url: str, api_key: str) -> None:
    """Tasks that share an AsyncClient get the responses to their own requests."""
    async with AsyncClient(base_url, api_key) as client:
        await client.keys.generate(KEM)

        async def round_trip(number: int) -> bool:
            plaintext = str(number).encode()
            sealed = await client.kem.encrypt(plaintext)
            return await client.kem.decrypt(sealed.ciphertext, key_version=1) == plaintext

        assert all(await asyncio.gather(*map(round_trip, range(200))))


async def test_types(base_url: str, api_key: str, tmp_path: Path) -> None:
    """Type checkers know the results of both clients, from one description of a method."""
    with Client(base_url, api_key) as client:
        assert_type(client.keys.generate(KEM), Key)
        assert_type(client.kem.encrypt(b"", key_version=1), Ciphertext)
        assert_type(client.audit.records(), Iterator[AuditRecord])
    async with AsyncClient(base_url, api_key) as other:
        assert_type(await other.keys.rotate(KEM), Rotation)
        assert_type(await other.kem.decapsulate(bytes(1088), key_version=1), bytes)
        assert_type(other.audit.records(), AsyncIterator[AuditRecord])


def test_help() -> None:
    """Methods keep their names, docstrings and parameters, on the class and on a client."""
    with Client("http://127.0.0.1", "key") as client:
        method: Any = client.kem.encrypt
        assert method.__name__ == "encrypt"
        assert "1,048,576" in method.__doc__
        assert method.__doc__ == Kem.encrypt.__doc__
        assert list(inspect.signature(method).parameters)[:2] == ["plaintext", "algorithm"]


def test_keyrings(client: Client) -> None:
    """A keyring is created, changed and listed; its ciphertexts open only in it."""
    made = client.keyrings.create("payments.cards", labels={"team": "payments"}, rotation_days=90)
    assert (made.labels, made.rotation_days, len(made.purposes)) == ({"team": "payments"}, 90, 9)
    changed = client.keyrings.update("payments.cards", description="cards", rotation_days=0)
    assert (changed.description, changed.rotation_days) == ("cards", None)
    assert client.keyrings.get("payments.cards") == changed
    assert [keyring.name for keyring in client.keyrings.list()] == ["default", "payments.cards"]
    assert client.keyrings.list(label="team:payments") == (changed,)
    client.keys.generate(KEM)
    assert client.keyrings.list(prefix="payments.") == (changed,)
    assert client.keyrings.list_page(limit=1).next == "default"
    assert client.keyrings.list(deleted=True) == ()
    assert client.keyrings.restore("payments.cards") == changed
    floors = client.keyrings.update("payments.cards", minimum_decryption_version=3)
    assert (floors.minimum_decryption_version, floors.minimum_encryption_version) == (3, 0)
    client.keyrings.update("payments.cards", minimum_decryption_version=0)
    labelled = client.keyrings.update(
        "payments.cards", label_changes={"env": "test", "team": None, "none": None}
    )
    assert labelled.labels == {"env": "test"}
    client.keyrings.update("payments.cards", label_changes={"env": None, "team": "payments"})
    allowing = client.keyrings.update("payments.cards", retired_public_keys_allowed=True)
    assert (changed.retired_public_keys_allowed, allowing.retired_public_keys_allowed) == (
        False,
        True,
    )
    assert client.keyrings.create("moved", first_version=9).first_version == 9
    assert client.keys.generate(KEM, keyring="moved").key_version == 9
    first = client.keys.generate(KEM, keyring="payments.cards")
    assert client.keys.generate(KEM, keyring="payments.cards", if_absent=True) == first
    assert client.keys.list(keyring="payments.cards") == (first,)
    sealed = client.kem.encrypt(b"text", keyring="payments.cards").ciphertext
    assert client.kem.decrypt(sealed, key_version=1, keyring="payments.cards") == b"text"
    with pytest.raises(DecryptionError):
        client.kem.decrypt(sealed, key_version=1)
    client.keys.generate(SIGNATURE, keyring="payments.cards")
    signature = client.signatures.sign(b"text", keyring="payments.cards").signature
    for keyring, holds in (("payments.cards", True), ("default", False)):
        client.keys.generate(SIGNATURE, keyring=keyring, if_absent=True)
        valid = client.signatures.verify(b"text", signature, key_version=1, keyring=keyring)
        assert valid is holds


def test_an_imported_key_goes_to_the_import_key_s_keyring(client: Client) -> None:
    """An imported key goes to the import key's keyring, which need not be named."""
    from pqkeep.key_import import wrap  # noqa: PLC0415 - an extra

    client.keyrings.create("cards")
    seed = bytes(range(32))
    for keyring in ("cards", None):
        import_key = client.keys.get_import_key("Dilithium3", keyring=keyring)
        assert import_key.keyring == (keyring or "default")
        key = client.keys.import_key(import_key, wrap(import_key, seed))
        found = client.keys.active("Dilithium3", keyring=keyring)
        assert (found.imported, found.public_key) == (True, key.public_key)


@pytest.mark.parametrize("name", ["import_key_id", "public_key", "suite", "info", "algorithm"])
def test_an_import_key_with_a_name_twice(name: str) -> None:
    """A saved import key with a duplicate name is refused."""
    from pqkeep.key_import import read_import_key  # noqa: PLC0415 - it loads cryptography

    values = {
        "import_key_id": "8d2d8bb7-7a4f-4f0c-9d6b-0e3c8a3a9f10",
        "public_key": base64.b64encode(bytes(1568)).decode(),
        "suite": "ML-KEM-1024, HKDF-SHA-384, AES-256-GCM",
        "info": base64.b64encode(b"pqkeep\nid\nKyber768\ndefault\n").decode(),
        "algorithm": "Kyber768",
        "expires_at": "2026-01-01T00:00:00Z",
    }
    document = json.dumps(values)
    assert read_import_key(document.encode()).keyring == "default"
    twice = f'{{"{name}": {json.dumps(values[name])}, {document[1:]}'
    with pytest.raises(UnreadableInputError, match="damaged"):
        read_import_key(twice.encode())
