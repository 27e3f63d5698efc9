"""Requests to a single sign-on provider: certificates, delays and responses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from gateway.tests.test_identity_providers import PROVIDER
from tests.fixtures.openid_provider import SettableProvider, send, settable_provider

from pqkeep_gateway.people.identity_providers import InvalidProviderResponseError
from pqkeep_gateway.single_sign_on.openid_provider import (
    AT_ONCE,
    Distance,
    OpenIdProvider,
    distance_of,
)
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
    """Without a secret there is no Authorization header, and PKCE protects the code."""
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
    """A provider that supports only client_secret_post gets the secret in the form."""
    remote.settings = {"token_endpoint_auth_methods_supported": ["client_secret_post"]}
    await client_of(remote, "s3cret").exchange("a code", VERIFIER, "http://127.0.0.1/callback")
    headers, form = remote.token_requests[-1]
    assert "Authorization" not in headers
    assert form["client_secret"] == ["s3cret"]


@pytest.mark.threat("hostile-identity-provider")
async def test_a_slow_provider_holds_up_a_few_requests(remote: SettableProvider) -> None:
    """While the limit of requests waits, another one is refused; later requests are served."""
    all_wait, goes_on = Event(), Event()

    def respond(handler: BaseHTTPRequestHandler) -> None:
        if len(remote.token_requests) == AT_ONCE:
            all_wait.set()
        goes_on.wait()
        send(handler, remote.tokens())

    remote.response = respond
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


@pytest.mark.threat("hostile-identity-provider")
async def test_an_answer_that_trickles_is_cut(remote: SettableProvider) -> None:
    """An endless response is stopped by the time limit, and its thread is free again."""
    was_cut = Event()

    def respond(handler: BaseHTTPRequestHandler) -> None:
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
    remote.response = respond
    for _ in range(AT_ONCE + 1):
        was_cut.clear()
        with pytest.raises(UnavailableError):
            await client.exchange("a code", VERIFIER, "http://127.0.0.1/callback")
        assert await asyncio.to_thread(was_cut.wait, 60)


@pytest.mark.parametrize(
    ("address", "distance"),
    [
        *((address, Distance.THIS_MACHINE) for address in ("127.0.0.1", "::1", "::")),
        *((address, Distance.THIS_MACHINE) for address in ("127.9.9.9", "::ffff:127.0.0.1")),
        *((address, Distance.LINK) for address in ("169.254.169.254", "fe80::1%1")),
        *((address, Distance.PRIVATE_NETWORK) for address in ("10.0.0.1", "192.168.1.1")),
        *((address, Distance.PRIVATE_NETWORK) for address in ("fd00::1", "100.64.0.1")),
        *((address, Distance.INTERNET) for address in ("8.8.8.8", "2606:4700::1111")),
    ],
)
def test_how_far_away_an_address_is(address: str, distance: Distance) -> None:
    """Addresses are ranked: this machine, its link, a private network, the Internet."""
    assert distance_of(address) is distance


@pytest.mark.threat("hostile-identity-provider")
@pytest.mark.parametrize("endpoint", ["token_endpoint", "userinfo_endpoint"])
async def test_a_provider_elsewhere_names_no_endpoint_that_is_nearer(
    remote: SettableProvider, endpoint: str
) -> None:
    """A remote provider's endpoint on this machine is refused without a connection."""
    connected = Event()

    def accept(server: socket.socket) -> None:
        with suppress(OSError):
            server.accept()
            connected.set()

    with socket.create_server(("127.0.0.1", 0)) as internal:
        Thread(target=accept, args=(internal,), daemon=True).start()
        remote.settings = {endpoint: f"http://127.0.0.1:{internal.getsockname()[1]}/"}
        client = client_of(remote)
        await client.metadata()
        client._distance = Distance.PRIVATE_NETWORK
        with pytest.raises(InvalidProviderResponseError, match="address"):
            await client.exchange("a code", VERIFIER, "http://127.0.0.1/callback")
        assert not connected.is_set()


@pytest.mark.threat("hostile-identity-provider")
async def test_a_handshake_that_trickles_is_cut() -> None:
    """An endless handshake is stopped by the time limit, and its thread is free again."""
    was_cut = Event()

    def respond(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(b"\x16\x03\x03\x40\x00")  # the head of a record of 16 KiB
            while not was_cut.wait(0.05):
                connection.sendall(b"\x00")
        was_cut.set()

    with socket.create_server(("127.0.0.1", 0)) as server:
        Thread(target=respond, args=(server,), daemon=True).start()
        issuer = f"https://127.0.0.1:{server.getsockname()[1]}"
        client = OpenIdProvider(replace(PROVIDER, issuer=issuer), None, None, seconds=0.5)
        with pytest.raises(UnavailableError):
            await client.metadata()
        assert await asyncio.to_thread(was_cut.wait, 60)


async def test_another_issuers_document_is_refused(remote: SettableProvider) -> None:
    """The issuer in the discovery document must be the one in the settings."""
    remote.settings = {"issuer": "https://login.example.org"}
    with pytest.raises(InvalidProviderResponseError):
        await client_of(remote).metadata()


async def test_the_certificate_is_checked(certificate: Certificate) -> None:
    """A provider without a trusted certificate gets no request; with its authority it does."""
    with settable_provider(certificate.context) as remote:
        with pytest.raises(UnavailableError):
            await client_of(remote).metadata()
        provider = replace(PROVIDER, issuer=remote.issuer)
        trusting = OpenIdProvider(provider, None, certificate.path, seconds=60)
        assert (await trusting.metadata()).issuer == remote.issuer
