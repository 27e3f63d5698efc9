"""Public keys as DER, PEM and JWK, read and written by cryptography, asn1crypto and OpenSSL."""

import ctypes
import json
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Callable, Iterator, Mapping
from ctypes import c_char_p, c_int, c_long, c_size_t, c_void_p
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, cast

import pytest
from asn1crypto import core, pem
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.mldsa import (
    MLDSA65PrivateKey,
    MLDSA65PublicKey,
    MLDSA87PublicKey,
)
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey, MLKEM1024PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_public_key,
    load_pem_public_key,
)
from cryptography.x509.oid import NameOID

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.signature import signature_schemes
from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_protocol import public_keys
from pqkeep_protocol.algorithms import KEY_PAIRS, Algorithm
from pqkeep_protocol.der import BIT_STRING, INTEGER, SEQUENCE, der
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
"""The identifiers of the RFCs and drafts."""
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
"""OpenSSL's names of its key types."""

every_algorithm = pytest.mark.parametrize("algorithm", KEY_PAIRS)


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
    """A general DER reader finds the standard's identifier, no parameters, and the raw key."""
    key = new_key(algorithm)
    read: Any = cast("Any", _PublicKey).load(public_keys.to_der(algorithm, key), strict=True)
    assert read["algorithm"]["algorithm"].native == OBJECT_IDENTIFIERS[algorithm]
    assert read["algorithm"]["parameters"].native is None
    assert read["public_key"].contents == b"\x00" + key
    assert read.dump(force=True) == public_keys.to_der(algorithm, key)


@every_algorithm
def test_pem_is_der_in_base64(algorithm: Algorithm, new_key: Callable[[Algorithm], bytes]) -> None:
    """A general PEM reader finds a PUBLIC KEY with the same DER; our reader reads both."""
    key = new_key(algorithm)
    text, data = public_keys.to_pem(algorithm, key), public_keys.to_der(algorithm, key)
    assert cast("Any", pem).unarmor(text.encode()) == ("PUBLIC KEY", {}, data)
    assert public_keys.from_der(data) == public_keys.from_pem(text) == (algorithm, key)
    assert public_keys.from_pem(text.replace("\n", "\r\n") + "\n ") == (algorithm, key)


@pytest.mark.parametrize(("algorithm", "key_type"), KNOWN_TO_CRYPTOGRAPHY.items())
def test_cryptography_reads_both(
    algorithm: Algorithm, key_type: type, new_key: Callable[[Algorithm], bytes]
) -> None:
    """The library cryptography reads each ML-KEM and ML-DSA key as its algorithm."""
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
    """OpenSSL reads each key as its algorithm, and writes the same DER."""
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
    """DER is refused if it is cut, too long, or changed before the key."""
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
        f"From: ada@example.com\n\nHere it is:\n{PEM}-- \nAda",
        f"Bag Attributes\n    friendlyName: one\nKey Attributes: <No Attributes>\n{PEM}",
        PEM.replace("\n", "\r\n"),
        PEM.replace("\n", "\r"),
        PEM.replace("\n", "\n\n"),
        PEM.replace("\n", " \t\n  "),
        PEM.replace("\n", ""),
        "\ufeff" + PEM,
        PEM.replace("\nM", "\nM "),
    ],
)
def test_pem_has_text_around_it_and_white_space_in_it(text: str) -> None:
    """Text around a PEM block and white space inside it, as in RFC 7468, change nothing."""
    assert public_keys.from_pem(text) == (Algorithm.SLH_DSA_SHA2_128S, bytes(32))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (PEM[:-30], "without its end"),
        (PEM.replace(END, "-----END CERTIFICATE-----"), "without its end"),
        (PEM * 2, "2 PEM blocks (a public key): send one"),
        (
            PEM + PEM.replace("PUBLIC KEY", "CERTIFICATE"),
            "2 PEM blocks (a certificate, a public",
        ),
        (PEM + PEM.replace("PUBLIC", "PRIVATE"), "a private key (PKCS#8): do not send it"),
        (PEM.replace("PUBLIC", "PRIVATE"), "a private key (PKCS#8): do not send it"),
        (PEM.replace("PUBLIC", "ENCRYPTED PRIVATE"), "an encrypted private key (PKCS#8)"),
        (PEM.replace("PUBLIC", "RSA PRIVATE"), "an RSA private key"),
        (PEM.replace("PUBLIC", "ML-DSA PRIVATE"), "a private key: do not"),
        (PEM.replace("PUBLIC KEY", "CERTIFICATE REQUEST"), "a certificate request (PKCS#10)"),
        (PEM.replace("PUBLIC KEY", "X509 CRL"), "a list of revoked certificates"),
        (PEM.replace("PUBLIC KEY", "SOMETHING"), "an unknown block"),
        (PEM.replace("\nM", "\n*"), "content that is not base64"),
        (PEM.replace("\nM", "\n\u0661"), "content that is not base64"),
        (BEGIN, "without its end"),
        (f"{BEGIN} {END}", "not the DER of a public key"),
        ("", "not PEM"),
        ("-----BEGIN " * 5_000, "2500 PEM blocks"),
        (f"{BEGIN}\n" * 2_000, "2000 PEM blocks"),
    ],
)
def test_what_pem_is_instead_is_named(text: str, named: str) -> None:
    """Anything except one complete block with the right label is refused and named."""
    with pytest.raises(NotAPublicKeyError) as refused:
        public_keys.from_pem(text)
    assert named in str(refused.value)


