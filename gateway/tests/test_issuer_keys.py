"""Keys of issuers: fetched from a real server, cached, rotated, and used while it is away."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from uuid import UUID

import pytest
from jwcrypto.jwk import JWK
from tests.fixtures.token_platform import Platform

from pqkeep_gateway.access.networks import Networks
from pqkeep_gateway.delivery.issuer_keys import (
    AT_ONCE,
    AT_ONCE_OF_TENANT,
    FRESH_SECONDS,
    KEPT_SECONDS,
    RETRY_SECONDS,
    IssuerKeys,
)
from pqkeep_gateway.delivery.public_addresses import PublicAddresses
from pqkeep_gateway.signed_tokens import MAX_JWKS, SignedToken, read_token
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.keys import TenantId

TENANT = TenantId(UUID(int=1))
HERE = PublicAddresses(Networks(("127.0.0.0/8",)))


@dataclass
class Issuer:
    """A server of keys."""

    url: str = ""
    documents: dict[str, object] = field(default_factory=dict)
    """The response of each path. A missing one is 404; a text is a redirect to it."""
    requests: list[str] = field(default_factory=list)

    def publish(self, *keys: JWK) -> None:
        """Publish keys."""
        self.documents["/jwks"] = {"keys": [key.export_public(as_dict=True) for key in keys]}


@contextmanager
def serving() -> Iterator[Issuer]:
    """Run a server of keys for a block."""
    issuer = Issuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.requests.append(self.path)
            document = issuer.documents.get(self.path)
            if isinstance(document, str):
                self.send_response(302)
                self.send_header("Location", document)
            else:
                self.send_response(404 if document is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        issuer.url = f"http://127.0.0.1:{server.server_port}"
        issuer.documents["/.well-known/openid-configuration"] = {
            "issuer": issuer.url,
            "jwks_uri": f"{issuer.url}/jwks",
        }
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield issuer
        finally:
            server.shutdown()
            thread.join()


class Setting:
    """A cache with a clock that a test sets."""

    def __init__(self, addresses: PublicAddresses = HERE) -> None:
        self.now = 1_000_000.0
        self.keys = IssuerKeys(addresses, lambda: self.now)

    async def has(self, issuer: Issuer, token: SignedToken) -> bool:
        """Return whether there is a key for a token."""
        return bool(await self.keys.find(TENANT, issuer.url, token))


async def test_keys_follow_a_rotation() -> None:
    """A new key is fetched at its first token, and a removed one is refused once keys are old."""
    setting = Setting()
    with serving() as issuer:
        old, new = Platform(issuer.url), Platform(issuer.url, kid="two")
        issuer.publish(old.key)
        first, second = read_token(old.token()), read_token(new.token())
        assert await setting.has(issuer, first)
        assert await setting.has(issuer, first)
        assert len(issuer.requests) == 2
        issuer.publish(new.key)
        assert not await setting.has(issuer, second)
        assert len(issuer.requests) == 2
        setting.now += RETRY_SECONDS
        assert await setting.has(issuer, second)
        assert not await setting.has(issuer, first)


async def test_an_absent_issuer_keeps_its_keys_for_a_day() -> None:
    """Known keys are used while the issuer is away, for a day; new ones are not."""
    setting = Setting()
    with serving() as issuer:
        platform = Platform(issuer.url)
        issuer.publish(platform.key)
        token = read_token(platform.token())
        assert await setting.has(issuer, token)
        issuer.documents.clear()
        setting.now += FRESH_SECONDS
        assert await setting.has(issuer, token)
        setting.now += KEPT_SECONDS - FRESH_SECONDS
        with pytest.raises(UnavailableError):
            await setting.has(issuer, token)


@pytest.mark.threat("forged-workload-token")
@pytest.mark.parametrize("fault", ["other-issuer", "redirect", "too-large", "no-keys", "inside"])
async def test_what_an_issuer_may_not_do(fault: str) -> None:
    """Another issuer's document, a redirect, a huge document, and an internal address give no keys."""
    setting = Setting()
    with serving() as issuer:
        platform = Platform(issuer.url)
        issuer.publish(platform.key)
        well_known = "/.well-known/openid-configuration"
        document = {"issuer": issuer.url, "jwks_uri": f"{issuer.url}/jwks"}
        match fault:
            case "other-issuer":
                document["issuer"] += "/"
            case "redirect":
                issuer.documents["/jwks"] = "/elsewhere"
            case "too-large":
                issuer.documents["/jwks"] = {"keys": [], "x": "x" * MAX_JWKS}
            case "no-keys":
                issuer.documents["/jwks"] = {"keys": 1}
            case _:
                setting = Setting(PublicAddresses(Networks(())))
        issuer.documents[well_known] = document
        with pytest.raises(UnavailableError):
            await setting.has(issuer, read_token(platform.token()))
        assert (fault == "inside") == (issuer.requests == [])


@pytest.mark.threat("forged-workload-token")
async def test_a_slow_issuer_delays_no_other_tenant() -> None:
    """A tenant has two slow requests at most; another tenant's issuer is asked meanwhile."""
    setting = Setting()
    with serving() as issuer, socket.create_server(("127.0.0.1", 0)) as silent:
        platform = Platform(issuer.url)
        issuer.publish(platform.key)
        token = read_token(platform.token())
        place = f"http://127.0.0.1:{silent.getsockname()[1]}"
        hostile = TenantId(UUID(int=2))
        finds = [
            asyncio.create_task(setting.keys.find(hostile, f"{place}/{number}", token))
            for number in range(AT_ONCE)
        ]
        _, slow = await asyncio.wait(finds, timeout=0.1)
        assert len(slow) == AT_ONCE_OF_TENANT
        assert await setting.has(issuer, token)
        for _ in slow:
            silent.accept()[0].close()
        results = await asyncio.gather(*finds, return_exceptions=True)
        assert {type(result) for result in results} == {UnavailableError}


async def test_many_tokens_make_one_request() -> None:
    """A flood of tokens with unknown keys asks the issuer once in a while."""
    setting = Setting()
    with serving() as issuer:
        known = Platform(issuer.url)
        issuer.publish(known.key)
        token = read_token(known.token(kid="unknown"))
        for _ in range(100):
            assert not await setting.has(issuer, token)
        assert len(issuer.requests) == 2
