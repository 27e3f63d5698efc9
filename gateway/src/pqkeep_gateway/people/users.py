"""People who sign in, each for one tenant."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.access.roles import Role
from pqkeep_protocol.keys import TenantId


class EmailTakenError(Exception):
    """Somebody has the address already."""


class UserNotFoundError(Exception):
    """There is no such person."""


@dataclass(frozen=True, slots=True)
class User:
    """One person."""

    id: UserId
    tenant: TenantId
    email: str
    role: Role
    created_at: datetime

    def __str__(self) -> str:
        return f"user:{self.id}"


@dataclass(frozen=True, slots=True)
class Account:
    """A person, and what a password is compared with."""

    user: User
    password_hash: str = field(repr=False)
    totp_salt: bytes | None = field(default=None, repr=False)
    has_mfa: bool = False
    """Whether there is an authenticator app, confirmed."""
    email_codes: bool = False
    """Whether they chose to be sent a code when they sign in, without an app."""
    must_have_mfa: bool = False
    """Whether their tenant requires a second factor."""


class UserStore(Protocol):
    """Where people are looked up. All raise UnavailableError."""

    async def find(self, email: str) -> Account | None:
        """Return who has an address, in capitals or not."""
        ...

    async def get(self, user: UserId) -> Account:
        """Return a person. Raises UserNotFoundError."""
        ...


def email_key(email: str) -> str:
    """Return what two spellings of one address have in common."""
    return email.lower()
