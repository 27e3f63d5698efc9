"""The reader of keys, signatures and envelopes, with all containers, algorithms and damages.

All keys come from the example seeds of the RFCs: the bytes 00, 01, 02 and so on.
"""

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha3_256, shake_256
from time import process_time
from typing import cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, mldsa, mlkem, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from pqkeep import Algorithm, PqkeepError, UnreadableInputError, inputs
from pqkeep.algorithms import PARAMETERS
from pqkeep.key_import import read_private_key

IDENTIFIERS = {
    Algorithm.ML_KEM_768: "0609608648016503040402",
    Algorithm.ML_KEM_1024: "0609608648016503040403",
    Algorithm.X_WING: "060b2b0601040183e62d81c87a",
    Algorithm.ML_DSA_65: "0609608648016503040312",
    Algorithm.ML_DSA_87: "0609608648016503040313",
    Algorithm.COMPOSITE_ML_DSA: "06082b0601050507062d",
    Algorithm.SLH_DSA_SHA2_128S: "0609608648016503040314",
    Algorithm.SLH_DSA_SHA2_128F: "0609608648016503040315",
    Algorithm.SLH_DSA_SHA2_192S: "0609608648016503040316",
    Algorithm.SLH_DSA_SHA2_256S: "0609608648016503040318",
}
SEED_SIZES = {
    Algorithm.ML_KEM_768: 64,
    Algorithm.ML_KEM_1024: 64,
    Algorithm.X_WING: 32,
    Algorithm.ML_DSA_65: 32,
    Algorithm.ML_DSA_87: 32,
    Algorithm.SLH_DSA_SHA2_128S: 64,
    Algorithm.SLH_DSA_SHA2_128F: 64,
    Algorithm.SLH_DSA_SHA2_192S: 96,
    Algorithm.SLH_DSA_SHA2_256S: 128,
}
SIGNATURE_SIZES = {
    Algorithm.ML_DSA_65: 3309,
    Algorithm.ML_DSA_87: 4627,
    Algorithm.COMPOSITE_ML_DSA: 3380,
    Algorithm.SLH_DSA_SHA2_128S: 7856,
    Algorithm.SLH_DSA_SHA2_128F: 17088,
    Algorithm.SLH_DSA_SHA2_192S: 16224,
    Algorithm.SLH_DSA_SHA2_256S: 29792,
}
JWK = {
    Algorithm.ML_DSA_65: "ML-DSA-65",
    Algorithm.ML_DSA_87: "ML-DSA-87",
    Algorithm.SLH_DSA_SHA2_128S: "SLH-DSA-SHA2-128s",
    Algorithm.SLH_DSA_SHA2_128F: "SLH-DSA-SHA2-128f",
}
TAGGED = (
    Algorithm.ML_KEM_768,
    Algorithm.ML_KEM_1024,
    Algorithm.ML_DSA_65,
    Algorithm.ML_DSA_87,
)
Container = Callable[[Algorithm], bytes]
ALL = tuple(algorithm for algorithm in Algorithm if algorithm in PARAMETERS)


def der(tag: int, *parts: bytes) -> bytes:
    """Return one DER element."""
    content = b"".join(parts)
    size = len(content)
    if size < 128:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes((tag, 0x80 | len(length))) + length + content


def pem(label: str, data: bytes) -> bytes:
    """Return a block with a label."""
    text = b64encode(data).decode()
    lines = (text[at : at + 64] for at in range(0, len(text), 64))
    return "\n".join((f"-----BEGIN {label}-----", *lines, f"-----END {label}-----", "")).encode()


def base64url(data: bytes) -> str:
    """Return base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def ec_key(*more: bytes) -> bytes:
    """Return an ECPrivateKey of P-256."""
    return der(0x30, b"\x02\x01\x01", der(4, bytes(range(1, 33))), *more)


P_256 = der(0xA0, bytes.fromhex("06082a8648ce3d030107"))


def seed_of(algorithm: Algorithm) -> bytes:
    """Return a private key in the stored form."""
    if algorithm == Algorithm.COMPOSITE_ML_DSA:
        return bytes(range(32)) + ec_key(P_256)
    return bytes(range(SEED_SIZES[algorithm]))


@cache
def public_key_of(algorithm: Algorithm) -> bytes:  # noqa: PLR0911 - one for each
    """Return the public key of the seed."""
    seed = seed_of(algorithm)
    match algorithm:
        case Algorithm.ML_KEM_768:
            return mlkem.MLKEM768PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
        case Algorithm.ML_KEM_1024:
            return mlkem.MLKEM1024PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
        case Algorithm.ML_DSA_65:
            return mldsa.MLDSA65PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
        case Algorithm.ML_DSA_87:
            return mldsa.MLDSA87PrivateKey.from_seed_bytes(seed).public_key().public_bytes_raw()
        case Algorithm.X_WING:
            both = shake_256(seed).digest(96)
            m_key = mlkem.MLKEM768PrivateKey.from_seed_bytes(both[:64]).public_key()
            x_key = x25519.X25519PrivateKey.from_private_bytes(both[64:]).public_key()
            return m_key.public_bytes_raw() + x_key.public_bytes_raw()
        case Algorithm.COMPOSITE_ML_DSA:
            return public_key_of(Algorithm.ML_DSA_65) + point()
        case _:
            return seed[len(seed) // 2 :]


def point(form: PublicFormat = PublicFormat.UncompressedPoint) -> bytes:
    """Return the elliptic-curve part of the public key."""
    scalar = int.from_bytes(bytes(range(1, 33)))
    public = ec.derive_private_key(scalar, ec.SECP256R1()).public_key()
    return public.public_bytes(Encoding.X962, form)


def expanded_of(algorithm: Algorithm) -> bytes:
    """Return an expanded key, with zeros for parts that are not compared."""
    seed, public = seed_of(algorithm), public_key_of(algorithm)
    if algorithm in {Algorithm.ML_KEM_768, Algorithm.ML_KEM_1024}:
        secret = {Algorithm.ML_KEM_768: 1152, Algorithm.ML_KEM_1024: 1536}[algorithm]
        return bytes(secret) + public + sha3_256(public).digest() + seed[32:]
    dimensions = bytes((6, 5)) if algorithm == Algorithm.ML_DSA_65 else bytes((8, 7))
    head = public[:32] + shake_256(seed + dimensions).digest(128)[96:]
    size = 4032 if algorithm == Algorithm.ML_DSA_65 else 4896
    return (head + shake_256(public).digest(64)).ljust(size, b"\0")


def identifier(algorithm: Algorithm) -> bytes:
    """Return an AlgorithmIdentifier."""
    return der(0x30, bytes.fromhex(IDENTIFIERS[algorithm]))


def content_of(algorithm: Algorithm) -> bytes:
    """Return the content of a PKCS#8's OCTET STRING."""
    seed = seed_of(algorithm)
    return der(0x80, seed) if algorithm in TAGGED else seed


