"""The data half of KEM-DEM decrypts its own output. All other input gets the same refusal."""

import pytest
from cryptography.hazmat.primitives.hashes import SHA256

from pqkeep_keyservice.crypto import dem

SECRET = bytes(range(32))
INFO = b"what the data is bound to"


@pytest.mark.parametrize("plaintext", [b"", b"a", bytes(100)])
def test_what_was_encrypted_comes_back(plaintext: bytes) -> None:
    """Data of any size, even empty, grows by 28 bytes and is decrypted."""
    sealed = dem.encrypt(SHA256(), SECRET, plaintext, info=INFO)
    assert len(sealed) == len(plaintext) + 28
    assert dem.decrypt(SHA256(), SECRET, sealed, info=INFO) == plaintext


@pytest.mark.parametrize("size", range(28))
def test_what_is_too_short_is_refused(size: int) -> None:
    """Data shorter than nonce and tag does not decrypt."""
    with pytest.raises(dem.DecryptionError):
        dem.decrypt(SHA256(), SECRET, bytes(size), info=INFO)


def test_what_is_changed_is_refused() -> None:
    """With any byte, the secret or the binding changed, nothing decrypts."""
    sealed = dem.encrypt(SHA256(), SECRET, b"data", info=INFO)
    changed = [
        sealed[:place] + bytes((sealed[place] ^ 1,)) + sealed[place + 1 :]
        for place in range(len(sealed))
    ]
    attempts = [(SECRET, data, INFO) for data in changed]
    for secret, data, info in (*attempts, (bytes(32), sealed, INFO), (SECRET, sealed, b"")):
        with pytest.raises(dem.DecryptionError):
            dem.decrypt(SHA256(), secret, data, info=info)
