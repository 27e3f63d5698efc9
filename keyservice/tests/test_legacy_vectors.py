"""Legacy algorithms give the results of NIST's, RSA's and BoringSSL's vectors."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography_vectors import open_vector_file

from pqkeep_keyservice.crypto import legacy
from pqkeep_keyservice.crypto.dem import DecryptionError
from pqkeep_keyservice.crypto.key_wrapping import PrivateKeyError
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import Algorithm, HashAlgorithm
from pqkeep_protocol.errors import ErrorKind

MIN_BITS = 2048
HASHES: Mapping[str, hashes.HashAlgorithm] = {
    "SHA-256": hashes.SHA256(),
    "SHA-384": hashes.SHA384(),
    "SHA-512": hashes.SHA512(),
}
Values = dict[str, str]


def lines(path: str) -> list[str]:
    with open_vector_file(f"asymmetric/{path}", "r") as file:
        return [line.strip() for line in file]


def decryption_key(algorithm: Algorithm, values: Values) -> legacy.DecryptionKey:
    numbers = {name: int(value, 16) for name, value in values.items() if "rime" in name}
    private = rsa.RSAPrivateNumbers(
        numbers["Prime 1"],
        numbers["Prime 2"],
        int(values["Exponent"], 16),
        numbers["Prime exponent 1"],
        numbers["Prime exponent 2"],
        int(values["Coefficient"], 16),
        rsa.RSAPublicNumbers(int(values["Public exponent"], 16), int(values["Modulus"], 16)),
    ).private_key(unsafe_skip_rsa_key_validation=True)
    data = private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return legacy.DECRYPTION[algorithm].load_seed(Secret(data))


def oaep(path: str) -> Iterator[tuple[Values, bytes, bytes]]:
    """Yield a key, a message and a ciphertext of a file in RSA's format."""
    values: Values = {}
    name = ""
    for line in lines(path):
        label = re.fullmatch(r"# ([A-Za-z0-9 ]+):", line)
        if label:
            name = label[1]
            values[name] = ""
        elif line.startswith("#"):
            if values.get("Encryption"):
                yield values, bytes.fromhex(values["Message"]), bytes.fromhex(values["Encryption"])
                values["Encryption"] = ""
        else:
            values[name] = values.get(name, "") + line.replace(" ", "")


@pytest.mark.parametrize(
    ("algorithm", "path"),
    [
        ("RSA-OAEP-SHA-1", "RSA/pkcs-1v2-1d2-vec/oaep-vect.txt"),
        ("RSA-OAEP-SHA-256", "RSA/oaep-custom/oaep-sha256-sha256.txt"),
        ("RSA-OAEP-SHA-384", "RSA/oaep-custom/oaep-sha384-sha384.txt"),
        ("RSA-OAEP-SHA-512", "RSA/oaep-custom/oaep-sha512-sha512.txt"),
    ],
)
def test_oaep_decrypts(algorithm: str, path: str) -> None:
    """Each ciphertext decrypts to its message, and does not with a label or another hash."""
    count = 0
    for values, message, ciphertext in oaep(path):
        key = decryption_key(Algorithm(algorithm), values)
        assert key.decrypt(ciphertext, b"") == message
        with pytest.raises(DecryptionError):
            key.decrypt(ciphertext, b"a label")
        other = next(name for name in legacy.DECRYPTION if name != algorithm)
        with pytest.raises(DecryptionError):
            decryption_key(other, values).decrypt(ciphertext, b"")
        count += 1
    assert count >= 50


def test_a_label_of_another_implementation() -> None:
    """BoringSSL's ciphertext with a label decrypts only with the label."""
    read = dict(line.split(" = ", 1) for line in lines("RSA/oaep-label.txt") if " = " in line)
    public, stored = legacy.DECRYPTION[Algorithm.RSA_OAEP_SHA_512].adopt(
        Secret(bytes.fromhex(read["KEY"]))
    )
    key = legacy.DECRYPTION[Algorithm.RSA_OAEP_SHA_512].load_seed(stored)
    assert key.public_bytes() == public
    ciphertext, label = bytes.fromhex(read["Input"]), bytes.fromhex(read["OAEPLabel"])
    assert key.decrypt(ciphertext, label) == read["Output"].strip('"').encode()
    for other in (b"", label[1:]):
        with pytest.raises(DecryptionError):
            key.decrypt(ciphertext, other)