def pkcs8(algorithm: Algorithm, content: bytes, *more: bytes, version: int = 0) -> bytes:
    """Return a PKCS#8."""
    return der(0x30, bytes((2, 1, version)), identifier(algorithm), der(4, content), *more)


def pkcs8_of(algorithm: Algorithm) -> bytes:
    """Return the PKCS#8 of the seed."""
    return pkcs8(algorithm, content_of(algorithm))


def spki_of(algorithm: Algorithm) -> bytes:
    """Return the SubjectPublicKeyInfo."""
    return der(0x30, identifier(algorithm), der(3, b"\0", public_key_of(algorithm)))


def certificate_of(algorithm: Algorithm) -> bytes:
    """Return a certificate of the key. Its signature is not verified."""
    name = der(0x30, der(0x31, der(0x30, bytes.fromhex("0603550403"), der(12, b"example"))))
    times = der(0x30, der(0x17, b"260101000000Z"), der(0x17, b"270101000000Z"))
    signing = identifier(Algorithm.ML_DSA_65)
    parts = (b"\xa0\x03\x02\x01\x02", b"\x02\x01\x01", signing, name, times, name)
    return der(0x30, der(0x30, *parts, spki_of(algorithm)), signing, der(3, bytes(65)))


PRIVATE_FORMS: Mapping[str, tuple[tuple[Algorithm, ...], Container]] = {
    "PKCS#8": (ALL, pkcs8_of),
    "with the public key": (
        ALL,
        lambda algorithm: pkcs8(
            algorithm, content_of(algorithm), der(0x81, b"\0", public_key_of(algorithm)), version=1
        ),
    ),
    "with attributes and the public key, explicit": (
        ALL,
        lambda algorithm: pkcs8(
            algorithm,
            content_of(algorithm),
            der(0xA0, der(0x30, bytes.fromhex("0603550403"), der(0x31))),
            der(0xA1, der(3, b"\0", public_key_of(algorithm))),
            version=1,
        ),
    ),
    "nested": (ALL, lambda algorithm: pkcs8(algorithm, der(4, content_of(algorithm)))),
    "nested twice": (
        ALL,
        lambda algorithm: pkcs8(algorithm, der(4, der(4, content_of(algorithm)))),
    ),
    "the seed in an OCTET STRING": (
        ALL,
        lambda algorithm: pkcs8(algorithm, der(4, seed_of(algorithm))),
    ),
    "the seed without a tag": (ALL, lambda algorithm: pkcs8(algorithm, seed_of(algorithm))),
    "the seed in an explicit tag": (
        TAGGED,
        lambda algorithm: pkcs8(algorithm, der(0xA0, der(4, seed_of(algorithm)))),
    ),
    "both": (
        TAGGED,
        lambda algorithm: pkcs8(
            algorithm, der(0x30, der(4, seed_of(algorithm)), der(4, expanded_of(algorithm)))
        ),
    ),
    "both, nested": (
        TAGGED,
        lambda algorithm: pkcs8(
            algorithm, der(4, der(0x30, der(4, seed_of(algorithm)), der(4, expanded_of(algorithm))))
        ),
    ),
    "the seed and the expanded key": (
        TAGGED,
        lambda algorithm: pkcs8(algorithm, seed_of(algorithm) + expanded_of(algorithm)),
    ),
    "the seed and the public key": (
        TAGGED,
        lambda algorithm: pkcs8(algorithm, der(4, seed_of(algorithm) + public_key_of(algorithm))),
    ),
    "the private key without PKCS#8": (ALL, content_of),
    "both without PKCS#8": (
        TAGGED,
        lambda algorithm: der(0x30, der(4, seed_of(algorithm)), der(4, expanded_of(algorithm))),
    ),
    "the seed": (ALL, seed_of),
    "the half of the curve with its public key": (
        (Algorithm.COMPOSITE_ML_DSA,),
        lambda algorithm: pkcs8(
            algorithm, bytes(range(32)) + ec_key(P_256, der(0xA1, der(3, b"\0", point())))
        ),
    ),
    "the half of the curve with its compressed public key": (
        (Algorithm.COMPOSITE_ML_DSA,),
        lambda algorithm: pkcs8(
            algorithm,
            bytes(range(32))
            + ec_key(P_256, der(0xA1, der(3, b"\0", point(PublicFormat.CompressedPoint)))),
        ),
    ),
    "the half of the curve alone": (
        (Algorithm.COMPOSITE_ML_DSA,),
        lambda algorithm: pkcs8(algorithm, bytes(range(32)) + ec_key()),
    ),
    "JWK": (
        tuple(JWK),
        lambda algorithm: json.dumps(
            {
                "kty": "AKP",
                "alg": JWK[algorithm],
                "pub": base64url(public_key_of(algorithm)),
                "priv": base64url(seed_of(algorithm)),
            }
        ).encode(),
    ),
    "JWK without pub": (
        tuple(JWK),
        lambda algorithm: json.dumps(
            {"kty": "AKP", "alg": JWK[algorithm], "priv": base64url(seed_of(algorithm))}
        ).encode(),
    ),
}
PUBLIC_FORMS: Mapping[str, tuple[tuple[Algorithm, ...], Container]] = {
    "SubjectPublicKeyInfo": (ALL, spki_of),
    "certificate": (ALL, certificate_of),
    "bytes": (ALL, public_key_of),
    "JWK": (
        tuple(JWK),
        lambda algorithm: json.dumps(
            {
                "kty": "AKP",
                "alg": JWK[algorithm],
                "pub": base64url(public_key_of(algorithm)),
                "kid": "a",
            }
        ).encode(),
    ),
    "JWK Set": (
        tuple(JWK),
        lambda algorithm: json.dumps(
            {
                "keys": [
                    {
                        "kty": "AKP",
                        "alg": JWK[algorithm],
                        "pub": base64url(public_key_of(algorithm)),
                    },
                ]
            }
        ).encode(),
    ),
    "pqkeep": (
        ALL,
        lambda algorithm: json.dumps(
            {
                "format": "pqkeep/v1/public-key",
                "algorithm": algorithm.value,
                "key_version": 1,
                "public_key": b64encode(public_key_of(algorithm)).decode(),
            }
        ).encode(),
    ),
}
LABELS = {
    "PKCS#8": "PRIVATE KEY",
    "with the public key": "PRIVATE KEY",
    "both": "PRIVATE KEY",
    "SubjectPublicKeyInfo": "PUBLIC KEY",
    "certificate": "CERTIFICATE",
}


