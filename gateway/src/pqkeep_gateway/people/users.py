"""People who sign in, each for one tenant."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from pqkeep_gateway.access.principals import SessionPrincipal, UserId
from pqkeep_gateway.access.roles import Role
from pqkeep_gateway.mail.outgoing_mail import OutgoingMail
from pqkeep_protocol.audit import Event
from pqkeep_protocol.audit_events import PERSON
from pqkeep_protocol.keys import TenantId


class EmailTakenError(Exception):
    """Another user has this e-mail address."""


class UserNotFoundError(Exception):
    """No such user."""


@dataclass(frozen=True, slots=True)
class User:
    """One person."""

    id: UserId
    tenant: TenantId
    email: str
    role: Role
    created_at: datetime

    def __str__(self) -> str:
        return f"{PERSON}{self.id}"


@dataclass(frozen=True, slots=True)
class Account:
    """A user, and what is needed to authenticate them."""

    user: User
    password_hash: str | None = field(repr=False)
    """None: they have never had a password, and sign in by a provider."""
    totp_salt: bytes | None = field(default=None, repr=False)
    has_mfa: bool = False
    """Whether an authenticator app is enrolled and confirmed."""
    email_codes: bool = False
    """Whether they chose to be sent a code at each sign-in; without effect with an app."""
    must_have_mfa: bool = False
    """Whether their tenant requires a second factor."""


class UserStore(Protocol):
    """Users in the database. All methods raise UnavailableError."""

    async def find_by_email(self, email: str) -> Account | None:
        """Return who has an e-mail address, ignoring case."""
        ...

    async def get(self, user: UserId) -> Account:
        """Return a user. Raises UserNotFoundError."""
        ...

    async def save_rehashed_password(self, account: Account, password_hash: str) -> bool:
        """Replace the hash of an unchanged password, in one conditional UPDATE.

        Returns False if the stored hash is not the account's any more.
        """
        ...

    async def save_password(
        self, user: UserId, password_hash: str, mail: OutgoingMail, audit_event: Event
    ) -> None:
        """Store a new password and end every session, challenge and password reset of the user."""
        ...

    async def save_email_codes(
        self, principal: SessionPrincipal, mail: OutgoingMail, audit_event: Event, *, wanted: bool
    ) -> None:
        """Store whether the user is sent a code at each sign-in; end their other sessions."""
        ...


def email_key(email: str) -> str:
    """Return the form in which e-mail addresses are compared."""
    return email.lower()
