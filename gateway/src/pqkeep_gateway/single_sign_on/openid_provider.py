"""Requests to one provider of single sign-on: discovery, token endpoint and UserInfo.

The standard library's HTTP client blocks. So every provider has its own threads, and a slow
provider does not delay other providers. Redirects are not followed. Proxies of the environment are
not used. An endpoint must not be in a network that is nearer to the gateway than the provider
itself.
"""

import asyncio
import socket
import ssl
from base64 import b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import IntEnum
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from pathlib import Path
from threading import BoundedSemaphore
from urllib.parse import quote_plus, urlencode, urlsplit

from msgspec import Struct

from pqkeep_gateway.people.identity_providers import (
    Claims,
    InvalidProviderResponseError,
    Metadata,
    claims_of,
    lacks_personal_claims,
    metadata_of,
    with_userinfo,
)
from pqkeep_gateway.storage.identities import Provider
from pqkeep_gateway.unavailable import OverloadedError, UnavailableError
from pqkeep_protocol.cached import Cached
from pqkeep_protocol.documents import MalformedDocumentError, decode_json
from pqkeep_protocol.messages import RedactedRepr
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

SECONDS = 5.0
"""The time limit of one request and its response."""
MAX_RESPONSE = 64 * 1024
"""Bytes of a response's body."""
AT_ONCE = 8
"""Concurrent requests to one provider."""
METADATA_SECONDS = 600.0
"""The time for which the discovery document is cached."""
RETRY_SECONDS = 5.0
"""The time between two attempts to load a missing discovery document."""
_FORM = {"Content-Type": "application/x-www-form-urlencoded"}


class _Tokens(RedactedRepr, Struct, frozen=True):
    """The token endpoint's response (RFC 6749, section 5.1, and OpenID Connect Core, 3.1.3.3)."""

    id_token: str
    access_token: str = ""


class Distance(IntEnum):
    """The distance of an address from the gateway."""

    THIS_MACHINE = 0
    LINK = 1
    PRIVATE_NETWORK = 2
    INTERNET = 3


def distance_of(address: str) -> Distance:
    """Return an IP address's distance from the gateway."""
    ip = ip_address(address)
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_loopback or ip.is_unspecified:
        return Distance.THIS_MACHINE
    if ip.is_link_local:
        return Distance.LINK
    return Distance.INTERNET if ip.is_global else Distance.PRIVATE_NETWORK


class OpenIdProvider:
    """Requests to one provider."""

    def __init__(
        self,
        provider: Provider,
        secret: str | None,
        ca_file: Path | None,
        *,
        seconds: float = SECONDS,
    ) -> None:
        """Take the client's secret, if any, and the time for one request and its response.

        Raises ConfigError if ca_file cannot be used.
        """
        self._seconds = seconds
        self.provider = provider
        self._secret = secret
        self._tls = _context(ca_file)
        self._threads = ThreadPoolExecutor(AT_ONCE, f"sso-{provider.name}")
        self._free = BoundedSemaphore(AT_ONCE)
        self._metadata: Metadata | None = None
        self._distance = Distance.THIS_MACHINE
        self._metadata_until = 0.0
        self._latest = Cached[Metadata | InvalidProviderResponseError | None](
            self._current,
            None,
            name=f"the single sign-on provider {provider.name}",
            seconds=RETRY_SECONDS,
            wait_seconds=seconds,
        )

    async def metadata(self) -> Metadata:
        """Return the discovery document's metadata, at most METADATA_SECONDS old.

        Raises UnavailableError, InvalidProviderResponseError.
        """
        latest = await self._latest.get()
        if isinstance(latest, InvalidProviderResponseError):
            raise InvalidProviderResponseError(str(latest))
        if latest is None:
            raise UnavailableError
        return latest

    async def exchange(self, code: str, verifier: str, redirect_uri: str) -> Claims:
        """Exchange an authorization code for the unchecked claims about a person.

        Raises UnavailableError, InvalidProviderResponseError.
        """
        metadata = await self.metadata()
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        headers = dict(_FORM)
        self._authenticate(metadata, form, headers)
        response, _ = await self._ask("POST", metadata.token_endpoint, headers, urlencode(form))
        try:
            tokens = decode_json(response, _Tokens)
        except MalformedDocumentError:
            raise InvalidProviderResponseError("token endpoint's response") from None
        claims = claims_of(tokens.id_token)
        endpoint = metadata.userinfo_endpoint
        is_usable = tokens.access_token.isascii() and tokens.access_token.isprintable()
        if not (endpoint and is_usable and lacks_personal_claims(claims, self.provider)):
            return claims
        bearer = {"Authorization": f"Bearer {tokens.access_token}"}
        userinfo, _ = await self._ask("GET", endpoint, bearer)
        return with_userinfo(claims, userinfo, self.provider)

    def close(self) -> None:
        """Cancel waiting requests."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _current(self) -> Metadata | InvalidProviderResponseError:
        now = asyncio.get_running_loop().time()
        if self._metadata is None or now >= self._metadata_until:
            self._metadata = None
            issuer = self.provider.issuer
            url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
            try:
                self._distance = Distance.THIS_MACHINE  # the operator chose the issuer's address
                document, distance = await self._ask("GET", url, {})
                self._metadata, self._distance = metadata_of(document, issuer), distance
            except InvalidProviderResponseError as error:
                return error
            self._metadata_until = now + METADATA_SECONDS
        return self._metadata

    def _authenticate(
        self, metadata: Metadata, form: dict[str, str], headers: dict[str, str]
    ) -> None:
        """Add the client's id, and its secret by a method of the provider (Core, section 9)."""
        client_id, methods = (
            self.provider.client_id,
            metadata.token_endpoint_auth_methods_supported,
        )
        if self._secret is None:
            form["client_id"] = client_id
        elif "client_secret_basic" in methods or "client_secret_post" not in methods:
            credentials = f"{quote_plus(client_id)}:{quote_plus(self._secret)}"
            headers["Authorization"] = f"Basic {b64encode(credentials.encode()).decode()}"
        else:
            form |= {"client_id": client_id, "client_secret": self._secret}

    async def _ask(
        self, method: str, url: str, headers: Mapping[str, str], body: str | None = None
    ) -> tuple[bytes, Distance]:
        """Return the body of a response with status 200, and the server's distance.

        Raises UnavailableError, OverloadedError, InvalidProviderResponseError.
        """
        if not self._free.acquire(blocking=False):
            raise OverloadedError
        connection = _Connection(url, self._tls, self._seconds, self._distance)
        request = asyncio.get_running_loop().run_in_executor(
            self._threads, self._in_thread, connection, method, headers, body
        )
        request.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            async with asyncio.timeout(self._seconds):
                status, response = await asyncio.shield(request)
        except (OSError, HTTPException, ValueError) as error:  # TimeoutError is an OSError
            connection.cut()
            _LOG.warning(
                "a provider of single sign-on is unavailable",
                provider=self.provider.name,
                error=type(error).__name__,
            )
            raise UnavailableError from None
        except _TooNearError:
            raise InvalidProviderResponseError("address of an endpoint") from None
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise UnavailableError
        if status != HTTPStatus.OK:
            raise InvalidProviderResponseError(f"status {status}")
        if len(response) > MAX_RESPONSE:
            raise InvalidProviderResponseError("size of a response")
        return response, connection.distance

    def _in_thread(
        self,
        connection: "_Connection",
        method: str,
        headers: Mapping[str, str],
        body: str | None,
    ) -> tuple[int, bytes]:
        try:
            return connection.ask(method, headers, body)
        finally:
            self._free.release()


