"""The envelope of every response."""

from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Struct, UnsetType

from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_protocol.messages import RedactedRepr

_ENCODER = msgspec.json.Encoder()


class Data(RedactedRepr, Struct, frozen=True, kw_only=True):
    """Base of the data in successful responses. Each endpoint's module defines its own."""


class Success(RedactedRepr, Struct, frozen=True):
    """The body of a successful response."""

    data: Data
    request_id: str
    timestamp: Timestamp


class Fault(RedactedRepr, Struct, frozen=True):
    """An error. Programs use the code; the message is for people, and may change."""

    error_code: str
    message: str
    field: str | UnsetType = UNSET
    """The field at fault, if there is one."""
    challenge_token: str | UnsetType = UNSET
    """The token to send with the missing code."""
    second_factor: str | UnsetType = UNSET
    """The source of the missing code."""


class Failure(RedactedRepr, Struct, frozen=True):
    """The body of an error."""

    error: Fault
    request_id: str
    timestamp: Timestamp


def success(data: Data, request_id: str) -> bytes:
    """Return the body of a successful response."""
    return _ENCODER.encode(Success(data, request_id, timestamp(datetime.now(UTC))))


def failure(error: ApiError, request_id: str) -> bytes:
    """Return the body of an error."""
    return _ENCODER.encode(Failure(fault(error), request_id, timestamp(datetime.now(UTC))))


def fault(error: ApiError) -> Fault:
    """Return an error in its API form."""
    token, factor = (UNSET, UNSET) if error.challenge is None else error.challenge
    return Fault(
        error.code.code,
        error.message,
        UNSET if error.field is None else error.field,
        token,
        factor,
    )
