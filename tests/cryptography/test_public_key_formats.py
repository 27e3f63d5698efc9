"""Public keys as DER, PEM and JWK, read and written by others: cryptography, asn1crypto, OpenSSL."""

import ctypes
import json
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable, Mapping
from ctypes import c_char_p, c_int, c_long, c_size_t, c_void_p
from hashlib import sha256
from typing import Any, cast

import pytest
from asn1crypto import core, pem
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PublicKey, MLDSA87PublicKey
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey, MLKEM1024PublicKey
from cryptography.hazmat.primitives.serialization import (
    load_der_public_key,
    load_pem_public_key,
)

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import signature_schemes
from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_protocol import public_keys
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.public_keys import NotAPublicKeyError

OBJECT_IDENTIFIERS: Mapping[Algorithm, str] = {
    Algorithm.ML_KEM_768: "2.16.840.1.101.3.4.4.2",
    Algorithm.ML_KEM_1024: "2.16.840.1.101.3.4.4.3",
    Algorithm.ML_DSA_65: "2.16.840.1.101.3.4.3.18",
    Algorithm.ML_DSA_87: "2.16.840.1.101.3.4.3.19",
    Algorithm.SLH_DSA_SHA2_128S: "2.16.840.1.101.3.4.3.20",
    Algorithm.SLH_DSA_SHA2_128F: "2.16.840.1.101.3.4.3.21",
    Algorithm.SLH_DSA_SHA2_192S: "2.16.840.1.101.3.4.3.22",
    Algorithm.SLH_DSA_SHA2_256S: "2.16.840.1.101.3.4.3.24",
    Algorithm.X_WING: "1.3.6.1.4.1.62253.25722",
    Algorithm.COMPOSITE_ML_DSA: "1.3.6.1.5.5.7.6.45",
}
"""As the RFCs and drafts have them."""
KNOWN_TO_CRYPTOGRAPHY = {
    Algorithm.ML_KEM_768: MLKEM768PublicKey,
    Algorithm.ML_KEM_1024: MLKEM1024PublicKey,
    Algorithm.ML_DSA_65: MLDSA65PublicKey,
    Algorithm.ML_DSA_87: MLDSA87PublicKey,
}
KNOWN_TO_OPENSSL: Mapping[Algorithm, str] = {
    Algorithm.ML_KEM_768: "ML-KEM-768",
    Algorithm.ML_KEM_1024: "ML-KEM-1024",
    Algorithm.ML_DSA_65: "ML-DSA-65",
    Algorithm.ML_DSA_87: "ML-DSA-87",
    **{each: each.value for each in PARAMETER_SETS},
}
"""What OpenSSL calls the key types that it has."""

every_algorithm = pytest.mark.parametrize("algorithm", Algorithm)


@pytest.fixture(scope="module")
def new_key() -> Callable[[Algorithm], bytes]:
    """Generate a key pair; return its public key."""
    schemes: Mapping[Algorithm, Any] = {**KEMS, **signature_schemes(Pqcrypto())}
    made: dict[Algorithm, bytes] = {}

    def new(algorithm: Algorithm) -> bytes:
        if algorithm not in made:
            made[algorithm] = schemes[algorithm].generate().public_bytes()
        return made[algorithm]

    return new


class _Algorithm(core.Sequence):
    _fields = [  # noqa: RUF012 - as asn1crypto wants it
        ("algorithm", core.ObjectIdentifier),
        ("parameters", core.Any, {"optional": True}),
    ]


class _PublicKey(core.Sequence):
    _fields = [  # noqa: RUF012 - as asn1crypto wants it
        ("algorithm", _Algorithm),
        ("public_key", core.BitString),
    ]


@every_algorithm
def test_der_is_subject_public_key_info(
    algorithm: Algorithm, new_key: Callable[[Algorithm], bytes]
) -> None:
    """A general DER reader finds the standard's identifier, no parameters, and the bare key."""
    key = new_key(algorithm)
    read: Any = cast("Any", _PublicKey).load(public_keys.to_der(algorithm, key), strict=True)
    assert read["algorithm"]["algorithm"].native == OBJECT_IDENTIFIERS[algorithm]
    assert read["algorithm"]["parameters"].native is None
    assert read["public_key"].contents == b"\x00" + key
    assert read.dump(force=True) == public_keys.to_der(algorithm, key)


@every_algorithm
def test_pem_is_der_in_base64(algorithm: Algorithm, new_key: Callable[[Algorithm], bytes]) -> None:
    """A general PEM reader finds a PUBLIC KEY with the same DER; our own reads both back."""
    key = new_key(algorithm)
    text, data = public_keys.to_pem(algorithm, key), public_keys.to_der(algorithm, key)
    assert cast("Any", pem).unarmor(text.encode()) == ("PUBLIC KEY", {}, data)
    assert public_keys.from_der(data) == public_keys.from_pem(text) == (algorithm, key)
    assert public_keys.from_pem(text.replace("\n", "\r\n") + "\n ") == (algorithm, key)


@pytest.mark.parametrize(("algorithm", "key_type"), KNOWN_TO_CRYPTOGRAPHY.items())
def test_cryptography_reads_both(
    algorithm: Algorithm, key_type: type, new_key: Callable[[Algorithm], bytes]
) -> None:
    """The library cryptography reads each ML-KEM and ML-DSA key as what it is."""
    key = new_key(algorithm)
    for read in (
        load_der_public_key(public_keys.to_der(algorithm, key)),
        load_pem_public_key(public_keys.to_pem(algorithm, key).encode()),
    ):
        assert isinstance(read, key_type)
        assert cast("Any", read).public_bytes_raw() == key


