"""Idempotency keys: a client can safely repeat a request that got no response."""

import hashlib
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from pqkeep_gateway.access.principals import Principal
from pqkeep_protocol.messages import Idempotency, RedactedRepr

MAX_LENGTH = 255

_ENCODER = msgspec.json.Encoder(order="sorted")


class IdempotencyKeyReusedError(Exception):
    """The key was used for another request."""


class IdempotencyKey(RedactedRepr, Struct, frozen=True):
    """The client's key, and the digests that are stored."""

    text: str
    idempotency: Idempotency


def idempotency_of(key: IdempotencyKey | None) -> Idempotency | None:
    """Return the stored digests of a key; None without a key."""
    return None if key is None else key.idempotency


def is_idempotency_key(text: str) -> bool:
    """Return whether the text is 1 to 255 printable ASCII characters."""
    return 0 < len(text) <= MAX_LENGTH and text.isascii() and text.isprintable()


def idempotency_key(
    text: str, principal: Principal, source_address: str, request: Sequence[object]
) -> IdempotencyKey:
    """Return the idempotency key of a request; any difference in the request gives another digest.

    All principals of a tenant share its keys.
    """
    owner = f"{principal} {source_address}" if principal.tenant is None else str(principal.tenant)
    return IdempotencyKey(text, Idempotency(_digest([owner, text]), _digest(request)))


def _digest(value: object) -> bytes:
    return hashlib.sha256(_ENCODER.encode(value)).digest()
