"""Delivers outgoing mail at least once.

A mail is stored in the transaction of its cause. A gateway claims the mail before it delivers it.
The claim is one conditional UPDATE. It postpones the mail beyond the longest delivery, so no other
gateway delivers the mail at the same time. If the gateway stops, the mail becomes due again. A
gateway that was paused during its claim leaves the mail to the others. Failed attempts are repeated
with growing pauses until the mail expires.
"""

import asyncio
from collections import Counter
from datetime import datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Protocol

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.background import repeat
from pqkeep_gateway.outgoing_mail import InvalidAddressError, OutgoingMail, compose
from pqkeep_gateway.storage.outgoing_mail import SqlMailOutbox
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

POLL_SECONDS = 1.0
"""The time between two polls of the queue while mail is written, or waits for another attempt."""
IDLE_SECONDS = 5.0
"""The time between two polls otherwise: another gateway may have stopped with claimed mail."""
BATCH_SIZE = 8
OUTCOMES = frozenset({"delivered", "deferred", "rejected", "expired", "failed"})
"""The outcomes of an attempt."""
NOT_FINISHED = frozenset({"deferred", "failed"})
"""The outcomes after which the mail is tried again."""
LEASE = timedelta(seconds=60)
"""The duration of a claim. It is longer than any delivery."""
FIRST_PAUSE = timedelta(seconds=2)
LONGEST_PAUSE = timedelta(minutes=15)


class MailDisabledError(Exception):
    """The service is not set up to send e-mail."""


class MailDeferredError(Exception):
    """Another attempt may succeed. The message is for the log; it contains no address."""


class MailRejectedError(Exception):
    """No attempt will succeed. The message is for the log; it contains no address."""


class Mailer(Protocol):
    """Delivers messages."""

    @property
    def sender(self) -> str:
        """The address in From."""
        ...

    async def send(self, mail: OutgoingMail, message: EmailMessage) -> None:
        """Deliver one message to its mail's recipient.

        Raises MailDeferredError, MailRejectedError.
        """
        ...


class MailDelivery:
    """Delivers due mail."""

    def __init__(
        self, outbox: SqlMailOutbox, mailer: Mailer, pepper: Pepper, public_url: str, clock: Clock
    ) -> None:
        """Take the portal's URL, for links."""
        self._outbox = outbox
        self._mailer = mailer
        self._pepper = pepper
        self._public_url = public_url
        self._clock = clock
        self.is_deferred = False
        """Whether the last mail must be tried again."""
        self.attempts: Counter[str] = Counter()
        """The number of attempts, by outcome."""

    async def run(self) -> None:
        """Deliver due mail, until cancelled."""
        commits = self._outbox.commits

        async def deliver() -> None:
            number = commits.number
            await self.deliver()
            if not self.is_deferred:
                await commits.wait_for_another(number, IDLE_SECONDS)

        await repeat(deliver, POLL_SECONDS)

    async def deliver(self) -> None:
        """Try all due mail once. Raises UnavailableError."""
        while True:
            lease = self._now() + LEASE
            claimed = await self._outbox.claim(BATCH_SIZE, lease - LEASE, lease)
            if (
                not claimed or self._now() >= lease - LEASE / 2
            ):  # after a pause, another gateway may have claimed them
                return
            finished = await asyncio.gather(*(self._attempt(mail) for mail in claimed))
            for mail, is_finished in zip(claimed, finished, strict=True):
                if is_finished:
                    await self._outbox.remove(mail)
                else:
                    next_attempt = self._now() + pause_after(mail.attempts)
                    await self._outbox.postpone(mail, min(next_attempt, mail.expires_at))

    async def _attempt(self, mail: OutgoingMail) -> bool:
        """Try to deliver one mail, and return whether it is finished.

        A fault in one mail does not stop the others.
        """
        outcome = await self._outcome(mail)
        self.attempts[outcome] += 1
        self.is_deferred = outcome in NOT_FINISHED
        return not self.is_deferred

    async def _outcome(self, mail: OutgoingMail) -> str:
        """Try to deliver one mail, and return one of OUTCOMES."""
        entry = _LOG.bind(mail=str(mail.id), kind=str(mail.kind))
        if mail.expires_at <= self._now():
            entry.error("mail not delivered", error="it expired")
            return "expired"
        try:
            message = compose(mail, self._pepper, self._mailer.sender, self._public_url)
            if message is not None:
                await self._mailer.send(mail, message)
        except MailDeferredError as problem:
            entry.warning("mail delivery will be tried again", error=str(problem))
            return "deferred"
        except MailRejectedError as problem:
            entry.error("mail not delivered", error=str(problem))
            return "rejected"
        except InvalidAddressError:
            entry.error("mail not delivered", error="not an e-mail address")
            return "rejected"
        except Exception:  # noqa: BLE001 - a fault of ours must not stop other mail
            entry.exception("mail delivery failed and will be tried again")
            return "failed"
        return "delivered"

    def _now(self) -> datetime:
        return date_of(self._clock())


def pause_after(attempts: int) -> timedelta:
    """Return the pause after this many attempts: 2, 4, 8 seconds, up to 15 minutes."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * (1 << min(attempts - 1, 16)))


SENDER = "pqkeep@localhost"


class Mailbox:
    """A Mailer that writes files. A message delivered twice is one file."""

    def __init__(self, folder: Path) -> None:
        """Create the folder if it does not exist. Raises ConfigError."""
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot use the mailbox {folder}: {error.strerror}") from None
        self._folder = folder

    @property
    def sender(self) -> str:
        """The address in From."""
        return SENDER

    async def send(self, mail: OutgoingMail, message: EmailMessage) -> None:
        """Write one message, atomically. Raises MailDeferredError."""
        name = f"{mail.created_at:%Y%m%dT%H%M%S.%fZ}-{mail.kind}-{mail.id}.eml"
        try:
            content = message.as_bytes(policy=message.policy.clone(linesep="\n"))
            await asyncio.to_thread(self._write, name, content)
        except OSError as error:
            raise MailDeferredError(f"the mailbox: {error.strerror}") from None

    def _write(self, name: str, message: bytes) -> None:
        draft = self._folder / f".{name}"
        draft.touch(0o600)
        draft.write_bytes(message)
        draft.rename(self._folder / name)


class DisabledMailer:
    """A Mailer that discards mail. Requests that need mail are refused earlier."""

    @property
    def sender(self) -> str:
        """A placeholder."""
        return "nobody@localhost"

    async def send(self, mail: OutgoingMail, message: EmailMessage) -> None:
        """Discard one message."""