@pytest.mark.parametrize(("algorithm", "name"), KNOWN_TO_OPENSSL.items())
def test_openssl_reads_it(
    algorithm: Algorithm,
    name: str,
    new_key: Callable[[Algorithm], bytes],
    openssl_library: str,
) -> None:
    """OpenSSL reads each key as what it is, and writes the same DER again."""
    crypto = ctypes.CDLL(openssl_library)
    for function, result, arguments in (
        ("d2i_PUBKEY", c_void_p, [c_void_p, c_void_p, c_long]),
        ("EVP_PKEY_is_a", c_int, [c_void_p, c_char_p]),
        ("i2d_PUBKEY", c_int, [c_void_p, c_void_p]),
        ("EVP_PKEY_get_raw_public_key", c_int, [c_void_p, c_void_p, c_void_p]),
        ("EVP_PKEY_free", None, [c_void_p]),
    ):
        found = getattr(crypto, function)
        found.restype, found.argtypes = result, arguments
    key = new_key(algorithm)
    data = public_keys.to_der(algorithm, key)
    source = ctypes.create_string_buffer(data, len(data))
    read = crypto.d2i_PUBKEY(None, ctypes.byref(c_void_p(ctypes.addressof(source))), len(data))
    assert read
    try:
        assert crypto.EVP_PKEY_is_a(read, name.encode()) == 1
        raw, size = ctypes.create_string_buffer(len(key)), c_size_t(len(key))
        assert crypto.EVP_PKEY_get_raw_public_key(read, raw, ctypes.byref(size)) == 1
        assert raw.raw == key
        again = ctypes.create_string_buffer(len(data))
        place = c_void_p(ctypes.addressof(again))
        assert crypto.i2d_PUBKEY(read, ctypes.byref(place)) == len(data)
        assert again.raw == data
    finally:
        crypto.EVP_PKEY_free(read)


@every_algorithm
def test_one_encoding_is_taken(algorithm: Algorithm, new_key: Callable[[Algorithm], bytes]) -> None:
    """DER that is cut, longer, or differs anywhere before the key is no public key."""
    key = new_key(algorithm)
    data = public_keys.to_der(algorithm, key)
    head = len(data) - len(key)
    damaged = [data[:at] + bytes((data[at] ^ 0x80,)) + data[at + 1 :] for at in range(head)]
    for bad in (*damaged, data[:-1], data + b"\x00", data[:head], b""):
        with pytest.raises(NotAPublicKeyError):
            public_keys.from_der(bad)


PEM = public_keys.to_pem(Algorithm.SLH_DSA_SHA2_128S, bytes(32))
BEGIN, END = "-----BEGIN PUBLIC KEY-----", "-----END PUBLIC KEY-----"
assert public_keys.from_pem(PEM) == (Algorithm.SLH_DSA_SHA2_128S, bytes(32))


@pytest.mark.parametrize(
    "text",
    [
        PEM[:-30],
        PEM * 2,
        f"header\n{PEM}",
        PEM.replace("PUBLIC", "PRIVATE"),
        PEM.replace("\nM", "\n*"),
        PEM.replace("\nM", "\n\u0661"),
        PEM.replace(END, ""),
        PEM + " " * public_keys.MAX_PEM,
        "",
        BEGIN,
        f"{BEGIN} {END}",
    ],
)
def test_one_block_of_pem_is_taken(text: str) -> None:
    """What is not one whole block with the right label is no public key."""
    with pytest.raises(NotAPublicKeyError):
        public_keys.from_pem(text)


@pytest.mark.parametrize(
    ("algorithm", "kid"),
    [
        (Algorithm.ML_DSA_65, "Suiu29qbfuaBaR4Ats-c6XQBePB_OpAxAwcTR_0KXVM"),
        (Algorithm.ML_DSA_87, "tRn1JNIkgMsABVQBlXeDHxAIcclh-2IX0UdDEzPt5XU"),
    ],
)
def test_the_thumbprints_of_rfc_9964(algorithm: Algorithm, kid: str) -> None:
    """The key of the seed that is all zeros has the kid of RFC 9964, appendix A.1."""
    scheme = signature_schemes(Pqcrypto())[algorithm]
    made = public_keys.to_jwk(algorithm, scheme.load_seed(Secret(bytes(32))).public_bytes())
    assert made.kid == kid


@pytest.mark.parametrize("algorithm", public_keys.JWK_ALGORITHM)
def test_a_jwk_has_its_thumbprint_as_kid(
    algorithm: Algorithm, new_key: Callable[[Algorithm], bytes]
) -> None:
    """A JWK is an AKP key with the raw key, and its kid the thumbprint."""
    key = new_key(algorithm)
    made = public_keys.to_jwk(algorithm, key)
    assert (made.kty, made.use) == ("AKP", "sig")
    assert urlsafe_b64decode(made.pub + "=" * (-len(made.pub) % 4)) == key
    canonical = json.dumps(
        {"alg": made.alg, "kty": "AKP", "pub": made.pub}, separators=(",", ":"), sort_keys=True
    )
    digest = b64decode(made.kid.replace("-", "+").replace("_", "/") + "=")
    assert digest == sha256(canonical.encode()).digest()
