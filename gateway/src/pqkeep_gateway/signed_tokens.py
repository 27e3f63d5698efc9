"""Signed tokens of workloads (JWT, RFC 7519) and the keys of their issuers (JWK, RFC 7517). No I/O.

The gateway reads and compares. The key service verifies the signature: see
``pqkeep_protocol.messages.VerifySignature``. No message repeats the value of a claim.
"""

import string
from base64 import urlsafe_b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct

from pqkeep_protocol.algorithms import MAX_GIVEN_KEY, MAX_GIVEN_SIGNATURE, GivenKeyAlgorithm
from pqkeep_protocol.documents import MalformedDocumentError, decode_json
from pqkeep_protocol.messages import RedactedRepr

MAX_TOKEN = 12 * 1024
"""Characters of a token. One that ML-DSA-87 signs has 6,170 for its signature."""
MAX_JWKS = 64 * 1024
"""Bytes of a fetched set of keys."""
MAX_KEYS = 64
"""Keys of a set; further ones are ignored."""
SKEW_SECONDS = 60
"""The accepted difference of an issuer's clock."""
PREFIX = "*"
_PARTS = 3
_BASE64URL = frozenset(string.ascii_letters + string.digits + "-_")
_TYPES = frozenset({"jwt", "at+jwt"})
"""Types of tokens (RFC 8725, section 3.11). Other signed statements have types of their own."""
_P_256_SIZE = 32
_ED25519_SIZE = 32
_ES256_SIGNATURE = 64
_ML_DSA = {
    GivenKeyAlgorithm.ML_DSA_44: (0x11, 1312),
    GivenKeyAlgorithm.ML_DSA_65: (0x12, 1952),
    GivenKeyAlgorithm.ML_DSA_87: (0x13, 2592),
}
"""The last number of each OID (2.16.840.1.101.3.4.3.17 to 19), and the size of a public key."""


class InvalidTokenError(Exception):
    """A text is not a signed token. The message completes "subject_token …"."""


class InvalidKeySetError(Exception):
    """A document is not a set of keys. The message completes "jwks …"."""


class RefusedTokenError(Exception):
    """A token has a valid signature and does not fit its role. The message names the claim."""


_Seconds = Annotated[float, Meta(ge=0, le=253_402_300_799)]
"""Seconds since 1970, UTC, until the end of the year 9999."""


class _Header(Struct, frozen=True):
    alg: str
    kid: str | None = None
    typ: str | None = None
    crit: object = None


class _Registered(Struct, frozen=True):
    """The claims that every token of a workload has."""

    iss: str
    sub: Annotated[str, Meta(min_length=1, max_length=1024)]
    aud: str | tuple[str, ...]
    exp: _Seconds
    nbf: _Seconds | None = None
    iat: _Seconds | None = None


@dataclass(frozen=True, slots=True)
class SignedToken:
    """A token with an unchecked signature."""

    algorithm: str
    key_id: str | None
    claims: Mapping[str, object] = field(repr=False)
    registered: _Registered = field(repr=False)
    message: bytes = field(repr=False)
    """The signed bytes."""
    signature: bytes = field(repr=False)

    @property
    def digest(self) -> bytes:
        """SHA-256 of the signed bytes. Some signatures can be changed and stay valid."""
        return sha256(self.message).digest()


class PublicKey(RedactedRepr, Struct, frozen=True):
    """A key of an issuer that verifies one algorithm."""

    algorithm: GivenKeyAlgorithm
    key_id: str | None
    spki: bytes
    """SubjectPublicKeyInfo in DER."""


class _Jwk(Struct, frozen=True):
    kty: str
    kid: str | None = None
    alg: str | None = None
    use: str | None = None
    key_ops: tuple[str, ...] | None = None
    crv: str | None = None
    x: str = ""
    y: str = ""
    n: str = ""
    e: str = ""
    pub: str = ""


class _KeySet(Struct, frozen=True):
    keys: tuple[msgspec.Raw, ...]


