"""SLH-DSA: two implementations of ours, an independent third, and recorded answers.

The third is the package slh-dsa, with raw keys and contexts. It is slow (seconds for the small
sets): ``make test`` signs with 128f only, PQKEEP_EXHAUSTIVE with all sets. Our own signatures take
up to a second, so tests share signatures that they do not change.
"""

import os
from base64 import b64decode
from collections.abc import Callable
from hashlib import sha256
from itertools import permutations
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from slhdsa import PublicKey, SecretKey
from slhdsa.lowlevel import parameters
from tests.sampling import IS_EXHAUSTIVE

from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS, Implementation, sign_checked
from pqkeep_keyservice.crypto.slhdsa_openssl import OpenSsl
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_keyservice.operations.signing import HASH_CONTEXT, represent_digest
from pqkeep_protocol.algorithms import DIGEST_SIZE, Algorithm, HashAlgorithm

Count = Callable[[Algorithm, int], None]
Vectors = Callable[[str], Any]

INDEPENDENT = {
    Algorithm.SLH_DSA_SHA2_128S: parameters.sha2_128s,
    Algorithm.SLH_DSA_SHA2_128F: parameters.sha2_128f,
    Algorithm.SLH_DSA_SHA2_192S: parameters.sha2_192s,
    Algorithm.SLH_DSA_SHA2_256S: parameters.sha2_256s,
}
FASTEST = Algorithm.SLH_DSA_SHA2_128F
SIGNED_INDEPENDENTLY = tuple(PARAMETER_SETS) if IS_EXHAUSTIVE else (FASTEST,)
SIGNED = tuple(PARAMETER_SETS) if IS_EXHAUSTIVE else (FASTEST,)
OID_ENDS = {
    HashAlgorithm.SHA_256: b"\1",
    HashAlgorithm.SHA_384: b"\2",
    HashAlgorithm.SHA_512: b"\3",
}
PQCRYPTO: Implementation = Pqcrypto()
MESSAGE = b"a message"
LONGEST_CONTEXT = bytes(range(255))
DIGEST = bytes(range(64))

Signed = Callable[[Implementation, Algorithm, bytes, bytes], tuple[bytes, bytes]]


@pytest.fixture(scope="module", params=["pqcrypto", "openssl"])
def implementation(request: pytest.FixtureRequest) -> Implementation:
    """Return each implementation in turn; OpenSSL's if there is a library."""
    if request.param == "pqcrypto":
        return PQCRYPTO
    return OpenSsl(request.getfixturevalue("openssl_library"))


@pytest.fixture(scope="module")
def signed() -> Signed:
    """Return a new private key with its signature of a message and context, made once."""
    keys: dict[tuple[Implementation, Algorithm], bytes] = {}
    signatures: dict[tuple[bytes, bytes, bytes], bytes] = {}

    def sign(
        implementation: Implementation, algorithm: Algorithm, message: bytes, context: bytes
    ) -> tuple[bytes, bytes]:
        named = implementation, algorithm
        key = keys[named] = keys.get(named) or implementation.generate(algorithm)
        signed = key, message, context
        if signed not in signatures:
            signatures[signed] = sign_checked(implementation, algorithm, key, message, context)
        return key, signatures[signed]

    return sign


