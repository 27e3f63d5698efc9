"""Signing up: an address first, and a tenant once somebody has shown that it is theirs.

Whoever asks hears the same, whether somebody has the address or not; a letter tells its owner which.
The password is chosen by whoever got the letter: nobody can prepare an account for somebody else.
"""

from datetime import datetime, timedelta
from typing import Protocol

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.mail.outgoing_mail import MailKind, OutgoingMail, mail, token_of
from pqkeep_gateway.people.attempt_limits import AttemptLimits
from pqkeep_gateway.people.passwords import Passwords
from pqkeep_gateway.people.sessions import Sessions, Tokens
from pqkeep_gateway.people.users import Account, User, UserStore
from pqkeep_gateway.tenancy.tenants import Tenant, new_tenant
from pqkeep_protocol.messages import Attribution

LIFE = timedelta(hours=1)


class InvalidRegistrationTokenError(Exception):
    """The token is of no registration, or of one that is over."""


class RegistrationStore(UserStore, Protocol):
    """Where addresses wait for their owners. All raise UnavailableError."""

    async def begin(self, email: str, digest: bytes, mail: OutgoingMail) -> None:
        """Keep an address, instead of earlier ones that are the same or over, and the letter."""
        ...

    async def is_open(self, digest: bytes, now: datetime) -> bool:
        """Return whether a registration can be completed."""
        ...

    async def complete(
        self,
        digest: bytes,
        tenant: Tenant,
        password_hash: str,
        now: datetime,
        attribution: Attribution,
    ) -> Account:
        """Use a registration up and keep the tenant and its owner, in one step.

        Raises InvalidRegistrationTokenError, NameTakenError, EmailTakenError.
        """
        ...


class Registration:
    """Lets people sign up."""

    def __init__(
        self,
        store: RegistrationStore,
        sessions: Sessions,
        passwords: Passwords,
        attempts: AttemptLimits,
        pepper: Pepper,
        clock: Clock,
    ) -> None:
        """Keep tokens as digests under the pepper."""
        self._store = store
        self._sessions = sessions
        self._passwords = passwords
        self._attempts = attempts
        self._pepper = pepper
        self._clock = clock

    async def begin(self, email: str, attribution: Attribution) -> None:
        """Have a letter written to an address. Raises TooManyAttemptsError.

        Where somebody has the address, everything is done likewise, but nobody is told the token.
        """
        await self._attempts.count_letter(email, attribution.source_address)
        now = date_of(self._clock())
        is_taken = await self._store.find(email) is not None
        kind = MailKind.ALREADY_REGISTERED if is_taken else MailKind.REGISTRATION
        written = mail(kind, email, now, LIFE)
        token = token_of(written, CredentialKind.REGISTRATION, self._pepper)
        await self._store.begin(email, self._pepper.digest(token), written)

    async def complete(
        self, token: str, name: str, password: str, attribution: Attribution
    ) -> tuple[User, Tokens]:
        """Make a tenant and its owner, and begin a session.

        Raises InvalidRegistrationTokenError, NameTakenError, EmailTakenError, InvalidPasswordError; all of
        them leave the registration as it was.
        """
        digest, now = self._pepper.digest(token), date_of(self._clock())
        is_token = kind_of(token) is CredentialKind.REGISTRATION
        if not (is_token and await self._store.is_open(digest, now)):
            raise InvalidRegistrationTokenError
        password_hash = await self._passwords.hash(password)
        tenant = new_tenant(name)
        account = await self._store.complete(digest, tenant, password_hash, now, attribution)
        return account.user, await self._sessions.begin(account, attribution)
