"""Brings letters to where they are delivered, at least once.

A letter is written in the transaction of what it tells of. Whoever brings it first makes it wait
for as long as that can take, by one conditional UPDATE, so that no other gateway brings it too; if
this one ends meanwhile, it is brought again. What is not taken is tried again, with growing pauses,
until what it is about is over.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from email.message import EmailMessage
from typing import Protocol

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.mail.outgoing_mail import InvalidAddressError, OutgoingMail, compose
from pqkeep_gateway.unavailable import UnavailableError

_LOG = logging.getLogger(__name__)

POLL_SECONDS = 1.0
AT_A_TIME = 8
LEASE = timedelta(seconds=60)
"""How long a letter that is being brought is nobody else's: longer than any mailer takes."""
FIRST_PAUSE = timedelta(seconds=2)
LONGEST_PAUSE = timedelta(minutes=15)


class MailDisabledError(Exception):
    """The service is not set up to send e-mail."""


class MailDeferredError(Exception):
    """The letter was not taken now. The message is for the log, and names no address."""


class MailRejectedError(Exception):
    """The letter will never be taken. The message is for the log, and names no address."""


class Mailer(Protocol):
    """Delivers messages."""

    @property
    def sender(self) -> str:
        """Whose address the messages come from."""
        ...

    async def send(self, mail: OutgoingMail, message: EmailMessage) -> None:
        """Deliver one message to whom its letter is for. Raises MailDeferredError, MailRejectedError."""
        ...


class MailOutbox(Protocol):
    """Where letters wait. All raise UnavailableError."""

    async def claim(self, limit: int, now: datetime, lease: datetime) -> Sequence[OutgoingMail]:
        """Return letters that are due, the oldest first, and make them wait until the lease ends.

        Each is counted as tried; no two callers get the same.
        """
        ...

    async def put_off(self, mail: OutgoingMail, until: datetime) -> None:
        """Make a letter wait."""
        ...

    async def remove(self, mail: OutgoingMail) -> None:
        """Forget a letter."""
        ...


class MailDelivery:
    """Brings what waits."""

    def __init__(
        self, outbox: MailOutbox, mailer: Mailer, pepper: Pepper, portal_url: str, clock: Clock
    ) -> None:
        """Say in each letter where the portal is."""
        self._outbox = outbox
        self._mailer = mailer
        self._pepper = pepper
        self._portal_url = portal_url
        self._clock = clock

    async def run(self) -> None:
        """Bring what waits, until cancelled."""
        while True:
            with suppress(UnavailableError):  # what is away has been logged
                await self.deliver()
            await asyncio.sleep(POLL_SECONDS)

    async def deliver(self) -> None:
        """Try everything that is due once. Raises UnavailableError."""
        while letters := await self._claim():
            are_over = await asyncio.gather(*(self._bring(each) for each in letters))
            for each, is_over in zip(letters, are_over, strict=True):
                if is_over:
                    await self._outbox.remove(each)
                else:
                    again = self._now() + pause_after(each.tries)
                    await self._outbox.put_off(each, min(again, each.until))

    async def _claim(self) -> Sequence[OutgoingMail]:
        now = self._now()
        return await self._outbox.claim(AT_A_TIME, now, now + LEASE)

    async def _bring(self, mail: OutgoingMail) -> bool:
        """Try to deliver one letter; return whether there is no more to do for it.

        Whatever is wrong with it keeps no other from being brought.
        """
        if mail.until <= self._now():
            _LOG.error("letter %s (%s) is given up: it is too late", mail.id, mail.kind)
            return True
        try:
            message = compose(mail, self._pepper, self._mailer.sender, self._portal_url)
            if message is not None:
                await self._mailer.send(mail, message)
        except MailDeferredError as problem:
            _LOG.warning("letter %s (%s) waits: %s", mail.id, mail.kind, problem)
            return False
        except MailRejectedError as problem:
            _LOG.error("letter %s (%s) is given up: %s", mail.id, mail.kind, problem)
        except InvalidAddressError:
            _LOG.error("letter %s (%s) is given up: no e-mail address", mail.id, mail.kind)
        except Exception:  # noqa: BLE001 - a fault of ours keeps no other letter waiting
            _LOG.exception("letter %s (%s) waits: a fault", mail.id, mail.kind)
            return False
        return True

    def _now(self) -> datetime:
        return date_of(self._clock())


def pause_after(tries: int) -> timedelta:
    """Return how long a letter waits that was tried so often: 2 seconds, 4, 8 … 15 minutes."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(tries - 1, 16)))
