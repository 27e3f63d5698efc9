"""Our Stripe account: requests to its API, and the signatures of its webhooks.

The library blocks, so it runs in its own threads.
"""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
import requests
import stripe
from msgspec import Struct

from pqkeep_gateway.access.entitlements import Tier
from pqkeep_gateway.access.idempotency import (
    IdempotencyKey,
    IdempotencyKeyReusedError,
    idempotency_of,
)
from pqkeep_gateway.config import StripeSettings
from pqkeep_gateway.payments.notices import TENANT, Subscription
from pqkeep_gateway.tenancy.billing import (
    InvalidNoticeSignatureError,
    PaymentProviderError,
    PaymentTimeoutError,
)
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.secret_files import read_secret_text
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from stripe import RequestOptions
    from stripe.params import SubscriptionUpdateParams
    from stripe.params.checkout import SessionCreateParams

_LOG = logger(__name__)

T = TypeVar("T")

RESPONSE_SECONDS = 8.0
"""The time limit for all Stripe calls of one request together."""
TOLERANCE_SECONDS = 300
"""The greatest age of a signature."""
THREADS = 4
_MALFORMED = (ValueError, TypeError, AttributeError, KeyError, RecursionError)
"""Exceptions of the library and our decoder for malformed responses."""


class _Page(Struct, frozen=True):
    url: str


class StripeAccount:
    """Calls Stripe.

    Each call raises UnavailableError, PaymentTimeoutError, PaymentProviderError.
    """

    def __init__(self, settings: StripeSettings) -> None:
        """Read both secrets. Raises ConfigError."""
        logging.getLogger("stripe").setLevel(logging.WARNING)
        stripe.enable_telemetry = False
        self.prices = _prices(settings)
        """Stripe's price identifiers of the tiers on sale."""
        self._return_url = settings.return_url
        self._webhook_secret = _secret(settings.webhook_secret_file)
        session = requests.Session()
        session.trust_env = False  # no proxies and credentials from the environment
        self._client = stripe.StripeClient(
            _secret(settings.secret_key_file),
            base_addresses={"api": settings.api.rstrip("/")},
            max_network_retries=0,
            http_client=stripe.RequestsClient(timeout=RESPONSE_SECONDS, session=session),
        )
        self._threads = ThreadPoolExecutor(THREADS, "stripe")

    async def open_checkout(self, tenant: TenantId, tier: Tier, key: IdempotencyKey | None) -> str:
        """Begin a checkout; return the URL of its page."""
        return await self._call(lambda: self._open(tenant, tier, key))

    async def switch(self, external_id: str, tier: Tier, key: IdempotencyKey | None) -> None:
        """Change a subscription's price immediately and pro rata, and undo a cancellation."""
        await self._call(lambda: self._switch(external_id, tier, key))

    async def end(self, external_id: str, key: IdempotencyKey | None) -> None:
        """Cancel a subscription at the end of its period."""
        await self._call(lambda: self._end(external_id, key))

    def verify(self, payload: bytes, signature: str) -> None:
        """Check the signature and time of a webhook. Raises InvalidNoticeSignatureError."""
        try:
            self._client.construct_event(
                payload, signature, self._webhook_secret, TOLERANCE_SECONDS
            )
        except (stripe.SignatureVerificationError, *_MALFORMED):
            raise InvalidNoticeSignatureError from None

    def close(self) -> None:
        """Cancel calls that wait for a thread."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, request: Callable[[], T]) -> T:
        """Call Stripe in a thread, without retries: the client may repeat its request."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                return await loop.run_in_executor(self._threads, request)
        except TimeoutError:
            _LOG.error("Stripe did not answer in time")
            raise PaymentTimeoutError from None
        except stripe.IdempotencyError:
            raise IdempotencyKeyReusedError from None
        except (stripe.APIConnectionError, stripe.RateLimitError) as error:
            _LOG.error("Stripe is unavailable", error=type(error).__name__)
            raise UnavailableError from None
        except stripe.StripeError as error:
            _LOG.error("Stripe refused", error=type(error).__name__, status=error.http_status)
            raise PaymentProviderError from None
        except _MALFORMED:
            _LOG.error("Stripe sent an invalid response")
            raise PaymentProviderError from None

    def _open(self, tenant: TenantId, tier: Tier, key: IdempotencyKey | None) -> str:
        parameters: SessionCreateParams = {
            "mode": "subscription",
            "line_items": [{"price": self.prices[tier], "quantity": 1}],
            "client_reference_id": str(tenant),
            "subscription_data": {"metadata": {TENANT: str(tenant)}},
            "success_url": self._return_url,
            "cancel_url": self._return_url,
        }
        session = self._client.v1.checkout.sessions.create(parameters, _options(key))
        return msgspec.convert(session.to_dict(for_json=True), _Page).url

    def _switch(self, external_id: str, tier: Tier, key: IdempotencyKey | None) -> None:
        subscription = _read(self._client.v1.subscriptions.retrieve(external_id))
        parameters: SubscriptionUpdateParams = {
            "items": [{"id": subscription.item.id, "price": self.prices[tier]}],
            "cancel_at_period_end": False,
            "proration_behavior": "create_prorations",
        }
        _read(self._client.v1.subscriptions.update(external_id, parameters, _options(key)))

    def _end(self, external_id: str, key: IdempotencyKey | None) -> None:
        parameters: SubscriptionUpdateParams = {"cancel_at_period_end": True}
        _read(self._client.v1.subscriptions.update(external_id, parameters, _options(key)))


def _read(response: stripe.Subscription) -> Subscription:
    return msgspec.convert(response.to_dict(for_json=True), Subscription)


def _options(key: IdempotencyKey | None) -> "RequestOptions":
    idempotency = idempotency_of(key)
    return {} if idempotency is None else {"idempotency_key": f"pqkeep-{idempotency.key.hex()}"}


def _prices(settings: StripeSettings) -> dict[Tier, str]:
    """Return the prices of tiers. Raises ConfigError."""
    try:
        prices = {Tier(name): price for name, price in settings.prices.items()}
    except ValueError:
        raise ConfigError(
            "stripe: prices: unknown tier; the tiers are " + ", ".join(Tier)
        ) from None
    if Tier.FREE in prices or len(set(prices.values())) < len(prices):
        raise ConfigError("stripe: prices: remove free, and use a different price for each tier")
    return prices


def _secret(path: Path) -> str:
    """Read a secret for use in a header. Raises ConfigError."""
    secret = read_secret_text(path, "Stripe secret")
    if not secret.isascii():
        raise ConfigError(f"the Stripe secret in {path} is not ASCII")
    return secret
