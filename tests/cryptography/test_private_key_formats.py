"""Private keys in OpenSSL's encoding."""

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char_p, c_void_p
from hashlib import sha3_256
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA87PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM1024PrivateKey

from pqkeep_keyservice.crypto.key_wrapping import (
    EXPANDED_SIZE,
    SEED_SIZE,
    PrivateKeyError,
    decode_pkcs8,
)
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import ALGORITHMS, KEY_PAIRS, Algorithm
from pqkeep_protocol.der import BIT_STRING, INTEGER, OCTET_STRING, SEQUENCE, der
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.public_keys import algorithm_identifier


def test_slh_dsa_keys_of_openssl(openssl_library: str) -> None:
    """OpenSSL's SLH-DSA private keys are decoded to the same key."""
    crypto = ctypes.CDLL(openssl_library)
    crypto.EVP_PKEY_Q_keygen.restype = c_void_p
    crypto.EVP_PKEY_Q_keygen.argtypes = [c_void_p, c_void_p, c_char_p]
    crypto.i2d_PrivateKey.argtypes = [c_void_p, c_void_p]
    crypto.EVP_PKEY_free.argtypes = [c_void_p]
    crypto.EVP_PKEY_get_raw_private_key.argtypes = [c_void_p, c_void_p, c_void_p]
    for algorithm in (each for each in Algorithm if each.startswith("SLH-DSA")):
        key = crypto.EVP_PKEY_Q_keygen(None, None, algorithm.encode())
        out = c_void_p()
        data = ctypes.string_at(out, crypto.i2d_PrivateKey(key, byref(out)))
        size = SEED_SIZE[algorithm]
        raw, length = ctypes.create_string_buffer(size), ctypes.c_size_t(size)
        assert crypto.EVP_PKEY_get_raw_private_key(key, raw, byref(length)) == 1
        crypto.EVP_PKEY_free(key)
        assert bytes(decode_pkcs8(algorithm, Secret(data)).seed.reveal()) == raw.raw


LIBRARY: dict[Algorithm, Any] = {
    Algorithm.ML_KEM_768: MLKEM768PrivateKey,
    Algorithm.ML_KEM_1024: MLKEM1024PrivateKey,
    Algorithm.ML_DSA_65: MLDSA65PrivateKey,
    Algorithm.ML_DSA_87: MLDSA87PrivateKey,
}
expanding = pytest.mark.parametrize("algorithm", LIBRARY)
SEEDS = {algorithm: bytes(range(SEED_SIZE[algorithm])) for algorithm in KEY_PAIRS}
Kind = ErrorKind


def document(
    algorithm: Algorithm, private_key: bytes, *more: bytes, version: bytes = b"\0"
) -> bytes:
    """Return a OneAsymmetricKey with these parts."""
    parts = (der(INTEGER, version), algorithm_identifier(algorithm), der(OCTET_STRING, private_key))
    return der(SEQUENCE, b"".join((*parts, *more)))


def decoded(algorithm: Algorithm, data: bytes, public_key: bytes = b"") -> bytes | ErrorKind:
    """Return the seed of a document with a matching public key, or the reason of a refusal."""
    try:
        private_key = decode_pkcs8(algorithm, Secret(data))
        if public_key:
            private_key.require(public_key)
    except PrivateKeyError as error:
        return error.kind
    return bytes(private_key.seed.reveal())


def public_key_of(algorithm: Algorithm) -> bytes:
    """Return the public key of the algorithm's seed in SEEDS, computed by cryptography."""
    key = LIBRARY[algorithm].from_seed_bytes(SEEDS[algorithm])
    return bytes(key.public_key().public_bytes_raw())


@pytest.fixture(scope="module")
def expanded(openssl_library: str) -> Callable[[Algorithm], bytes]:
    """Return the expanded private key of a seed in SEEDS, computed by OpenSSL."""
    crypto = ctypes.CDLL(openssl_library)
    crypto.d2i_AutoPrivateKey.restype = c_void_p
    crypto.d2i_AutoPrivateKey.argtypes = [c_void_p, c_void_p, ctypes.c_long]
    crypto.EVP_PKEY_get_raw_private_key.argtypes = [c_void_p, c_void_p, c_void_p]
    crypto.EVP_PKEY_free.argtypes = [c_void_p]

    def expand(algorithm: Algorithm) -> bytes:
        data = document(algorithm, der(0x80, SEEDS[algorithm]))
        buffer = ctypes.create_string_buffer(data, len(data))
        place = c_void_p(ctypes.addressof(buffer))
        key = crypto.d2i_AutoPrivateKey(None, byref(place), len(data))
        size = EXPANDED_SIZE[algorithm]
        raw, length = ctypes.create_string_buffer(size), ctypes.c_size_t(size)
        assert crypto.EVP_PKEY_get_raw_private_key(key, raw, byref(length)) == 1
        crypto.EVP_PKEY_free(key)
        return raw.raw

    return expand


