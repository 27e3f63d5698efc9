"""POST /api/v1/kem/re-encrypt."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple, cast

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from pqkeep_gateway.api.errors import error_for
from pqkeep_gateway.api.kem import ENVELOPE, ENVELOPE_HEADER, envelope_of
from pqkeep_gateway.api.key_fields import (
    ASSOCIATED_DATA,
    CAMPAIGN,
    CIPHERTEXT,
    DERIVATION_CONTEXT,
    KEY_VERSION,
    KEYRING,
    WRAPPED_KEY,
    KeyResponse,
    KeyVersionUsed,
    algorithm_field,
    alias_in,
    check_wrapped_key,
    shortened,
)
from pqkeep_gateway.api.key_operation import KeyCall, KeyOperation, TargetUse
from pqkeep_gateway.http.endpoint import ApiCall
from pqkeep_gateway.http.field import (
    Field,
    FieldError,
    InvalidValueError,
    Problem,
    choice_field,
    object_schema,
    unknown_field,
)
from pqkeep_gateway.http.text import Base64, base64
from pqkeep_protocol import messages
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Operation
from pqkeep_protocol.envelopes import Header
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyringName, KeyVersion
from pqkeep_protocol.messages import CiphertextFormat, RedactedRepr, ReEncrypt, Target

_ALGORITHM = (
    algorithm_field(Operation.ENCRYPT)
    .described("Left out: that of the source; required for a legacy source.")
    .optional()
)
_KEYRING = KEYRING.described("Left out: that of the source.")
_ASSOCIATED_DATA = ASSOCIATED_DATA.described(
    "Data to bind to the result. Left out: that of the source; empty: none."
)
_CONTEXT = DERIVATION_CONTEXT.described(
    "The context that derives the target's key. Left out: that of the source; empty: none."
)
_FORMAT = choice_field(
    "format",
    "`ciphertext` or `envelope`. Left out: the form of the source.",
    tuple(CiphertextFormat),
    CiphertextFormat.ENVELOPE,
).optional()
_TARGET_FIELDS: tuple[Field[object], ...] = tuple(
    cast("Field[object]", field)
    for field in (_KEYRING, _ALGORITHM, _ASSOCIATED_DATA, _FORMAT, _CONTEXT)
)
_NAMES = [field.name for field in _TARGET_FIELDS]


class To(RedactedRepr, Struct, frozen=True):
    """The target in a request. None: the same as in the source."""

    keyring: KeyringName | None = None
    algorithm: Algorithm | None = None
    associated_data: bytes | None = None
    format: CiphertextFormat | None = None
    context: bytes | None = None


def _parse_to(value: object) -> To:
    if not isinstance(value, dict):
        raise InvalidValueError("must be an object")
    values = cast("dict[str, object]", value)
    try:
        if unknown := values.keys() - set(_NAMES):
            raise unknown_field(unknown, _NAMES)
        own = {name for name, value in values.items() if value is not None}
        return To(
            _KEYRING.read(values),
            _ALGORITHM.read(values),
            _ASSOCIATED_DATA.read(values) if _ASSOCIATED_DATA.name in own else None,
            _FORMAT.read(values),
            _CONTEXT.read(values) if _CONTEXT.name in own else None,
        )
    except FieldError as error:
        raise InvalidValueError(f"cannot be read: {error.message}") from None


TO: Field[To] = Field(
    name="to",
    description="The keyring and algorithm of the target; its active key is used. If left out, "
    "they are the source's.",
    schema=object_schema(_TARGET_FIELDS),
    example={"algorithm": Algorithm.X_WING},
    parse=_parse_to,
    required=False,
    default=To(),
)
_OF_THREE = "One of `ciphertext`, `envelope` and `wrapped_key` is required."
SOURCE_CIPHERTEXT = CIPHERTEXT.described(f"{CIPHERTEXT.description} {_OF_THREE}").unless(
    WRAPPED_KEY
)
_CIPHERTEXT = SOURCE_CIPHERTEXT.optional()
SOURCE_ENVELOPE = ENVELOPE.described(f"{ENVELOPE.description} {_OF_THREE}").optional()
SOURCE_WRAPPED_KEY = WRAPPED_KEY.described(f"{WRAPPED_KEY.description} {_OF_THREE}").optional()
SOURCE_VERSION = KEY_VERSION.unless(ENVELOPE)


class ReEncrypted(KeyResponse, frozen=True, kw_only=True):
    """The data of a ciphertext or a wrapped key, encrypted to the target."""

    ciphertext: (
        Annotated[
            Base64,
            Meta(
                description="The new ciphertext as encrypt returns it, if the source is a `ciphertext`."
            ),
        ]
        | UnsetType
    ) = UNSET
    envelope: (
        Annotated[str, Meta(description="The new envelope, if the format is envelope.")] | UnsetType
    ) = UNSET
    wrapped_key: (
        Annotated[
            Base64,
            Meta(
                description="The new wrapped key as wrap returns it, if the source is a `wrapped_key`."
            ),
        ]
        | UnsetType
    ) = UNSET
    key_version: KeyVersionUsed
    algorithm: Annotated[Algorithm, Meta(description="The algorithm of the target key.")]
    keyring: Annotated[str, Meta(description="The keyring of the target key.")]
    moved: Annotated[
        bool,
        Meta(
            description="False if the source already has the target's key version, form and "
            "associated data: it is returned unchanged."
        ),
    ]


class _Source(NamedTuple):
    """The data to re-encrypt."""

    data: bytes
    version: KeyVersion
    is_wrapped_key: bool = False
    format: CiphertextFormat = CiphertextFormat.CIPHERTEXT


def _source_of(call: KeyCall) -> _Source:
    """Return the source of a call. Raises FieldError."""
    ciphertext, wrapped_key = call[_CIPHERTEXT], call[SOURCE_WRAPPED_KEY]
    envelope = call[SOURCE_ENVELOPE]
    if sum(value is not None for value in (ciphertext, wrapped_key, envelope)) != 1:
        message = "send exactly one of ciphertext, envelope and wrapped_key"
        raise FieldError(CIPHERTEXT.name, Problem.MISSING, message)
    version = call[SOURCE_VERSION]
    if envelope is not None:
        return _Source(envelope.blob, envelope.header.version, format=CiphertextFormat.ENVELOPE)
    if wrapped_key is not None:
        check_wrapped_key(wrapped_key, call.algorithm)
        return _Source(wrapped_key, cast("KeyVersion", version), is_wrapped_key=True)
    return _Source(cast("bytes", ciphertext), cast("KeyVersion", version))


def _use_of_target(call: ApiCall, keyring: KeyringName, algorithm: Algorithm) -> TargetUse:
    """Return the use of the target key. Raises FieldError."""
    to = call[TO]
    is_wrapped_key = call.values.get(WRAPPED_KEY.name) is not None
    operation = Operation.WRAP if is_wrapped_key else Operation.ENCRYPT
    target = to.algorithm or algorithm
    if ALGORITHMS[target].is_legacy:
        message = f"to.algorithm is required: {target} is a legacy algorithm, which only reads"
        raise FieldError(TO.name, Problem.MISSING, message)
    if operation not in ALGORITHMS[target].operations:
        raise FieldError(TO.name, Problem.MALFORMED, f"{target} wraps no keys; send another target")
    return TargetUse(operation, to.keyring or keyring, target)


def re_encrypt(call: KeyCall) -> ReEncrypt:
    """Re-encrypt a ciphertext or a wrapped key to another key, without revealing the plaintext.

    The plaintext stays in the key service. The source may be a ciphertext of RSA-OAEP under an
    imported legacy key; `associated_data` is its label. The result is a new output of encrypt or wrap with the
    target's active key. Data that is already there is returned unchanged, with `moved` false.
    """
    source, to, associated_data = _source_of(call), call[TO], call[ASSOCIATED_DATA]
    context = call[DERIVATION_CONTEXT]
    target = Target(
        to.algorithm or call.algorithm,
        to.keyring or call.keyring,
        associated_data if to.associated_data is None else to.associated_data,
        to.format or source.format,
        context if to.context is None else to.context,
    )
    if source.is_wrapped_key and target.format is CiphertextFormat.ENVELOPE:
        raise FieldError(TO.name, Problem.MALFORMED, "a wrapped key has no envelope")
    if source.is_wrapped_key and (context or target.context):
        raise FieldError("context", Problem.MALFORMED, "a wrapped key has no context")
    return ReEncrypt(
        tenant=call.tenant,
        algorithm=call.algorithm,
        version=source.version,
        ciphertext=source.data,
        is_wrapped_key=source.is_wrapped_key,
        associated_data=associated_data,
        format=source.format,
        target=target,
        context=context,
        probe=call.other_algorithms(Operation.RE_ENCRYPT),
        campaign=call[CAMPAIGN],
    )


def re_encrypted(
    call: ApiCall, request: ReEncrypt, outcome: messages.ReEncrypted | ErrorKind
) -> ReEncrypted:
    """Return the result. An unreadable source gets the error of decrypt or unwrap."""
    if isinstance(outcome, ErrorKind):
        reading = Operation.UNWRAP if request.is_wrapped_key else Operation.DECRYPT
        raise error_for(reading, KeyServiceError(outcome), call.values)
    target = request.target
    response = ReEncrypted(
        key_version=outcome.version,
        algorithm=_name_of(call, target),
        keyring=target.keyring,
        moved=outcome.moved,
    )
    if target.format is CiphertextFormat.ENVELOPE:
        header = Header(target.algorithm, outcome.version, target.keyring)
        return structs.replace(response, envelope=envelope_of(header, outcome.ciphertext))
    name = WRAPPED_KEY.name if request.is_wrapped_key else CIPHERTEXT.name
    return structs.replace(response, **{name: base64(outcome.ciphertext)})


def _name_of(call: ApiCall, target: Target) -> Algorithm:
    """Return the target's algorithm under the name that the request uses."""
    to = cast("Mapping[str, object]", call.values.get(TO.name) or {})
    named = call.values if to.get("algorithm") is None else to
    return alias_in(named) or target.algorithm


OPERATION = KeyOperation(
    "POST",
    "/kem/re-encrypt",
    Operation.RE_ENCRYPT,
    re_encrypt,
    re_encrypted,
    Algorithm.ML_KEM_768,
    target=_use_of_target,
    outcomes=frozenset({ErrorKind.DECRYPTION_FAILED}),
    name="re_encrypt",
    fields=(
        SOURCE_CIPHERTEXT,
        SOURCE_ENVELOPE,
        SOURCE_WRAPPED_KEY,
        SOURCE_VERSION,
        ASSOCIATED_DATA,
        DERIVATION_CONTEXT,
        TO,
        CAMPAIGN,
    ),
    header=ENVELOPE_HEADER,
    example=ReEncrypted(
        ciphertext=shortened(CIPHERTEXT),
        key_version=1,
        algorithm=Algorithm.X_WING,
        keyring=DEFAULT_KEYRING,
        moved=True,
    ),
)
