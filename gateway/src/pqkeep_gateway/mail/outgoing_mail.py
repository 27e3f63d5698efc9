"""Letters: what is written to people, in which words.

A letter waits in the database without the token or code that it is about: that is derived from the
pepper and the letter's salt when the letter is sent. Whoever copies the database can use none.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from enum import StrEnum
from uuid import UUID, uuid4

from pqkeep_gateway.access.credentials import CredentialKind, Pepper, new_credential
from pqkeep_gateway.mail.addresses import is_email

NOTICE_LIFE = timedelta(days=3)
"""How long it is tried to deliver what has no end of its own."""
CODE_DIGITS = 6
_SALT_SIZE = 16
_POLICY = SMTP.clone(max_line_length=998)  # RFC 5322's limit: links stay in one piece


class InvalidAddressError(Exception):
    """What a letter is for is no e-mail address."""


class MailKind(StrEnum):
    """What a letter is about."""

    INVITATION = "invitation"
    REGISTRATION = "registration"
    ALREADY_REGISTERED = "already-registered"
    PASSWORD_RESET = "password-reset"  # noqa: S105 - a name
    NOBODY = "nobody"
    """Somebody asked for a letter to an address that nobody here has. It is not sent; that it is
    written lets the answer take as long."""
    CODE = "code"
    PASSWORD_CHANGED = "password-changed"  # noqa: S105 - a name
    SECOND_FACTOR_ADDED = "second-factor-added"
    SECOND_FACTOR_REMOVED = "second-factor-removed"
    RECOVERY_CODE_USED = "recovery-code-used"


@dataclass(frozen=True, slots=True)
class OutgoingMail:
    """One letter, to be sent."""

    id: UUID
    kind: MailKind
    to: str = field(repr=False)
    written_at: datetime
    until: datetime
    """When what it is about ends, and with it every attempt to deliver it."""
    salt: bytes = field(repr=False)
    by: str = field(default="", repr=False)
    """Who has it written, where it says so."""
    tries: int = 0


def mail(
    kind: MailKind, to: str, now: datetime, life: timedelta = NOTICE_LIFE, by: str = ""
) -> OutgoingMail:
    """Return a new letter."""
    return OutgoingMail(uuid4(), kind, to, now, now + life, secrets.token_bytes(_SALT_SIZE), by)


def token_of(written: OutgoingMail, kind: CredentialKind, pepper: Pepper) -> str:
    """Return the token that belongs to a letter, whether its words hand it over or not."""
    random = pepper.derive("pqkeep/v1/mailed-token", kind.encode(), written.salt)
    return new_credential(kind, random)


def code_of(written: OutgoingMail, pepper: Pepper) -> str:
    """Return the code that belongs to a letter: six digits."""
    number = int.from_bytes(pepper.derive("pqkeep/v1/mailed-code", written.salt), "big")
    return f"{number % 10**CODE_DIGITS:0{CODE_DIGITS}}"


def compose(
    written: OutgoingMail, pepper: Pepper, sender: str, portal_url: str
) -> EmailMessage | None:
    """Return a letter as it is sent; None: it is not.

    No header has words of anybody's but an address. Raises InvalidAddressError where it is none.
    """
    if not is_email(written.to):
        raise InvalidAddressError
    form = _FORMS[written.kind]
    if not form.subject:
        return None
    text = form.text + ("" if form.token is None else _LINK) + _FOOTER
    message = EmailMessage(_POLICY)
    message["From"] = Address("pqkeep", addr_spec=sender)
    message["To"] = Address(addr_spec=written.to)
    message["Subject"] = form.subject
    message["Date"] = written.written_at
    message["Message-ID"] = f"<{written.id}@{sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: nobody's answering machine answers
    message.set_content(
        text.format(
            here=portal_url.rstrip("/"),
            by=written.by,
            at=_time(written.written_at),
            until=_time(written.until),
            page=form.page,
            endpoint=form.endpoint,
            token="" if form.token is None else token_of(written, form.token, pepper),
            code=code_of(written, pepper),
        )
    )
    return message


@dataclass(frozen=True, slots=True)
class _Form:
    """The words of one kind of letter."""

    subject: str
    text: str
    token: CredentialKind | None = None
    page: str = ""
    """Of the portal, where the token is used."""
    endpoint: str = ""
    """Where programs use it."""


_LINK = """
    {here}/{page}#{token}

It is good once, until {until}. A program sends what stands after the # to
POST {here}/api/v1/auth/{endpoint}
"""
_FOOTER = """
--\x20
pqkeep at {here}
Nobody reads what is sent back to this address.
"""
_WAS_IT_YOU = """
If it was you, all is well. If not, somebody else can use your account: set a
new password at once, and tell whoever administers your organization.
"""
_FORMS: Mapping[MailKind, _Form] = {
    MailKind.INVITATION: _Form(
        "You are invited to pqkeep",
        "{by} invites you to join an organization on pqkeep at {here}.\n"
        "To accept, choose a password:\n",
        CredentialKind.INVITATION,
        "invitation",
        "accept-invitation",
    ),
    MailKind.REGISTRATION: _Form(
        "Finish signing up for pqkeep",
        "Somebody, you probably, wants to sign up for pqkeep at {here}\n"
        "with this address. To go on, choose a password and a name for your organization:\n",
        CredentialKind.REGISTRATION,
        "registration",
        "confirm-registration",
    ),
    MailKind.ALREADY_REGISTERED: _Form(
        "You have signed up for pqkeep already",
        "Somebody, you probably, wants to sign up for pqkeep at {here}\n"
        "with this address. It has an account already: sign in with it, or ask for a new\n"
        "password if you have forgotten yours. If it was not you, there is nothing to do.\n",
    ),
    MailKind.PASSWORD_RESET: _Form(
        "Choose a new password for pqkeep",
        "Somebody, you probably, has forgotten the password of your account on pqkeep at\n"
        "{here}. If it was not you, there is nothing to do.\n"
        "To choose a new one:\n",
        CredentialKind.PASSWORD_RESET,
        "reset-password",
        "reset-password",
    ),
    MailKind.NOBODY: _Form("", ""),
    MailKind.CODE: _Form(
        "Your code for pqkeep",
        "To finish signing in to pqkeep at {here}, enter\n\n"
        "    {code}\n\n"
        "It is good once, until {until}. Give it to nobody. If you are not\n"
        "signing in, somebody knows your password: set a new one.\n",
    ),
    MailKind.PASSWORD_CHANGED: _Form(
        "Your password for pqkeep was changed",
        "At {at} your account on pqkeep at {here}\n"
        "got a new password, and everybody who was signed in with it was signed out.\n"
        + _WAS_IT_YOU,
    ),
    MailKind.SECOND_FACTOR_ADDED: _Form(
        "Your account on pqkeep has a second factor",
        "At {at} your account on pqkeep at {here}\n"
        "got a second factor: signing in takes a code from now on.\n" + _WAS_IT_YOU,
    ),
    MailKind.SECOND_FACTOR_REMOVED: _Form(
        "Your account on pqkeep has no second factor any more",
        "At {at} your account on pqkeep at {here}\n"
        "lost its second factor: the password is enough to sign in.\n" + _WAS_IT_YOU,
    ),
    MailKind.RECOVERY_CODE_USED: _Form(
        "A recovery code of yours was used on pqkeep",
        "At {at} a recovery code of your account on pqkeep at\n"
        "{here} was used in the place of your authenticator app.\n" + _WAS_IT_YOU,
    ),
}


def _time(when: datetime) -> str:
    return f"{when:%Y-%m-%d %H:%M} UTC"