def both(algorithm: Algorithm, expanded_key: bytes) -> bytes:
    """Return the form with a seed and an expanded key."""
    parts = der(OCTET_STRING, SEEDS[algorithm]) + der(OCTET_STRING, expanded_key)
    return document(algorithm, der(SEQUENCE, parts))


@pytest.mark.parametrize("algorithm", KEY_PAIRS)
def test_each_container_of_a_seed_is_read(algorithm: Algorithm) -> None:
    """A seed is read alone, in an outer octet string, with attributes, and with its public key."""
    seed = SEEDS[algorithm]
    public_key = bytes(ALGORITHMS[algorithm].public_key_size)
    forms = [seed, der(OCTET_STRING, seed)]
    if algorithm in EXPANDED_SIZE:
        forms.append(der(0x80, seed))
    attributes = der(0xA0, der(SEQUENCE, b"anything"))
    implicit = der(0x81, b"\0" + public_key)
    explicit = der(0xA1, der(BIT_STRING, b"\0" + public_key))
    for form in forms:
        for more in ((), (attributes,), (implicit,), (attributes, implicit), (explicit,)):
            for version in (b"\0", b"\1"):
                data = document(algorithm, form, *more, version=version)
                assert decoded(algorithm, data, public_key) == seed
                if more and more != (attributes,):
                    other = decoded(algorithm, data, b"\1" + public_key[1:])
                    assert other is Kind.PRIVATE_KEY_CONTRADICTION


@expanding
def test_a_seed_with_its_expanded_key_is_compared(
    algorithm: Algorithm, expanded: Callable[[Algorithm], bytes]
) -> None:
    """The seed is read if the expanded key matches, and refused if any part differs.

    ek, H(ek) and z of ML-KEM, and rho, K and tr of ML-DSA, are compared.
    """
    own, public_key = expanded(algorithm), public_key_of(algorithm)
    assert decoded(algorithm, both(algorithm, own), public_key) == SEEDS[algorithm]
    size = len(own)
    compared = (
        [size - 1, size - 33, size - 65, size - 64 - len(public_key)]
        if algorithm in (Algorithm.ML_KEM_768, Algorithm.ML_KEM_1024)
        else [0, 31, 32, 63, 64, 127]
    )
    for place in compared:
        changed = own[:place] + bytes((own[place] ^ 1,)) + own[place + 1 :]
        kind = decoded(algorithm, both(algorithm, changed), public_key)
        assert kind is Kind.PRIVATE_KEY_CONTRADICTION
    if algorithm is Algorithm.ML_KEM_768:  # another key, consistent in itself, with this one's z
        ek = bytes(len(public_key))
        other = own[:-64][: -len(ek)] + ek + sha3_256(ek).digest() + own[-32:]
        kind = decoded(algorithm, both(algorithm, other), public_key)
        assert kind is Kind.PRIVATE_KEY_CONTRADICTION


@expanding
def test_an_expanded_key_alone_is_named(algorithm: Algorithm) -> None:
    """An expanded key without a seed is refused by name, in each container, with or without a public key."""
    data = bytes(EXPANDED_SIZE[algorithm])
    with_public_key = data + bytes(ALGORITHMS[algorithm].public_key_size)
    for form in (der(OCTET_STRING, data), data, with_public_key):
        assert decoded(algorithm, document(algorithm, form)) is Kind.PRIVATE_KEY_WITHOUT_SEED


@pytest.mark.parametrize("algorithm", KEY_PAIRS)
def test_every_other_document_is_refused_by_its_kind(algorithm: Algorithm) -> None:
    """Invalid documents are refused by kind: cut, long, damaged, empty, foreign, or wrong parts."""
    seed = SEEDS[algorithm]
    good = document(algorithm, der(OCTET_STRING, seed))
    others = [other for other in KEY_PAIRS if other is not algorithm]
    for other in others:
        data = document(other, SEEDS[other])
        assert decoded(algorithm, data) is Kind.PRIVATE_KEY_ALGORITHM
    public_key = der(0x81, b"\0" + bytes(ALGORITHMS[algorithm].public_key_size))
    for data in (
        b"",
        seed,
        good[:-1],
        good + b"\0",
        *(good[:size] for size in range(0, len(good), 7)),
        document(algorithm, seed, version=b"\2"),
        document(algorithm, seed[:-1]),
        document(algorithm, seed + b"\0"),
        document(algorithm, der(OCTET_STRING, seed) * 2),
        document(algorithm, der(0x82, seed)),
        document(algorithm, der(SEQUENCE, der(OCTET_STRING, seed))),
        document(algorithm, seed, public_key, public_key),
        document(algorithm, seed, der(0xA2, b"")),
        document(algorithm, seed, der(0x81, b"\1" + bytes(4))),
        document(algorithm, seed, der(0x81, b"")),
        der(SEQUENCE, good),
    ):
        assert decoded(algorithm, data) in (
            Kind.PRIVATE_KEY_MALFORMED,
            Kind.PRIVATE_KEY_ALGORITHM,
        )