def wrapped(text: bytes, size: int, end: bytes) -> bytes:
    """Return text in lines."""
    return b"".join(text[at : at + size] + end for at in range(0, len(text), size))


def as_text(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield text in all equivalent encodings."""
    yield "as it is", data
    yield "CRLF", data.replace(b"\n", b"\r\n")
    yield "CR", data.replace(b"\n", b"\r")
    yield "a byte-order mark", b"\xef\xbb\xbf" + data
    yield "UTF-16", data.decode().encode("utf-16")
    yield "UTF-16, big-endian", b"\xfe\xff" + data.decode().encode("utf-16-be")
    yield "blank lines", b"\n\n  \n" + data.replace(b"\n", b"\n\n") + b"\t\n\n"
    yield "white space at the ends", b"  " + data.replace(b"\n", b" \t\n") + b"   "
    yield "a JSON string", json.dumps(data.decode()).encode()
    yield "base64", wrapped(b64encode(data), 76, b"\n")


def written(data: bytes, label: str | None) -> Iterator[tuple[str, bytes]]:
    """Yield binary data in all supported encodings."""
    yield "bytes", data
    yield "base64", b64encode(data)
    yield "base64 in lines", wrapped(b64encode(data), 64, b"\r\n")
    yield "base64 with a mark", b"\xef\xbb\xbf" + b64encode(data) + b"\n"
    yield "base64url", base64url(data).encode()
    yield "digits", data.hex().encode()
    yield "digits with colons", wrapped(data.hex(":").encode(), 45, b"\n    ")
    if label is None:
        return
    text = pem(label, data)
    for name, same in as_text(text):
        yield f"PEM, {name}", same
    yield "in an e-mail", "Gr\u00fc\u00dfe,\n\n".encode("latin-1") + text + b"\n-- \nA. Person\n"
    yield "after attributes", b"Bag Attributes\n    friendlyName: a\nKey Attributes: <No>\n" + text
    yield "twice", text + text
    yield "in one line", text.replace(b"\n", b" ")
    yield "with the line ends of a shell", text.replace(b"\n", b"\\n")
    yield "with parameters", text + pem("EC PARAMETERS", bytes.fromhex("06082a8648ce3d030107"))


def private_cases() -> Iterator[tuple[str, Algorithm, bytes]]:
    """Yield every algorithm's private key in every container."""
    for form, (algorithms, container) in PRIVATE_FORMS.items():
        for algorithm in algorithms:
            data = container(algorithm)
            ways = as_text(data) if form.startswith("JWK") else written(data, LABELS.get(form))
            for way, case in ways:
                yield f"{form}, {way}", algorithm, case


def public_cases() -> Iterator[tuple[str, Algorithm, bytes]]:
    """Yield every algorithm's public key in every container."""
    for form, (algorithms, container) in PUBLIC_FORMS.items():
        for algorithm in algorithms:
            data = container(algorithm)
            is_json = form.startswith(("JWK", "pqkeep"))
            ways = as_text(data) if is_json else written(data, LABELS.get(form))
            for way, case in ways:
                yield f"{form}, {way}", algorithm, case


def damaged(data: bytes, label: str, head: int) -> Iterator[tuple[str, bytes]]:
    """Yield a DER key with every kind of damage after its head."""
    for size in (1, 2, 3, 5, 20, len(data) // 2, len(data) - 1):
        yield f"cut to {size}", data[:size]
        yield f"PEM of what was cut to {size}", pem(label, data[:size])
    for more in (b"\0", b"\n", b"more", data):
        yield "bytes that follow", data + more
        yield "PEM with bytes that follow", pem(label, data + more)
    for at in range(min(24, head)):
        for bit in (0, 5, 7):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            yield f"byte {at}, bit {bit}", bytes(flipped)
            yield f"PEM with byte {at}, bit {bit}", pem(label, bytes(flipped))
    text = pem(label, data)
    other = "PUBLIC KEY" if label == "PRIVATE KEY" else "PRIVATE KEY"
    yield "another label", pem(other, data)
    yield "another label at the end", text.replace(f"END {label}".encode(), f"END {other}".encode())
    yield "no end", text.partition(b"-----END")[0]
    yield "no beginning", text.partition(b"\n")[2]
    yield "four hyphens", text.replace(b"-----BEGIN", b"----BEGIN")
    yield "dashes", text.replace(b"-----", "\u2014".encode())
    yield "quoted", b"> " + text.replace(b"\n", b"\n> ")
    yield "a character that is none", text.replace(b"\n", b"\n!", 1)
    yield "a character too many", text.replace(b"\n-----END", b"A\n-----END")
    yield "an empty block", pem(label, b"")
    yield "a password", text.replace(b"\n", b"\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\n", 1)
    yield "cut base64", b64encode(data)[:-5]
    yield "indefinite", b"\x30\x80" + data[4:] + b"\0\0"
    yield "a length that is not minimal", b"\x30\x84\0\0" + len(data[4:]).to_bytes(2) + data[4:]
    yield "a BER of nothing", b"\x30\x00"


@pytest.mark.parametrize("algorithm", ALL)
def test_every_container_of_a_private_key(algorithm: Algorithm) -> None:
    """Each unambiguous form of a private key gives exactly that key."""
    count = 0
    for name, its_algorithm, data in private_cases():
        if its_algorithm != algorithm:
            continue
        count += 1
        if data == der(4, data[2:]) and "without PKCS#8" not in name:
            continue
        key = read_private_key(data, algorithm)
        assert key.public_key == public_key_of(algorithm), name
        assert key.pkcs8 == pkcs8_of(algorithm), name
    assert count > 90


@pytest.mark.parametrize("algorithm", ALL)
def test_every_container_of_a_public_key(algorithm: Algorithm) -> None:
    """Each unambiguous form of a public key gives that key and its algorithm."""
    count = 0
    for name, its_algorithm, data in public_cases():
        if its_algorithm != algorithm:
            continue
        count += 1
        key = inputs.read_public_key(data)
        assert key.public_key == public_key_of(algorithm), name
        assert algorithm in key.algorithms, name
    assert count > 40


def attempt(read: Callable[[bytes], bytes], data: bytes) -> tuple[bytes | None, str]:
    """Return the key, or None with the error."""
    try:
        return read(data), ""
    except UnreadableInputError as error:
        return None, str(error)


@pytest.mark.parametrize("algorithm", ALL)
def test_every_damage(algorithm: Algorithm) -> None:
    """A damaged key is refused by its form, without its content, and not read as another key."""
    secret = b64encode(seed_of(algorithm)).decode()[:20]
    for form, label, read in (
        (pkcs8_of, "PRIVATE KEY", lambda data: read_private_key(data, algorithm).public_key),
        (spki_of, "PUBLIC KEY", lambda data: inputs.read_public_key(data).public_key),
        (certificate_of, "CERTIFICATE", lambda data: inputs.read_public_key(data).public_key),
    ):
        whole = form(algorithm)
        head = len(whole) - len(public_key_of(algorithm))
        if label == "PRIVATE KEY":
            head = len(whole) - len(seed_of(algorithm))
        for name, data in damaged(whole, label, head):
            found, said = attempt(read, data)
            if found is None:
                assert "the input is " in said, name
                assert secret not in said, name
                assert "wrapped_private_key" not in said, name
            else:
                assert found == public_key_of(algorithm), name
                # what is not the key in a certificate is not looked at, nor a version of 0 or 1
                assert (form is certificate_of and "bit" in name) or name.endswith("bit 0"), name


@pytest.mark.parametrize("algorithm", TAGGED)
def test_contradictions(algorithm: Algorithm) -> None:
    """A key is refused if its seed contradicts its expanded key or its public key."""
    seed, expanded = seed_of(algorithm), expanded_of(algorithm)
    public = public_key_of(algorithm)
    is_kem = algorithm in {Algorithm.ML_KEM_768, Algorithm.ML_KEM_1024}
    start = len(expanded) - len(public) - 64 if is_kem else 0
    ends = (start, len(expanded) - 64, len(expanded) - 32) if is_kem else (0, 32, 64)
    for at, part in zip(ends, ("ek", "H(ek)", "z") if is_kem else ("rho", "K", "tr"), strict=True):
        other = bytearray(expanded)
        other[at] ^= 1
        data = pkcs8(algorithm, der(0x30, der(4, seed), der(4, bytes(other))))
        with pytest.raises(UnreadableInputError, match="contradict each other") as caught:
            read_private_key(data, algorithm)
        assert f"(in {part})" in caught.value.what
    content = der(0x30, der(4, seed[::-1]), der(4, expanded))
    with pytest.raises(UnreadableInputError, match="contradict each other"):
        read_private_key(pem("PRIVATE KEY", pkcs8(algorithm, content)), algorithm)


@pytest.mark.parametrize("algorithm", ALL)
def test_another_public_key(algorithm: Algorithm) -> None:
    """A public key in the file, or the expected one, must match the private key."""
    public = public_key_of(algorithm)
    other = public[:-1] + bytes((public[-1] ^ 1,))
    for tag, bits in ((0x81, b"\0" + other), (0xA1, der(3, b"\0", other))):
        data = pkcs8(algorithm, content_of(algorithm), der(tag, bits), version=1)
        with pytest.raises(UnreadableInputError, match="with another key's"):
            read_private_key(data, algorithm)
    if algorithm in JWK:
        values = {"kty": "AKP", "alg": JWK[algorithm], "pub": base64url(other)}
        jwk = json.dumps(values | {"priv": base64url(seed_of(algorithm))}).encode()
        with pytest.raises(UnreadableInputError, match="with another key's"):
            read_private_key(jwk, algorithm)
    for _, its_algorithm, form in public_cases():
        if its_algorithm == algorithm:
            read_private_key(pkcs8_of(algorithm), algorithm, expected_public_key=form)
    with pytest.raises(UnreadableInputError, match="another public key than the expected"):
        read_private_key(pkcs8_of(algorithm), algorithm, expected_public_key=other)
    wrong = spki_of(Algorithm.ML_DSA_87 if algorithm != "ML-DSA-87" else Algorithm.X_WING)
    with pytest.raises(UnreadableInputError, match="the expected public key is a public key of"):
        read_private_key(pkcs8_of(algorithm), algorithm, expected_public_key=wrong)


def test_another_half_of_a_composite_key() -> None:
    """The elliptic-curve public key in the file must match."""
    wrong = point()[:-1] + bytes((point()[-1] ^ 1,))
    content = bytes(range(32)) + ec_key(P_256, der(0xA1, der(3, b"\0", wrong)))
    with pytest.raises(UnreadableInputError, match="with another key's elliptic-curve"):
        read_private_key(pkcs8(Algorithm.COMPOSITE_ML_DSA, content), Algorithm.COMPOSITE_ML_DSA)
    zero = bytes(range(32)) + ec_key(P_256).replace(bytes(range(1, 33)), bytes(32))
    with pytest.raises(UnreadableInputError, match="out of range"):
        read_private_key(pkcs8(Algorithm.COMPOSITE_ML_DSA, zero), Algorithm.COMPOSITE_ML_DSA)


@pytest.mark.parametrize("algorithm", TAGGED)
def test_expanded_keys_alone(algorithm: Algorithm) -> None:
    """An expanded key without a seed is refused by name, in every form."""
    expanded = expanded_of(algorithm)
    for content in (
        der(4, expanded),
        der(4, der(4, expanded)),
        expanded,
        der(4, expanded + public_key_of(algorithm)),
    ):
        for data in (pkcs8(algorithm, content), content):
            with pytest.raises(UnreadableInputError, match="holds only the expanded key"):
                read_private_key(data, algorithm)


def other_private_keys() -> Iterator[tuple[str, bytes]]:
    """Yield private keys that pqkeep does not support, with their names."""
    plain, locked = NoEncryption(), BestAvailableEncryption(b"a password")
    p_256 = ec.derive_private_key(7, ec.SECP256R1())
    ed = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    rsa_key = rsa.generate_private_key(65537, 2048)
    small = mldsa.MLDSA44PrivateKey.from_seed_bytes(bytes(range(32)))
    eight, old = PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL
    yield "RSA", rsa_key.private_bytes(Encoding.PEM, eight, plain)
    yield "RSA", rsa_key.private_bytes(Encoding.PEM, old, plain)
    yield "RSA", rsa_key.private_bytes(Encoding.DER, old, plain)
    yield "EC", p_256.private_bytes(Encoding.DER, eight, plain)
    yield "EC private key", p_256.private_bytes(Encoding.PEM, old, plain)
    yield "EC private key", p_256.private_bytes(Encoding.DER, old, plain)
    yield "Ed25519", ed.private_bytes(Encoding.PEM, eight, plain)
    yield "OpenSSH", ed.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, plain)
    yield "ML-DSA-44", small.private_bytes(Encoding.PEM, eight, plain)
    yield "encrypted with a password", p_256.private_bytes(Encoding.PEM, old, locked)
    yield "encrypted with a password", small.private_bytes(Encoding.PEM, eight, locked)
    yield "encrypted with a password", small.private_bytes(Encoding.DER, eight, locked)
    yield "PKCS#12", pkcs12.serialize_key_and_certificates(None, p_256, None, None, locked)
    yield "empty", b""
    yield "white space", b" \r\n\t"
    yield (
        "OpenPGP",
        b"-----BEGIN PGP MESSAGE-----\n\nAA\n=AA\n-----END PGP MESSAGE-----\n",
    )
    yield "age", b"# created: 2026\nAGE-SECRET-KEY-1QQQ\n"
    yield "data URL", b"data:application/octet-stream;base64,AAAA"
    yield "Git LFS", b"version https://git-lfs.example/spec/v1\noid sha256:4d7a\nsize 1\n"
    yield "percent-encoded", b"-----BEGIN%20PUBLIC%20KEY-----%0AAAAA%0A-----END%20PUBLIC%20KEY"
    yield "percent-encoded", b"MIIHsjALBglghkgBZQMEAxIDggehAL%2B%2F%3D\n"
    yield "PuTTY", b"PuTTY-User-Key-File-3: ssh-ed25519\n"
    yield (
        "ML-KEM-512",
        der(0x30, b"\x02\x01\x00", der(0x30, bytes.fromhex("0609608648016503040401")), der(4, b"")),
    )
    yield "type RSA", b'{"kty":"RSA","n":"AQAB","d":"AQAB"}'
    yield "ML-DSA-44", b'{"kty":"AKP","alg":"ML-DSA-44","priv":"AAAA"}'
    yield "a duplicate name", b'{"kty":"AKP","kty":"AKP","alg":"ML-DSA-65"}'
    yield "an import key", b'{"import_key_id":"a","suite":"b"}'
    yield "response of the API", b'{"data":{"public_key":"AAAA"},"request_id":"a"}'
    yield "pqkeep/v1/signature", b'{"format":"pqkeep/v1/signature"}'
    yield "JSON Web Encryption", b"eyJhbGciOiJkaXIifQ.AA.AA.AA.AA"
    yield "HTML", b"<!doctype html><title>Sign in</title>"
    yield "31 bytes", bytes(31)
    yield "a PDF document", b"%PDF-1.7\n\xff\xfe"


@pytest.mark.parametrize("algorithm", [Algorithm.ML_DSA_65, Algorithm.ML_KEM_1024])
def test_what_is_another_thing_is_named(algorithm: Algorithm) -> None:
    """The refusal of other input, or of another algorithm, names it."""
    for name, data in other_private_keys():
        with pytest.raises(UnreadableInputError) as caught:
            read_private_key(data, algorithm)
        assert name.lower() in caught.value.what.lower(), (name, caught.value.what)
        if "password" in name:
            assert "openssl pkey " in caught.value.next_step
        if name == "PKCS#12":
            assert "openssl pkcs12 " in caught.value.next_step
        for read in (inputs.read_public_key, inputs.read_signature):
            if name not in {"31 bytes", "pqkeep/v1/signature"}:
                with pytest.raises(UnreadableInputError):
                    read(data)
    for other in ALL:
        if other != algorithm:
            with pytest.raises(UnreadableInputError) as caught:
                read_private_key(pkcs8_of(other), algorithm)
            assert inputs.title(other) in caught.value.what
            assert inputs.title(algorithm) in caught.value.what


def test_other_public_keys_are_named() -> None:
    """Public keys and requests of other algorithms, and several keys, are named."""
    p_256 = ec.derive_private_key(7, ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "example")])
    made = datetime(2026, 1, 1, tzinfo=UTC)
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415

    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(p_256, SHA256())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(p_256.public_key())
        .serial_number(1)
        .not_valid_before(made)
        .not_valid_after(made + timedelta(days=1))
        .sign(p_256, SHA256())
    )
    public = p_256.public_key()
    keys = [pem("PUBLIC KEY", spki_of(algorithm)) for algorithm in ALL[:2]]
    for name, data in (
        ("certificate request", request.public_bytes(Encoding.PEM)),
        ("certificate request", request.public_bytes(Encoding.DER)),
        ("certificate with a public key of EC", certificate.public_bytes(Encoding.PEM)),
        ("public key of EC", public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)),
        ("OpenSSH public key", public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)),
        ("a file with 2 parts", b"".join(keys)),
        ("private key of", pem("PRIVATE KEY", pkcs8_of(Algorithm.ML_DSA_65))),
        ("public key of age", b"age1qqqqqqqqqqqq\n"),
        ("1951 bytes", public_key_of(Algorithm.ML_DSA_65)[:-1]),
    ):
        with pytest.raises(UnreadableInputError) as caught:
            inputs.read_public_key(data)
        assert name in caught.value.what, (name, caught.value.what)
    for algorithm, data in zip(ALL[:2], keys, strict=True):
        both = inputs.read_public_key(b"".join(keys), algorithm=algorithm)
        assert both == inputs.read_public_key(data)
    chain = pem("PRIVATE KEY", pkcs8_of(Algorithm.ML_DSA_65)) + pem(
        "CERTIFICATE", certificate_of(Algorithm.ML_DSA_65)
    )
    assert inputs.read_public_key(chain).public_key == public_key_of(Algorithm.ML_DSA_65)
    found = read_private_key(chain, Algorithm.ML_DSA_65)
    assert found.public_key == public_key_of(Algorithm.ML_DSA_65)


