"""The minimal service: encapsulations over HTTP, computed by a second process.

Two processes with the same libraries and the same frames as pqkeep, but no access control, keys,
policies, audit or checks. The difference to pqkeep is their cost.

Run as ``python -m benchmarks.baselines.minimal_service back SOCKET`` and then ``… front SOCKET``.
Each prints one line when it serves; the front prints its port.
"""

import asyncio
import itertools
import signal
import socket
import sys
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast

import msgspec
import uvicorn
import uvloop
from cryptography.hazmat.primitives.asymmetric import mlkem
from msgspec import Struct
from pybase64 import b64encode_as_string

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.codec import (
    TO_GATEWAY,
    TO_KEY_SERVICE,
    Answer,
    Call,
    FramedConnection,
    ToGateway,
    ToKeyService,
    Unreadable,
)
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import Attribution, Encapsulate, Encapsulated

Message = MutableMapping[str, Any]

BACKLOG = 2048
TIMEOUT_MS = 9_000
TENANT = TenantId(uuid.UUID(int=1))
ATTRIBUTION = Attribution(str(TENANT), "api-key:1", "127.0.0.1", "benchmark")


class Body(Struct, frozen=True):
    """The body of a request."""

    key_version: int


async def serve_back(path: str) -> None:
    """Encapsulate for every call."""
    key = mlkem.MLKEM768PrivateKey.generate().public_key()

    def connection() -> FramedConnection[ToKeyService]:
        def receive(frame: ToKeyService | Unreadable) -> None:
            secret, ciphertext = key.encapsulate()
            result = Encapsulated(kem_ciphertext=ciphertext, shared_secret=secret)
            made.send(Answer(frame.id, result))

        made = FramedConnection(TO_KEY_SERVICE, on_frame=receive, on_lost=_ignore)
        return made

    await asyncio.get_running_loop().create_unix_server(connection, path)
    _print_line("serving")
    await _until_terminated()


async def serve_front(path: str) -> None:
    """Respond to every POST with an encapsulation from the back."""
    waiting: dict[int, asyncio.Future[ToGateway | Unreadable]] = {}
    ids = itertools.count(1)
    encoder = msgspec.json.Encoder()
    decoder = msgspec.json.Decoder(Body)
    loop = asyncio.get_running_loop()

    def receive(frame: ToGateway | Unreadable) -> None:
        waiting.pop(frame.id).set_result(frame)

    _, connection = await loop.create_unix_connection(
        lambda: FramedConnection(TO_GATEWAY, on_frame=receive, on_lost=_ignore), path
    )

    async def app(
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        version = KeyVersion(decoder.decode((await receive())["body"]).key_version)
        request = Encapsulate(tenant=TENANT, algorithm=Algorithm.ML_KEM_768, version=version)
        call = Call(next(ids), TIMEOUT_MS, ATTRIBUTION, request)
        waiting[call.id] = response = loop.create_future()
        connection.send(call)
        made = cast(Encapsulated, cast(Answer, await response).result)
        body = encoder.encode(
            {
                "kem_ciphertext": b64encode_as_string(made.kem_ciphertext),
                "shared_secret": b64encode_as_string(made.shared_secret),
            }
        )
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(BACKLOG)
    config = uvicorn.Config(
        app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False
    )
    _print_line(str(listener.getsockname()[1]))
    await uvicorn.Server(config).serve([listener])


def _ignore(_why: object) -> None:
    """Ignore a lost connection: the benchmark is over."""


async def _until_terminated() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _, side, socket_path = sys.argv
    uvloop.run({"back": serve_back, "front": serve_front}[side](socket_path))
