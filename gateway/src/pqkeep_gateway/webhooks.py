"""Webhooks: signed messages to addresses of a tenant, in the format of Standard Webhooks.

A message is signed when it is sent. The signing secret is derived from the pepper, the webhook and
random bytes in the webhook's row. So a copy of the database is not enough to sign.
"""

import base64
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from pqkeep_gateway.access.credentials import Pepper, Purpose
from pqkeep_protocol.keys import TenantId

MAX_URL = 2048
"""Characters of a webhook's URL."""
MAX_OVERLAP = timedelta(days=7)
"""The longest time in which messages have signatures with two secrets."""
LIFETIME = timedelta(days=3)
"""The time from a message to its last attempt."""
SALT_SIZE = 16
TEST = "webhook-test"
"""The type of a test message."""

_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?\.?|\[[0-9A-Fa-f:.]+\])"
URL_PATTERN = (
    rf"^https?://{_HOST}(:[0-9]{{1,5}})?(/[!$-;=?-Z_a-z~\[\]]*)?(\?[!$-;=?-Z_a-z~\[\]]*)?$"
)
"""A URL without user, password and fragment, in printable ASCII."""
_URL = re.compile(URL_PATTERN)
_NUMERIC = re.compile(r"(?:0[xX][0-9A-Fa-f]*|[0-9]+)")


class WebhookState(StrEnum):
    """Whether messages are sent."""

    ACTIVE = "active"
    DISABLED = "disabled"


class DeliveryState(StrEnum):
    """The state of one message to one webhook."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    FAILED = "failed"


class Problem(StrEnum):
    """The reasons of a failed attempt without a response, or of a failed delivery."""

    ADDRESS = "no-public-address"
    """The host has no address, or one that webhooks may not reach. They share one reason, so that
    it reveals nothing about names in the installation's network."""
    CONNECTION = "connection-failed"
    """Refused, or closed before a response."""
    TLS = "tls-failed"
    """The certificate is not valid for the host, or there is no TLS."""
    TIMEOUT = "timeout"
    RESPONSE = "no-http-response"
    EXPIRED = "expired"
    DISABLED = "webhook-disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """A webhook of a tenant."""

    id: UUID
    tenant: TenantId
    name: str
    url: str = field(repr=False)
    salt: bytes = field(repr=False)
    previous_salt: bytes | None = field(default=None, repr=False)
    """The salt of the secret before the last rotation."""
    previous_until: datetime | None = None
    """The end of the previous secret's overlap."""
    kinds: tuple[str, ...] = ()
    """The kinds of notices that it gets. Empty means all kinds, including future kinds."""
    state: WebhookState = WebhookState.ACTIVE
    created_at: datetime
    created_by: str
    """The principal that created it."""
    failures: int = 0
    """Failed attempts since the last success."""
    failing_since: datetime | None = None
    """The first failed attempt since the last success."""
    last_success_at: datetime | None = None

    def secret(self, pepper: Pepper) -> str:
        """Return the secret as its owner sees it: ``whsec_`` and 32 bytes in base64."""
        return "whsec_" + base64.b64encode(self._secret(pepper, self.salt)).decode()

    def signatures(self, pepper: Pepper, message: str, at: datetime, body: bytes) -> str:
        """Return the header webhook-signature: one signature, or two during an overlap."""
        signed = f"{message}.{int(at.timestamp())}.".encode() + body
        salts = [self.salt]
        if self.previous_salt is not None and self.previous_until and at < self.previous_until:
            salts.append(self.previous_salt)
        macs = (hmac.digest(self._secret(pepper, salt), signed, "sha256") for salt in salts)
        return " ".join(f"v1,{base64.b64encode(mac).decode()}" for mac in macs)

    def _secret(self, pepper: Pepper, salt: bytes) -> bytes:
        return pepper.derive(Purpose.WEBHOOK, self.tenant.bytes, self.id.bytes, salt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message to one webhook, and its last attempt."""

    id: UUID
    """The message's webhook-id. It stays the same in every attempt."""
    kind: str
    created_at: datetime
    state: DeliveryState
    attempts: int = 0
    attempted_at: datetime | None = None
    next_attempt_at: datetime | None = None
    status: int | None = None
    """The HTTP status of the last response."""
    problem: Problem | None = None
    body: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Message:
    """A message for all webhooks of a tenant."""

    kind: str
    """The receiver sees it as the type."""
    at: datetime
    data: Mapping[str, object] = field(repr=False)

    @property
    def body(self) -> str:
        """The JSON text that is sent: type, timestamp and data."""
        content = {"type": self.kind, "timestamp": self.at, "data": dict(self.data)}
        return msgspec.json.encode(content).decode()


def new_salt() -> bytes:
    """Return 16 random bytes."""
    return secrets.token_bytes(SALT_SIZE)


class InvalidUrlError(ValueError):
    """A text is no URL for a webhook. The message completes "url …" and repeats none of it."""


def host_of(text: str) -> str:
    """Return the host in a webhook's URL, without brackets. Raises InvalidUrlError."""
    if len(text) > MAX_URL or _URL.fullmatch(text) is None:
        raise InvalidUrlError(
            "must be an https:// URL in ASCII, without a user, a password or a fragment"
        )
    try:
        parts = urlsplit(text)  # newer versions of Python check the address in brackets
        host = parts.hostname or ""
        last = host.rstrip(".").rpartition(".")[2]
        if parts.netloc.startswith("["):
            host = str(IPv6Address(host))
        elif _NUMERIC.fullmatch(last):
            host = str(IPv4Address(host))
    except ValueError:
        raise InvalidUrlError("must have a host name or an IP address in its usual form") from None
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise InvalidUrlError("must have a port from 1 to 65535")
    return host
