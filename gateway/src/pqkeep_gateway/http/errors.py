"""The only file that knows error codes and HTTP statuses.

What a caller is told depends on the operation and on what is wrong: bad base64 alone has five
codes. So the mapping is two tables, by (operation, field) and by (operation, error kind).
"""

import math
from collections.abc import Mapping
from enum import Enum

from pqkeep_gateway.access.rate_limit import Limit
from pqkeep_gateway.people.second_factors import Factor
from pqkeep_protocol.algorithms import LIFECYCLE, Operation
from pqkeep_protocol.errors import ErrorKind


class Code(Enum):
    """The catalogue: code, HTTP status."""

    AUTH_001 = ("ERR_AUTH_001", 401)
    AUTH_MFA_001 = ("ERR_AUTH_MFA_001", 401)
    MFA_001 = ("ERR_MFA_001", 401)
    MFA_011 = ("ERR_MFA_011", 403)
    MFA_013 = ("ERR_MFA_013", 401)
    FORBIDDEN_001 = ("ERR_FORBIDDEN_001", 403)
    POLICY_001 = ("ERR_POLICY_001", 403)
    KMS_020 = ("ERR_KMS_020", 403)
    NOT_FOUND_001 = ("ERR_NOT_FOUND_001", 404)
    METHOD_NOT_ALLOWED = ("ERR_INVALID_001", 405)
    UNPROCESSABLE = ("ERR_INVALID_001", 422)
    CONFLICT_001 = ("ERR_CONFLICT_001", 409)
    RATE_LIMIT_001 = ("ERR_RATE_LIMIT_001", 429)
    INVALID_001 = ("ERR_INVALID_001", 400)
    INVALID_002 = ("ERR_INVALID_002", 400)
    KEM_001 = ("ERR_KEM_001", 400)
    KEM_002 = ("ERR_KEM_002", 400)
    KEM_007 = ("ERR_KEM_007", 400)
    KEM_010 = ("ERR_KEM_010", 400)
    KEM_011 = ("ERR_KEM_011", 400)
    KEM_012 = ("ERR_KEM_012", 400)
    SIG_001 = ("ERR_SIG_001", 400)
    SIG_002 = ("ERR_SIG_002", 400)
    SIG_010 = ("ERR_SIG_010", 400)
    SIG_011 = ("ERR_SIG_011", 400)
    INTERNAL_001 = ("ERR_INTERNAL_001", 500)
    BAD_GATEWAY_001 = ("ERR_BAD_GATEWAY_001", 502)
    SERVICE_001 = ("ERR_SERVICE_001", 503)
    TIMEOUT_001 = ("ERR_TIMEOUT_001", 504)

    def __init__(self, code: str, status: int) -> None:
        """Name the two halves of a row."""
        self.code = code
        self.status = status


class ApiError(Exception):
    """What the caller is told. Its message never repeats what the caller sent."""

    def __init__(
        self,
        code: Code,
        message: str,
        field: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        policy: str = "",
        algorithm: str | None = None,
        is_recorded: bool = False,
        challenge: tuple[str, Factor] | None = None,
    ) -> None:
        """Take the headers too that belong to this answer, and a challenge: token and factor.

        For the audit log: the policy that refused, for which algorithm; and whether the key
        service has recorded it already.
        """
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.headers = headers or {}
        self.policy = policy
        self.algorithm = algorithm
        self.is_recorded = is_recorded
        self.challenge = challenge


MALFORMED: Mapping[Operation, Code] = {
    Operation.ENCRYPT: Code.KEM_001,
    Operation.ENCAPSULATE: Code.KEM_001,
    Operation.DECRYPT: Code.KEM_002,
    Operation.DECAPSULATE: Code.KEM_002,
    Operation.WRAP: Code.KEM_010,
    Operation.UNWRAP: Code.KEM_011,
    Operation.SIGN: Code.SIG_001,
    Operation.VERIFY: Code.SIG_001,
    Operation.SIGN_HASH: Code.SIG_001,
    Operation.VERIFY_HASH: Code.SIG_001,
    **dict.fromkeys(LIFECYCLE, Code.INVALID_001),
}
"""A field is missing, of the wrong type, badly encoded or out of range."""

TOO_LARGE: Mapping[Operation, Code] = {
    Operation.ENCRYPT: Code.KEM_001,
    Operation.DECRYPT: Code.KEM_002,
    Operation.DECAPSULATE: Code.KEM_002,
    Operation.UNWRAP: Code.KEM_011,
    Operation.SIGN: Code.SIG_002,
    Operation.VERIFY: Code.SIG_002,
    Operation.VERIFY_HASH: Code.SIG_001,
}
"""A binary field is longer than the operation takes."""

UNDECRYPTABLE: Mapping[Operation, tuple[Code, str]] = {
    Operation.DECRYPT: (Code.KEM_002, "ciphertext"),
    Operation.DECAPSULATE: (Code.KEM_002, "kem_ciphertext"),
    Operation.UNWRAP: (Code.KEM_012, "wrapped_key"),
}
"""The right form, but it does not open with this key."""