def test_a_key_for_pss_does_nothing_else() -> None:
    """Documents with the algorithm RSASSA-PSS (RFC 4055) are keys of RSA-PSS only."""
    with open_vector_file("asymmetric/PKCS8/rsa_pss_2048.pem", "r") as file:
        private = b64decode("".join(file.read().split("-----")[2].split()))
    with open_vector_file("asymmetric/PKCS8/rsa_pss_2048_pub.der", "rb") as file:
        public = file.read()
    for algorithm, scheme in {**legacy.DECRYPTION, **legacy.VERIFICATION}.items():
        data = private if algorithm in legacy.DECRYPTION else public
        if "PSS" in algorithm:
            scheme.adopt(Secret(data))
            continue
        with pytest.raises(PrivateKeyError) as refused:
            scheme.adopt(Secret(data))
        assert refused.value.kind is ErrorKind.PRIVATE_KEY_ALGORITHM


def responses(path: str) -> Iterator[tuple[str, Values]]:
    """Yield the heading and the values of each case of a file of NIST's CAVS."""
    heading, values = "", Values()
    for line in lines(path):
        if line.startswith("["):
            heading, values = line.strip("[]"), {}
        elif " = " in line:
            name, value = line.split(" = ", 1)
            values[name] = value
            if name == "Result":
                yield heading, dict(values)


@pytest.mark.parametrize(
    ("family", "path"),
    [
        ("RSA-PKCS1", "RSA/FIPS_186-2/SigVer15_186-3.rsp"),
        ("RSA-PSS", "RSA/FIPS_186-2/SigVerPSS_186-3.rsp"),
    ],
)
def test_rsa_verifies(family: str, path: str) -> None:
    """Each signature of NIST is valid exactly if NIST says so."""
    count = 0
    for heading, values in responses(path):
        hash_name = re.sub(r"^SHA", "SHA-", values["SHAAlg"])
        if hash_name not in HASHES or int(heading.split("=")[1]) < MIN_BITS:
            continue
        numbers = rsa.RSAPublicNumbers(int(values["e"], 16), int(values["n"], 16))
        data = numbers.public_key().public_bytes(Encoding.DER, PublicFormat.PKCS1)
        public = legacy.VERIFICATION[Algorithm(f"{family}-{hash_name}")].load_public(data)
        message = bytes.fromhex(values["Msg"])
        _require(public, values, HashAlgorithm(hash_name), message, bytes.fromhex(values["S"]))
        count += 1
    assert count >= 30


def test_ecdsa_verifies() -> None:
    """Each signature of NIST is valid exactly if its vector says so, in DER and as r || s."""
    count = 0
    for heading, values in responses("ECDSA/FIPS_186-3/SigVer.rsp"):
        curve, hash_name = heading.split(",")
        if curve not in {"P-256", "P-384", "P-521"} or hash_name not in HASHES:
            continue
        size = (int(curve[2:]) + 7) // 8
        point = b"".join(int(values[name], 16).to_bytes(size) for name in ("Qx", "Qy"))
        r, s = (int(values[name], 16) for name in ("R", "S"))
        message = bytes.fromhex(values["Msg"])
        scheme = legacy.VERIFICATION[Algorithm(f"ECDSA-{curve}")]
        try:
            public = scheme.load_public(b"\x04" + point)
        except ValueError:
            assert values["Result"].startswith("F")
            continue
        for signature in (encode_dss_signature(r, s), r.to_bytes(size) + s.to_bytes(size)):
            _require(public, values, HashAlgorithm(hash_name), message, signature)
        count += 1
    assert count >= 100


def _require(
    public: legacy.VerifyingKey,
    values: Values,
    hash_algorithm: HashAlgorithm,
    message: bytes,
    signature: bytes,
) -> None:
    hasher = hashes.Hash(HASHES[hash_algorithm])
    hasher.update(message)
    try:
        public.verify_digest(signature, hasher.finalize(), hash_algorithm)
        is_valid = True
    except InvalidSignature:
        is_valid = False
    assert is_valid is values["Result"].startswith("P"), values
