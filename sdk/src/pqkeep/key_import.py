"""Wrapping a private key that was made elsewhere, so that only the key service can read it.

    import_key = client.keys.get_import_key("Dilithium3")
    client.keys.import_key(import_key, wrap(import_key, Path("key.pem").read_bytes()))

It needs the extra ``pqkeep[local]``.
"""

import json
from base64 import b64decode
from collections.abc import Mapping

from pqkeep._data import Data, json_object
from pqkeep.errors import InvalidRequestError, MalformedAnswerError
from pqkeep.models import ImportKey
from pqkeep.resources.keys import import_key_in

try:
    from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM1024PublicKey
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
except ModuleNotFoundError:
    raise ModuleNotFoundError(
        "importing keys is not installed: pip install 'pqkeep[local]'", name="cryptography"
    ) from None

__all__ = ["read_import_key", "wrap"]

SUITE = "ML-KEM-1024, HKDF-SHA-384, AES-256-GCM"
_BEGIN, _END = b"-----BEGIN PRIVATE KEY-----", b"-----END PRIVATE KEY-----"
_BOTH: Mapping[str, tuple[bytes, int]] = {
    "Kyber768": (bytes.fromhex("300b0609608648016503040402"), 64),
    "ML-KEM-1024": (bytes.fromhex("300b0609608648016503040403"), 64),
    "Dilithium3": (bytes.fromhex("300b0609608648016503040312"), 32),
    "ML-DSA-87": (bytes.fromhex("300b0609608648016503040313"), 32),
}
"""AlgorithmIdentifier and bytes of the seed, where a PKCS#8 can hold seed and expanded key."""
_VERSION = bytes.fromhex("020100")
_SEED, _OCTET_STRING, _SEQUENCE = 0x80, 0x04, 0x30
_LONG = bytes.fromhex("82")
"""The first byte of a length of two further bytes."""


def wrap(import_key: ImportKey, private_key: bytes) -> bytes:
    """Wrap a private key, PKCS#8 as PEM or DER without a password, to an import key.

    Of ML-KEM and ML-DSA the seed is taken, which OpenSSL writes before the expanded key. Raises
    InvalidRequestError for what is no such private key, or has no seed.
    """
    if import_key.suite != SUITE:
        raise _invalid(f"the service wraps with {import_key.suite}, which this client has not")
    data = _seed_form(import_key.algorithm, _der(private_key))
    public_key = MLKEM1024PublicKey.from_public_bytes(import_key.public_key)
    suite = Suite(KEM.MLKEM1024, KDF.HKDF_SHA384, AEAD.AES_256_GCM)
    return suite.encrypt(data, public_key, import_key.info)


def read_import_key(document: bytes) -> ImportKey:
    """Read an import key that was saved as JSON, as the portal does.

    Raises InvalidRequestError for what is none.
    """
    try:
        values = json_object(json.loads(document))
        return import_key_in(Data(values or {}, None))
    except (ValueError, RecursionError, MalformedAnswerError):
        pass
    message = "the file is no import key: save it again where it was made"
    raise InvalidRequestError(message, field="import_key")


def _der(private_key: bytes) -> bytes:
    text = private_key.strip()
    if not text.startswith(b"-----"):
        return private_key
    if not (text.startswith(_BEGIN) and text.endswith(_END)):
        raise _invalid("the file is no PEM of one private key without a password")
    try:
        return b64decode(b"".join(text[len(_BEGIN) : -len(_END)].split()), validate=True)
    except ValueError:
        pass
    raise _invalid("the file is no PEM of one private key without a password")


def _seed_form(algorithm: str, data: bytes) -> bytes:
    """Return a PKCS#8 in the form of the seed; the service refuses what is in no known form."""
    if algorithm not in _BOTH:
        return data
    identifier, size = _BOTH[algorithm]
    head = _VERSION + identifier + bytes((_OCTET_STRING, size + 2, _SEED, size))
    seed_form = bytes((_SEQUENCE, len(head) + size)) + head
    if data.startswith(seed_form) and len(data) == len(seed_form) + size:
        return data
    begin = data.find(_VERSION + identifier) + len(_VERSION) + len(identifier)
    private_key, both = data[begin : begin + 4], data[begin + 4 : begin + 8]
    seed = data[begin + 8 : begin + 10]
    is_both = (
        private_key.startswith(bytes((_OCTET_STRING,)) + _LONG)
        and both.startswith(bytes((_SEQUENCE,)) + _LONG)
        and seed == bytes((_OCTET_STRING, size))
    )
    if not is_both:
        raise _invalid(
            f"the file has no seed of a {algorithm} key; only with it can it be imported"
        )
    return seed_form + data[begin + 10 : begin + 10 + size]


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(message, field="private_key")
