"""Sends messages to webhooks: each at least once, with the same webhook-id, by one gateway at a time.

A message is stored in the transaction of its cause. A gateway holds the webhook by one conditional
UPDATE for longer than an attempt takes. If the gateway stops, another one then sends the
message. A webhook has one attempt at a time. Failing webhooks get only a part of all attempts, so
they do not delay other webhooks.

The receiver is a stranger: only public addresses are reached, redirects are not followed, and of the
response only the status is read, for a limited time.
"""

import asyncio
import ssl
import time
from collections import Counter
from datetime import datetime, timedelta
from functools import cached_property, partial
from urllib.parse import urlsplit

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.audit_stream import SinkError
from pqkeep_gateway.background import in_thread, repeat
from pqkeep_gateway.delivery.audit_sinks import TooSlowError, send
from pqkeep_gateway.delivery.public_addresses import PublicAddresses, RefusedAddressError
from pqkeep_gateway.storage.webhooks import Due, Pauses, Result, SqlWebhooks
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_gateway.webhooks import Problem
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

POLL_SECONDS = 1.0
"""The time between two polls while messages are stored or sent."""
IDLE_SECONDS = 5.0
"""The time between two polls otherwise: a pause may be over, or another gateway may have stopped."""
ATTEMPTS = 64
"""Concurrent attempts. Each has a thread."""
UNPROVEN_ATTEMPTS = 48
"""The most attempts at a time to webhooks that have not succeeded since their last failure."""
RESPONSE_SECONDS = 10.0
"""The time for a connection, from the look-up of its name to the status of the response."""
LEASE = timedelta(seconds=60)
"""The time for which a gateway holds a webhook. It is longer than any attempt."""
FIRST_PAUSE = timedelta(seconds=5)
LONGEST_PAUSE = timedelta(hours=4)
"""The pauses before a message is tried again: 5 seconds, then four times as long, up to this."""
LONGEST_WEBHOOK_PAUSE = timedelta(minutes=5)
"""The longest pause before a failing webhook gets another message."""
FORGET_SECONDS = 3600.0
LEAVE_SECONDS = 2.0
"""The time for attempts to end when the gateway stops or is replaced."""
OUTCOMES = frozenset({"delivered", *(problem.value for problem in Problem), "refused"})
"""The outcomes of an attempt. ``refused``: a status other than 200 to 299."""