class _TooNearError(Exception):
    """An endpoint is in a network closer to the gateway than its provider's."""


class _Connection:
    """One request, in a thread. Another thread can interrupt it."""

    def __init__(
        self, url: str, tls: ssl.SSLContext, seconds: float, least_distance: Distance
    ) -> None:
        parts = urlsplit(url)
        host = parts.hostname or ""
        self.distance = least_distance
        """The server's distance. Before the connection, the smallest accepted distance."""
        self._seconds = seconds
        self._tls = tls if parts.scheme == "https" else None
        self._target = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        self._http = (
            HTTPSConnection(host, parts.port, timeout=seconds, context=tls)
            if parts.scheme == "https"
            else HTTPConnection(host, parts.port, timeout=seconds)
        )
        self._opened: socket.socket | None = None

    def ask(self, method: str, headers: Mapping[str, str], body: str | None) -> tuple[int, bytes]:
        """Return a response's status, and up to MAX_RESPONSE + 1 bytes of its body."""
        sent = {"Accept": "application/json", "User-Agent": "pqkeep", **headers}
        try:
            self._connect()
            self._http.request(method, self._target, body, sent)
            with self._http.getresponse() as response:
                return response.status, response.read(MAX_RESPONSE + 1)
        finally:
            self._http.close()

    def _connect(self) -> None:
        """Connect, with TLS for https. Raises _TooNearError before it sends anything."""
        host, port = self._http.host, self._http.port
        resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [str(address[0]) for *_, address in resolved]
        distance = min(map(distance_of, addresses))
        if distance < self.distance:
            raise _TooNearError
        self.distance = distance
        opened = _first_connected(addresses, port, self._seconds)
        self._http.sock = self._opened = opened
        if self._tls is not None:
            secured = self._tls.wrap_socket(
                opened, server_hostname=host, do_handshake_on_connect=False
            )
            self._http.sock = self._opened = secured  # so that cut() also ends a stuck handshake
            secured.do_handshake()

    def cut(self) -> None:
        """Wake the thread that waits for the provider."""
        for connection in (self._opened, self._http.sock):
            if connection is not None:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def _first_connected(addresses: list[str], port: int, seconds: float) -> socket.socket:
    """Connect to the first address that accepts. Raises OSError if none does."""
    *others, last = addresses
    for address in others:
        with suppress(OSError):
            return socket.create_connection((address, port), seconds)
    return socket.create_connection((last, port), seconds)


def _context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # SSLError is one
        problem = error.strerror or "it has no certificate"
        raise ConfigError(f"single_sign_on: ca_file: cannot use {ca_file}: {problem}") from None