REFUSALS: Mapping[ErrorKind, tuple[Code, str, str | None]] = {
    ErrorKind.KEY_NOT_FOUND: (
        Code.NOT_FOUND_001,
        "no such key, or its status does not allow this",
        None,
    ),
    ErrorKind.KEY_EXISTS: (
        Code.INVALID_001,
        "the algorithm has an active key; rotate it instead",
        "algorithm",
    ),
    ErrorKind.KEY_QUOTA_REACHED: (
        Code.FORBIDDEN_001,
        "the plan allows no more active keys",
        None,
    ),
    ErrorKind.KEY_STATUS: (
        Code.INVALID_001,
        "the key's status does not allow this",
        "key_version",
    ),
    ErrorKind.IDEMPOTENCY_KEY_REUSED: (
        Code.CONFLICT_001,
        "the Idempotency-Key belongs to another request",
        "Idempotency-Key",
    ),
    ErrorKind.RECORD_NOT_FOUND: (
        Code.NOT_FOUND_001,
        "the audit log has no such record, or is not that large",
        None,
    ),
    ErrorKind.UNSUPPORTED: (
        Code.INVALID_001,
        "the algorithm does not have this operation",
        "algorithm",
    ),
    ErrorKind.ALGORITHM_MISMATCH: (
        Code.INVALID_001,
        "it was made with another algorithm's key",
        "algorithm",
    ),
    ErrorKind.OVERLOADED: (Code.SERVICE_001, "the key service has too much to do", None),
    ErrorKind.UNAVAILABLE: (Code.SERVICE_001, "the key service is unavailable", None),
    ErrorKind.DEADLINE_EXCEEDED: (
        Code.TIMEOUT_001,
        "the key service did not answer in time",
        None,
    ),
    ErrorKind.BAD_ANSWER: (
        Code.BAD_GATEWAY_001,
        "the key service gave no proper answer",
        None,
    ),
    ErrorKind.INTERNAL: (Code.INTERNAL_001, "internal error", None),
}
"""What every operation says when the key service refuses: code, message, field."""

_ALWAYS = frozenset(
    {
        ErrorKind.OVERLOADED,
        ErrorKind.UNAVAILABLE,
        ErrorKind.DEADLINE_EXCEEDED,
        ErrorKind.BAD_ANSWER,
        ErrorKind.INTERNAL,
    }
)
_NAMES_A_KEY = frozenset(Operation) - {Operation.GENERATE_KEY, Operation.LIST_KEYS}
_OWN_KINDS: Mapping[Operation, frozenset[ErrorKind]] = {
    Operation.GENERATE_KEY: frozenset({ErrorKind.KEY_EXISTS, ErrorKind.KEY_QUOTA_REACHED}),
    Operation.RETIRE_KEY: frozenset({ErrorKind.KEY_STATUS}),
    Operation.ARCHIVE_KEY: frozenset({ErrorKind.KEY_STATUS}),
    Operation.DECRYPT: frozenset({ErrorKind.ALGORITHM_MISMATCH}),
    Operation.UNWRAP: frozenset({ErrorKind.ALGORITHM_MISMATCH}),
}


KEY_SERVICE_AWAY = frozenset(REFUSALS[kind][0] for kind in _ALWAYS)
"""What everything that asks the key service can be answered with."""


def codes_of(operation: Operation) -> frozenset[Code]:
    """Return what an operation of the key service can be refused with, whatever its fields."""
    kinds = _ALWAYS | _OWN_KINDS.get(operation, frozenset())
    if operation in _NAMES_A_KEY:
        kinds |= {ErrorKind.KEY_NOT_FOUND}
    codes = {Code.POLICY_001, MALFORMED[operation], *(REFUSALS[kind][0] for kind in kinds)}
    if operation in TOO_LARGE:
        codes.add(TOO_LARGE[operation])
    if operation in UNDECRYPTABLE:
        codes.add(UNDECRYPTABLE[operation][0])
    return frozenset(codes)


def error_for(operation: Operation, kind: ErrorKind) -> ApiError:
    """Return what to say when the key service refuses, or refuses what cannot be refused."""
    if kind is ErrorKind.DECRYPTION_FAILED and operation in UNDECRYPTABLE:
        code, name = UNDECRYPTABLE[operation]
        return ApiError(code, f"{name} does not open with this key", name)
    return error_of(kind)


def error_of(kind: ErrorKind) -> ApiError:
    """Return what to say when the key service refuses, whatever was asked."""
    code, message, field = REFUSALS.get(kind, REFUSALS[ErrorKind.BAD_ANSWER])
    if code is Code.SERVICE_001:
        return unavailable(message)
    return ApiError(code, message, field, is_recorded=True)


def unknown_credential() -> ApiError:
    """Return what to say to somebody we do not know, or no longer."""
    return ApiError(Code.AUTH_001, "missing or invalid credential")


def unavailable(message: str = "a part of the service is unavailable") -> ApiError:
    """Return what to say where a part of the service is missing: try again in a second."""
    return ApiError(Code.SERVICE_001, message, headers={"Retry-After": "1"})


def idempotency_key_reused() -> ApiError:
    """Return what to say where an Idempotency-Key belongs to another request."""
    return ApiError(*REFUSALS[ErrorKind.IDEMPOTENCY_KEY_REUSED])


def too_many(message: str, limit: Limit, wait: float) -> ApiError:
    """Return what to say to someone who is too fast: try again after so many seconds, rounded up.

    Beside Retry-After go the fields of draft-ietf-httpapi-ratelimit-headers.
    """
    seconds = max(1, math.ceil(wait))
    return ApiError(
        Code.RATE_LIMIT_001,
        message,
        headers={
            "Retry-After": str(seconds),
            "RateLimit-Policy": f'"default";q={limit.events};w={limit.seconds}',
            "RateLimit": f'"default";r=0;t={seconds}',
        },
    )
