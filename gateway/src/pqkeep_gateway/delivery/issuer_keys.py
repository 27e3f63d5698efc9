"""The keys of workloads' issuers, fetched by OpenID Connect Discovery and cached.

All tenants that trust an issuer share its keys. An issuer is a stranger: only public addresses are
reached, redirects are not followed, and documents have a limit.

An issuer that is away does not end what it has issued: known keys are used for KEPT_SECONDS. A token
with an unknown key makes one request in RETRY_SECONDS.
"""

import asyncio
import ssl
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, partial
from urllib.parse import urlsplit

from cachetools import LRUCache
from msgspec import Struct

from pqkeep_gateway.access.clock import Clock
from pqkeep_gateway.audit_stream import SinkError
from pqkeep_gateway.background import in_thread
from pqkeep_gateway.delivery.audit_sinks import send
from pqkeep_gateway.delivery.public_addresses import PublicAddresses
from pqkeep_gateway.signed_tokens import (
    MAX_JWKS,
    InvalidKeySetError,
    PublicKey,
    SignedToken,
    candidates,
    keys_in,
)
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_gateway.webhooks import InvalidUrlError, host_of
from pqkeep_protocol.documents import MalformedDocumentError, decode_json
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

CAPACITY = 1_000
"""Issuers with cached keys."""
FRESH_SECONDS = 600.0
"""The age at which keys are fetched again."""
KEPT_SECONDS = 86_400.0
"""The age at which keys are no longer used if the issuer is away."""
RETRY_SECONDS = 30.0
"""The time between two requests to an issuer."""
SECONDS = 5.0
"""The time limit of each of the two requests."""
AT_ONCE = 32
"""Concurrent requests, each in a thread."""
AT_ONCE_OF_TENANT = 2
"""Concurrent requests of one tenant. A slow issuer must not keep other tenants' issuers waiting."""


class _Discovery(Struct, frozen=True):
    issuer: str
    jwks_uri: str


@dataclass(slots=True)
class _Known:
    keys: tuple[PublicKey, ...] = ()
    fetched_at: float = float("-inf")
    tried_at: float = float("-inf")


class IssuerKeys:
    """Fetches and caches the keys of issuers."""

    def __init__(self, addresses: PublicAddresses, clock: Clock) -> None:
        """Measure time by a clock that does not jump."""
        self._addresses = addresses
        self._clock = clock
        self._known: LRUCache[str, _Known] = LRUCache(CAPACITY)
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._of_tenants: Counter[TenantId] = Counter()
        """The number of running requests that each tenant's tokens started."""

    async def find(
        self, tenant: TenantId, issuer: str, token: SignedToken
    ) -> tuple[PublicKey, ...]:
        """Return the keys of a tenant's issuer that may have signed a token.

        Raises UnavailableError if the issuer is away, and no recent keys are known.
        """
        known = self._known.setdefault(issuer, _Known())
        now = self._clock()
        is_fresh = now - known.fetched_at < FRESH_SECONDS and candidates(known.keys, token)
        is_due = now - known.tried_at >= RETRY_SECONDS and issuer not in self._fetches
        has_slot = len(self._fetches) < AT_ONCE and self._of_tenants[tenant] < AT_ONCE_OF_TENANT
        if not is_fresh and is_due and has_slot:
            self._begin(tenant, issuer, known)
        if not is_fresh and issuer in self._fetches:
            await asyncio.wait({self._fetches[issuer]})
        if self._clock() - known.fetched_at >= KEPT_SECONDS:
            raise UnavailableError
        return candidates(known.keys, token)

    def _begin(self, tenant: TenantId, issuer: str, known: _Known) -> None:
        def end(_: asyncio.Task[None]) -> None:
            self._fetches.pop(issuer, None)
            self._of_tenants[tenant] -= 1
            self._of_tenants += Counter()  # forgets tenants without requests

        self._of_tenants[tenant] += 1
        self._fetches[issuer] = asyncio.create_task(self._fetch(issuer, known))
        self._fetches[issuer].add_done_callback(end)

    async def _fetch(self, issuer: str, known: _Known) -> None:
        known.tried_at = self._clock()
        thread = in_thread(partial(self._read, issuer), "issuer-keys")
        try:
            done, _ = await asyncio.wait({thread}, timeout=3 * SECONDS)
            keys = thread.result() if done else None
        except (OSError, SinkError, ValueError, InvalidKeySetError) as error:
            keys, problem = None, type(error).__name__
        else:
            problem = "timeout"
        if keys is None:
            _LOG.warning("the keys of an issuer could not be fetched", issuer=issuer, error=problem)
            return
        known.keys, known.fetched_at = keys, self._clock()

    def _read(self, issuer: str) -> tuple[PublicKey, ...]:
        """Return an issuer's keys. Runs in a thread. Raises OSError, SinkError and others."""
        url = f"{issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            found = decode_json(self._get(url), _Discovery)
        except MalformedDocumentError:
            raise InvalidKeySetError("has no discovery document") from None
        if found.issuer != issuer:
            raise InvalidKeySetError("has another issuer in its discovery document")
        return keys_in(self._get(found.jwks_uri))

    def _get(self, url: str) -> bytes:
        try:
            if not self._addresses.may_be(url):
                raise InvalidKeySetError("has an address that may not be reached")
        except InvalidUrlError:
            raise InvalidKeySetError("has an invalid address") from None
        has_tls = urlsplit(url).scheme == "https"
        deadline = time.monotonic() + SECONDS
        status, body = send(
            url,
            self._tls if has_tls else None,
            None,
            {"Accept": "application/json", "User-Agent": "pqkeep"},
            seconds=SECONDS,
            most=MAX_JWKS,
            connect=partial(self._addresses.connect, deadline=deadline, has_tls=has_tls),
        )
        if status != 200 or len(body) > MAX_JWKS:  # noqa: PLR2004 - OK
            raise SinkError("no document")
        return body

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """The system's certificate authorities."""
        return ssl.create_default_context()


def check_issuer(addresses: PublicAddresses, issuer: str, *, is_fetched: bool) -> None:
    """Check the URL of an issuer. Raises InvalidUrlError.

    ``is_fetched``: True if the issuer's keys are fetched from the URL. Then the address must be
    public.
    """
    host_of(issuer)
    if is_fetched and not addresses.may_be(issuer):
        raise InvalidUrlError(
            "must be https:// with a public host, or the issuer needs its keys in jwks"
        )