def _certified(algorithm: Algorithm, key: bytes, *, version: bool = True) -> bytes:
    """Return a certificate of a key with an invalid signature."""
    return _certificate(public_keys.to_der(algorithm, key), version=version)


def _certificate(info: bytes, *, version: bool = True) -> bytes:
    identifier = der(SEQUENCE, der(0x06, bytes.fromhex("2b6570")))
    name = der(SEQUENCE, b"")
    head = (der(0xA0, der(INTEGER, b"\2")),) if version else ()
    extensions = (der(0xA3, der(SEQUENCE, b"")),) if version else ()
    validity = der(SEQUENCE, der(0x17, b"260101000000Z") * 2)
    signed = (*head, der(INTEGER, b"\1"), identifier, name, validity, name, info, *extensions)
    parts = (der(SEQUENCE, b"".join(signed)), identifier, der(BIT_STRING, bytes(65)))
    return der(SEQUENCE, b"".join(parts))


@every_algorithm
def test_the_key_of_a_certificate_is_taken(
    algorithm: Algorithm, new_key: Callable[[Algorithm], bytes]
) -> None:
    """A key is read from DER and PEM certificates of versions 1 and 3, and never from a cut one."""
    key = new_key(algorithm)
    for version in (True, False):
        data = _certified(algorithm, key, version=version)
        assert public_keys.from_der(data) == (algorithm, key)
        text = cast("Any", pem).armor("CERTIFICATE", data).decode()
        assert public_keys.from_pem(f"subject=CN = x\n{text}") == (algorithm, key)
    for bad in (data[:-1], data + b"\0", data.replace(key, key[:-1])):
        with pytest.raises(NotAPublicKeyError):
            public_keys.from_der(bad)


def test_a_certificate_of_the_library_cryptography_is_read() -> None:
    """A real certificate with an ML-DSA key gives that key. One with an EC key is refused by name."""
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    signer = ec.generate_private_key(ec.SECP256R1())
    ml_dsa = MLDSA65PrivateKey.generate().public_key()
    written = []
    for subject_key in (ml_dsa, signer.public_key()):
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name)
        builder = builder.public_key(subject_key).serial_number(1)
        builder = builder.not_valid_before(now).not_valid_after(now + timedelta(days=1))
        made = builder.sign(signer, SHA256())
        written.append(made.public_bytes(Encoding.PEM).decode())
    expected = (Algorithm.ML_DSA_65, ml_dsa.public_bytes_raw())
    assert public_keys.from_pem(written[0]) == expected
    with pytest.raises(NotAPublicKeyError, match="a certificate with a public key of EC"):
        public_keys.from_pem(written[1])


def _elsewhere() -> Iterator[tuple[bytes, str]]:
    """Yield DER documents without a supported public key, with their names."""
    curve = ec.generate_private_key(ec.SECP256R1())
    edwards = ed25519.Ed25519PrivateKey.generate()
    modulus = rsa.generate_private_key(65537, 2048)
    for key, name in ((curve, "EC"), (edwards, "Ed25519"), (modulus, "RSA")):
        public = key.public_key()
        yield (
            public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
            f"a public key of {name}",
        )
        yield (
            key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
            f"a private key (PKCS#8) of {name}: do not send it",
        )
    yield (
        edwards.private_bytes(
            Encoding.DER, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
        ),
        "an encrypted private key (PKCS#8)",
    )
    for traditional, name in (
        (curve, "EC private key (SEC 1)"),
        (modulus, "RSA private key (PKCS#1)"),
    ):
        form = PrivateFormat.TraditionalOpenSSL
        yield (
            traditional.private_bytes(Encoding.DER, form, NoEncryption()),
            f"an {name}: do not send it",
        )
    old_form = PublicFormat.PKCS1
    yield modulus.public_key().public_bytes(Encoding.DER, old_form), "an RSA public key (PKCS#1)"
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    yield request.sign(curve, SHA256()).public_bytes(Encoding.DER), "a certificate request"
    ml_dsa = MLDSA65PrivateKey.generate()
    yield (
        ml_dsa.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
        "a private key (PKCS#8) of ML-DSA-65",
    )
    for number, name in (
        ("0401", "ML-KEM-512"),
        ("0311", "ML-DSA-44"),
        ("031a", "SLH-DSA-SHAKE-128s"),
    ):
        identifier = der(SEQUENCE, der(0x06, bytes.fromhex("60864801650304" + number)))
        yield der(SEQUENCE, identifier + der(BIT_STRING, bytes(33))), f"a public key of {name}"
    unknown = der(SEQUENCE, der(0x06, b"\x2a\x03"))
    yield der(SEQUENCE, unknown + der(BIT_STRING, b"\0")), "an unknown algorithm"
    yield b"\x30\x80\0\0", "not the DER"
    yield b"", "not the DER"


