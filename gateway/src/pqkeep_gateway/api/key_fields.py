"""The fields of key operations, and values that several of their responses share."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, TypeVar, cast

import pybase64
from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    base64_field,
    boolean_field,
    choice_field,
    decode_base64,
    decode_base64_into_buffer,
    integer_field,
    text_field,
    time_field,
)
from pqkeep_gateway.http.text import Base64, base64, base64_pattern
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    ALIASES,
    DIGEST_SIZE,
    LEGACY,
    MAX_ASSOCIATED_DATA,
    MAX_CONTEXT,
    MAX_DERIVATION_CONTEXT,
    MU_SIZE,
    RESERVED_CONTEXT,
    SYMMETRIC_KEY_SIZES,
    VERIFIED_HASH,
    Algorithm,
    HashAlgorithm,
    Kind,
    Operation,
)
from pqkeep_protocol.keys import (
    DEFAULT_KEYRING,
    DEFAULT_SHARD,
    KEYRING_NAME,
    MAX_DISABLED_DAYS,
    MAX_KEY_VERSION,
    MAX_KEYRING_NAME,
    MAX_RECORDED_NAME,
    SHARD_NAME,
    KeyringName,
    KeyStatus,
    KeyVersion,
    RecordedName,
)
from pqkeep_protocol.messages import (
    JWS_TYPE,
    MAX_JWS_TYPE,
    MAX_WORDS,
    CiphertextFormat,
    DataKeySize,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_PLAINTEXT = MAX_MESSAGE = 1_048_576
MAX_SIGNATURE = 65_536
MAX_CIPHERTEXT = MAX_PLAINTEXT + 4096
"""Bytes of a ciphertext: the largest plaintext, and more than any algorithm's overhead."""
MAX_KEM_CIPHERTEXT = 4096
MAX_WRAPPED_KEY = 8192
MAX_MAC = 1024
SHARED_SECRET_SIZE = 32

KEM_CIPHERTEXT_SIZE: Mapping[Algorithm, int] = {
    algorithm: spec.output_size
    for algorithm, spec in ALGORITHMS.items()
    if Operation.DECAPSULATE in spec.operations
}
"""Bytes of a KEM ciphertext."""
WRAPPED_KEY_SIZES: Mapping[Algorithm, frozenset[int]] = {
    algorithm: frozenset(spec.overhead + size for size in SYMMETRIC_KEY_SIZES)
    for algorithm, spec in ALGORITHMS.items()
    if Operation.WRAP in spec.operations
}
"""Bytes of a wrapped key for each size of symmetric key."""


class KeyResponse(Data, frozen=True, kw_only=True):
    """Base of the responses of key operations."""

    keyring: (
        Annotated[str, Meta(description="The keyring, if the request names one or lists all.")]
        | UnsetType
    ) = UNSET


A = TypeVar("A", bound=KeyResponse)


def naming(response: A, values: Mapping[str, object]) -> A:
    """Return a response with the request's keyring, if any, and its name for the algorithm."""
    keyring = values.get(KEYRING.name)
    alias = alias_in(values) if "algorithm" in values else None
    if not (keyring or alias):
        return response
    names = {"keyring": keyring, "algorithm": alias}
    return structs.replace(
        response,
        **{
            name: value
            for name, value in names.items()
            if value is not None and name in response.__struct_fields__
        },
    )


def alias_in(values: Mapping[str, object]) -> Algorithm | None:
    """Return the alias that a request uses for an algorithm; None if it uses none."""
    named = values.get("algorithm")
    return cast("Algorithm", named) if isinstance(named, str) and named in ALIASES else None


class Mode(StrEnum):
    """Both modes are randomized."""

    STANDARD = "standard"
    DETERMINISTIC = "deterministic"


class DataKeyFormat(StrEnum):
    """The forms of an encrypted data key."""

    WRAPPED_KEY = "wrapped_key"
    CIPHERTEXT = "ciphertext"
    ENVELOPE = "envelope"


is_keyring_name = re.compile(KEYRING_NAME).fullmatch
"""A function that matches a valid keyring name."""


def keyring_field(name: str, description: str, *, not_found: str = "") -> Field[KeyringName]:
    """Return a field for a keyring's name.

    ``not_found``: the message for an invalid name, with 404.
    """
    return _name_field(name, description, "payments.cards", MAX_KEYRING_NAME, not_found)


def words_of(field: Field[str | None], text: str | None) -> tuple[str, ...]:
    """Return the words of a field's text. Raises FieldError."""
    words = tuple((text or "").split())
    if len(words) > MAX_WORDS:
        message = f"{field.name} must have at most {MAX_WORDS} words"
        raise FieldError(field.name, Problem.MALFORMED, message)
    return words