class Condition(NamedTuple):
    """One condition on a claim."""

    claim: str
    """The claim's name, or a JSON Pointer (RFC 6901) into the claims, which begins with a slash."""
    values: tuple[str, ...]
    """Accepted values, of which one must fit: exact texts, or beginnings followed by ``*``."""

    def holds(self, claims: Mapping[str, object]) -> bool:
        """Return whether the claim, or a member of its list, has one of the values."""
        stated = _value_at(claims, self.claim)
        texts = map(_text_of, stated if isinstance(stated, list) else [stated])
        return any(text is not None and self._accepts(text) for text in texts)

    def _accepts(self, text: str) -> bool:
        return any(
            text.startswith(value[:-1]) if value.endswith(PREFIX) else text == value
            for value in self.values
        )


def base64url(text: str) -> bytes:
    """Decode base64url without padding (RFC 7515). Raises ValueError.

    The standard library would skip invalid characters.
    """
    if not _BASE64URL.issuperset(text):
        raise ValueError("not base64url")
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def read_token(text: str) -> SignedToken:
    """Return a token in the compact serialization (RFC 7515). Raises InvalidTokenError."""
    parts = text.split(".")
    if len(parts) != _PARTS or not all(parts[:2]):
        raise InvalidTokenError("must be a signed JWT: three parts with dots between them")
    try:
        header = decode_json(base64url(parts[0]), _Header)
        claims = decode_json(base64url(parts[1]), dict[str, object])
        signature = base64url(parts[2])
    except ValueError:
        raise InvalidTokenError("must be a signed JWT: JSON objects in base64url") from None
    if header.crit is not None:
        raise InvalidTokenError("has critical header parameters, which are not supported")
    if header.typ is not None and header.typ.lower().removeprefix("application/") not in _TYPES:
        raise InvalidTokenError("must be a JWT, and its header names another type")
    try:
        registered = msgspec.convert(claims, _Registered)
    except (msgspec.ValidationError, OverflowError):
        raise InvalidTokenError("must have the claims iss, sub, aud and exp") from None
    if header.alg == GivenKeyAlgorithm.ES256 and len(signature) != _ES256_SIGNATURE:
        raise InvalidTokenError("must have a signature of 64 bytes (RFC 7518, section 3.4)")
    if len(signature) > MAX_GIVEN_SIGNATURE:  # not a frame of the key service
        raise InvalidTokenError("has a signature that is too long for its algorithm")
    message = ".".join(parts[:2]).encode()
    return SignedToken(header.alg, header.kid, claims, registered, message, signature)


def check_claims(
    token: SignedToken, audience: str, conditions: Sequence[Condition], now: float
) -> None:
    """Check a token's audience, times and claims. Raises RefusedTokenError."""
    claims = token.registered
    audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud
    if audience not in audiences:
        raise RefusedTokenError("its aud is not the issuer's audience")
    if not now < claims.exp + SKEW_SECONDS:
        raise RefusedTokenError("it has expired")
    if not max(claims.nbf or 0, claims.iat or 0) <= now + SKEW_SECONDS:
        raise RefusedTokenError("it is not valid yet")
    for condition in conditions:
        if not condition.holds(token.claims):
            raise RefusedTokenError(f"its claim {condition.claim} does not fit the role")


def keys_in(document: bytes | str) -> tuple[PublicKey, ...]:
    """Return the keys of a set that can verify tokens. Raises InvalidKeySetError.

    Keys of other kinds and malformed ones are ignored, as RFC 7517 asks (section 5). A key of RSA
    without an algorithm verifies RS256 and PS256.
    """
    try:
        listed = decode_json(document, _KeySet).keys
    except MalformedDocumentError:
        raise InvalidKeySetError("must be a JWK Set: an object with a list of keys") from None
    return tuple(key for raw in listed[:MAX_KEYS] for key in _keys_of(raw))


