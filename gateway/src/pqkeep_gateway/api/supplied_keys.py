"""Public keys that callers bring, in place of a version of their own key."""

from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from pqkeep_gateway.api.key_fields import ACTIVE_KEY_VERSION, KEY_VERSION
from pqkeep_gateway.api.key_operation import KeyCall
from pqkeep_gateway.http.field import Field, FieldError, InvalidValueError, Problem, decode_base64
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.public_keys import MAX_PEM, NotAPublicKeyError, from_pem

_PEM = "-----BEGIN"
_NONE = "must be base64 of a public key, or its PEM"


@dataclass(frozen=True, slots=True)
class SuppliedKey:
    """A public key; PEM says its algorithm, base64 does not."""

    algorithm: Algorithm | None
    data: bytes

    def bytes_for(self, algorithm: Algorithm) -> bytes:
        """Return the key as the algorithm's standard encodes it. Raises FieldError."""
        if self.algorithm is not None and self.algorithm is not algorithm:
            message = "public_key is another algorithm's"
            raise FieldError("algorithm", Problem.MALFORMED, message)
        size = ALGORITHMS[algorithm].public_key_size
        if len(self.data) != size:
            message = f"public_key must have {size} bytes for {algorithm}"
            raise FieldError("public_key", Problem.MALFORMED, message)
        return self.data


def _parse(value: object) -> SuppliedKey:
    if not isinstance(value, str) or len(value) > MAX_PEM:
        raise InvalidValueError(_NONE)
    if not value.lstrip().startswith(_PEM):
        try:
            return SuppliedKey(None, decode_base64(value))
        except InvalidValueError:
            raise InvalidValueError(_NONE) from None
    try:
        return SuppliedKey(*from_pem(value))
    except NotAPublicKeyError:
        raise InvalidValueError(_NONE) from None


PUBLIC_KEY: Field[SuppliedKey | None] = Field(
    name="public_key",
    description="A public key to use instead of one of yours: base64 of its bytes, or PEM "
    "(SubjectPublicKeyInfo). No key of yours is used then, and the answer has no `key_version`.",
    schema={"type": "string", "maxLength": MAX_PEM},
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
