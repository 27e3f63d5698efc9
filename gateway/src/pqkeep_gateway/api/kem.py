"""POST /api/v1/kem/*, and envelopes: texts that name their key (docs/cryptography.md)."""

from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple, cast

import pybase64
from msgspec import UNSET, Meta, UnsetType, structs

from pqkeep_gateway.api.key_fields import (
    ACTIVE_KEY_VERSION,
    ASSOCIATED_DATA,
    CIPHERTEXT,
    DATA_KEY_FORMAT,
    DATA_KEY_SIZE,
    DERIVATION_CONTEXT,
    FORMAT,
    KEM_CIPHERTEXT,
    KEY_VERSION,
    MAX_CIPHERTEXT,
    MODE,
    PLAINTEXT,
    SALT,
    SHARED_SECRET_SIZE,
    SYMMETRIC_KEY,
    WITH_PLAINTEXT,
    WRAPPED_KEY,
    AlgorithmUsed,
    DataKeyFormat,
    KeyResponse,
    KeyVersionUsed,
    SharedSecret,
    check_kem_ciphertext,
    check_salt,
    check_wrapped_key,
    shortened,
)
from pqkeep_gateway.api.key_operation import (
    ACTIVE_KEY_VERSION_OR_KEY,
    KEY_VERSION_OR_KEY,
    PUBLIC_KEY,
    KeyCall,
    KeyOperation,
    key_of,
    version_of,
)
from pqkeep_gateway.http.endpoint import ApiCall
from pqkeep_gateway.http.field import Field, FieldError, InvalidValueError, Problem
from pqkeep_gateway.http.text import Base64, base64, base64_size
from pqkeep_protocol import messages
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.envelopes import MAX_HEADER, PREFIX, Header, InvalidHeaderError, read_header
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.messages import (
    CiphertextFormat,
    Decapsulate,
    Decrypt,
    Encapsulate,
    Encrypt,
    GenerateDataKey,
    Unwrap,
    Wrap,
)

_URL_SAFE = b"-_"
_NOT_URL_SAFE = frozenset("+/")
"""Base64 characters that pybase64 accepts in spite of their replacements."""
_MAX_TEXT = len(PREFIX) + base64_size(MAX_HEADER + MAX_CIPHERTEXT)
_HEADER_TEXT = len(PREFIX) + base64_size(MAX_HEADER)
"""Characters that hold the longest header."""
_NONE = "is not an envelope"


class Envelope(NamedTuple):
    """A ciphertext, and the header that identifies its key."""

    header: Header
    blob: bytes


def envelope_of(header: Header, blob: bytes) -> str:
    """Return an envelope as text."""
    return PREFIX + _encoded(header.encoded() + blob)


def _encoded(data: bytes) -> str:
    return pybase64.b64encode(data, altchars=_URL_SAFE).rstrip(b"=").decode("ascii")


def _parse(value: object) -> Envelope:
    """Return an envelope. Only its canonical text is accepted. Raises InvalidValueError."""
    data = _decoded(value)
    header = _header_of(data)
    blob = data[len(header.encoded()) :]
    if len(blob) > MAX_CIPHERTEXT:
        raise InvalidValueError(f"exceeds {MAX_CIPHERTEXT} bytes", Problem.TOO_LARGE)
    return Envelope(header, blob)


def _parse_header(value: object) -> Header:
    """Return the header of an envelope, without reading the rest. Raises InvalidValueError."""
    start = value[:_HEADER_TEXT] if isinstance(value, str) else value
    return _header_of(_decoded(start))


def _decoded(value: object) -> bytes:
    if not (isinstance(value, str) and value.startswith(PREFIX) and value.isascii()):
        raise InvalidValueError(_NONE)
    if len(value) > _MAX_TEXT:
        raise InvalidValueError(f"exceeds {MAX_CIPHERTEXT} bytes", Problem.TOO_LARGE)
    text = value[len(PREFIX) :]
    if any(character in text for character in _NOT_URL_SAFE):
        raise InvalidValueError(_NONE)
    try:
        data = pybase64.b64decode(text + "=" * (-len(text) % 4), altchars=_URL_SAFE, validate=True)
    except ValueError:
        raise InvalidValueError(_NONE) from None
    if _encoded(data) != text:
        raise InvalidValueError(_NONE)
    return data


