"""The exceptions: one class for each documented condition.

    PqkeepError
    ├── ConfigurationError          address, credential, profile or CA file cannot be used
    ├── ComplianceError             the compliance profile does not allow it; nothing was sent
    ├── InvalidRequestError         ERR_INVALID_001, and every 400, 405 and 422 without a class
    │   ├── EncryptionInputError    ERR_KEM_001
    │   ├── DecryptionError         ERR_KEM_002, ERR_KEM_006: malformed, or for another key
    │   ├── WrappingInputError      ERR_KEM_010
    │   ├── UnwrappingInputError    ERR_KEM_011
    │   ├── UnwrappingError         ERR_KEM_012: modified, or for another key
    │   ├── SignatureInputError     ERR_SIG_001
    │   ├── MessageTooLargeError    ERR_SIG_002
    │   ├── HashAlgorithmError      ERR_SIG_010
    │   ├── HashLengthError         ERR_SIG_011
    │   ├── InvalidModeError        ERR_KEM_007
    │   ├── InvalidSaltError        ERR_INVALID_002
    │   └── UnreadableInputError    a key, signature or envelope in an unknown form
    ├── AuthenticationError         ERR_AUTH_001, and every 401
    ├── PermissionDeniedError       ERR_FORBIDDEN_001, and every 403 without a class
    │   └── PolicyDeniedError       ERR_POLICY_001: not in the plan, or the quota is used up
    ├── NotFoundError               ERR_NOT_FOUND_001, and every 404
    ├── ConflictError               ERR_CONFLICT_001, and every 409
    ├── RateLimitError              ERR_RATE_LIMIT_001, and every 429                  retried
    ├── MalformedResponseError  a response that pqkeep did not send
    └── UnavailableError            a retry may succeed                                retried
        ├── InternalError           ERR_INTERNAL_001, ERR_CRYPTO_001, and every 500
        ├── BadGatewayError         ERR_BAD_GATEWAY_001, and every 502
        ├── OutOfServiceError       ERR_SERVICE_001, and every 503
        ├── GatewayTimeoutError     ERR_TIMEOUT_001, and every 504
        ├── ConnectionFailedError   no connection, or one that broke during the response
        └── DeadlineExceededError   no response within the caller's timeout

Errors marked as retried are raised when all retries have failed.
"""

from collections.abc import Mapping
from datetime import datetime


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra from the folder of this package's wheel."""
    from importlib.metadata import version  # noqa: PLC0415 - slow, and only for a message

    return f"pip install './pqkeep-{version('pqkeep')}-py3-none-any.whl[{extra}]'"


