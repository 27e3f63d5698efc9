"""Clients that hang up before they are answered."""

from starlette.types import Receive


class ClientGoneError(Exception):
    """The client hung up before its request was begun. There is nobody to answer."""


async def until_gone(receive: Receive) -> None:
    """Return when the client has gone: what is sent to it then is thrown away without a word."""
    while (await receive())["type"] != "http.disconnect":
        pass