def _public(private_key: bytes) -> bytes:
    return private_key[len(private_key) // 2 :]


def _recorded(vectors: Vectors, algorithm: Algorithm) -> tuple[bytes, bytes, bytes, bytes]:
    response = vectors("slh-dsa.json")["sets"][algorithm]
    signature = b64decode(response["sig_b64"])
    assert sha256(signature).hexdigest() == response["sig_sha256"]
    private_key, message, context = (bytes.fromhex(response[name]) for name in ("sk", "msg", "ctx"))
    assert _public(private_key).hex() == response["pk"]
    return private_key, message, context, signature


@pytest.mark.parametrize("algorithm", PARAMETER_SETS)
def test_recorded_signatures_hold(
    algorithm: Algorithm,
    implementation: Implementation,
    read_vectors: Vectors,
    count_known_answers: Count,
) -> None:
    """A recorded signature verifies, and so does a new one by the recorded private key."""
    private_key, message, context, signature = _recorded(read_vectors, algorithm)
    implementation.verify(algorithm, _public(private_key), message, context, signature)
    assert len(signature) == PARAMETER_SETS[algorithm].signature
    if algorithm in {*SIGNED, Algorithm.SLH_DSA_SHA2_192S}:
        own = implementation.sign(algorithm, private_key, message, context)
        assert own != signature
        assert len(own) == len(signature)
        implementation.verify(algorithm, _public(private_key), message, context, own)
    count_known_answers(algorithm, 1)


@pytest.mark.parametrize("algorithm", SIGNED_INDEPENDENTLY)
def test_independent_deterministic_signatures_equal_the_recorded(
    algorithm: Algorithm, read_vectors: Vectors, count_known_answers: Count
) -> None:
    """An independent implementation makes the recorded signatures, byte for byte."""
    private_key, message, context, signature = _recorded(read_vectors, algorithm)
    independent = SecretKey.from_digest(private_key, INDEPENDENT[algorithm])
    assert independent.sign_pure(message, ctx=context) == signature
    count_known_answers(algorithm, 1)


@pytest.mark.parametrize("algorithm", SIGNED_INDEPENDENTLY)
def test_independent_signatures_hold_here(algorithm: Algorithm, count_known_answers: Count) -> None:
    """A randomized signature of an independent implementation, without context, verifies here."""
    private_key = PQCRYPTO.generate(algorithm)
    independent = SecretKey.from_digest(private_key, INDEPENDENT[algorithm])
    signature = independent.sign_pure(MESSAGE, randomize=True)
    PQCRYPTO.verify(algorithm, _public(private_key), MESSAGE, b"", signature)
    with pytest.raises(InvalidSignature):
        PQCRYPTO.verify(algorithm, _public(private_key), MESSAGE, b"x", signature)
    count_known_answers(algorithm, 1)


@pytest.mark.parametrize("algorithm", SIGNED)
def test_our_signatures_hold_in_an_independent_implementation(
    algorithm: Algorithm,
    implementation: Implementation,
    signed: Signed,
    count_known_answers: Count,
) -> None:
    """slh-dsa verifies our signatures, with an empty or the longest context, and for no other input."""
    contexts = {b"": (MESSAGE, b"another"), LONGEST_CONTEXT: (MESSAGE + b"\0", LONGEST_CONTEXT)}
    for context, wrong in contexts.items():
        private_key, signature = signed(implementation, algorithm, MESSAGE, context)
        public = PublicKey.from_digest(_public(private_key), INDEPENDENT[algorithm])
        assert public.verify_pure(MESSAGE, signature, context)
        assert not public.verify_pure(wrong[0], signature, wrong[1])
    count_known_answers(algorithm, len(contexts))


@pytest.mark.parametrize("algorithm", SIGNED)
def test_signatures_over_digests_hold_in_an_independent_implementation(
    algorithm: Algorithm, signed: Signed, count_known_answers: Count
) -> None:
    """The independent verifier accepts signatures of sign-hash, by the documented layout.

    Each hash function is tested with 128f, the fastest set, and one function with the other sets.
    """
    used = HashAlgorithm if algorithm is FASTEST else (HashAlgorithm.SHA_384,)
    for hash_algorithm in used:
        digest = DIGEST[: DIGEST_SIZE[hash_algorithm]]
        represented = represent_digest(hash_algorithm, digest)
        private_key, signature = signed(PQCRYPTO, algorithm, represented, HASH_CONTEXT)
        public = PublicKey.from_digest(_public(private_key), INDEPENDENT[algorithm])
        oid = bytes.fromhex("06096086480165030402") + OID_ENDS[hash_algorithm]
        assert public.verify_pure(oid + digest, signature, b"pqkeep/v1/sign-hash")
        assert not public.verify_pure(oid + digest, signature)
    count_known_answers(algorithm, len(used))


@pytest.mark.parametrize("algorithm", SIGNED)
def test_both_implementations_agree(algorithm: Algorithm, openssl_library: str) -> None:
    """Each implementation verifies the other's signatures by the same key."""
    both: tuple[Implementation, Implementation] = (PQCRYPTO, OpenSsl(openssl_library))
    for verifying, signing in permutations(both):
        generating = verifying
        private_key = generating.generate(algorithm)
        assert len(private_key) == PARAMETER_SETS[algorithm].private_key
        context = os.urandom(255)
        signature = signing.sign(algorithm, private_key, MESSAGE, context)
        verifying.verify(algorithm, _public(private_key), MESSAGE, context, signature)
        with pytest.raises(InvalidSignature):
            verifying.verify(algorithm, _public(private_key), MESSAGE, b"", signature)


@pytest.mark.parametrize("algorithm", SIGNED)
def test_wrong_input_is_refused(
    algorithm: Algorithm, implementation: Implementation, signed: Signed
) -> None:
    """Another message, context or key, and every wrong size, raise InvalidSignature or ValueError."""
    right = LONGEST_CONTEXT
    private_key, signature = signed(implementation, algorithm, MESSAGE, right)
    public_key, stranger = _public(private_key), _public(implementation.generate(algorithm))
    sizes = PARAMETER_SETS[algorithm]
    for key, message, context, given in (
        (stranger, MESSAGE, right, signature),
        (public_key, b"", right, signature),
        (public_key, MESSAGE + b"\0", right, signature),
        (public_key, right + MESSAGE, b"", signature),
        (public_key, MESSAGE, b"", signature),
        (public_key, MESSAGE, right[:-1], signature),
        (public_key, MESSAGE, right, b""),
        (public_key, MESSAGE, right, signature[:1]),
        (public_key, MESSAGE, right, signature[:-1]),
        (public_key, MESSAGE, right, signature + b"\0"),
        (public_key, MESSAGE, right, bytes(sizes.signature)),
    ):
        with pytest.raises(InvalidSignature):
            implementation.verify(algorithm, key, message, context, given)
    for size in (0, sizes.private_key - 1, sizes.private_key + 1):
        with pytest.raises(ValueError, match=r"."):
            implementation.sign(algorithm, bytes(size), MESSAGE, b"")
    with pytest.raises(ValueError, match=r"."):
        implementation.sign(algorithm, private_key, MESSAGE, bytes(256))


@pytest.mark.parametrize("algorithm", SIGNED)
def test_a_damaged_private_key_releases_no_signature(
    algorithm: Algorithm, implementation: Implementation
) -> None:
    """A key with a changed public half never returns a signature."""
    private_key = bytearray(implementation.generate(algorithm))
    private_key[-1] ^= 1
    with pytest.raises((InvalidSignature, ValueError)):
        sign_checked(implementation, algorithm, bytes(private_key), MESSAGE, b"")


def _nodes(algorithm: Algorithm, context: bytes) -> list[int]:
    """Return one position in each fifth n-byte value of a signature, or in every one.

    A signature is R, then FORS values and paths, then WOTS+ chains and paths, of n bytes each.
    """
    sizes = PARAMETER_SETS[algorithm]
    fast = algorithm is Algorithm.SLH_DSA_SHA2_128S and not context
    if fast or IS_EXHAUSTIVE:
        return list(range(sizes.signature))
    distance = 5 * sizes.n
    return [start + start // sizes.n % sizes.n for start in range(0, sizes.signature, distance)]


@pytest.mark.parametrize("algorithm", SIGNED)
@pytest.mark.parametrize("context", [b"", HASH_CONTEXT], ids=["sign", "sign-hash"])
def test_a_signature_changed_anywhere_does_not_hold(
    algorithm: Algorithm, context: bytes, signed: Signed
) -> None:
    """A flipped bit anywhere in a signature makes it invalid."""
    digest = DIGEST[: DIGEST_SIZE[HashAlgorithm.SHA_384]]
    message = represent_digest(HashAlgorithm.SHA_384, digest) if context else MESSAGE
    private_key, signature = signed(PQCRYPTO, algorithm, message, context)
    changed = bytearray(signature)
    positions = _nodes(algorithm, context)
    for position in positions:
        changed[position] ^= 1 << position % 8
        with pytest.raises(InvalidSignature):
            PQCRYPTO.verify(algorithm, _public(private_key), message, context, bytes(changed))
        changed[position] = signature[position]
    assert len(positions) * 5 * PARAMETER_SETS[algorithm].n >= PARAMETER_SETS[algorithm].signature
