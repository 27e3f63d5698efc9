"""People who sign in, each for one tenant."""

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from pqkeep_gateway.access.principals import UserId
from pqkeep_gateway.access.roles import Role
from pqkeep_protocol.keys import TenantId

MAX_EMAIL = 254
EMAIL_PATTERN = r"^[!-?A-~]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*$"
_EMAIL = re.compile(EMAIL_PATTERN)


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
    """Whether there is a second factor, confirmed."""


class UserStore(Protocol):
    """Where people are looked up. All raise UnavailableError."""

    async def find(self, email: str) -> Account | None:
        """Return who has an address, in capitals or not."""
        ...

    async def get(self, user: UserId) -> Account:
        """Return a person. Raises UserNotFoundError."""
        ...


def is_email(text: str) -> bool:
    """Return whether a text has the form of an address: ASCII, at most 254 characters."""
    return len(text) <= MAX_EMAIL and _EMAIL.fullmatch(text) is not None


def email_key(email: str) -> str:
    """Return what two spellings of one address have in common."""
    return email.lower()
