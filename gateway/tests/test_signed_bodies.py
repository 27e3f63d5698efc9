"""Webhooks from unknown senders are limited before their signatures are verified."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.http.endpoint import SignedBody
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.http.pipeline import MAX_SIGNED, MAX_SIGNED_AT_ONCE, UNVERIFIED, SignedBodies

HEADER = "Example-Signature"
SIGNED = {b"example-signature": b"t=1,v1=0"}
STRANGER, SENDER = "192.0.2.1", "198.51.100.1"


class Sender:
    """A request's body, whose end can be delayed."""

    def __init__(self, *, is_held: bool = False) -> None:
        self.was_read = asyncio.Event()
        self.may_go_on = asyncio.Event()
        if not is_held:
            self.may_go_on.set()

    async def receive(self) -> dict[str, Any]:
        """Return the whole body."""
        self.was_read.set()
        await self.may_go_on.wait()
        return {"type": "http.request", "body": b"{}", "more_body": False}


class Setting:
    """Bodies to read, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.bodies = SignedBodies(SourceBudget(UNVERIFIED, lambda: self.now))

    async def read(
        self,
        sender: Sender | None = None,
        source: str = STRANGER,
        headers: Mapping[bytes, bytes] = SIGNED,
    ) -> SignedBody:
        """Read a body."""
        return await self.bodies.read(HEADER, headers, (sender or Sender()).receive, source)

    async def refusal(self, source: str = STRANGER) -> ApiError:
        """Return the refusal of a body that is not read."""
        sender = Sender()
        with pytest.raises(ApiError) as raised:
            await self.read(sender, source)
        assert not sender.was_read.is_set()
        return raised.value


@pytest.fixture
def setting() -> Setting:
    """A new setting for each test."""
    return Setting()


async def test_a_body_comes_with_its_signature(setting: Setting) -> None:
    """Body and signature are returned unchanged."""
    assert await setting.read() == SignedBody(b"{}", "t=1,v1=0")


async def test_a_body_without_a_signature_is_not_read(setting: Setting) -> None:
    """Without a signature, the body is not read and not counted."""
    for _ in range(2 * UNVERIFIED.events):
        sender = Sender()
        assert await setting.read(sender, headers={}) == SignedBody()
        assert not sender.was_read.is_set()
    await setting.read()


async def test_unverified_bodies_have_a_budget(setting: Setting) -> None:
    """Beyond the budget, an address gets 429 without reading its body; others are served."""
    for _ in range(UNVERIFIED.events):
        await setting.read()
    error = await setting.refusal()
    assert error.code is Code.RATE_LIMIT_001
    assert 0 < int(error.headers["Retry-After"]) <= UNVERIFIED.seconds
    await setting.read(source=SENDER)
    setting.now += UNVERIFIED.seconds
    await setting.read()


async def test_verified_bodies_cost_no_budget(setting: Setting) -> None:
    """Bodies with valid signatures are unlimited."""
    for _ in range(3 * UNVERIFIED.events):
        await setting.read(source=SENDER)
        setting.bodies.accept(SENDER)


async def test_bodies_at_once_are_bounded(setting: Setting) -> None:
    """A body above the limit of concurrent ones is refused with 503, unread and not counted."""
    held = [Sender(is_held=True) for _ in range(MAX_SIGNED_AT_ONCE)]
    sources = [f"192.0.2.{number % 32}" for number in range(MAX_SIGNED_AT_ONCE)]
    reading = [
        asyncio.create_task(setting.read(sender, source))
        for sender, source in zip(held, sources, strict=True)
    ]
    await asyncio.gather(*(body.was_read.wait() for body in held))
    for _ in range(2 * UNVERIFIED.events):
        assert (await setting.refusal(SENDER)).code is Code.SERVICE_001
    for body in held:
        body.may_go_on.set()
    await asyncio.gather(*reading)
    await setting.read(source=SENDER)


async def test_a_body_that_says_it_is_too_large_is_not_read(setting: Setting) -> None:
    """A Content-Length above the limit is refused before the first byte."""
    sender = Sender()
    headers = {**SIGNED, b"content-length": b"%d" % (MAX_SIGNED + 1)}
    with pytest.raises(ApiError, match="too large"):
        await setting.read(sender, headers=headers)
    assert not sender.was_read.is_set()