class WebhookDelivery:
    """Sends due messages."""

    def __init__(
        self,
        stored: SqlWebhooks,
        pepper: Pepper,
        addresses: PublicAddresses,
        clock: Clock,
        *,
        seconds: float = RESPONSE_SECONDS,
    ) -> None:
        """Take the time for an attempt."""
        self._stored = stored
        self._pepper = pepper
        self._addresses = addresses
        self._clock = clock
        self._seconds = seconds
        self._attempts: set[asyncio.Task[None]] = set()
        self._threads: set[asyncio.Future[Result]] = set()
        """Threads that have not ended, even if their attempts were given up."""
        self._unproven: set[asyncio.Future[Result]] = set()
        """The threads that send to webhooks without a success since the last failure."""
        self._forget_at = 0.0
        self.attempts: Counter[str] = Counter()
        """The number of attempts, by outcome."""

    async def run(self) -> None:
        """Send until cancelled; then let the current attempts end."""
        commits = self._stored.commits

        async def send() -> None:
            number = commits.number
            if not await self.begin():
                await commits.wait_for_another(number, IDLE_SECONDS)

        try:
            await repeat(send, POLL_SECONDS)
        finally:
            if self._attempts:
                _, late = await asyncio.wait(self._attempts, timeout=LEAVE_SECONDS)
                for attempt in late:
                    attempt.cancel()

    async def send(self) -> None:
        """Send all due messages once, and wait for the attempts. Raises UnavailableError."""
        while await self.begin():
            await asyncio.wait(self._attempts)

    async def begin(self) -> bool:
        """Begin due attempts; return whether there were any. Raises UnavailableError."""
        now = self._now()
        if self._clock() >= self._forget_at:
            self._forget_at = self._clock() + FORGET_SECONDS
            await self._stored.forget(now)
        free = ATTEMPTS - len(self._threads)
        unproven = UNPROVEN_ATTEMPTS - len(self._unproven)
        if free <= 0:
            return False
        found = await self._stored.claim(free, unproven, now, now + LEASE)
        if self._now() >= now + LEASE / 2:  # after a pause, another gateway may hold them
            return False
        for due in found:
            thread = in_thread(partial(self._post, due, self._now()), "webhook")
            is_proven = due.webhook.failures == 0 and due.webhook.last_success_at is not None
            for threads in (self._threads,) if is_proven else (self._threads, self._unproven):
                threads.add(thread)
                thread.add_done_callback(threads.discard)
            attempt = asyncio.create_task(self._finish(due, thread))
            self._attempts.add(attempt)
            attempt.add_done_callback(self._attempts.discard)
        return bool(found)

    async def _finish(self, due: Due, thread: asyncio.Future[Result]) -> None:
        """Wait for an attempt, and store its result."""
        entry = _LOG.bind(webhook=str(due.webhook.id), delivery=str(due.delivery.id))
        result = Result(problem=Problem.TIMEOUT)  # the look-up of a name can take longer
        try:
            done, _ = await asyncio.wait({thread}, timeout=2 * self._seconds)
            if done:
                result = thread.result()
        except Exception:  # noqa: BLE001 - a fault of ours must not stop other messages
            entry.exception("a webhook's message could not be sent and will be tried again")
            result = Result(problem=Problem.RESPONSE)
        self.attempts[_outcome(result)] += 1
        if not result.is_success:
            entry.info("a webhook did not take a message", outcome=_outcome(result))
        pauses = Pauses(
            pause_after(due.delivery.attempts),
            min(pause_after(due.webhook.failures + 1), LONGEST_WEBHOOK_PAUSE),
        )
        try:
            await self._stored.settle(due, result, pauses, self._now())
        except UnavailableError:
            pass  # logged where it was raised; the lease ends, and the message is sent again
        except Exception:  # noqa: BLE001 - as above
            entry.exception("the result of a webhook's message could not be stored")

    def _post(self, due: Due, at: datetime) -> Result:
        """Send a message once. Runs in a thread."""
        webhook, message = due.webhook, due.delivery
        has_tls = urlsplit(webhook.url).scheme == "https"
        deadline = time.monotonic() + self._seconds
        body = message.body.encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "pqkeep",
            "webhook-id": str(message.id),
            "webhook-timestamp": str(int(at.timestamp())),
            "webhook-signature": webhook.signatures(self._pepper, str(message.id), at, body),
        }
        try:
            status, _ = send(
                webhook.url,
                self._tls if has_tls else None,
                body,
                headers,
                seconds=self._seconds,
                most=0,
                connect=partial(self._addresses.connect, deadline=deadline, has_tls=has_tls),
            )
        except RefusedAddressError:
            return Result(problem=Problem.ADDRESS)
        except ssl.SSLError:
            return Result(problem=Problem.TLS)
        except (TooSlowError, TimeoutError):
            return Result(problem=Problem.TIMEOUT)
        except OSError:
            return Result(problem=Problem.CONNECTION)
        except (SinkError, ValueError):
            return Result(problem=Problem.RESPONSE)
        return Result(status=status)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        """The system's certificate authorities."""
        return ssl.create_default_context()

    def _now(self) -> datetime:
        return date_of(self._clock())


def pause_after(attempts: int) -> timedelta:
    """Return the pause after this many attempts: 5, 20, 80 seconds, up to 4 hours."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(2 * (attempts - 1), 24)))


def _outcome(result: Result) -> str:
    if result.is_success:
        return "delivered"
    return "refused" if result.problem is None else result.problem.value
