"""Every method of the client, against the real service."""

import textwrap
from datetime import UTC, datetime, timedelta

import pytest

import pqkeep
from pqkeep import Client, Key, NotFoundError

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


def test_example(client: Client, base_url: str) -> None:
    """The example in the package's docstring runs as it stands."""
    assert pqkeep.__doc__
    lines = pqkeep.__doc__.splitlines()
    example = textwrap.dedent("\n".join(line for line in lines if line.startswith("    ")))
    names: dict[str, object] = {
        "base_url": base_url,
        "api_key": client._transport._settings.api_key,
    }
    exec(example, names)  # noqa: S102 - it is our own documentation
    assert names["opened"] == b"a secret"
