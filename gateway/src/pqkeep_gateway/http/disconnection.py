"""Clients that disconnect before their response."""

from starlette.types import Receive


class ClientGoneError(Exception):
    """The client disconnected before its request began. No response is possible."""


async def until_gone(receive: Receive) -> None:
    """Return when the client has gone. Later writes to it are discarded silently."""
    while (await receive())["type"] != "http.disconnect":
        pass