def recorded_name_field(
    name: str, description: str, example: str, *, not_found: str = ""
) -> Field[RecordedName]:
    """Return a field for the name of a rule or campaign.

    ``not_found``: the message for an invalid name, with 404.
    """
    return _name_field(name, description, example, MAX_RECORDED_NAME, not_found)


def _name_field(
    name: str, description: str, example: str, at_most: int, not_found: str
) -> Field[str]:
    message = not_found or (
        f"must be 1 to {at_most} characters of A-Z a-z 0-9 _ . -, the first a letter, a digit or _"
    )
    problem = Problem.NOT_FOUND if not_found else Problem.MALFORMED

    def parse(value: object) -> str:
        if not (isinstance(value, str) and is_keyring_name(value) and len(value) <= at_most):
            raise InvalidValueError(message, problem)
        return value

    schema = {"type": "string", "pattern": f"^[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{at_most - 1}}}$"}
    return Field(
        name=name,
        description=description,
        schema=schema,
        example=example,
        parse=parse,
        problems=frozenset({problem}),
    )


KEYRING = keyring_field(
    "keyring", f"The keyring of the key. Left out: `{DEFAULT_KEYRING}`."
).optional()


def keyring_named(values: Mapping[str, object]) -> KeyringName:
    """Return the request's keyring, or the default. Raises FieldError."""
    return KEYRING.read(values) or DEFAULT_KEYRING


CAMPAIGN = recorded_name_field(
    "campaign", "The campaign that the re-encryption belongs to. It must be open.", "cards-2026"
).optional()


def exact_base64(exact: Iterable[int]) -> dict[str, object]:
    """Return the schema of base64 with exact sizes in bytes."""
    return {"type": "string", "contentEncoding": "base64", "pattern": base64_pattern(exact)}


def sizes(of: Mapping[Algorithm, int]) -> str:
    """Return the sizes as text."""
    return ", ".join(f"{size:,} bytes for {algorithm}" for algorithm, size in of.items())


_SYMMETRIC_KEY_SIZES = ", ".join(str(size) for size in sorted(SYMMETRIC_KEY_SIZES)) + " bytes"
_NO_SYMMETRIC_KEY = f"must be base64 of {_SYMMETRIC_KEY_SIZES}"


def _parse_symmetric_key(value: object) -> bytearray:
    data = decode_base64_into_buffer(value)
    if len(data) not in SYMMETRIC_KEY_SIZES:
        raise InvalidValueError(_NO_SYMMETRIC_KEY)
    return data


def _parse_mu(value: object) -> bytes:
    mu = decode_base64(value)
    if len(mu) != MU_SIZE:
        raise InvalidValueError(f"must be base64 of {MU_SIZE} bytes")
    return mu


def _or_empty(field: Field[bytes]) -> Field[bytes]:
    return replace(field, required=False, default=b"")


def _not_reserved(context: Field[bytes]) -> Field[bytes]:
    """Return the field of a context that refuses pqkeep's own contexts."""

    def parse(value: object) -> bytes:
        parsed = context.parse(value)
        if parsed.startswith(RESERVED_CONTEXT):
            raise InvalidValueError(f"must not begin with {RESERVED_CONTEXT.decode()}")
        return parsed

    return replace(context, parse=parse)


