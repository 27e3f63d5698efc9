"""The catalogue of error codes, and the exception that carries one to the client; clients that have gone."""

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Self

from starlette.types import Receive

from pqkeep_gateway.access.rate_limit import Limit
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
        self.code = code
        self.status = status


class ApiError(Exception):
    """An error for the client. Its message never repeats the client's input."""

    def __init__(  # noqa: PLR0913 - most errors have only a few of these
        self,
        code: Code,
        message: str,
        field: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        policy: str = "",
        algorithm: str | None = None,
        is_recorded: bool = False,
        challenge: tuple[str, str] | None = None,
        cookies: tuple[str, ...] = (),
    ) -> None:
        """Take the parts of the response: headers, cookies, a challenge's token and second factor.

        For the audit log: the policy that refused, its algorithm, and whether the key service has
        already recorded the refusal.
        """
        super().__init__(message)
        self.code = code
        self.message = message
        self.field = field
        self.headers = headers or {}
        self.policy = policy
        self.algorithm = algorithm
        self.keyring: str | None = None
        """For the audit log: the refused keyring, if it is not the request's own."""
        self.is_recorded = is_recorded
        self.kind: ErrorKind | None = None
        """The key service's reason, if it refused the request."""
        self.challenge = challenge
        self.cookies = cookies

    def without_frames(self) -> Self:
        """Drop the traceback and cause: their frames refer to the body and to this error."""
        self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


def invalid(message: str, field: str | None = None) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError(Code.INVALID_001, message, field)


def forbidden(message: str) -> ApiError:
    """Return the error for a caller without permission."""
    return ApiError(Code.FORBIDDEN_001, message)


def not_found(message: str, field: str | None = None) -> ApiError:
    """Return the error for a missing object."""
    return ApiError(Code.NOT_FOUND_001, message, field)


def method_not_allowed(allowed: str) -> ApiError:
    """Return the error for a method that a path does not support."""
    message = "this path does not support this method"
    return ApiError(Code.METHOD_NOT_ALLOWED, message, headers={"Allow": allowed})


def ambiguous_cookies(names: Iterable[str], deletions: tuple[str, ...]) -> ApiError:
    """Return the error for duplicate cookies. Its response deletes them."""
    message = (
        f"the cookie {', '.join(names)} was sent more than once: another host of this domain may"
        " have set one. This response deletes them: try again, or sign in again"
    )
    return ApiError(Code.AUTH_001, message, cookies=deletions)


def enrollment_required() -> ApiError:
    """Return the error for a person without the required second factor."""
    return ApiError(Code.AUTH_MFA_001, "your organization requires a second factor: enroll one")


def credential_required() -> ApiError:
    """Return the error for a change in an operator's session."""
    message = "a session can only read: send the operator's credential in X-API-Key"
    return ApiError(Code.MFA_013, message)


def sign_in_again() -> ApiError:
    """Return the error for a change in the session of an operator who signed in at a provider."""
    message = "sign in at your provider again: this change needs a new sign-in, within five minutes"
    return ApiError(Code.MFA_013, message)


def internal() -> ApiError:
    """Return the error for a defect of the service."""
    return ApiError(Code.INTERNAL_001, "internal error")


def unavailable(message: str = "a part of the service is unavailable") -> ApiError:
    """Return the error for an unavailable part of the service. Retry after a second."""
    return ApiError(Code.SERVICE_001, message, headers={"Retry-After": "1"})


def too_many(message: str, limit: Limit, wait: float) -> ApiError:
    """Return the error for too many requests. Retry after the wait in seconds, rounded up."""
    seconds = max(1, math.ceil(wait))
    return ApiError(
        Code.RATE_LIMIT_001,
        message,
        headers={
            "Retry-After": str(seconds),
            "RateLimit-Limit": str(limit.events),
            "RateLimit-Remaining": "0",
            "RateLimit-Reset": str(seconds),
        },
    )


class ClientGoneError(Exception):
    """The client disconnected before its request began. No response is possible."""


async def until_gone(receive: Receive) -> None:
    """Return when the client has gone. Later writes to it are discarded silently."""
    while (await receive())["type"] != "http.disconnect":
        pass
