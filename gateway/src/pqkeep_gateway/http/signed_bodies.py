"""Reads signed bodies from anonymous senders, before their signatures are verified."""

from collections.abc import Mapping

from starlette.types import Receive

from pqkeep_gateway.access.rate_limit import MINUTE, Limit
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.http.body import read_bytes
from pqkeep_gateway.http.endpoint import SignedBody
from pqkeep_gateway.http.errors import too_many, unavailable

MAX_SIGNED = 128 * 1024
"""Bytes of a signed body. An event of Stripe's has about 5 KB, one of an invoice with ten lines
about 25 KB, and metadata can double that."""
MAX_AT_ONCE = 256
"""Bodies that are read at the same time: 32 MiB."""
UNVERIFIED = Limit(60, MINUTE)
"""Bodies per source address with an invalid or unverified signature."""


class SignedBodies:
    """Limits the number, size and memory of bodies with unverified signatures."""

    def __init__(self, unverified: SourceBudget) -> None:
        """Take a budget with the limit UNVERIFIED."""
        self._unverified = unverified
        self._reading = 0

    async def read(
        self, header: str, headers: Mapping[bytes, bytes], receive: Receive, source_address: str
    ) -> SignedBody:
        """Return a body with the signature in a header; empty if the signature is missing.

        Raises ApiError.
        """
        signature = headers.get(header.lower().encode(), b"").decode("latin-1")
        if not signature:
            return SignedBody()
        wait = self._unverified.spend(source_address)
        if wait is not None:
            raise too_many("too many invalid signatures", self._unverified.limit, wait)
        if self._reading >= MAX_AT_ONCE:
            self._unverified.release(source_address)
            raise unavailable()
        self._reading += 1
        try:
            body = await read_bytes(receive, headers, at_most=MAX_SIGNED)
        finally:
            self._reading -= 1
        return SignedBody(body, signature)

    def accept(self, source_address: str) -> None:
        """Stop counting a body: its signature is valid."""
        self._unverified.release(source_address)
