"""Reading a request's body: bounded in size, and always a JSON object.

``bounded`` bounds it in time.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.types import Receive

from pqkeep_gateway.http.errors import ApiError, Code

MAX_BODY = 4 * 1024 * 1024

_DECODER = msgspec.json.Decoder(dict[str, Any])


class ClientGoneError(Exception):
    """The client hung up before its request was whole. There is nobody to answer."""


async def read_json_object(receive: Receive, content_type: bytes | None) -> Mapping[str, Any]:
    """Return the body. Raises ApiError for everything that is no JSON object."""
    if content_type is not None and not _is_json(content_type):
        raise ApiError(Code.INVALID_001, "the content type must be application/json")
    body = await _read(receive)
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ApiError(Code.INVALID_001, "the body is not a JSON object") from None


async def _read(receive: Receive) -> bytes:
    message = await _next(receive)
    if not message.get("more_body"):
        return _bounded(message.get("body", b""))
    chunks = bytearray(message["body"])
    while message.get("more_body"):
        message = await _next(receive)
        chunks += _bounded(message.get("body", b""), already=len(chunks))
    return bytes(chunks)


async def _next(receive: Receive) -> Any:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message


def _bounded(chunk: bytes, already: int = 0) -> bytes:
    if already + len(chunk) > MAX_BODY:
        raise ApiError(Code.INVALID_001, "the body is too large")
    return chunk


def _is_json(content_type: bytes) -> bool:
    return content_type.split(b";", 1)[0].strip().lower() == b"application/json"