def candidates(keys: Sequence[PublicKey], token: SignedToken) -> tuple[PublicKey, ...]:
    """Return the keys that may have signed a token: by its algorithm and key id.

    A token without a key id fits only an issuer with one key of its algorithm.
    """
    fitting = tuple(key for key in keys if key.algorithm == token.algorithm)
    if token.key_id is None:
        return fitting if len(fitting) == 1 else ()
    return tuple(key for key in fitting if key.key_id == token.key_id)[:1]


def _keys_of(raw: msgspec.Raw) -> list[PublicKey]:
    try:
        jwk = decode_json(raw, _Jwk)
        found = _material(jwk)
    except ValueError:
        return []
    if jwk.use not in (None, "sig") or "verify" not in (jwk.key_ops or ("verify",)):
        return []
    return [
        PublicKey(algorithm, jwk.kid, spki)
        for algorithm, spki in found
        if len(spki) <= MAX_GIVEN_KEY
        and (jwk.alg in (None, algorithm.value) or (jwk.alg == "Ed25519" and jwk.crv == "Ed25519"))
    ]


def _material(jwk: _Jwk) -> list[tuple[GivenKeyAlgorithm, bytes]]:
    """Return the algorithms of a key, with its SubjectPublicKeyInfo. Raises ValueError."""
    match jwk.kty:
        case "EC" if jwk.crv == "P-256":
            point = b"\x04" + _sized(jwk.x, _P_256_SIZE) + _sized(jwk.y, _P_256_SIZE)
            return [(GivenKeyAlgorithm.ES256, _spki(_EC_P_256, point))]
        case "OKP" if jwk.crv == "Ed25519":
            return [(GivenKeyAlgorithm.EDDSA, _spki(_ED25519, _sized(jwk.x, _ED25519_SIZE)))]
        case "RSA":
            numbers = (int.from_bytes(base64url(text)) for text in (jwk.n, jwk.e))
            spki = _spki(_RSA, _der(0x30, b"".join(map(_integer, numbers))))
            return [(GivenKeyAlgorithm.RS256, spki), (GivenKeyAlgorithm.PS256, spki)]
        case "AKP" if jwk.alg in _ML_DSA:
            algorithm = GivenKeyAlgorithm(jwk.alg)
            last, size = _ML_DSA[algorithm]
            oid = _der(0x06, bytes.fromhex("6086480165030403") + bytes([last]))
            return [(algorithm, _spki(oid, _sized(jwk.pub, size)))]
        case _:
            return []


_EC_P_256 = bytes.fromhex("06072a8648ce3d020106082a8648ce3d030107")
"""The OIDs of elliptic-curve keys and of P-256 (RFC 5480)."""
_ED25519 = bytes.fromhex("06032b6570")
"""The OID of Ed25519 (RFC 8410)."""
_RSA = bytes.fromhex("06092a864886f70d0101010500")
"""The OID of RSA keys and NULL (RFC 8017, A.1)."""


def _spki(algorithm: bytes, key: bytes) -> bytes:
    return _der(0x30, _der(0x30, algorithm) + _der(0x03, b"\0" + key))


def _integer(number: int) -> bytes:
    return _der(0x02, number.to_bytes(number.bit_length() // 8 + 1))


def _der(tag: int, content: bytes) -> bytes:
    """Return an element in DER: tag, length, content."""
    size = len(content)
    if size < 0x80:  # noqa: PLR2004 - the short form
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + content


def _sized(text: str, size: int) -> bytes:
    value = base64url(text)
    if len(value) != size:
        raise ValueError("wrong size")
    return value


def _value_at(claims: Mapping[str, object], name: str) -> object:
    """Return a claim's value, or the value at a JSON Pointer; None if it is missing."""
    if not name.startswith("/"):
        return claims.get(name)
    value: object = claims
    for part in name[1:].split("/"):
        if not isinstance(value, dict):
            return None
        value = value.get(part.replace("~1", "/").replace("~0", "~"))
    return value


def _text_of(value: object) -> str | None:
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case _:
            return None