def test_a_private_key_with_its_certificates() -> None:
    """A certificate chain must match the key; of several private keys the user must choose one."""
    mine, other = Algorithm.ML_DSA_65, Algorithm.ML_DSA_87
    key = pem("PRIVATE KEY", pkcs8_of(mine))
    wrong = spki_of(mine)[:-1] + bytes((spki_of(mine)[-1] ^ 1,))
    for beside in (
        pem("CERTIFICATE", certificate_of(mine)),
        pem("CERTIFICATE", certificate_of(other)),
    ):
        assert read_private_key(key + beside, mine).public_key == public_key_of(mine)
    with pytest.raises(UnreadableInputError, match="beside a public key or a certificate"):
        read_private_key(pem("PUBLIC KEY", wrong) + key, mine)
    right = pem("PUBLIC KEY", spki_of(mine))  # one of a chain's is enough
    assert read_private_key(pem("PUBLIC KEY", wrong) + right + key, mine).fingerprint
    both = (
        key + pem("PRIVATE KEY", pkcs8_of(other)) + pem("PRIVATE KEY", pkcs8_of(Algorithm.X_WING))
    )
    for algorithm in (mine, other, Algorithm.X_WING):
        assert read_private_key(both, algorithm).public_key == public_key_of(algorithm)
    with pytest.raises(UnreadableInputError, match="a file with 3 parts"):
        read_private_key(both, Algorithm.ML_KEM_768)