def _header_of(data: bytes) -> Header:
    try:
        return read_header(data)
    except InvalidHeaderError:
        raise InvalidValueError(_NONE) from None


ENVELOPE: Field[Envelope] = Field(
    name="envelope",
    description="The `envelope` that encrypt returned. It names keyring, algorithm and version.",
    schema={
        "type": "string",
        "pattern": f"^{PREFIX.replace('.', '[.]')}[A-Za-z0-9_-]+$",
        "maxLength": _MAX_TEXT,
    },
    example=envelope_of(Header(Algorithm.ML_KEM_768, KeyVersion(1)), bytes(range(24))),
    parse=_parse,
    problems=frozenset({Problem.MALFORMED, Problem.TOO_LARGE}),
    made_by="encrypt",
)
ENVELOPE_HEADER = cast("Field[Header]", replace(ENVELOPE, parse=cast("Any", _parse_header)))
"""The header of the same text, for decisions that precede the reading of the body."""


class Encrypted(KeyResponse, frozen=True, kw_only=True):
    """Encrypted data."""

    ciphertext: (
        Annotated[
            Base64,
            Meta(
                description="KEM ciphertext, nonce (12), AES-GCM ciphertext, tag (16). For "
                "XAES-256-GCM: nonce (24), ciphertext, tag (16)."
            ),
        ]
        | UnsetType
    ) = UNSET
    envelope: (
        Annotated[
            str,
            Meta(
                description=(
                    "Ciphertext with the name of its key, if the request has format envelope."
                )
            ),
        ]
        | UnsetType
    ) = UNSET
    key_version: KeyVersionUsed | UnsetType = UNSET
    algorithm: AlgorithmUsed


def encrypt(call: KeyCall) -> Encrypt:
    """Encrypt data with the active key, or with the named active version."""
    mode, salt = call[MODE], call[SALT]
    check_salt(salt, mode)
    format_, public_key = call[FORMAT], key_of(call)
    if public_key is not None and format_ is CiphertextFormat.ENVELOPE:
        raise FieldError(
            "format",
            Problem.MALFORMED,
            "an envelope needs one of your own keys; send format ciphertext with public_key",
        )
    return Encrypt(
        tenant=call.tenant,
        algorithm=call.algorithm,
        plaintext=call[PLAINTEXT],
        associated_data=call[ASSOCIATED_DATA],
        version=call[ACTIVE_KEY_VERSION_OR_KEY],
        format=format_,
        public_key=public_key,
        within=call.within(Operation.ENCRYPT, public_key),
        context=call[_CONTEXT] or b"",
    )


def encrypted(_: ApiCall, request: Encrypt, result: messages.Encrypted) -> Encrypted:
    """Return the ciphertext, in an envelope if requested."""
    blob, version = result.ciphertext, result.version
    if request.format is CiphertextFormat.ENVELOPE and version is not None:
        header = Header(request.algorithm, version, request.keyring)
        return Encrypted(
            envelope=envelope_of(header, blob), key_version=version, algorithm=request.algorithm
        )
    return Encrypted(
        ciphertext=base64(blob), key_version=version_of(version), algorithm=request.algorithm
    )


class Decrypted(KeyResponse, frozen=True, kw_only=True):
    """Decrypted data."""

    plaintext: Annotated[Base64, Meta(description="The decrypted data.")]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed


def decrypt(call: KeyCall) -> Decrypt:
    """Decrypt a ciphertext or an envelope of encrypt."""
    ciphertext, version, format_ = _what_to_decrypt(call)
    return Decrypt(
        tenant=call.tenant,
        algorithm=call.algorithm,
        version=version,
        ciphertext=ciphertext,
        associated_data=call[ASSOCIATED_DATA],
        format=format_,
        context=call[DERIVATION_CONTEXT],
        probe=call.other_algorithms(Operation.DECRYPT),
    )


def decrypted(_: ApiCall, request: Decrypt, result: messages.Decrypted) -> Decrypted:
    """Return the plaintext."""
    return Decrypted(
        plaintext=base64(result.plaintext),
        key_version=request.version,
        algorithm=request.algorithm,
    )