PLAINTEXT = base64_field(
    "plaintext",
    f"The data to encrypt: at most {MAX_PLAINTEXT:,} bytes.",
    "YXR0YWNrIGF0IGRhd24=",
    at_most=MAX_PLAINTEXT,
)
CIPHERTEXT = base64_field(
    "ciphertext",
    f"The whole ciphertext that encrypt returned: at most {MAX_CIPHERTEXT:,} bytes.",
    "Fyf0eJ8oWZ0OQK3MwPQBXGpZ8YwWxqUJ",
    at_most=MAX_CIPHERTEXT,
    made_by="encrypt",
)
KEM_CIPHERTEXT = base64_field(
    "kem_ciphertext",
    f"The KEM ciphertext that encapsulate returned: {sizes(KEM_CIPHERTEXT_SIZE)}.",
    "o0R5cYk0Yy1mJ2d0rO8q3Q6yVn0wE7uB",
    at_most=MAX_KEM_CIPHERTEXT,
    made_by="encapsulate",
)
SYMMETRIC_KEY: Field[bytearray] = Field(
    name="symmetric_key",
    description=f"The key to wrap: {_SYMMETRIC_KEY_SIZES}.",
    schema=exact_base64(SYMMETRIC_KEY_SIZES),
    example="AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
    parse=_parse_symmetric_key,
)
"""The reader must overwrite the buffer."""
WRAPPED_KEY = base64_field(
    "wrapped_key",
    "The whole wrapped key that wrap returned. At least: "
    + sizes({algorithm: min(possible) for algorithm, possible in WRAPPED_KEY_SIZES.items()})
    + ".",
    "kQ2sVb8xWm4T1cZp9uHfLr6eYd3aNj7g",
    at_most=MAX_WRAPPED_KEY,
    made_by="wrap",
)
MESSAGE = base64_field(
    "message",
    f"What is signed: at most {MAX_MESSAGE:,} bytes.",
    "cGF5IEJvYiAxMCBFVVI=",
    at_most=MAX_MESSAGE,
)
MAC_MESSAGE = base64_field(
    MESSAGE.name,
    f"The message that the MAC is of: at most {MAX_MESSAGE:,} bytes.",
    str(MESSAGE.example),
    at_most=MAX_MESSAGE,
)
MAC = base64_field(
    "mac",
    f"The MAC to verify: at most {MAX_MAC} bytes.",
    "o5qYk0Yy1mJ2d0rO8q3Q6yVn0wE7uBxV",
    at_most=MAX_MAC,
    made_by="compute_mac",
)
PAYLOAD = base64_field(
    "payload",
    f"What is signed: at most {MAX_MESSAGE:,} bytes.",
    "eyJhbW91bnQiOjEwfQ==",
    at_most=MAX_MESSAGE,
)
DETACHED = boolean_field(
    "detached", "Whether to omit the payload from the response.", example=False
).or_default(default=False)
_is_jws_type = re.compile(JWS_TYPE).match
TYP = text_field(
    "typ",
    "The media type of the JWS, for its header. Without it the header has no `typ`.",
    "statement+jwt",
    at_most=MAX_JWS_TYPE,
    pattern=JWS_TYPE.replace("\\Z", "$"),
    is_valid=lambda text: _is_jws_type(text) is not None,
    must=f"must be a media type of at most {MAX_JWS_TYPE} characters, such as JWT",
).optional()
SIGNATURE = base64_field(
    "signature",
    f"The signature to verify: at most {MAX_SIGNATURE:,} bytes.",
    "xV3Jb0nRUZ3ZoN8HqY0mS4uC5cEw2kPz",
    at_most=MAX_SIGNATURE,
    made_by="sign",
)
SIGNATURE_OVER_HASH = base64_field(
    SIGNATURE.name,
    SIGNATURE.description,
    str(SIGNATURE.example),
    at_most=MAX_SIGNATURE,
    made_by="sign_hash",
)
SIGNATURE_OVER_MU = base64_field(
    SIGNATURE.name,
    SIGNATURE.description,
    str(SIGNATURE.example),
    at_most=MAX_SIGNATURE,
    made_by="sign_mu",
)
ASSOCIATED_DATA = _or_empty(
    base64_field(
        "associated_data",
        f"Data to bind to the ciphertext, such as the record's identifier: at most {MAX_ASSOCIATED_DATA:,} bytes. "
        "Decryption needs the same. Empty is the same as left out.",
        "Y3VzdG9tZXJzLzQyL2liYW4=",
        at_most=MAX_ASSOCIATED_DATA,
    )
)
CONTEXT = _or_empty(
    _not_reserved(
        base64_field(
            "context",
            f"The context string of FIPS 204 and 205: at most {MAX_CONTEXT} bytes. It must not "
            f"begin with `{RESERVED_CONTEXT.decode()}`. Verifying needs the same. "
            "Empty is the same as left out.",
            "aW52b2ljZXM=",
            at_most=MAX_CONTEXT,
        )
    )
)
DERIVATION_CONTEXT = _or_empty(
    base64_field(
        "context",
        "The context that derives the key, such as the customer's identifier: at most "
        f"{MAX_DERIVATION_CONTEXT:,} bytes. Keyrings with `derived` true need it, and others refuse "
        "it. Decryption needs the same.",
        "Y3VzdG9tZXJzLzQy",
        at_most=MAX_DERIVATION_CONTEXT,
    )
)
MU = replace(
    base64_field(
        "mu",
        f"The message representative of FIPS 204, algorithm 7: {MU_SIZE} bytes.",
        base64(bytes(range(MU_SIZE))),
        at_most=MU_SIZE,
    ),
    schema=exact_base64([MU_SIZE]),
    parse=_parse_mu,
    problems=frozenset({Problem.MALFORMED}),
)
FORMAT = choice_field(
    "format",
    "Return the `ciphertext` alone, or an `envelope`, which names its key.",
    tuple(CiphertextFormat),
    CiphertextFormat.ENVELOPE,
).or_default(CiphertextFormat.CIPHERTEXT)
HASH_ALGORITHM = choice_field(
    "hash_algorithm",
    "The hash function that made the digest.",
    tuple(HashAlgorithm),
    HashAlgorithm.SHA_256,
)
HASH = replace(
    base64_field(
        "hash",
        "The digest: "
        + ", ".join(f"{size} bytes for {name}" for name, size in DIGEST_SIZE.items())
        + ".",
        "n4bQgYhMfWWaL+qgxVrQFaO/TxsrC4Is0V1sFbDwCgg=",
        at_most=MAX_SIGNATURE,
    ),
    schema=exact_base64(DIGEST_SIZE.values()),
    problems=frozenset({Problem.MALFORMED, Problem.WRONG_SIZE}),
)
KEY_VERSION = cast(
    "Field[KeyVersion]",
    integer_field(
        "key_version",
        "The version of the key.",
        1,
        at_least=1,
        at_most=MAX_KEY_VERSION,
        must="must be a positive integer",
        too_large="no such key",
    ),
)
ACTIVE_KEY_VERSION = KEY_VERSION.described(
    "The version of the key, which must be active. Left out: the active version."
).optional()
MODE = choice_field(
    "mode",
    "Accepted but ignored: ciphertexts are randomized in both modes.",
    tuple(Mode),
    Mode.STANDARD,
).or_default(Mode.STANDARD)


