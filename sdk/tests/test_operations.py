"""Every operation with keys, by both clients, against the real service."""

import asyncio
import hashlib
import inspect
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, assert_type

import pytest

from pqkeep import (
    Algorithm,
    AsyncClient,
    AuditRecord,
    Ciphertext,
    Client,
    HashAlgorithm,
    HashAlgorithmError,
    InvalidRequestError,
    Key,
    NotFoundError,
    Rotation,
)
from pqkeep.resources.kem import Kem

KEM = "Kyber768"
SIGNATURE = "Dilithium3"


def test_encryption(client: Client) -> None:
    """What encrypt returns decrypts to the plaintext, with the active key and the default KEM."""
    client.keys.generate(KEM)
    sealed = client.kem.encrypt(b"attack at dawn")
    assert (sealed.key_version, sealed.algorithm) == (1, KEM)
    assert client.kem.decrypt(sealed.ciphertext, key_version=1) == b"attack at dawn"


@pytest.mark.parametrize("plaintext", [b"", bytes(range(256)) * 4096], ids=["empty", "1 MiB"])
def test_plaintext_sizes(client: Client, plaintext: bytes) -> None:
    """Nothing, and every byte value up to the largest plaintext, come back as they were."""
    client.keys.generate(KEM)
    sealed = client.kem.encrypt(plaintext, algorithm=KEM, key_version=1)
    opened = client.kem.decrypt(sealed.ciphertext, algorithm=KEM, key_version=1)
    assert opened == plaintext


def test_encapsulation(client: Client) -> None:
    """Both sides of an encapsulation have the same 32 bytes; no two have the same."""
    client.keys.generate(KEM)
    one = client.kem.encapsulate(key_version=1)
    two = client.kem.encapsulate(key_version=1, algorithm=KEM)
    assert client.kem.decapsulate(one.kem_ciphertext, key_version=1) == one.shared_secret
    assert len(one.kem_ciphertext) == 1088
    assert len(one.shared_secret) == 32
    assert one.shared_secret != two.shared_secret
    assert (one.key_version, one.algorithm) == (1, KEM)


def test_implicit_rejection(client: Client) -> None:
    """A KEM ciphertext that was changed gives another secret, and no error."""
    client.keys.generate(KEM)
    made = client.kem.encapsulate(key_version=1)
    changed = bytes([made.kem_ciphertext[0] ^ 1]) + made.kem_ciphertext[1:]
    assert client.kem.decapsulate(changed, key_version=1) != made.shared_secret


def test_deterministic_mode(client: Client) -> None:
    """Mode and salt go to the service, which encrypts anew each time all the same."""
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
    """A wrapped key is another text, and unwraps to the key that it was."""
    client.keys.generate(algorithm)
    wrapped = client.kem.wrap(bytes(range(32)), key_version=1, algorithm=algorithm)
    assert (wrapped.key_version, wrapped.algorithm) == (1, algorithm)
    assert wrapped.wrapping_method == "KEM-DEM"
    assert bytes(range(32)) not in wrapped.wrapped_key
    opened = client.kem.unwrap(wrapped.wrapped_key, key_version=1, algorithm=algorithm)
    assert opened == bytes(range(32))


def test_signatures(client: Client) -> None:
    """A signature holds for its message, and for no other."""
    client.keys.generate(SIGNATURE)
    signed = client.signatures.sign(b"a contract")
    assert (signed.key_version, signed.algorithm) == (1, SIGNATURE)
    assert client.signatures.verify(b"a contract", signed.signature, key_version=1) is True
    assert client.signatures.verify(b"another", signed.signature, key_version=1) is False
    assert client.signatures.verify(b"a contract", b"no signature", key_version=1) is False


def test_named_signature_algorithm(client: Client) -> None:
    """The algorithm and the version may be named, to sign and to verify."""
    client.keys.generate(SIGNATURE)
    signed = client.signatures.sign(b"", algorithm=SIGNATURE, key_version=1)
    assert client.signatures.verify(b"", signed.signature, algorithm=SIGNATURE, key_version=1)


