"""What can go wrong: one class for each condition that the service documents.

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

Marked errors are raised when retries have not helped.
"""

from collections.abc import Mapping


def how_to_install(extra: str) -> str:
    """Return the command that installs an extra of this package, from its wheel's folder."""
    from importlib.metadata import version  # noqa: PLC0415 - slow, and only for a message

    return f"pip install './pqkeep-{version('pqkeep')}-py3-none-any.whl[{extra}]'"


class PqkeepError(Exception):
    """The service refused, failed or could not be reached.

    ``error_code`` is stable, such as ``ERR_NOT_FOUND_001``; ``message`` is for people only.
    ``request_id`` is in the service's audit log. ``retry_after`` is in seconds. What is not known
    is None.
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
        """Keep what the service said."""
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


class ConfigurationError(PqkeepError):
    """No client can be made of this: address, credential, profile or CA file. Nothing was sent."""


class ComplianceError(PqkeepError):
    """The client's compliance profile does not allow this. Nothing was sent."""


class InvalidRequestError(PqkeepError):
    """The request is wrong; ``field`` often says where."""


class EncryptionInputError(InvalidRequestError):
    """Encrypt or encapsulate: a value is malformed, or too large."""


class DecryptionError(InvalidRequestError):
    """Decrypt or decapsulate: malformed, or it does not open with this key."""


class WrappingInputError(InvalidRequestError):
    """Wrap: the symmetric key does not have 16, 24, 32, 48 or 64 bytes, or a value is malformed."""


class UnwrappingInputError(InvalidRequestError):
    """Unwrap: the wrapped key is malformed, too short or too large."""


class UnwrappingError(InvalidRequestError):
    """Unwrap: the wrapped key was changed, or does not open with this key."""


class SignatureInputError(InvalidRequestError):
    """A value of a signature operation is malformed."""


class MessageTooLargeError(InvalidRequestError):
    """The message or the signature is too large. Sign a hash instead."""


class HashAlgorithmError(InvalidRequestError):
    """The hash algorithm is none of ``SHA-256``, ``SHA-384`` and ``SHA-512``."""


class HashLengthError(InvalidRequestError):
    """The hash does not have its algorithm's length: 32, 48 or 64 bytes."""


class InvalidModeError(InvalidRequestError):
    """The mode is neither ``standard`` nor ``deterministic``."""


class InvalidSaltError(InvalidRequestError):
    """The salt is malformed."""


class UnreadableInputError(InvalidRequestError):
    """A key, a signature or an envelope is damaged, in an unknown form, or of another kind.

    ``what`` is what it is, its form, algorithm and length, and ``next_step`` what to do.
    Nothing was sent.
    """

    def __init__(self, what: str, next_step: str) -> None:
        """Keep both. Neither may quote the input."""
        super().__init__(f"the input is {what}: {next_step}")
        self.what = what
        self.next_step = next_step


class AuthenticationError(PqkeepError):
    """The API key is missing, mistyped or revoked."""


class PermissionDeniedError(PqkeepError):
    """The API key is good, but not for this; or its tenant is suspended."""


class PolicyDeniedError(PermissionDeniedError):
    """The plan lacks the algorithm or the operation, or the month's allowance is used up."""


class NotFoundError(PqkeepError):
    """No such thing, or the key's status does not allow the operation."""


class ConflictError(PqkeepError):
    """It exists already, or has changed already."""


class RateLimitError(PqkeepError):
    """Too many requests; ``retry_after`` says when the next may come."""


class MalformedResponseError(PqkeepError):
    """The answer is not one of pqkeep's. A change may have been made."""


class UnavailableError(PqkeepError):
    """There is no answer now. A change may have been made, or not."""


class InternalError(UnavailableError):
    """The service failed."""


class BadGatewayError(UnavailableError):
    """A part of the service gave no proper answer."""


class OutOfServiceError(UnavailableError):
    """A part of the service is away, or has too much to do."""


class GatewayTimeoutError(UnavailableError):
    """A part of the service did not answer in time."""


class ConnectionFailedError(UnavailableError):
    """There is no connection, or it broke before the answer was whole."""


class DeadlineExceededError(UnavailableError):
    """There was no answer in the time that the client was given."""


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
"""The class of an error with a code of its own."""

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
"""The class of an item's error in a batch, which has a code and no status."""

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
"""The class of any other error answer. A status that is not here is a plain PqkeepError."""

RETRIED: tuple[type[PqkeepError], ...] = (RateLimitError, UnavailableError)
"""What asking again may help against."""