def _what_to_decrypt(call: KeyCall) -> tuple[bytes, KeyVersion, CiphertextFormat]:
    ciphertext, version = call[_CIPHERTEXT], call[_KEY_VERSION]
    if ciphertext is not None and version is not None:
        return ciphertext, version, CiphertextFormat.CIPHERTEXT
    envelope = call[ENVELOPE]
    return envelope.blob, envelope.header.version, CiphertextFormat.ENVELOPE


class Encapsulated(KeyResponse, frozen=True, kw_only=True):
    """A new shared secret and its KEM ciphertext."""

    kem_ciphertext: Annotated[
        Base64, Meta(description="Send it to decapsulate to get the same secret.")
    ]
    shared_secret: SharedSecret
    key_version: KeyVersionUsed | UnsetType = UNSET
    algorithm: AlgorithmUsed


def encapsulate(call: KeyCall) -> Encapsulate:
    """Create a shared secret."""
    version, public_key = call[KEY_VERSION_OR_KEY], key_of(call)
    return Encapsulate(
        tenant=call.tenant,
        algorithm=call.algorithm,
        version=version,
        public_key=public_key,
        within=call.within(Operation.ENCAPSULATE, public_key),
    )


def encapsulated(_: ApiCall, request: Encapsulate, result: messages.Encapsulated) -> Encapsulated:
    """Return the shared secret and its KEM ciphertext."""
    return Encapsulated(
        kem_ciphertext=base64(result.kem_ciphertext),
        shared_secret=base64(result.shared_secret),
        key_version=version_of(request.version),
        algorithm=request.algorithm,
    )


class Decapsulated(KeyResponse, frozen=True, kw_only=True):
    """The shared secret of encapsulate."""

    shared_secret: SharedSecret
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed


def decapsulate(call: KeyCall) -> Decapsulate:
    """Recover a shared secret."""
    kem_ciphertext = call[KEM_CIPHERTEXT]
    check_kem_ciphertext(kem_ciphertext, call.algorithm)
    return Decapsulate(
        tenant=call.tenant,
        algorithm=call.algorithm,
        version=call[KEY_VERSION],
        kem_ciphertext=kem_ciphertext,
    )


def decapsulated(_: ApiCall, request: Decapsulate, result: messages.Decapsulated) -> Decapsulated:
    """Return the shared secret."""
    return Decapsulated(
        shared_secret=base64(result.shared_secret),
        key_version=request.version,
        algorithm=request.algorithm,
    )


class Wrapped(KeyResponse, frozen=True, kw_only=True):
    """A wrapped symmetric key."""

    wrapped_key: Annotated[Base64, Meta(description="The symmetric key, wrapped.")]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed
    wrapping_method: Literal["KEM-DEM", "XAES-256-GCM"]


def wrap(call: KeyCall) -> Wrap:
    """Wrap a symmetric key. The service's copy is overwritten."""
    return Wrap(
        tenant=call.tenant,
        algorithm=call.algorithm,
        version=call[KEY_VERSION],
        associated_data=call[ASSOCIATED_DATA],
        symmetric_key=call[SYMMETRIC_KEY],  # must be the last field read: its buffer is overwritten
    )


def wrapped(_: ApiCall, request: Wrap, result: messages.Wrapped) -> Wrapped:
    """Return the wrapped key."""
    is_cipher = request.algorithm is Algorithm.XAES_256_GCM
    return Wrapped(
        wrapped_key=base64(result.wrapped_key),
        key_version=request.version,
        algorithm=request.algorithm,
        wrapping_method="XAES-256-GCM" if is_cipher else "KEM-DEM",
    )


class Unwrapped(KeyResponse, frozen=True, kw_only=True):
    """The unwrapped symmetric key."""

    symmetric_key: Annotated[Base64, Meta(description="The symmetric key.")]
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed


def unwrap(call: KeyCall) -> Unwrap:
    """Unwrap a wrapped key of wrap."""
    wrapped_key = call[WRAPPED_KEY]
    check_wrapped_key(wrapped_key, call.algorithm)
    return Unwrap(
        tenant=call.tenant,
        algorithm=call.algorithm,
        version=call[KEY_VERSION],
        wrapped_key=wrapped_key,
        associated_data=call[ASSOCIATED_DATA],
        probe=call.other_algorithms(Operation.UNWRAP),
    )


def unwrapped(_: ApiCall, request: Unwrap, result: messages.Unwrapped) -> Unwrapped:
    """Return the symmetric key."""
    return Unwrapped(
        symmetric_key=base64(result.symmetric_key),
        key_version=request.version,
        algorithm=request.algorithm,
    )


class DataKey(KeyResponse, frozen=True, kw_only=True):
    """A new data key, encrypted, and in the clear if the request wants that."""

    plaintext: (
        Annotated[Base64, Meta(description="The data key. The service does not store it.")]
        | UnsetType
    ) = UNSET
    wrapped_key: (
        Annotated[
            Base64,
            Meta(description="The encrypted data key in the format wrapped_key, for unwrap."),
        ]
        | UnsetType
    ) = UNSET
    ciphertext: (
        Annotated[
            Base64,
            Meta(description="The encrypted data key in the format ciphertext, for decrypt."),
        ]
        | UnsetType
    ) = UNSET
    envelope: (
        Annotated[
            str, Meta(description="The encrypted data key in the format envelope, for decrypt.")
        ]
        | UnsetType
    ) = UNSET
    key_version: KeyVersionUsed
    algorithm: AlgorithmUsed


_CIPHERTEXT_FORMATS = {
    DataKeyFormat.WRAPPED_KEY: None,
    DataKeyFormat.CIPHERTEXT: CiphertextFormat.CIPHERTEXT,
    DataKeyFormat.ENVELOPE: CiphertextFormat.ENVELOPE,
}


def generate_data_key(call: KeyCall) -> GenerateDataKey:
    """Make a random key for encryption on your side, and encrypt it with the active key.

    Store the encrypted key beside your data, and forget the plaintext after use. With plaintext
    false, a program that only stores data keys never sees one.
    """
    wraps = Operation.WRAP in ALGORITHMS[call.algorithm].operations
    format_ = call[DATA_KEY_FORMAT]
    if format_ is None:
        format_ = DataKeyFormat.WRAPPED_KEY if wraps else DataKeyFormat.CIPHERTEXT
    if format_ is DataKeyFormat.WRAPPED_KEY and not wraps:
        message = f"{call.algorithm} wraps no keys; send format ciphertext or envelope"
        raise FieldError("format", Problem.MALFORMED, message)
    context = call[DERIVATION_CONTEXT]
    if context and format_ is DataKeyFormat.WRAPPED_KEY:
        message = "a context derives keys that encrypt only; send format ciphertext or envelope"
        raise FieldError("format", Problem.MALFORMED, message)
    return GenerateDataKey(
        tenant=call.tenant,
        algorithm=call.algorithm,
        version=call[ACTIVE_KEY_VERSION],
        size=call[DATA_KEY_SIZE],
        plaintext=call[WITH_PLAINTEXT],
        associated_data=call[ASSOCIATED_DATA],
        format=_CIPHERTEXT_FORMATS[format_],
        context=context,
    )


def generated_data_key(_: ApiCall, request: GenerateDataKey, result: messages.DataKey) -> DataKey:
    """Return the encrypted data key, and the data key if requested."""
    response = DataKey(
        plaintext=base64(result.plaintext) if request.plaintext else UNSET,
        key_version=result.version,
        algorithm=request.algorithm,
    )
    match request.format:
        case None:
            return structs.replace(response, wrapped_key=base64(result.encrypted))
        case CiphertextFormat.CIPHERTEXT:
            return structs.replace(response, ciphertext=base64(result.encrypted))
        case CiphertextFormat.ENVELOPE:
            header = Header(request.algorithm, result.version, request.keyring)
            return structs.replace(response, envelope=envelope_of(header, result.encrypted))


DEFAULT = Algorithm.ML_KEM_768
_CIPHERTEXT = CIPHERTEXT.unless(ENVELOPE)
_KEY_VERSION = KEY_VERSION.unless(ENVELOPE)
_CONTEXT = DERIVATION_CONTEXT.unless(PUBLIC_KEY)