def test_what_can_be_converted() -> None:
    """Input that only OpenSSL can read is refused with the command that converts it."""
    der_key = pkcs8_of(Algorithm.ML_DSA_65)
    indefinite = b"\x30\x80" + der_key[2:] + b"\0\0"
    long = b"\x30\x82\0" + der_key[1:]
    for data, what, command in (
        (indefinite, "indefinite length", "openssl pkey -inform DER -in FILE"),
        (pem("PRIVATE KEY", indefinite), "indefinite length", "openssl pkey -in FILE"),
        (long, "shortest form", "openssl pkey -inform DER -in FILE"),
        (b"ML-DSA-65 Private-Key:\nseed:\n    00:01\n", "-text prints", "openssl pkey -in FILE"),
        (pkcs8(Algorithm.ML_DSA_65, bytes(31)), "in no known form", "openssl pkey -in FILE"),
    ):
        with pytest.raises(UnreadableInputError) as caught:
            read_private_key(data, Algorithm.ML_DSA_65)
        assert what in caught.value.what
        assert command in caught.value.next_step


def test_what_a_length_is() -> None:
    """Raw bytes are described by the objects of that length."""
    for size, name in (
        (1088, "a KEM ciphertext of Kyber768"),
        (2400, "an expanded private key of Kyber768"),
        (3309, "a signature of Dilithium3"),
        (2420, "a signature of ML-DSA-44"),
        (800, "a public key of ML-KEM-512"),
    ):
        assert name in inputs.describe(bytes((255,)) * size)
    text = json.dumps({"data": {"public_key": pem("PUBLIC KEY", b"0").decode()}, "request_id": ""})
    assert "a whole response of the API" in inputs.describe(text.encode())
    plain = base64url(public_key_of(Algorithm.ML_KEM_768)).encode("utf-16-le")
    assert inputs.read_public_key(plain).algorithms == ("Kyber768",)
    assert inputs.describe(b"hello".decode().encode("utf-16")).endswith("in UTF-16")


