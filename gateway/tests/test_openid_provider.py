"""Requests to a provider of single sign-on: its certificate, its slowness, and its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from threading import Event
from typing import TYPE_CHECKING

import pytest
from gateway.tests.test_identity_providers import PROVIDER
from tests.fixtures.openid_provider import SettableProvider, send, settable_provider

from pqkeep_gateway.people.identity_providers import InvalidProviderAnswerError
from pqkeep_gateway.single_sign_on.openid_provider import AT_ONCE, OpenIdProvider
from pqkeep_gateway.unavailable import OverloadedError, UnavailableError

if TYPE_CHECKING:
    from tests.fixtures.certificate import Certificate

VERIFIER = "v" * 43


@pytest.fixture
def remote() -> Iterator[SettableProvider]:
    """A provider on loopback."""
    with settable_provider() as provider:
        yield provider


def client_of(
    remote: SettableProvider, secret: str | None = None, *, seconds: float = 60
) -> OpenIdProvider:
    """Return the gateway's client of a provider."""
    return OpenIdProvider(replace(PROVIDER, issuer=remote.issuer), secret, None, seconds=seconds)


async def test_a_public_client_sends_its_name_and_the_verifier(remote: SettableProvider) -> None:
    """Without a secret there is no Authorization, and PKCE proves whose the code is."""
    claims = await client_of(remote).exchange("a code", VERIFIER, "http://127.0.0.1/callback")
    assert claims["iss"] == remote.issuer
    headers, form = remote.token_requests[-1]
    assert "Authorization" not in headers
    assert form == {
        "grant_type": ["authorization_code"],
        "code": ["a code"],
        "redirect_uri": ["http://127.0.0.1/callback"],
        "code_verifier": [VERIFIER],
        "client_id": ["pqkeep"],
    }


async def test_the_secret_goes_where_the_provider_wants_it(remote: SettableProvider) -> None:
    """A provider that knows only client_secret_post finds the secret in the form."""
    remote.settings = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    await client_of(remote, "s3cret").exchange("a code", VERIFIER, "http://127.0.0.1/callback")
    headers, form = remote.token_requests[-1]
    assert "Authorization" not in headers
    assert form["client_secret"] == ["s3cret"]


async def test_a_slow_provider_holds_up_a_few_requests(remote: SettableProvider) -> None:
    """While as many wait as may, another one is refused at once; afterwards they are answered."""
    all_wait, goes_on = Event(), Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        if len(remote.token_requests) == AT_ONCE:
            all_wait.set()
        goes_on.wait()
        send(handler, remote.tokens())

    remote.answer = answer
    client = client_of(remote)
    await client.metadata()
    asked = [
        asyncio.create_task(client.exchange("a code", VERIFIER, "http://127.0.0.1/callback"))
        for _ in range(AT_ONCE)
    ]
    try:
        await asyncio.to_thread(all_wait.wait, 60)
        with pytest.raises(OverloadedError):
            await client.exchange("a code", VERIFIER, "http://127.0.0.1/callback")
    finally:
        goes_on.set()
    assert len(await asyncio.gather(*asked)) == AT_ONCE


async def test_an_answer_that_trickles_is_cut(remote: SettableProvider) -> None:
    """A body that never ends is given up in time, and its thread is free again."""
    was_cut = Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        try:
            while True:
                handler.wfile.write(b" ")
                if was_cut.wait(0.05):
                    return
        except OSError:
            was_cut.set()

    client = client_of(remote, seconds=0.5)
    await client.metadata()
    remote.answer = answer
    for _ in range(AT_ONCE + 1):
        was_cut.clear()
        with pytest.raises(UnavailableError):
            await client.exchange("a code", VERIFIER, "http://127.0.0.1/callback")
        assert await asyncio.to_thread(was_cut.wait, 60)


async def test_another_issuers_document_is_refused(remote: SettableProvider) -> None:
    """What the discovery document calls itself must be what the settings say."""
    remote.settings = {"issuer": "https://login.example.org"}
    with pytest.raises(InvalidProviderAnswerError):
        await client_of(remote).metadata()


async def test_the_certificate_is_checked(certificate: Certificate) -> None:
    """A provider whose certificate nobody trusts is asked nothing; with its authority it is."""
    with settable_provider(certificate.context) as remote:
        with pytest.raises(UnavailableError):
            await client_of(remote).metadata()
        provider = replace(PROVIDER, issuer=remote.issuer)
        trusting = OpenIdProvider(provider, None, certificate.path, seconds=60)
        assert (await trusting.metadata()).issuer == remote.issuer