def _parse_data_key_size(value: object) -> DataKeySize:
    sizes_of_data_keys: tuple[DataKeySize, ...] = (16, 32, 64)
    for size in sizes_of_data_keys:
        if type(value) is int and value == size:
            return size
    raise InvalidValueError("must be 16, 32 or 64")


DATA_KEY_SIZE: Field[DataKeySize] = Field(
    name="size",
    description="The size of the data key in bytes.",
    schema={"type": "integer", "enum": [16, 32, 64]},
    example=32,
    parse=_parse_data_key_size,
).or_default(32)
WITH_PLAINTEXT = boolean_field(
    "plaintext", "Whether to return the data key in the clear too.", example=False
).or_default(default=True)
DATA_KEY_FORMAT = choice_field(
    "format",
    "The form of the encrypted data key: a `wrapped_key` for unwrap, a `ciphertext` or an "
    "`envelope` for decrypt. Left out: `wrapped_key`; for ML-KEM-1024, which wraps no keys, "
    "`ciphertext`.",
    tuple(DataKeyFormat),
    DataKeyFormat.CIPHERTEXT,
).optional()
SALT = replace(
    base64_field(
        "salt",
        "Accepted but ignored. Required if mode is deterministic.",
        "c2FsdA==",
        at_most=MAX_PLAINTEXT,
    ),
    problems=frozenset({Problem.MALFORMED, Problem.MISSING}),
).optional()
_UNTIL = time_field(
    "until",
    "When the key is enabled again: in the future, at most "
    f"{MAX_DISABLED_DAYS} days ahead. Left out: only by a request.",
    "2026-03-31T12:00:00Z",
)


def _parse_until(value: object) -> datetime:
    until, now = _UNTIL.parse(value), datetime.now(UTC)
    ahead = timedelta(microseconds=until) - (now - _EPOCH)
    if not timedelta(0) < ahead <= timedelta(days=MAX_DISABLED_DAYS):
        raise InvalidValueError(f"must be in the future, at most {MAX_DISABLED_DAYS} days ahead")
    return now + ahead


UNTIL: Field[datetime] = Field(
    name=_UNTIL.name,
    description=_UNTIL.description,
    schema=_UNTIL.schema,
    example=_UNTIL.example,
    parse=_parse_until,
)
STATUS = choice_field(
    "status", "Only keys with this status.", tuple(KeyStatus), KeyStatus.ACTIVE
).optional()


def algorithm_field(operation: Operation, *, of_key_pairs: bool = False) -> Field[Algorithm]:
    """Return the field ``algorithm`` with the algorithms that support an operation."""
    usable = tuple(
        algorithm
        for algorithm, spec in ALGORITHMS.items()
        if operation in spec.operations and not (of_key_pairs and spec.is_symmetric)
    )
    field = choice_field("algorithm", "The algorithm.", usable, usable[0], ALIASES)

    def parse(value: object) -> Algorithm:
        if isinstance(value, str) and value in LEGACY and value not in usable:
            raise InvalidValueError(_only_reads(Algorithm(value)))
        return field.parse(value)

    return replace(field, parse=parse)


