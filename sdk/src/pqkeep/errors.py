"""What can go wrong: one class for each family of HTTP statuses."""

from collections.abc import Mapping


class PqkeepError(Exception):
    """The service refused, failed or could not be reached.

    ``error_code`` is stable, such as ``ERR_NOT_FOUND_001``; ``message`` is for people only.
    ``retry_after`` is in seconds. What the service did not say is None.
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


class InvalidRequestError(PqkeepError):
    """The request is wrong; ``field`` often says where. Do not retry."""


class AuthenticationError(PqkeepError):
    """The API key is missing, mistyped or revoked. Do not retry."""


class PermissionDeniedError(PqkeepError):
    """The API key is good, but not for this: the plan or a policy forbids it. Do not retry."""


class NotFoundError(PqkeepError):
    """No such key version, or its status does not allow the operation. Do not retry."""


class ConflictError(PqkeepError):
    """It exists already."""


class RateLimitError(PqkeepError):
    """Too many requests; ``retry_after`` says when the next may come."""


class InternalError(PqkeepError):
    """The service failed, or answered with something that is no answer."""


class ServiceUnavailableError(PqkeepError):
    """The service, or a part of it, could not be reached in time. Retry later."""


BY_STATUS: Mapping[int, type[PqkeepError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: InvalidRequestError,
    429: RateLimitError,
    500: InternalError,
    502: ServiceUnavailableError,
    503: ServiceUnavailableError,
    504: ServiceUnavailableError,
}
"""The class of an error answer. A status that is not here is a plain PqkeepError."""
