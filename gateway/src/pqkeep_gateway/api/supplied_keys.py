"""Public keys that callers bring, in place of a version of their own key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from msgspec import UNSET, UnsetType

from pqkeep_gateway.api.key_fields import ACTIVE_KEY_VERSION, KEY_VERSION
from pqkeep_gateway.api.key_operation import KeyCall
from pqkeep_gateway.http.body import STRICT_JSON
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    decode_base64,
    is_hexadecimal,
    kind_of,
)
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm
from pqkeep_protocol.der import form_of
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.public_keys import (
    DO_NOT_SEND,
    MAX_TEXT,
    NotAPublicKeyError,
    from_der,
    from_jwk,
    from_pem,
)

_PEM = "-----BEGIN"
_SSH = ("ssh-", "ecdsa-sha2-", "sk-")
_MUST = "must be a public key: base64 of its bytes or of its DER, PEM, a certificate, or a JWK"
_OTHER_SIZES: Mapping[int, str] = {
    800: "a public key of ML-KEM-512",
    1312: "a public key of ML-DSA-44",
    1632: "a private key of ML-KEM-512",
    2400: "a private key of ML-KEM-768",
    3168: "a private key of ML-KEM-1024",
    2560: "a private key of ML-DSA-44",
    4032: "a private key of ML-DSA-65",
    4896: "a private key of ML-DSA-87",
}
"""What has so many bytes and is no public key of an algorithm that is here (FIPS 203 and 204)."""


@dataclass(frozen=True, slots=True)
class SuppliedKey:
    """A public key. Its document says its algorithm; base64 of the bare bytes does not."""

    algorithm: Algorithm | None
    data: bytes

    def bytes_for(self, algorithm: Algorithm) -> bytes:
        """Return the key as the algorithm's standard encodes it. Raises FieldError."""
        if self.algorithm is not None and self.algorithm is not algorithm:
            message = f"public_key is another algorithm's: of {self.algorithm}, not {algorithm}"
            raise FieldError("algorithm", Problem.MALFORMED, message)
        size, sent = ALGORITHMS[algorithm].public_key_size, len(self.data)
        if sent != size:
            message = f"public_key must have {size:,} bytes for {algorithm}; it has {sent:,}"
            raise FieldError("public_key", Problem.MALFORMED, message + _meaning_of(sent))
        return self.data


def _meaning_of(size: int) -> str:
    """Return what has so many bytes, if that can be told."""
    same = [each for each, spec in ALGORITHMS.items() if spec.public_key_size == size]
    if same:
        return f", as one of {' or '.join(same)}"
    other = _OTHER_SIZES.get(size, "")
    warning = f": {DO_NOT_SEND}" if other.startswith("a private") else ""
    return other and f", as {other}{warning}"


def _parse(value: object) -> SuppliedKey:
    try:
        if isinstance(value, dict):
            return SuppliedKey(*from_jwk(cast("dict[str, object]", value)))
        if isinstance(value, str):
            return _in_text(value)
    except NotAPublicKeyError as error:
        raise InvalidValueError(f"{_MUST}; it is {error}") from None
    raise InvalidValueError(f"{_MUST}, not {kind_of(value)}")


def _in_text(value: str) -> SuppliedKey:
    """Return the key of a text. Raises NotAPublicKeyError and InvalidValueError."""
    if len(value) > MAX_TEXT:
        raise NotAPublicKeyError(f"longer than {MAX_TEXT:,} characters")
    text = value.removeprefix("\N{ZERO WIDTH NO-BREAK SPACE}").strip()
    if not text:
        raise NotAPublicKeyError("empty")
    if _PEM in text:
        return SuppliedKey(*from_pem(text))
    if text.startswith("{"):
        return SuppliedKey(*from_jwk(_object_in(text)))
    if text.startswith(_SSH):
        raise NotAPublicKeyError("a public key of OpenSSH")
    data = decode_base64(value)
    is_bare = any(len(data) == each.public_key_size for each in ALGORITHMS.values())
    if is_hexadecimal(text) and not is_bare:
        raise NotAPublicKeyError("hexadecimal")
    if is_bare or not form_of(memoryview(data)):
        return SuppliedKey(None, data)
    return SuppliedKey(*from_der(data))


def _object_in(text: str) -> Mapping[str, object]:
    try:
        value = STRICT_JSON.decode(text)
    except FieldError as twice:
        raise NotAPublicKeyError(f"JSON in which {twice.message}") from None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise NotAPublicKeyError("no JSON")
    return cast("Mapping[str, object]", value)


PUBLIC_KEY: Field[SuppliedKey | None] = Field(
    name="public_key",
    description="A public key to use instead of one of yours: base64 of its bytes or of its DER "
    "(SubjectPublicKeyInfo), PEM, a certificate, whose key is taken and nothing checked, or a JWK, "
    "as an object or as text. The answer has no `key_version`. If it is a key of yours, it must be "
    "one that could be used by its version.",
    schema={"type": ["string", "object"], "maxLength": MAX_TEXT},
    example="MIIHsjALBglghkgBZQMEAxIDggehAA==",
    parse=_parse,
    required=False,
)

KEY_VERSION_OR_KEY = KEY_VERSION.unless(PUBLIC_KEY)
ACTIVE_KEY_VERSION_OR_KEY = ACTIVE_KEY_VERSION.unless(PUBLIC_KEY)


def key_of(call: KeyCall) -> bytes | None:
    """Return the public key that a call brings, if it does. Raises FieldError."""
    supplied = call[PUBLIC_KEY]
    return None if supplied is None else supplied.bytes_for(call.algorithm)


def version_of(version: KeyVersion | None) -> KeyVersion | UnsetType:
    """Return the version that was used, as an answer has it."""
    return UNSET if version is None else version
