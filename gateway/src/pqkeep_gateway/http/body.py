"""Reading a request's body: bounded in size, and always a JSON object.

``protocol`` bounds it in time.
"""

import json
from collections.abc import Mapping
from typing import Any, NoReturn

from starlette.types import Receive

from pqkeep_gateway.http.errors import invalid

MAX_BODY = 4 * 1024 * 1024


class ClientGoneError(Exception):
    """The client hung up before its request was whole. There is nobody to answer."""


async def read_json_object(
    receive: Receive, content_type: bytes | None, *, required: bool
) -> Mapping[str, Any]:
    """Return the body. Raises ApiError for everything that is not a JSON object.

    Where no body is required, an empty one is an empty object.
    """
    if required:
        _require_json(content_type)  # before a body of any size is read
    body = await read_bytes(receive)
    return _object_of(body, content_type) if body or required else {}


def _object_of(body: bytes, content_type: bytes | None) -> Mapping[str, Any]:
    _require_json(content_type)
    try:
        value = _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise invalid("the body is not a JSON object")
    return value


def _require_json(content_type: bytes | None) -> None:
    if content_type is not None and not _is_json(content_type):
        raise invalid("the content type must be application/json")


async def read_bytes(receive: Receive, at_most: int = MAX_BODY) -> bytes:
    """Return a body as it came. Raises ApiError if it is too large."""
    message = await _next(receive)
    if not message.get("more_body"):
        return _bounded(message.get("body", b""), at_most)
    chunks = bytearray(message["body"])
    while message.get("more_body"):
        message = await _next(receive)
        chunks += _bounded(message.get("body", b""), at_most - len(chunks))
    return bytes(chunks)


async def _next(receive: Receive) -> Any:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message


def _bounded(chunk: bytes, at_most: int) -> bytes:
    if len(chunk) > at_most:
        raise invalid("the body is too large")
    return chunk


def _is_json(content_type: bytes) -> bool:
    return content_type.split(b";", 1)[0].strip().lower() == b"application/json"


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, unless a name is in it twice: no two readers may differ about it."""
    made = dict(members)
    if len(made) < len(members):
        raise ValueError
    return made


def _no_number(constant: str) -> NoReturn:
    raise ValueError


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)
"""The standard library's: the others do not notice a name that is there twice."""
