"""The mu of a message is what ML-DSA signs, for pieces of any size."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA87PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from pqkeep.mu import compute_mu
from pqkeep.verification import verify, verify_mu

KEYS: dict[str, MLDSA65PrivateKey | MLDSA87PrivateKey] = {
    "Dilithium3": MLDSA65PrivateKey.generate(),
    "ML-DSA-87": MLDSA87PrivateKey.generate(),
}


@given(
    algorithm=st.sampled_from(sorted(KEYS)),
    pieces=st.lists(st.binary(max_size=50), max_size=5),
    context=st.binary(max_size=255),
)
def test_a_mu_stands_for_its_message(algorithm: str, pieces: list[bytes], context: bytes) -> None:
    """A signature by mu is valid for message and context, and the reverse."""
    private = KEYS[algorithm]
    public_key = private.public_key().public_bytes_raw()
    message = b"".join(pieces)
    mu = compute_mu(public_key, pieces, context=context)
    by_mu, by_message = private.sign_mu(mu), private.sign(message, context)
    key: Any = {"public_key": public_key, "algorithm": algorithm}
    assert verify(message, by_mu, context=context, **key)
    assert verify_mu(mu, by_message, **key)
    assert not verify_mu(
        compute_mu(public_key, [*pieces, b"!"], context=context), by_message, **key
    )


def test_what_has_no_mu() -> None:
    """Long contexts, other sizes and other algorithms raise ValueError."""
    with pytest.raises(ValueError, match="255"):
        compute_mu(b"", [], context=bytes(256))
    with pytest.raises(ValueError, match="64"):
        verify_mu(bytes(63), b"", public_key=b"", algorithm="Dilithium3")
    with pytest.raises(ValueError, match="ML-DSA"):
        verify_mu(bytes(64), b"", public_key=b"", algorithm="Composite-ML-DSA")
    assert verify_mu(bytes(64), b"", public_key=b"no key", algorithm="Dilithium3") is False
