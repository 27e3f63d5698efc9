"""Forgotten passwords: another one, for whoever gets a letter to the person's address.

Whoever asks hears the same, whether somebody has the address or not. A new password ends every
session and begins none: whoever has a second factor needs it as before.
"""

from datetime import datetime, timedelta
from typing import Protocol

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.audit_events import AuditDelivery, event
from pqkeep_gateway.mail.outgoing_mail import MailKind, OutgoingMail, mail, token_of
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.users import UserStore
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import AuditEvent
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution

LIFE = timedelta(minutes=30)


class InvalidPasswordResetTokenError(Exception):
    """The token is of no letter, or of one that is over."""


class PasswordResetStore(UserStore, Protocol):
    """Where it is kept who may choose another password. All raise UnavailableError."""

    async def begin(self, email: str, digest: bytes, mail: OutgoingMail, asked: Event) -> None:
        """Keep an address, instead of earlier ones that are the same or over, and the letter."""
        ...

    async def is_open(self, digest: bytes, now: datetime) -> bool:
        """Return whether a password can be chosen."""
        ...

    async def complete(
        self, digest: bytes, password_hash: str, now: datetime, attribution: Attribution
    ) -> None:
        """Use a letter's token up, keep the password and end every session, in one step.

        Raises InvalidPasswordResetTokenError.
        """
        ...


class PasswordResets:
    """Lets people choose another password."""

    def __init__(
        self,
        store: PasswordResetStore,
        passwords: Passwords,
        attempts: AttemptLimits,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Keep tokens as digests under the pepper."""
        self._store = store
        self._passwords = passwords
        self._attempts = attempts
        self._pepper = pepper
        self._courier = audit_delivery
        self._clock = clock

    async def begin(self, email: str, attribution: Attribution) -> None:
        """Have a letter written to somebody. Raises TooManyAttemptsError.

        Where nobody has the address everything is done likewise, but the letter is not sent.
        """
        await self._attempts.count_letter(email, attribution.source_address)
        account = await self._store.find(email)
        kind = MailKind.NOBODY if account is None else MailKind.PASSWORD_RESET
        to = email if account is None else account.user.email
        written = mail(kind, to, date_of(self._clock()), LIFE)
        token = token_of(written, CredentialKind.PASSWORD_RESET, self._pepper)
        tenant = INSTALLATION if account is None else account.user.tenant
        asked = event(attribution, tenant, AuditEvent.FORGOT_PASSWORD)
        await self._store.begin(to, self._pepper.digest(token), written, asked)
        await self._courier.deliver()

    async def complete(self, token: str, new: str, attribution: Attribution) -> None:
        """Take another password, once. Raises InvalidPasswordResetTokenError, InvalidPasswordError."""
        digest, now = self._pepper.digest(token), date_of(self._clock())
        is_token = kind_of(token) is CredentialKind.PASSWORD_RESET
        if not (is_token and await self._store.is_open(digest, now)):
            raise InvalidPasswordResetTokenError
        password_hash = await self._passwords.hash(new)
        await self._store.complete(digest, password_hash, now, attribution)
        await self._courier.deliver()
