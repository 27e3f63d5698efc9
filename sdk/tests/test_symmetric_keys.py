"""Symmetric keys with the client: XAES-256-GCM, data keys and MACs."""

from __future__ import annotations

from hashlib import sha3_512, sha256
from typing import Any

import pytest

from pqkeep import Client, DecryptionError, InvalidRequestError

XAES = "XAES-256-GCM"
XAES_KEY: Any = {"algorithm": XAES, "key_version": 1}


def test_the_cipher(client: Client) -> None:
    """Data, keys and envelopes open with XAES-256-GCM; the key has only a fingerprint."""
    key = client.keys.generate(XAES)
    assert (key.public_key, len(bytes.fromhex(key.fingerprint or ""))) == (b"", 32)
    assert client.keys.active(XAES).fingerprint == key.fingerprint
    sealed = client.kem.encrypt(bytes(16), algorithm=XAES, associated_data=b"row")
    assert len(sealed.ciphertext) == 56
    opened = client.kem.decrypt(sealed.ciphertext, **XAES_KEY, associated_data=b"row")
    assert opened == bytes(16)
    with pytest.raises(DecryptionError):
        client.kem.decrypt(sealed.ciphertext, **XAES_KEY)
    wrapped = client.kem.wrap(bytes(32), **XAES_KEY)
    assert wrapped.wrapping_method == XAES
    assert client.kem.unwrap(wrapped.wrapped_key, **XAES_KEY) == bytes(32)
    made = client.kem.encrypt_to_envelope(b"a secret", algorithm=XAES)
    assert client.kem.decrypt_envelope(made.envelope) == b"a secret"
    client.keys.generate("X-Wing")
    moved = client.kem.re_encrypt(envelope=made.envelope, to_algorithm="X-Wing")
    assert client.kem.decrypt_envelope(moved.envelope or "") == b"a secret"
    rotated = client.keys.rotate(XAES)
    assert rotated.fingerprint not in {None, key.fingerprint}


@pytest.mark.parametrize("algorithm", ["Kyber768", "X-Wing", XAES])
def test_data_keys(client: Client, algorithm: str) -> None:
    """A data key's plaintext is optional, and unwrap returns it."""
    client.keys.generate(algorithm)
    made = client.kem.data_key(size=64, algorithm=algorithm)
    assert made.plaintext is not None
    assert made.wrapped_key is not None
    assert len(made.plaintext) == 64
    opened = client.kem.unwrap(made.wrapped_key, key_version=1, algorithm=algorithm)
    assert opened == made.plaintext
    assert made.plaintext.hex() not in repr(made)
    hidden = client.kem.data_key(plaintext=False, format="envelope", algorithm=algorithm)
    assert (hidden.plaintext, hidden.wrapped_key) == (None, None)
    assert len(client.kem.decrypt_envelope(hidden.envelope or "")) == 32
    with pytest.raises(InvalidRequestError):
        client.keys.public_key(XAES, key_version=1)


def test_macs(client: Client) -> None:
    """A MAC is valid only for its message, alone and in a batch."""
    client.keys.generate("HMAC-SHA-256")
    made = client.macs.compute(b"a message")
    assert (len(made.mac), made.key_version, made.algorithm) == (32, 1, "HMAC-SHA-256")
    assert client.macs.verify(b"a message", made.mac, key_version=1) is True
    assert client.macs.verify(b"another", made.mac, key_version=1) is False
    many = client.macs.compute_many([{"message": b"one"}, {"message": b"two"}])
    assert len(list(many)) == 2


def test_derived_keys(client: Client) -> None:
    """Each call of a keyring with derived keys has a context, and opens with it only."""
    made = client.keyrings.create("cards", derived=True)
    assert (made.derived, made.purposes) == (True, ("encrypt", "decrypt"))
    client.keys.generate(XAES, keyring="cards")
    key: Any = {"algorithm": XAES, "keyring": "cards"}
    ours: Any = {**key, "context": b"customers/42"}
    sealed = client.kem.encrypt(bytes(16), **ours).ciphertext
    assert client.kem.decrypt(sealed, key_version=1, **ours) == bytes(16)
    envelope = client.kem.encrypt_to_envelope(bytes(16), **ours).envelope
    assert client.kem.decrypt_envelope(envelope, context=b"customers/42") == bytes(16)
    moved = client.kem.re_encrypt(sealed, key_version=1, to_context=b"customers/43", **ours)
    assert moved.ciphertext is not None
    theirs: Any = {**key, "key_version": 1, "context": b"customers/43"}
    assert client.kem.decrypt(moved.ciphertext, **theirs) == bytes(16)
    data_key = client.kem.data_key(format="ciphertext", **ours)
    assert data_key.ciphertext is not None
    opened = client.kem.decrypt(data_key.ciphertext, key_version=1, **ours)
    assert opened == data_key.plaintext
    with pytest.raises(DecryptionError):
        client.kem.decrypt(sealed, **theirs)
    with pytest.raises(InvalidRequestError, match="context"):
        client.kem.encrypt(bytes(16), **key)


def test_tools(client: Client) -> None:
    """Hashes and random bytes need no key."""
    assert client.tools.hash(b"hello") == sha256(b"hello").digest()
    assert client.tools.hash(b"hello", hash_algorithm="SHA3-512") == sha3_512(b"hello").digest()
    assert len(client.tools.random()) == 32
    assert len(client.tools.random(size=131_072)) == 131_072
    with pytest.raises(InvalidRequestError, match="size"):
        client.tools.random(size=131_073)
