"""Carries checkpoints of the audit log to witnesses, and their cosignatures back.

The key service decides which witness is due, and verifies each response. This carrier posts bytes
and returns bytes. It follows no redirect, and verifies TLS. Time and size of a response are
limited. Each witness has its own thread, so a slow witness delays no other work.
"""

import asyncio
import ssl
from functools import cached_property, partial
from urllib.parse import urlsplit

from pqkeep_gateway.audit_stream import SinkError
from pqkeep_gateway.background import in_thread, repeat
from pqkeep_gateway.delivery.audit_sinks import send
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import (
    MAX_WITNESS_RESPONSE,
    ReportSubmission,
    Submission,
    TakeSubmissions,
)
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution, KeyService

POLL_SECONDS = 1.0
RESPONSE_SECONDS = 20.0
"""The time for a whole connection, less than the key service's lease."""
MORE_SECONDS = 5.0
"""The further time for the look-up of a name."""
_HEADERS = {"Content-Type": "text/plain", "User-Agent": "pqkeep"}
_ATTRIBUTION = Attribution("", "gateway", "")
_MAX_ERROR = 256


class WitnessCarrier:
    """Carries the checkpoints of one shard."""

    def __init__(self, keys: KeyService, *, seconds: float = RESPONSE_SECONDS) -> None:
        """Take the time for a response."""
        self._keys = keys
        self._seconds = seconds

    async def run(self) -> None:
        """Carry until cancelled."""
        await repeat(self.carry, POLL_SECONDS)

    async def carry(self) -> None:
        """Carry what is due, and wait for the responses. Raises UnavailableError."""
        try:
            taken = await self._keys.execute(TakeSubmissions(tenant=INSTALLATION), _ATTRIBUTION)
            reports = [in_thread(partial(self._post, due), "witness") for due in taken.submissions]
            async with asyncio.timeout(self._seconds + MORE_SECONDS):
                for report in asyncio.as_completed(reports):
                    await self._keys.execute(await report, _ATTRIBUTION)
        except KeyServiceError:
            raise UnavailableError from None
        except TimeoutError:
            pass  # the look-up of a name can take longer; the key service knows that none came

    def _post(self, due: Submission) -> ReportSubmission:
        """Return the report of a response. Runs in a thread."""
        report = partial(ReportSubmission, tenant=INSTALLATION, id=due.id)
        tls = self._tls if urlsplit(due.url).scheme == "https" else None
        try:
            status, content = send(
                due.url, tls, due.body, _HEADERS, seconds=self._seconds, most=MAX_WITNESS_RESPONSE
            )
        except (SinkError, OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            return report(status=0, error=(reason or type(error).__name__)[:_MAX_ERROR])
        if len(content) > MAX_WITNESS_RESPONSE:
            return report(status=0, error="the response is too large")
        return report(status=status, content=content)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """The system's certificate authorities."""
        return ssl.create_default_context()