@pytest.mark.parametrize(
    "data",
    [
        b"-" * 200_000,
        b"- BEGIN " * 20_000,
        b"-----BEGIN " * 20_000,
        b"-----BEGIN A-----\n" * 10_000,
        b"-----BEGIN A-----\n" + b"A: b\n" * 40_000 + b"-----END A-----",
        b"> " * 100_000 + b"-----BEGIN",
        b"00:" * 70_000 + b"z",
        b"00 \n" * 50_000 + b"z",
        b" " * 200_000 + b"x",
        b"[" * 200_000,
        b"eyJ." * 50_000,
        b"\x30\x80" * 100_000,
        b"\x30\x83\x06\x00\x00" + b"\x05\x00" * 196_608,
        b"\x30\x83\x03\x00\x0c\x30\x83\x03\x00\x07\x06\x83\x03\x00\x02"
        + b"\xff" * 196_609
        + b"\x01",
    ],
    ids=range(14),
)
def test_no_input_takes_long(data: bytes) -> None:
    """Input that is designed to be slow takes at most a second, and most takes milliseconds."""
    begin = process_time()
    assert inputs.describe(data)
    assert process_time() - begin < 1


def test_a_jwk_set_of_several_keys() -> None:
    """An id selects a key of a JWK Set; without one the error lists the ids."""
    keys = [
        {
            "kty": "AKP",
            "alg": JWK[algorithm],
            "pub": base64url(public_key_of(algorithm)),
            "kid": f"key-{at}",
        }
        for at, algorithm in enumerate(JWK)
    ]
    data = json.dumps({"keys": keys}).encode()
    for at, algorithm in enumerate(JWK):
        found = inputs.read_public_key(data, kid=f"key-{at}")
        assert found.public_key == public_key_of(algorithm)
    with pytest.raises(UnreadableInputError, match=r"kid key-0.*kid key-1"):
        inputs.read_public_key(data)


