"""Requests of the operator to a running key service, over its socket."""

import socket
from pathlib import Path

from pqkeep_protocol.administration import ReloadRootKeys, RootKeys
from pqkeep_protocol.codec import (
    TO_GATEWAY,
    Answer,
    Call,
    FrameDecoder,
    ProtocolError,
    Refusal,
    ToGateway,
    encode,
)
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution

TIMEOUT_SECONDS = 30.0


class KeyServiceError(Exception):
    """The key service refused, or did not answer."""


class KeyServiceRefusalError(KeyServiceError):
    """The key service refused."""


def reload_root_keys(path: Path) -> RootKeys:
    """Have the key service read the root keys that its settings name now.

    Raises KeyServiceError.
    """
    call = Call(
        1,
        int(TIMEOUT_SECONDS * 1000),
        Attribution("root-key", "operator", "", ""),
        ReloadRootKeys(tenant=INSTALLATION),
    )
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_SECONDS)
            connection.connect(str(path))
            connection.sendall(encode(call))
            answer = _receive(connection)
    except (OSError, ProtocolError) as error:
        raise KeyServiceError(f"the key service does not answer: {error}") from None
    match answer:
        case Answer(result=RootKeys() as result):
            return result
        case Refusal():
            raise KeyServiceRefusalError("the key service refused the root keys; its log says why")
        case _:
            raise KeyServiceError("the key service sent an unexpected answer")


def _receive(connection: socket.socket) -> ToGateway:
    decoder = FrameDecoder(TO_GATEWAY)
    while size := connection.recv_into(decoder.space()):
        for frame in decoder.filled(size):
            return frame
    raise OSError("the connection was closed")
