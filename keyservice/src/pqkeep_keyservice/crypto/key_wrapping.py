"""Wraps private keys for their import: HPKE (RFC 9180) to an import key for a single use.

    ML-KEM-1024, HKDF-SHA-384, AES-256-GCM (draft-ietf-hpke-pq); base mode, no associated data
    wrapped = encapsulated key (1568) || ciphertext || tag (16)

The info names the private key's purpose, so that it cannot be imported for another purpose.

The wrapped content is a private key as PKCS#8 (RFC 5958). It is decoded to the stored seed. Keys of
legacy algorithms have other documents, which legacy.py decodes.

    OneAsymmetricKey = SEQUENCE { version, AlgorithmIdentifier, OCTET STRING { private key },
                                  [0] attributes OPTIONAL, [1] public key OPTIONAL }
    private key      = [0] { seed }                             ML-KEM (RFC 9935), ML-DSA (RFC 9881)
                     = SEQUENCE { seed, expanded private key }  of the same
                     = the stored form itself       of SLH-DSA (RFC 9909), X-Wing, Composite-ML-DSA

A seed may be in one more OCTET STRING, or bare without a tag: its size tells. Attributes are
ignored. All other statements about the key must agree with its seed. An expanded key is compared as
far as that needs no expansion of the seed: ek, H(ek) and z of ML-KEM (FIPS 203, algorithm 16), rho,
K and tr of ML-DSA (FIPS 204, algorithm 6).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha3_256, shake_256
from hmac import compare_digest
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM1024PrivateKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm
from pqkeep_protocol.der import (
    BIT_STRING,
    INTEGER,
    OCTET_STRING,
    SEQUENCE,
    DerError,
    Element,
    elements,
    only,
)
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyringName
from pqkeep_protocol.public_keys import algorithm_identifier

SUITE = Suite(KEM.MLKEM1024, KDF.HKDF_SHA384, AEAD.AES_256_GCM)


class UnwrappingError(Exception):
    """The data was not wrapped to this key for this purpose. The error carries nothing more."""


class ImportKey:
    """The private half of an import key."""

    __slots__ = ("_seed", "public_key")

    def __init__(self) -> None:
        """Generate a key pair; the public key has 1568 bytes."""
        private = MLKEM1024PrivateKey.generate()
        self.public_key = private.public_key().public_bytes_raw()
        self._seed = Secret(private.private_bytes_raw())

    def unwrap(self, wrapped: bytes, info: bytes) -> Secret:
        """Return the unwrapped private key, and wipe the import key. Raises UnwrappingError."""
        with self._seed:
            private = MLKEM1024PrivateKey.from_seed_bytes(self._seed.reveal())
            try:
                return Secret(SUITE.decrypt(wrapped, private, info))
            except (InvalidTag, ValueError):
                raise UnwrappingError from None

    def wipe(self) -> None:
        """Overwrite the private half."""
        self._seed.wipe()


def import_info(import_key_id: UUID, algorithm: Algorithm, keyring: KeyringName) -> bytes:
    """Return the HPKE info: four lines."""
    lines = ("pqkeep/v1/import-key", str(import_key_id), algorithm.value, keyring)
    return "".join(f"{line}\n" for line in lines).encode("ascii")


SEED_SIZE: Mapping[Algorithm, int] = {
    Algorithm.ML_KEM_768: 64,
    Algorithm.X_WING: 32,
    Algorithm.ML_KEM_1024: 64,
    Algorithm.ML_DSA_65: 32,
    Algorithm.COMPOSITE_ML_DSA: 83,
    Algorithm.ML_DSA_87: 32,
    Algorithm.SLH_DSA_SHA2_128S: 64,
    Algorithm.SLH_DSA_SHA2_128F: 64,
    Algorithm.SLH_DSA_SHA2_192S: 96,
    Algorithm.SLH_DSA_SHA2_256S: 128,
}
"""Bytes of a stored private key."""
EXPANDED_SIZE: Mapping[Algorithm, int] = {
    Algorithm.ML_KEM_768: 2400,
    Algorithm.ML_KEM_1024: 3168,
    Algorithm.ML_DSA_65: 4032,
    Algorithm.ML_DSA_87: 4896,
}
"""Bytes of an expanded private key, if the standard has other forms beside the seed."""

_SEED, _ATTRIBUTES, _PUBLIC_KEY, _EXPLICIT_PUBLIC_KEY = 0x80, 0xA0, 0x81, 0xA1
_VERSIONS = (b"\x00", b"\x01")
_DIMENSIONS: Mapping[Algorithm, bytes] = {
    Algorithm.ML_DSA_65: bytes((6, 5)),
    Algorithm.ML_DSA_87: bytes((8, 7)),
}
"""k and l of FIPS 204, table 1."""


class PrivateKeyError(Exception):
    """The document is not a private key that can be stored. The error carries only the kind."""

    def __init__(self, kind: ErrorKind) -> None:
        super().__init__(kind)  # so that it can come from a worker process
        self.kind = kind


@dataclass(frozen=True, slots=True, repr=False)
class PrivateKey:
    """A seed, and its document's statements about the public key."""

    seed: Secret
    public_keys: tuple[bytes, ...] = ()
    """Complete public keys."""
    rho_and_tr: bytes = b""
    """For an expanded ML-DSA key: the start of its public key, and the public key's hash."""

    def require(self, public_key: bytes) -> None:
        """Raise PrivateKeyError unless the document's statements match the seed's public key."""
        is_same = all(stated == public_key for stated in self.public_keys)
        if self.rho_and_tr:
            is_same &= self.rho_and_tr == public_key[:32] + shake_256(public_key).digest(64)
        if not is_same:
            raise PrivateKeyError(ErrorKind.PRIVATE_KEY_CONTRADICTION)