@pytest.mark.parametrize("algorithm", tuple(SIGNATURE_SIZES))
def test_signatures_alone(algorithm: Algorithm) -> None:
    """A raw signature is read in every form, and recognized by its length."""
    signature = shake_256(algorithm.encode()).digest(SIGNATURE_SIZES[algorithm])
    for name, data in written(signature, None):
        found = inputs.read_signature(data)
        assert isinstance(found, inputs.RawSignature), name
        assert (found.signature, found.algorithm) == (signature, algorithm), name
    for wrong in (signature[:-100], signature + bytes(200), signature[: len(signature) // 2]):
        with pytest.raises(UnreadableInputError, match=f"{len(wrong)} bytes"):
            inputs.read_signature(wrong)
        with pytest.raises(UnreadableInputError, match=f"{len(wrong)} bytes"):
            inputs.require_signature(algorithm, wrong)


def test_json_web_signatures() -> None:
    """A JWS is read in compact form and in JSON; unsupported ones are named."""
    signature = base64url(bytes(3309))

    def compact(header: object, signed: str = signature) -> bytes:
        return f"{base64url(json.dumps(header).encode())}.e30.{signed}".encode()

    header = {"alg": "ML-DSA-65"}
    good = compact(header)
    protected, payload, signed = good.decode().split(".")
    flat = {"protected": protected, "payload": payload, "signature": signed}
    general = {"payload": payload, "signatures": [{"protected": protected, "signature": signed}]}
    for _, data in as_text(good + b"\n"):
        found = inputs.read_signature(data)
        assert isinstance(found, inputs.Jws)
        assert (inputs.jws_algorithm(found), found.content) == ("Dilithium3", b"{}")
    for values in (flat, general):
        found = inputs.read_signature(json.dumps(values).encode())
        assert isinstance(found, inputs.Jws)
        assert found.protected == protected
    for what, data in (
        ("ES256", compact({"alg": "ES256"})),
        ("none", compact({"alg": "none"}, "")),
        ("no alg", compact({})),
        ("critical parameters", compact(header | {"crit": ["b64"], "b64": False})),
        ("3308 bytes", compact(header, base64url(bytes(3308)))),
        ("4627 bytes", compact(header, base64url(bytes(4627)))),
    ):
        found = inputs.read_signature(data)
        assert isinstance(found, inputs.Jws)
        with pytest.raises(UnreadableInputError, match=what):
            inputs.jws_algorithm(found)
    with pytest.raises(UnreadableInputError, match="6 bytes"):
        inputs.jws_algorithm(cast("inputs.Jws", inputs.read_signature(good[:40])))
    for data in (good[:30], good.replace(b".", b"..", 1), b"eyJ!.e30.AA", compact([])):
        with pytest.raises(UnreadableInputError):
            inputs.read_signature(data)


def test_envelopes() -> None:
    """An envelope is read with any line breaks; a truncated one is named."""
    sealed = bytes((1, 0, 0, 0, 1, 7)) + b"default" + bytes(1088 + 28)
    text = f"pqk1.{base64url(sealed)}".encode()
    for _, data in as_text(text + b"\n"):
        if data.startswith((b'"', b"cHFr")):
            continue  # what is in another form is no envelope's file
        assert inputs.read_envelope(data) == text.decode()
    assert inputs.read_envelope(wrapped(text, 64, b"\r\n")) == text.decode()
    for bad in (
        text[:9],
        b"pqk1.",
        b"pqk1.!!",
        text + b"=",
        b"pqk1.AAAA",
        b"",
        b"pqk2.AA",
        text[:-4],
    ):
        with pytest.raises(UnreadableInputError):
            inputs.read_envelope(bad)


SAMPLES = [case for _, _, case in (*private_cases(), *public_cases())][::97]


@settings(max_examples=600, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.text(max_size=200).map(str.encode),
        st.builds(
            lambda sample, at, new, cut: (
                sample[: at % len(sample)] + new + sample[(at % len(sample)) + cut :]
            ),
            st.sampled_from(SAMPLES),
            st.integers(0, 10_000),
            st.binary(max_size=4),
            st.integers(0, 40),
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["kty", "alg", "pub", "priv", "keys", "format", "payload"])
                    | st.text(max_size=3),
                    inner,
                    max_size=5,
                )
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_anything(data: bytes) -> None:
    """Any input is either read or refused with the documented exception."""
    assert inputs.describe(data)
    for read in (
        inputs.read_public_key,
        inputs.read_signature,
        inputs.read_envelope,
        lambda text: inputs.read_document(text, "pqkeep/v1/signature"),
        lambda text: read_private_key(text, Algorithm.ML_DSA_65),
        lambda text: read_private_key(text, Algorithm.COMPOSITE_ML_DSA),
    ):
        with suppress(PqkeepError):
            found = read(data)
            if isinstance(found, inputs.Jws):
                inputs.jws_algorithm(found)


@pytest.mark.parametrize("name", ["default", "k" * 128])
def test_the_key_that_an_envelope_names(name: str) -> None:
    """The header alone names keyring, algorithm and version, also with the longest name."""
    header = bytes((1, 0, 0, 1, 2, len(name))) + name.encode()
    data = header + bytes(1088 + 28)
    text = b"pqk1." + urlsafe_b64encode(data).rstrip(b"=")
    key = inputs.read_envelope_key(text[:50] + b"\n" + text[50:])
    assert key == (name, "Kyber768", 258)
    assert inputs.read_envelope(text) == text.decode()
    damaged = (
        text[:40],
        text[:-1] + b"+",
        b"pqk1." + text[6:],
        text.replace(b"pqk1.AQ", b"pqk1.CQ"),
        b"pqk1." + urlsafe_b64encode(b"\1" + bytes(4) + data[5:]).rstrip(b"="),
    )
    for wrong in damaged:
        with pytest.raises(UnreadableInputError):
            inputs.read_envelope_key(wrong)
    with pytest.raises(UnreadableInputError, match="an envelope of pqkeep is needed"):
        inputs.read_envelope_key(b"text")