class PqkeepError(Exception):
    """An error of the service, the connection or the client.

    ``error_code`` is stable, such as ``ERR_NOT_FOUND_001``. ``message`` is only for people.
    ``request_id`` is in the service's audit log. ``retry_after`` is in seconds. Unknown values are
    None.
    """

    def __init__(
        self,
        message: str,
        *,
        error_code: str | None = None,
        field: str | None = None,
        status: int | None = None,
        request_id: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        """Take the message and the fields of an error response."""
        super().__init__(message)
        self.message = message
        self.error_code = error_code
        self.field = field
        self.status = status
        self.request_id = request_id
        self.retry_after = retry_after

    def __str__(self) -> str:
        code = self.error_code or (f"HTTP {self.status}" if self.status else "")
        request = f"request {self.request_id}" if self.request_id else ""
        details = ", ".join(filter(None, (code, self.field, request)))
        return f"{self.message} ({details})" if details else self.message


class RuleWarning(DeprecationWarning):
    """A rule of the tenant will end an operation, which the service still did.

    Each rule causes one warning in a process, and one line of the logger ``pqkeep``.
    """

    def __init__(self, rule: str, deprecation: datetime | None, sunset: datetime | None) -> None:
        """Take the rule's name, and the times when it begins to warn and to deny.

        None means never.
        """
        ends = "ends" if sunset is None else f"denies from {sunset:%Y-%m-%dT%H:%M:%SZ} on"
        super().__init__(
            f"the rule {rule} {ends} an algorithm that this program uses for new data or keys; the"
            f" command pqkeep rules show {rule} names its successor"
        )
        self.rule = rule
        self.deprecation = deprecation
        self.sunset = sunset


class ConfigurationError(PqkeepError):
    """The address, credential, profile or CA file cannot be used. Nothing was sent."""


class ComplianceError(PqkeepError):
    """The client's compliance profile does not allow this. Nothing was sent."""


class InvalidRequestError(PqkeepError):
    """The request is invalid. ``field`` often names the wrong field."""


class EncryptionInputError(InvalidRequestError):
    """Encrypt or encapsulate: a value is malformed or too large."""


class DecryptionError(InvalidRequestError):
    """Decrypt or decapsulate: the input is malformed, or is for another key."""


class WrappingInputError(InvalidRequestError):
    """Wrap: the symmetric key must have 16, 24, 32, 48 or 64 bytes, or a value is malformed."""


class UnwrappingInputError(InvalidRequestError):
    """Unwrap: the wrapped key is malformed, too short or too large."""


class UnwrappingError(InvalidRequestError):
    """Unwrap: the wrapped key was changed, or is for another key."""


class SignatureInputError(InvalidRequestError):
    """A value of a signature operation is malformed."""


class MessageTooLargeError(InvalidRequestError):
    """The message or the signature is too large. Sign a hash instead."""


class HashAlgorithmError(InvalidRequestError):
    """The hash algorithm must be ``SHA-256``, ``SHA-384`` or ``SHA-512``."""


class HashLengthError(InvalidRequestError):
    """The hash must have its algorithm's length: 32, 48 or 64 bytes."""


class InvalidModeError(InvalidRequestError):
    """The mode must be ``standard`` or ``deterministic``."""


class InvalidSaltError(InvalidRequestError):
    """The salt is malformed."""


class UnreadableInputError(InvalidRequestError):
    """A key, a signature or an envelope is damaged, in an unknown form, or of another kind.

    ``what`` describes the input by form, algorithm and length. ``next_step`` says what to do.
    Nothing was sent.
    """

    def __init__(self, what: str, next_step: str) -> None:
        """Take both. Neither may quote the input."""
        super().__init__(f"the input is {what}: {next_step}")
        self.what = what
        self.next_step = next_step


class AuthenticationError(PqkeepError):
    """The API key is missing, mistyped or revoked."""


class PermissionDeniedError(PqkeepError):
    """The API key lacks the permission, or its tenant is suspended."""


class PolicyDeniedError(PermissionDeniedError):
    """The plan lacks the algorithm or the operation, or the month's quota is used up."""


class NotFoundError(PqkeepError):
    """The object does not exist, or the key's status does not allow the operation."""


class ConflictError(PqkeepError):
    """The object exists already, or was changed meanwhile."""


class RateLimitError(PqkeepError):
    """Too many requests. ``retry_after`` is the time to wait."""


class MalformedResponseError(PqkeepError):
    """The response is not from pqkeep. A change may have been made."""


class UnavailableError(PqkeepError):
    """The service is not available now. A change may have been made."""


class InternalError(UnavailableError):
    """The service failed."""


class BadGatewayError(UnavailableError):
    """A part of the service sent an invalid response."""


class OutOfServiceError(UnavailableError):
    """A part of the service is down or overloaded."""


class GatewayTimeoutError(UnavailableError):
    """A part of the service did not respond in time."""


class ConnectionFailedError(UnavailableError):
    """The connection failed, or broke before the response was complete."""


class DeadlineExceededError(UnavailableError):
    """The service did not respond within the client's timeout."""


BY_CODE: Mapping[str, type[PqkeepError]] = {
    "ERR_INVALID_002": InvalidSaltError,
    "ERR_KEM_001": EncryptionInputError,
    "ERR_KEM_002": DecryptionError,
    "ERR_KEM_006": DecryptionError,
    "ERR_KEM_007": InvalidModeError,
    "ERR_KEM_010": WrappingInputError,
    "ERR_KEM_011": UnwrappingInputError,
    "ERR_KEM_012": UnwrappingError,
    "ERR_SIG_001": SignatureInputError,
    "ERR_SIG_002": MessageTooLargeError,
    "ERR_SIG_010": HashAlgorithmError,
    "ERR_SIG_011": HashLengthError,
    "ERR_POLICY_001": PolicyDeniedError,
}
"""The class of an error, by its code."""

OF_ITEMS: Mapping[str, type[PqkeepError]] = {
    **BY_CODE,
    "ERR_INVALID_001": InvalidRequestError,
    "ERR_AUTH_001": AuthenticationError,
    "ERR_FORBIDDEN_001": PermissionDeniedError,
    "ERR_NOT_FOUND_001": NotFoundError,
    "ERR_CONFLICT_001": ConflictError,
    "ERR_RATE_LIMIT_001": RateLimitError,
    "ERR_INTERNAL_001": InternalError,
    "ERR_BAD_GATEWAY_001": BadGatewayError,
    "ERR_SERVICE_001": OutOfServiceError,
    "ERR_TIMEOUT_001": GatewayTimeoutError,
}
"""The class of an item's error in a batch, by its code: an item has no status."""

BY_STATUS: Mapping[int, type[PqkeepError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    405: InvalidRequestError,
    409: ConflictError,
    422: InvalidRequestError,
    429: RateLimitError,
    500: InternalError,
    502: BadGatewayError,
    503: OutOfServiceError,
    504: GatewayTimeoutError,
}
"""The class of any other error response, by its status. The default is PqkeepError."""

RETRIED: tuple[type[PqkeepError], ...] = (RateLimitError, UnavailableError)
"""Errors that are retried."""
