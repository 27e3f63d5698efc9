"""Signatures that are verified offline, with only the public key."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
from tests.patience import PATIENCE
from tests.sampling import fast_algorithms_first

from pqkeep.errors import how_to_install
from pqkeep.verification import verify, verify_hash
from pqkeep_keyservice.crypto.signature import signature_schemes
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_keyservice.operations.signing import HASH_CONTEXT, represent_digest
from pqkeep_protocol.algorithms import Algorithm, HashAlgorithm

MESSAGE = b"a message"
SCHEMES = signature_schemes(Pqcrypto())
SLOW = {Algorithm.SLH_DSA_SHA2_192S, Algorithm.SLH_DSA_SHA2_256S}
"""These algorithms sign only once, because a signature takes a second."""


@pytest.mark.parametrize("algorithm", fast_algorithms_first(SCHEMES))
def test_signatures_of_the_key_service(algorithm: Algorithm) -> None:
    """The key service's signatures are valid only for their key, message and context."""
    key = SCHEMES[algorithm].generate()
    public_key = key.public_bytes()
    for context in (b"a context",) if algorithm in SLOW else (b"", b"a context", bytes(255)):
        signature = key.sign(MESSAGE, context)
        flipped = bytearray(signature)
        flipped[-1] ^= 1
        changed = bytearray(public_key)
        changed[-1] ^= 1
        no_signatures = (b"", bytes(flipped), signature[:-1], signature + b"\0")
        no_keys = (b"", bytes(changed), public_key[:-1], public_key + b"\0")
        cases = [
            (MESSAGE, signature, public_key, context, True),
            (MESSAGE + b"x", signature, public_key, context, False),
            (MESSAGE, signature, public_key, b"another", False),
            *(
                (MESSAGE, no_signature, public_key, context, False)
                for no_signature in no_signatures
            ),
            *((MESSAGE, signature, no_key, context, False) for no_key in no_keys),
        ]
        for message, given, by, bound, holds in cases:
            found = verify(message, given, public_key=by, algorithm=algorithm.value, context=bound)
            assert found is holds


def test_other_arguments() -> None:
    """An unknown algorithm, hash, digest or context is an error."""
    with pytest.raises(ValueError, match="the algorithm must be one of Dilithium3, ML-DSA-87"):
        verify(b"", b"", public_key=b"", algorithm="Kyber768")
    with pytest.raises(ValueError, match="at most 255 bytes"):
        verify(b"", b"", public_key=b"", algorithm="Dilithium3", context=bytes(256))
    with pytest.raises(ValueError, match="the hash must be one of SHA-256"):
        verify_hash(bytes(20), b"", hash_algorithm="SHA-1", public_key=b"", algorithm="Dilithium3")
    with pytest.raises(ValueError, match="a digest of SHA-384 has 48 bytes"):
        verify_hash(
            bytes(64), b"", hash_algorithm="SHA-384", public_key=b"", algorithm="Dilithium3"
        )


def test_hashes() -> None:
    """A signature over a hash is valid only for its hash function."""
    key = SCHEMES[Algorithm.ML_DSA_65].generate()
    digest = hashlib.sha512(MESSAGE).digest()
    signed = represent_digest(HashAlgorithm.SHA_512, digest)
    signature, public_key = key.sign(signed, HASH_CONTEXT), key.public_bytes()

    def holds(digest: bytes, hash_algorithm: str) -> bool:
        return verify_hash(
            digest,
            signature,
            hash_algorithm=hash_algorithm,
            public_key=public_key,
            algorithm="Dilithium3",
        )

    assert holds(digest, "SHA-512")
    assert not holds(digest[:32], "SHA-256")
    assert not verify(signed, signature, public_key=public_key, algorithm="Dilithium3")


@pytest.mark.parametrize(
    ("missing", "algorithm", "extra"),
    [("cryptography", "Dilithium3", "local"), ("pqcrypto", "SLH-DSA-SHA2-128s", "audit")],
)
def test_without_the_extra(missing: str, algorithm: str, extra: str) -> None:
    """Without a library the error says what to install."""
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from pqkeep import verification\n"
        f"try: verification.verify(b'', b'', public_key=b'', algorithm={algorithm!r})\n"
        "except ImportError as error: print(error)"
    )
    ended = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, check=True, timeout=PATIENCE
    )
    said = f"{algorithm} cannot be verified here: {how_to_install(extra)}"
    assert ended.stdout.decode().strip() == said
