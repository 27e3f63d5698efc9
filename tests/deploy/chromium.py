"""Headless Chromium's view of a page's TLS, over the DevTools protocol on a pipe."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from tests.deploy.tree import ENVIRONMENT, SECONDS, CampaignError, Tree

Message = dict[str, Any]

OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"),
    *("--no-first-run", "--user-data-dir=/root/chromium"),
)
COMMANDS, EVENTS = 3, 4
"""The descriptors for reading and writing."""
SPARE = 10, 11
"""Free descriptors, if those two are taken."""


class Browser:
    """A running Chromium."""

    def __init__(self, commands: IO[bytes], events: IO[bytes]) -> None:
        self._commands = commands
        self._messages = _messages(events)
        self._seen: list[Message] = []
        self._number = 0

    def call(self, method: str, session: str = "", **parameters: object) -> Message:
        """Return a command's result."""
        self._number += 1
        command: Message = {"id": self._number, "method": method, "params": parameters}
        if session:
            command["sessionId"] = session
        self._commands.write(json.dumps(command).encode() + b"\0")
        self._commands.flush()
        answer = self._next("id", self._number)
        if "result" not in answer:
            raise CampaignError(f"chromium refuses {method}: {answer}")
        result: Message = answer["result"]
        return result

    def event(self, method: str) -> Message:
        """Return the first event of a kind."""
        parameters: Message = self._next("method", method)["params"]
        return parameters

    def _next(self, name: str, value: object) -> Message:
        for message in self._seen:
            if message.get(name) == value:
                return message
        for message in self._messages:
            self._seen.append(message)
            if message.get(name) == value:
                return message
        raise CampaignError("chromium ended")


def _messages(events: IO[bytes]) -> Iterator[Message]:
    text = bytearray()
    while byte := events.read(1):
        if byte == b"\0":
            yield json.loads(bytes(text))
            text.clear()
        else:
            text += byte


def opened(tree: Tree, url: str, spki: str) -> Message:
    """Open a page; return the response with ``securityDetails``, or ``errorText``.

    ``spki`` is the trusted SHA-256 of the certificate's key, in base64.
    """
    with _running(tree, f"--ignore-certificate-errors-spki-list={spki}") as browser:
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        session = attached["sessionId"]
        browser.call("Network.enable", session)
        went = browser.call("Page.navigate", session, url=url)
        if "errorText" in went:
            return went
        response: Message = browser.event("Network.responseReceived")["response"]
        return response


@contextmanager
def _running(tree: Tree, *options: str) -> Iterator[Browser]:
    commands_read, commands_write = os.pipe()
    events_read, events_write = os.pipe()

    def place() -> None:
        for source, spare in zip((commands_read, events_write), SPARE, strict=True):
            os.dup2(source, spare)
        for spare, place in zip(SPARE, (COMMANDS, EVENTS), strict=True):
            os.dup2(spare, place)

    process = subprocess.Popen(
        tree.command("chromium", *OPTIONS, *options),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=ENVIRONMENT,
        close_fds=False,
        preexec_fn=place,  # noqa: PLW1509 - calls of the kernel only
    )
    os.close(commands_read)
    os.close(events_write)
    try:
        with os.fdopen(commands_write, "wb") as commands, os.fdopen(events_read, "rb") as events:
            yield Browser(commands, events)
    finally:
        process.terminate()
        process.wait(SECONDS)
