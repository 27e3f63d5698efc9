"""The shape of every answer."""

from datetime import UTC, datetime

import msgspec
from msgspec import UNSET, Struct, UnsetType

from pqkeep_gateway.http.errors import ApiError
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_protocol.messages import RedactedRepr

_ENCODER = msgspec.json.Encoder()


class Data(RedactedRepr, Struct, frozen=True, kw_only=True):
    """Base of what successes say. Each answer has its own, beside the endpoint that gives it."""


class Success(RedactedRepr, Struct, frozen=True):
    """The body of a success."""

    data: Data
    request_id: str
    timestamp: Timestamp


class Fault(RedactedRepr, Struct, frozen=True):
    """What is wrong. Programs decide by the code; the message is for people, and may change."""

    error_code: str
    message: str
    field: str | UnsetType = UNSET
    """The field at fault, where it is one."""
    challenge_token: str | UnsetType = UNSET
    """Of somebody who owes a code: to be shown with it."""
    second_factor: str | UnsetType = UNSET
    """Where that code comes from."""


class Failure(RedactedRepr, Struct, frozen=True):
    """The body of an error."""

    error: Fault
    request_id: str
    timestamp: Timestamp


def success(data: Data, request_id: str) -> bytes:
    """Return the body of a success."""
    return _ENCODER.encode(Success(data, request_id, timestamp(datetime.now(UTC))))


def failure(error: ApiError, request_id: str) -> bytes:
    """Return the body of an error."""
    return _ENCODER.encode(Failure(fault(error), request_id, timestamp(datetime.now(UTC))))


def fault(error: ApiError) -> Fault:
    """Return what an error says."""
    token, factor = (UNSET, UNSET) if error.challenge is None else error.challenge
    return Fault(
        error.code.code,
        error.message,
        UNSET if error.field is None else error.field,
        token,
        factor,
    )
