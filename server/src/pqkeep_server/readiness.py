"""Asks gateways for their readiness, and waits for it."""

import asyncio
import http.client
import os
import ssl
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from typing import NamedTuple

import msgspec

from pqkeep_protocol.startup.logs import logger, write_logs
from pqkeep_server.exit_status import message_of
from pqkeep_server.gateways import Listeners

_LOG = logger(__name__)

RESPONSE_SECONDS = 3.0
"""The longest wait for a response. A gateway notices changes within two seconds."""
POLL_SECONDS = 0.05
FIRST_REPORT_SECONDS = 2.0
LAST_REPORT_SECONDS = 30.0
MOST_READ = 64 * 1024
"""The most bytes of a response."""


class Place(NamedTuple):
    """The address that reports a gateway's readiness: its management address or the public one."""

    host: str
    port: int
    path: str = "/readyz"
    is_tls: bool = False


def place_of(gateway: Listeners, *, is_tls: bool) -> Place:
    """Return the address that reports the readiness of a gateway with these sockets."""
    if gateway.management is not None:
        host, port = gateway.management.getsockname()[:2]
        return Place(host, port)
    host, port = gateway.public.getsockname()[:2]
    return Place(host, port, "/healthz", is_tls)


class Readiness(msgspec.Struct):
    """The response of /readyz."""

    reasons: list[str] = []
    degraded: list[str] = []
    causes: dict[str, str] = {}

    def said(self, names: Iterable[str]) -> Iterator[str]:
        """Yield each name with its cause."""
        for name in names:
            yield f"{name}: {self.causes[name]}" if name in self.causes else name


def ask(place: Place, seconds: float = RESPONSE_SECONDS) -> Readiness:
    """Return a gateway's readiness. A ready one has no reasons. Raises OSError and HTTPException."""
    connection = _connection(place, seconds)
    try:
        connection.request("GET", place.path)
        response = connection.getresponse()
        text = response.read(MOST_READ).decode(errors="replace").strip()
    finally:
        connection.close()
    try:
        told = msgspec.json.decode(text, type=Readiness)
    except msgspec.MsgspecError:
        told = Readiness()
    if response.status == HTTPStatus.OK:
        told.reasons = []
    elif not told.reasons:
        told.reasons = [f"{place.path} is {response.status} {text[:200]}".strip()]
    return told


async def wait_until_ready(
    places: Sequence[Place], tell: Callable[[str], None] = lambda _: None
) -> None:
    """Return when every gateway is ready.

    Missing parts are logged after two seconds, then less often, and on each change. ``tell`` gets the
    same text as a STATUS= of sd_notify(3).
    """
    loop = asyncio.get_running_loop()
    pause = FIRST_REPORT_SECONDS
    report_at, reported = loop.time() + pause, list[str]()
    while missing := await what_is_missing(places):
        now = loop.time()
        if now >= report_at or (reported and missing != reported):
            _LOG.warning("requests are not answered yet", missing="; ".join(missing))
            tell(f"STATUS=not ready: {'; '.join(missing)}")
            pause = pause if missing != reported else min(2 * pause, LAST_REPORT_SECONDS)
            report_at, reported = now + pause, missing
        await asyncio.sleep(POLL_SECONDS)


async def what_is_missing(places: Sequence[Place]) -> list[str]:
    """Return the reasons why gateways are not ready, without repetitions.

    The gateways are asked one by one in threads, so a cancelled call waits for one response at
    most.
    """
    found: dict[str, None] = {}
    for place in places:
        try:
            told = await asyncio.to_thread(ask, place)
        except (OSError, http.client.HTTPException) as error:
            problem = message_of(error) or type(error).__name__
            found[f"gateway: no response at {place.host} port {place.port}: {problem}"] = None
        else:
            found |= dict.fromkeys(told.said(told.reasons))
    return list(found)


def main(words: Sequence[str]) -> int:
    """Wait until gateways are ready, and write each state for the service manager as a line."""
    write_logs("pqkeepd")

    def tell(state: str) -> None:
        sys.stdout.write(state.replace("\n", " ") + "\n")
        sys.stdout.flush()

    asyncio.run(wait_until_ready(msgspec.json.decode(words[0], type=list[Place]), tell))
    _LOG.info("ready: requests are answered")
    tell("READY=1")
    tell("STATUS=requests are answered")
    return os.EX_OK


def _connection(place: Place, seconds: float) -> http.client.HTTPConnection:
    if not place.is_tls:
        return http.client.HTTPConnection(place.host, place.port, timeout=seconds)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # this host's own listening socket
    context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(place.host, place.port, timeout=seconds, context=context)