def _only_reads(algorithm: Algorithm) -> str:
    """Return the message for an operation that a legacy algorithm does not have."""
    if ALGORITHMS[algorithm].kind is Kind.LEGACY_DECRYPTION:
        return (
            f"{algorithm} is a legacy algorithm, which only reads: move its ciphertexts to another "
            "key with re-encrypt"
        )
    return f"{algorithm} is a legacy algorithm, which only reads: it has verify and verify-hash"


def check_verifiable(
    algorithm: Algorithm, context: bytes, hash_algorithm: HashAlgorithm | None = None
) -> None:
    """Check that a legacy algorithm verifies with a context and a hash. Raises FieldError."""
    if not ALGORITHMS[algorithm].is_legacy:
        return
    if context:
        message = f"signatures of {algorithm} have no context; leave it out"
        raise FieldError(CONTEXT.name, Problem.MALFORMED, message)
    only = VERIFIED_HASH.get(algorithm, hash_algorithm)
    if hash_algorithm not in (None, only):
        message = f"hash_algorithm must be {only} for {algorithm}"
        raise FieldError(HASH_ALGORITHM.name, Problem.MALFORMED, message)


def check_kem_ciphertext(kem_ciphertext: bytes, algorithm: Algorithm) -> None:
    """Check that a KEM ciphertext has its algorithm's size. Raises FieldError."""
    size = len(kem_ciphertext)
    if size == KEM_CIPHERTEXT_SIZE[algorithm]:
        return
    if size in KEM_CIPHERTEXT_SIZE.values():
        raise _another_algorithm_s("kem_ciphertext")
    message = f"kem_ciphertext must have {KEM_CIPHERTEXT_SIZE[algorithm]} bytes for {algorithm}"
    raise FieldError("kem_ciphertext", Problem.MALFORMED, message)


def check_wrapped_key(wrapped_key: bytes, algorithm: Algorithm) -> None:
    """Check that a wrapped key has at least its algorithm's smallest size. Raises FieldError."""
    if ALGORITHMS[algorithm].is_legacy:  # RSA keys have several sizes
        return
    size, least = len(wrapped_key), min(WRAPPED_KEY_SIZES[algorithm])
    if size >= least:
        return
    if any(size in possible for possible in WRAPPED_KEY_SIZES.values()):
        raise _another_algorithm_s("wrapped_key")
    message = f"wrapped_key must have at least {least} bytes for {algorithm}"
    raise FieldError("wrapped_key", Problem.MALFORMED, message)


def check_digest(digest: bytes, hash_algorithm: HashAlgorithm) -> None:
    """Check that a digest has its hash function's size. Raises FieldError."""
    size = DIGEST_SIZE[hash_algorithm]
    if len(digest) != size:
        message = f"hash must be {size} bytes for {hash_algorithm}"
        raise FieldError("hash", Problem.WRONG_SIZE, message)


def check_salt(salt: bytes | None, mode: Mode) -> None:
    """Check that a salt is present if the mode requires one. Raises FieldError."""
    if mode is Mode.DETERMINISTIC and salt is None:
        raise FieldError("salt", Problem.MISSING, "salt is required in deterministic mode")


def _another_algorithm_s(name: str) -> FieldError:
    return FieldError("algorithm", Problem.MALFORMED, f"{name} is for another algorithm")


def shortened(field: Field[bytes]) -> Base64:
    """Return the example of a binary field, for the example of a response."""
    return base64(pybase64.b64decode(str(field.example)))


KeyVersionUsed = Annotated[int, Meta(ge=1, description="The version of the key that was used.")]
AlgorithmUsed = Annotated[Algorithm, Meta(description="The algorithm that was used.")]
SharedSecret = Annotated[
    Base64,
    Meta(
        description=(
            "32 bytes, for use as a symmetric key on your side. The service does not store it."
        ),
        extra_json_schema={"pattern": base64_pattern([SHARED_SECRET_SIZE])},
    ),
]


_is_shard_name = re.compile(SHARD_NAME).match


def shard_field(description: str) -> Field[str]:
    """Return a field for a shard's name."""
    return text_field(
        "shard",
        description,
        DEFAULT_SHARD,
        at_most=32,
        pattern="^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$",
        is_valid=lambda text: _is_shard_name(text) is not None,
        must="must be 1 to 32 characters of a-z 0-9 and -, the first and last a letter or digit",
    )
