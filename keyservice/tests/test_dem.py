"""The data half of KEM-DEM decrypts what was encrypted for it, and refuses everything else alike."""

import pytest
from cryptography.hazmat.primitives.hashes import SHA256

from pqkeep_keyservice.crypto import dem

SECRET = bytes(range(32))
INFO = b"what the data is bound to"


@pytest.mark.parametrize("plaintext", [b"", b"a", bytes(100)])
def test_what_was_encrypted_comes_back(plaintext: bytes) -> None:
    """Data of any size, none too, is 28 bytes longer when it is sealed."""
    sealed = dem.encrypt(SHA256(), SECRET, plaintext, info=INFO)
    assert len(sealed) == len(plaintext) + 28
    assert dem.decrypt(SHA256(), SECRET, sealed, info=INFO) == plaintext


@pytest.mark.parametrize("size", range(28))
def test_what_is_too_short_is_refused(size: int) -> None:
    """Less than a nonce and a tag does not decrypt."""
    with pytest.raises(dem.DecryptionError):
        dem.decrypt(SHA256(), SECRET, bytes(size), info=INFO)


def test_what_is_changed_is_refused() -> None:
    """With any byte changed, another secret or another binding, nothing decrypts."""
    sealed = dem.encrypt(SHA256(), SECRET, b"data", info=INFO)
    changed = [
        sealed[:place] + bytes((sealed[place] ^ 1,)) + sealed[place + 1 :]
        for place in range(len(sealed))
    ]
    attempts = [(SECRET, each, INFO) for each in changed]
    for secret, each, info in (*attempts, (bytes(32), sealed, INFO), (SECRET, sealed, b"")):
        with pytest.raises(dem.DecryptionError):
            dem.decrypt(SHA256(), secret, each, info=info)