_SECRET = base64(bytes(range(SHARED_SECRET_SIZE)))

_WRAP = KeyOperation(
    "POST",
    "/kem/key/wrap",
    Operation.WRAP,
    wrap,
    wrapped,
    DEFAULT,
    name="wrap",
    fields=(SYMMETRIC_KEY, KEY_VERSION, ASSOCIATED_DATA),
    example=Wrapped(
        wrapped_key=shortened(WRAPPED_KEY),
        key_version=1,
        algorithm=DEFAULT,
        wrapping_method="KEM-DEM",
    ),
)
_UNWRAP = KeyOperation(
    "POST",
    "/kem/key/unwrap",
    Operation.UNWRAP,
    unwrap,
    unwrapped,
    DEFAULT,
    name="unwrap",
    fields=(WRAPPED_KEY, KEY_VERSION, ASSOCIATED_DATA),
    example=Unwrapped(symmetric_key=_SECRET, key_version=1, algorithm=DEFAULT),
)

SHORT_PATHS = frozenset({"/kem/wrap", "/kem/unwrap"})
"""Second paths of two operations."""

OPERATIONS = (
    KeyOperation(
        "POST",
        "/kem/encrypt",
        Operation.ENCRYPT,
        encrypt,
        encrypted,
        DEFAULT,
        name="encrypt",
        fields=(
            PLAINTEXT,
            ACTIVE_KEY_VERSION_OR_KEY,
            MODE,
            SALT,
            ASSOCIATED_DATA,
            FORMAT,
            PUBLIC_KEY,
            _CONTEXT,
        ),
        example=Encrypted(ciphertext=shortened(CIPHERTEXT), key_version=1, algorithm=DEFAULT),
    ),
    KeyOperation(
        "POST",
        "/kem/decrypt",
        Operation.DECRYPT,
        decrypt,
        decrypted,
        DEFAULT,
        name="decrypt",
        fields=(
            _CIPHERTEXT,
            _KEY_VERSION,
            ASSOCIATED_DATA,
            ENVELOPE.optional(),
            DERIVATION_CONTEXT,
        ),
        header=ENVELOPE_HEADER,
        example=Decrypted(plaintext=shortened(PLAINTEXT), key_version=1, algorithm=DEFAULT),
    ),
    KeyOperation(
        "POST",
        "/kem/encapsulate",
        Operation.ENCAPSULATE,
        encapsulate,
        encapsulated,
        DEFAULT,
        name="encapsulate",
        fields=(KEY_VERSION_OR_KEY, PUBLIC_KEY),
        example=Encapsulated(
            kem_ciphertext=shortened(KEM_CIPHERTEXT),
            shared_secret=_SECRET,
            key_version=1,
            algorithm=DEFAULT,
        ),
    ),
    KeyOperation(
        "POST",
        "/kem/decapsulate",
        Operation.DECAPSULATE,
        decapsulate,
        decapsulated,
        DEFAULT,
        name="decapsulate",
        fields=(KEM_CIPHERTEXT, KEY_VERSION),
        example=Decapsulated(shared_secret=_SECRET, key_version=1, algorithm=DEFAULT),
    ),
    _WRAP,
    _UNWRAP,
    KeyOperation(
        "POST",
        "/kem/data-key",
        Operation.GENERATE_DATA_KEY,
        generate_data_key,
        generated_data_key,
        DEFAULT,
        name="generate_data_key",
        fields=(
            DATA_KEY_SIZE,
            WITH_PLAINTEXT,
            DATA_KEY_FORMAT,
            ACTIVE_KEY_VERSION,
            ASSOCIATED_DATA,
            DERIVATION_CONTEXT,
        ),
        example=DataKey(
            plaintext=_SECRET,
            wrapped_key=shortened(WRAPPED_KEY),
            key_version=1,
            algorithm=DEFAULT,
        ),
    ),
    replace(_WRAP, path="/kem/wrap", name="wrap_by_short_path"),
    replace(_UNWRAP, path="/kem/unwrap", name="unwrap_by_short_path"),
)