@pytest.mark.parametrize("name", HashAlgorithm)
def test_hash_signatures(client: Client, name: HashAlgorithm) -> None:
    """A signature over a hash holds for that hash, and for no other."""
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
    """A file's signature is one over its hash: SHA-512, unless another is named."""
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
    """A file that is not there is an OSError, an unknown hash a HashAlgorithmError."""
    with pytest.raises(FileNotFoundError):
        client.signatures.sign_file(tmp_path / "lost")
    with pytest.raises(HashAlgorithmError):
        client.signatures.sign_file(Path(__file__), hash_algorithm="MD5")


def test_generated_key(client: Client) -> None:
    """A new key is version 1, active, made now, and found again as it was made."""
    made = client.keys.generate(KEM)
    assert (made.key_version, made.algorithm, made.status) == (1, KEM, "active")
    assert len(made.public_key) == 1184
    assert abs(datetime.now(UTC) - made.created_at) < timedelta(minutes=1)
    assert client.keys.active(KEM) == client.keys.get(KEM, key_version=1) == made


def test_rotation(client: Client) -> None:
    """After a rotation the new key encrypts and the old one still decrypts."""
    client.keys.generate(KEM)
    before = client.kem.encrypt(b"old")
    rotation = client.keys.rotate(KEM)
    assert (rotation.old_key_version, rotation.key_version, rotation.algorithm) == (1, 2, KEM)
    assert client.keys.active(KEM).public_key == rotation.public_key
    assert client.kem.encrypt(b"new").key_version == 2
    assert client.kem.decrypt(before.ciphertext, key_version=before.key_version) == b"old"


def test_retirement(client: Client) -> None:
    """A retired key verifies and does not sign."""
    made = client.keys.generate(SIGNATURE)
    signed = client.signatures.sign(b"a contract")
    retired = client.keys.retire(SIGNATURE, key_version=1)
    assert (retired.status, retired.public_key) == ("retired", made.public_key)
    assert client.signatures.verify(b"a contract", signed.signature, key_version=1)
    with pytest.raises(NotFoundError):
        client.signatures.sign(b"a contract", key_version=1)


def test_list(client: Client) -> None:
    """A list has all keys, or those of an algorithm, of a status, or of both."""
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
    """Usage counts the operations that succeeded, and says when the last one was."""
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


def test_every_algorithm(client: Client) -> None:
    """Every algorithm that the client names is one of the service's."""
    for algorithm in Algorithm:
        assert client.keys.generate(algorithm).algorithm == algorithm


def test_health(client: Client) -> None:
    """The service says that it would answer."""
    assert client.status.health().status == "ok"


def test_threads_share_a_client(base_url: str, api_key: str) -> None:
    """Many threads with one Client each get the answers to their own questions."""
    with Client(base_url, api_key) as client, ThreadPoolExecutor(16) as threads:
        client.keys.generate(KEM)

        def round_trip(number: int) -> bool:
            plaintext = str(number).encode()
            sealed = client.kem.encrypt(plaintext)
            return client.kem.decrypt(sealed.ciphertext, key_version=1) == plaintext

        assert all(threads.map(round_trip, range(200)))


async def test_tasks_share_a_client(base_url: str, api_key: str) -> None:
    """Many tasks with one AsyncClient each get the answers to their own questions."""
    async with AsyncClient(base_url, api_key) as client:
        await client.keys.generate(KEM)

        async def round_trip(number: int) -> bool:
            plaintext = str(number).encode()
            sealed = await client.kem.encrypt(plaintext)
            return await client.kem.decrypt(sealed.ciphertext, key_version=1) == plaintext

        assert all(await asyncio.gather(*map(round_trip, range(200))))


async def test_types(base_url: str, api_key: str, tmp_path: Path) -> None:
    """Type checkers know what each client gives, from the one description of a method."""
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