def decode_pkcs8(algorithm: Algorithm, data: Secret) -> PrivateKey:
    """Return a document's private key, which must be of this algorithm. Raises PrivateKeyError.

    ``PrivateKey.require`` compares the document's public key with the seed's.
    """
    try:
        parts = elements(only(data.reveal(), SEQUENCE))
        content = _content(algorithm, parts)
        stated = tuple(_public_key(part) for part in parts[3:] if part.tag != _ATTRIBUTES)
        return _decoded(algorithm, content, stated)
    except DerError:
        raise PrivateKeyError(ErrorKind.PRIVATE_KEY_MALFORMED) from None


def _content(algorithm: Algorithm, parts: Sequence[Element]) -> memoryview:
    """Return the document's private key field. Raises DerError and PrivateKeyError."""
    tags = [part.tag for part in parts]
    if tags[:3] != [INTEGER, SEQUENCE, OCTET_STRING] or bytes(parts[0].content) not in _VERSIONS:
        raise DerError("not PKCS#8")
    if tags[3:] not in _OPTIONAL_PARTS:
        raise DerError("unknown parts")
    if bytes(parts[1].whole) != algorithm_identifier(algorithm):
        raise PrivateKeyError(ErrorKind.PRIVATE_KEY_ALGORITHM)
    return parts[2].content


_OPTIONAL_PARTS: Sequence[Sequence[int]] = (
    [],
    [_ATTRIBUTES],
    [_PUBLIC_KEY],
    [_EXPLICIT_PUBLIC_KEY],
    [_ATTRIBUTES, _PUBLIC_KEY],
    [_ATTRIBUTES, _EXPLICIT_PUBLIC_KEY],
)


def _public_key(part: Element) -> bytes:
    """Return the public key of an optional part: a bit string. Some writers tag it twice."""
    bits = part.content if part.tag == _PUBLIC_KEY else only(part.content, BIT_STRING)
    if bytes(bits[:1]) != b"\0":
        raise DerError("not whole bytes")
    return bytes(bits[1:])


def _decoded(algorithm: Algorithm, content: memoryview, stated: tuple[bytes, ...]) -> PrivateKey:
    size, expanded_size = SEED_SIZE[algorithm], EXPANDED_SIZE.get(algorithm)
    if len(content) == size:
        return PrivateKey(_secret(content), stated)
    if expanded_size is None:
        return PrivateKey(_secret(_of_size(only(content, OCTET_STRING), size)), stated)
    public_size = ALGORITHMS[algorithm].public_key_size
    if len(content) in (expanded_size, expanded_size + public_size):
        raise PrivateKeyError(ErrorKind.PRIVATE_KEY_WITHOUT_SEED)
    (inner,) = _single(content)
    if inner.tag == SEQUENCE:
        return _seed_and_expanded(algorithm, elements(inner.content), stated)
    if inner.tag == OCTET_STRING and len(inner.content) == expanded_size:
        raise PrivateKeyError(ErrorKind.PRIVATE_KEY_WITHOUT_SEED)
    if inner.tag not in (_SEED, OCTET_STRING):
        raise DerError("unknown form")
    return PrivateKey(_secret(_of_size(inner.content, size)), stated)


def _seed_and_expanded(
    algorithm: Algorithm, parts: Sequence[Element], stated: tuple[bytes, ...]
) -> PrivateKey:
    """Return the private key of a seed and its expanded key, after a comparison of both."""
    if [part.tag for part in parts] != [OCTET_STRING, OCTET_STRING]:
        raise DerError("unknown form")
    seed = _of_size(parts[0].content, SEED_SIZE[algorithm])
    expanded = _of_size(parts[1].content, EXPANDED_SIZE[algorithm])
    if algorithm in _DIMENSIONS:
        secret = shake_256(bytes(seed) + _DIMENSIONS[algorithm]).digest(128)[96:]
        is_same = compare_digest(secret, expanded[32:64])
        rho_and_tr = bytes(expanded[:32]) + bytes(expanded[64:128])
        private_key = PrivateKey(_secret(seed), stated, rho_and_tr)
    else:
        ek = bytes(expanded[-64 - ALGORITHMS[algorithm].public_key_size : -64])
        is_same = compare_digest(expanded[-64:], sha3_256(ek).digest() + bytes(seed[32:]))
        private_key = PrivateKey(_secret(seed), (*stated, ek))
    if not is_same:
        private_key.seed.wipe()
        raise PrivateKeyError(ErrorKind.PRIVATE_KEY_CONTRADICTION)
    return private_key


def _single(content: memoryview) -> Sequence[Element]:
    parts = elements(content)
    if len(parts) != 1:
        raise DerError("another number of elements")
    return parts


def _of_size(data: memoryview, size: int) -> memoryview:
    if len(data) != size:
        raise DerError("another size")
    return data


def _secret(data: memoryview) -> Secret:
    return Secret(bytearray(data))