def test_what_der_is_instead_is_named() -> None:
    """Keys of other algorithms, private keys, requests and garbage are refused and named."""
    for data, named in _elsewhere():
        with pytest.raises(NotAPublicKeyError) as refused:
            public_keys.from_der(data)
        assert named in str(refused.value)


def _jwk(**members: object) -> dict[str, object]:
    own = public_keys.to_jwk(Algorithm.ML_DSA_65, bytes(1952))
    whole = {"kty": own.kty, "alg": own.alg, "pub": own.pub, **members}
    return {name: each for name, each in whole.items() if each is not None}


def test_a_jwk_is_read_with_and_without_other_members() -> None:
    """kty, alg and pub matter; kid, use and unknown members are ignored."""
    for more in ({}, {"kid": "x", "use": "enc", "key_ops": [], "x": {}}):
        assert public_keys.from_jwk(_jwk(**more)) == (Algorithm.ML_DSA_65, bytes(1952))


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"priv": "AA"}, "a private key: do not send it"),
        ({"kty": "RSA", "n": "AA", "d": "AA"}, "a private key: do not send it"),
        ({"kty": "EC"}, "key type EC"),
        ({"kty": "oct"}, "key type oct"),
        ({"kty": "<b>"}, "not a JWK of type AKP"),
        ({"kty": None, "keys": []}, "a JWK Set: send one"),
        ({"kty": None}, "not a JWK of type AKP"),
        ({"kty": []}, "not a JWK of type AKP"),
        ({"alg": "ML-DSA-44"}, "a JWK of ML-DSA-44"),
        ({"alg": "ML-KEM-768"}, "a JWK of ML-KEM-768"),
        ({"alg": None}, "an algorithm without a JWK form here"),
        ({"alg": {}}, "an algorithm without a JWK form here"),
        ({"pub": None}, "not base64url"),
        ({"pub": 1}, "not base64url"),
        ({"pub": "AA=="}, "not base64url"),
        ({"pub": "A"}, "not base64url"),
        ({"pub": "\u0661"}, "not base64url"),
        ({"pub": "AB"}, "not base64url"),
        ({"pub": "AA"}, "a key of 1 bytes, not 1,952"),
        ({"alg": "ML-DSA-87"}, "a key of 1,952 bytes, not 2,592"),
    ],
)
def test_what_a_jwk_is_instead_is_named(members: dict[str, object], named: str) -> None:
    """A private key, another type or algorithm, a set, and a damaged key are named."""
    with pytest.raises(NotAPublicKeyError) as refused:
        public_keys.from_jwk(_jwk(**members))
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("algorithm", "kid"),
    [
        (Algorithm.ML_DSA_65, "Suiu29qbfuaBaR4Ats-c6XQBePB_OpAxAwcTR_0KXVM"),
        (Algorithm.ML_DSA_87, "tRn1JNIkgMsABVQBlXeDHxAIcclh-2IX0UdDEzPt5XU"),
    ],
)
def test_the_thumbprints_of_rfc_9964(algorithm: Algorithm, kid: str) -> None:
    """The key of the all-zero seed has the kid of RFC 9964, appendix A.1."""
    scheme = signature_schemes(Pqcrypto())[algorithm]
    made = public_keys.to_jwk(algorithm, scheme.load_seed(Secret(bytes(32))).public_bytes())
    assert made.kid == kid


@pytest.mark.parametrize("algorithm", public_keys.JWK_ALGORITHM)
def test_a_jwk_has_its_thumbprint_as_kid(
    algorithm: Algorithm, new_key: Callable[[Algorithm], bytes]
) -> None:
    """A JWK is an AKP key with the raw key, and its kid is the thumbprint."""
    key = new_key(algorithm)
    made = public_keys.to_jwk(algorithm, key)
    assert (made.kty, made.use) == ("AKP", "sig")
    assert urlsafe_b64decode(made.pub + "=" * (-len(made.pub) % 4)) == key
    canonical = json.dumps(
        {"alg": made.alg, "kty": "AKP", "pub": made.pub}, separators=(",", ":"), sort_keys=True
    )
    digest = b64decode(made.kid.replace("-", "+").replace("_", "/") + "=")
    assert digest == sha256(canonical.encode()).digest()
