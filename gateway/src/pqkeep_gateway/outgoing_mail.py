"""The texts of e-mails to people.

A mail is written in the language of its recipient when it is sent. Texts are English in the code, and
the catalogues of ``languages`` translate them.

A stored mail does not contain its token or code. Both are derived from the pepper and the mail's
salt when it is sent, so a copy of the database is not enough to use one.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from enum import StrEnum
from uuid import UUID, uuid4

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, Purpose, new_credential
from pqkeep_gateway.languages import ENGLISH, current, gettext, said, speaking

MAX_EMAIL = 254
_MAX_LOCAL = 64
_WORD = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL = rf"[A-Za-z0-9!#$%&'*+=?^_`{{}}~][A-Za-z0-9!#$%&'*+/=?^_`{{|}}~-]*(\.{_WORD})*"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
EMAIL_PATTERN = rf"^{_LOCAL}@{_LABEL}(\.{_LABEL})*$"
"""RFC 5321 without quoted forms, which mail programs may read as several addresses. A local part
must not begin with -, / or |: in arguments and aliases of mail programs these mark options, files
and programs."""
_EMAIL = re.compile(EMAIL_PATTERN)
_is_plain_name = re.compile(r"(\w|[ &'(),+-]|\.(?=[ ,)]|\Z)){1,64}").fullmatch
"""Matches names without addresses. Mail programs make links of addresses, and a stranger who signs
up chooses both the name and the recipient."""
ROLES: Mapping[Role, str] = {
    Role.OWNER: "an owner, who can do everything",
    Role.ADMIN: "an admin, who manages keys, API keys and members",
    Role.DEVELOPER: "a developer, who uses and manages keys",
    Role.VIEWER: "a viewer, who can read and not change",
}
"""The roles in words, as parts of a sentence."""


def is_email(text: str) -> bool:
    """Return whether a text is an e-mail address in ASCII, of at most 254 characters."""
    fits = len(text) <= MAX_EMAIL and text.find("@") <= _MAX_LOCAL
    return fits and _EMAIL.fullmatch(text) is not None


NOTIFICATION_LIFETIME = timedelta(days=3)
"""The time limit of delivery for mail without an expiry of its own."""
CODE_DIGITS = 6
_SALT_SIZE = 16
_POLICY = SMTP.clone(max_line_length=998)  # RFC 5322's limit, so that links are not broken


class InvalidAddressError(Exception):
    """The recipient is not an e-mail address."""


class MailKind(StrEnum):
    """The subject of a mail."""

    INVITATION = "invitation"
    REGISTRATION = "registration"
    ALREADY_REGISTERED = "already-registered"
    PASSWORD_RESET = "password-reset"  # noqa: S105 - a name
    DISCARDED = "discarded"
    """Requested for an unknown address. It is stored but not sent, so that both cases take equally
    long."""
    CODE = "code"
    PASSWORD_CHANGED = "password-changed"  # noqa: S105 - a name
    SECOND_FACTOR_ADDED = "second-factor-added"
    SECOND_FACTOR_REMOVED = "second-factor-removed"
    PASSKEY_ADDED = "passkey-added"
    PASSKEY_REMOVED = "passkey-removed"
    PASSKEY_CLONED = "passkey-cloned"
    RECOVERY_CODE_USED = "recovery-code-used"
    DESTRUCTION_SCHEDULED = "destruction-scheduled"
    APPROVAL_REQUESTED = "approval-requested"
    NOTICES = "notices"
    """A digest of new notices."""
    OPERATOR_NOTICES = "operator-notices"
    WEBHOOK_DISABLED = "webhook-disabled"


@dataclass(frozen=True, slots=True)
class OutgoingMail:
    """One mail that is not delivered yet."""

    id: UUID
    kind: MailKind
    to: str = field(repr=False)
    created_at: datetime
    expires_at: datetime
    """The expiry of its token or code, and the end of delivery attempts."""
    salt: bytes = field(repr=False)
    inviter: str = field(default="", repr=False)
    about: str = ""
    """The announced event, as part of a sentence."""
    language: str = ENGLISH
    attempts: int = 0


def new_mail(
    kind: MailKind,
    to: str,
    now: datetime,
    lifetime: timedelta = NOTIFICATION_LIFETIME,
    inviter: str = "",
    about: str = "",
    language: str = ENGLISH,
) -> OutgoingMail:
    """Return a mail that is not stored yet.

    ``language``: for a recipient without an account. The others have their own.
    """
    salt = secrets.token_bytes(_SALT_SIZE)
    return OutgoingMail(uuid4(), kind, to, now, now + lifetime, salt, inviter, about, language)


def mailed_token(mail: OutgoingMail, kind: CredentialKind, pepper: Pepper) -> str:
    """Return the token of a mail, even if its text does not contain it.

    A mail with the same salt to another recipient has another token.
    """
    random = pepper.derive(Purpose.MAILED_TOKEN, kind.encode(), mail.to.encode(), mail.salt)
    return new_credential(kind, random)


def mailed_code(mail: OutgoingMail, pepper: Pepper) -> str:
    """Return the code of a mail: six digits."""
    number = int.from_bytes(pepper.derive(Purpose.MAILED_CODE, mail.to.encode(), mail.salt), "big")
    return f"{number % 10**CODE_DIGITS:0{CODE_DIGITS}}"


def compose(
    mail: OutgoingMail, pepper: Pepper, sender: str, public_url: str
) -> EmailMessage | None:
    """Return the message to send; None for discarded mail.

    No header contains user input except the recipient's address. Raises InvalidAddressError.
    """
    if not is_email(mail.to):
        raise InvalidAddressError
    template = TEMPLATES[mail.kind]
    if not template.subject:
        return None
    with speaking(mail.language):
        return _message(mail, template, pepper, sender, public_url)


def _line(text: str) -> str:
    """Return a line of an announcement in the language of this context."""
    bullet = "- " if text.startswith("- ") else ""
    return bullet + said(text.removeprefix(bullet))


@dataclass(frozen=True, slots=True)
class Template:
    """The text of one kind of mail."""

    subject: str
    text: str
    token: CredentialKind | None = None
    page: str = ""
    """The portal's page for the token."""
    endpoint: str = ""
    """The API's endpoint for the token."""
    was_it_you: bool = False
    """True if the mail says what to do if another person caused it."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts of the text, each a message of the catalogues."""
        link = () if self.token is None else (_LINK,)
        warning = (_WAS_IT_YOU,) if self.was_it_you else ()
        return (self.text, *warning, *link, _FOOTER)


def _message(
    mail: OutgoingMail, template: Template, pepper: Pepper, sender: str, public_url: str
) -> EmailMessage:
    """Return the message in the language of this context."""
    text = "".join(gettext(part) for part in template.parts)
    message = EmailMessage(_POLICY)
    message["From"] = Address("pqkeep", addr_spec=sender)
    message["To"] = Address(addr_spec=mail.to)
    message["Subject"] = gettext(template.subject)
    message["Date"] = mail.created_at
    message["Message-ID"] = f"<{mail.id}@{sender.rpartition('@')[2]}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: prevents automatic replies
    content = text.format(
        here=public_url.rstrip("/"),
        inviter=gettext(mail.inviter) if mail.inviter else "",
        about="\n".join(_line(line) for line in mail.about.split("\n")),
        at=shown_time(mail.created_at),
        until=shown_time(mail.expires_at),
        page=template.page,
        endpoint=template.endpoint,
        token="" if template.token is None else mailed_token(mail, template.token, pepper),
        code=mailed_code(mail, pepper),
    )
    # A name may be beyond ASCII, and not every mail server takes eight bits.
    message.set_content(content, cte="7bit" if content.isascii() else "quoted-printable")
    message["Content-Language"] = current()  # after set_content, which removes Content-…
    return message


_LINK = """
    {here}/portal/{page}#{token}

The link works once, until {until}. A program sends the token after the # to
POST {here}/api/v1/auth/{endpoint}
"""
_FOOTER = """
--\x20
pqkeep at {here}
Replies to this address are not read.
"""
_WAS_IT_YOU = """
If this was not you, another person has access to your account: set a new password
at once, and tell the administrators of your organization.
"""
TEMPLATES: Mapping[MailKind, Template] = {
    MailKind.INVITATION: Template(
        "You are invited to pqkeep",
        "{inviter} invites you to pqkeep at {here},\nto join {about}.\n"
        "To accept, choose a password:\n",
        CredentialKind.INVITATION,
        "invitation",
        "accept-invitation",
    ),
    MailKind.REGISTRATION: Template(
        "Finish signing up for pqkeep",
        "Somebody, probably you, is signing up for pqkeep at {here}\n"
        "with this address. If it was not you, ignore this message.\n"
        "To continue, choose a password and a name for your organization:\n",
        CredentialKind.REGISTRATION,
        "registration",
        "confirm-registration",
    ),
    MailKind.ALREADY_REGISTERED: Template(
        "You already have an account on pqkeep",
        "Somebody, probably you, tried to sign up for pqkeep at {here}\n"
        "with this address. It has an account already: sign in, or reset your password\n"
        "if you have forgotten it. If it was not you, ignore this message.\n",
    ),
    MailKind.PASSWORD_RESET: Template(
        "Reset your password for pqkeep",
        "Somebody, probably you, asked to reset the password of your account on pqkeep at\n"
        "{here}. If it was not you, ignore this message.\n"
        "To choose a new password:\n",
        CredentialKind.PASSWORD_RESET,
        "reset-password",
        "reset-password",
    ),
    MailKind.DISCARDED: Template("", ""),
    MailKind.CODE: Template(
        "Your code for pqkeep",
        "To finish signing in to pqkeep at {here}, enter\n\n"
        "    {code}\n\n"
        "The code works once, until {until}. Do not share it. If you are not\n"
        "signing in, another person knows your password: set a new one.\n",
    ),
    MailKind.PASSWORD_CHANGED: Template(
        "Your password for pqkeep was changed",
        "At {at} the password of your account on pqkeep at {here}\n"
        "was changed, and everybody who was signed in with it was signed out.\n",
        was_it_you=True,
    ),
    MailKind.SECOND_FACTOR_ADDED: Template(
        "A second factor was added to your account on pqkeep",
        "At {at} a second factor was added to your account on pqkeep at\n"
        "{here}: signing in takes a code from now on.\n",
        was_it_you=True,
    ),
    MailKind.SECOND_FACTOR_REMOVED: Template(
        "The second factor of your account on pqkeep was removed",
        "At {at} the second factor of your account on pqkeep at\n"
        "{here} was removed: the password is enough to sign in.\n",
        was_it_you=True,
    ),
    MailKind.PASSKEY_ADDED: Template(
        "A passkey was added to your account on pqkeep",
        "At {at} a passkey was added to your account on pqkeep at\n"
        "{here}: it signs in without a password, and a password alone is not\n"
        "enough. For seven days it cannot remove your older passkeys.\n",
        was_it_you=True,
    ),
    MailKind.PASSKEY_REMOVED: Template(
        "A passkey of your account on pqkeep was removed",
        "At {at} a passkey of your account on pqkeep at\n{here} was removed.\n",
        was_it_you=True,
    ),
    MailKind.PASSKEY_CLONED: Template(
        "A passkey of your account on pqkeep may have been copied",
        "At {at} a passkey of your account on pqkeep at\n"
        "{here} was used with an old counter, and refused. This happens when a\n"
        "copy of the passkey exists. Sign in in another way, remove the passkey in the\n"
        "portal under Security, and tell the administrators of your organization.\n",
    ),
    MailKind.RECOVERY_CODE_USED: Template(
        "A recovery code of your account on pqkeep was used",
        "At {at} a recovery code of your account on pqkeep at\n"
        "{here} was used instead of your app or passkey.\n",
        was_it_you=True,
    ),
    MailKind.DESTRUCTION_SCHEDULED: Template(
        "Keys of your organization on pqkeep will be destroyed",
        "You are an owner of an organization on pqkeep at {here}.\n"
        "At {at} this was scheduled:\n\n"
        "    {about}.\n\n"
        "Data encrypted with a destroyed key can never be read again, not even with a\n"
        "backup. Until then the destruction can be cancelled: of a key on its page of the\n"
        "portal, of a keyring's old keys by changing the keyring, and of a whole\n"
        "organization by the operator of the service. If none of you intended this, cancel\n"
        "it now, and check the audit log.\n",
    ),
    MailKind.APPROVAL_REQUESTED: Template(
        "A request waits for your approval on pqkeep",
        "{inviter} asks a second person of your organization to approve this request:\n\n"
        "    {about}\n\n"
        "Approve or refuse it until {until} at\n"
        "{here}/portal/approvals\n\n"
        "Ask {inviter} before you approve it. The person that asked cannot approve it.\n",
    ),
    MailKind.NOTICES: Template(
        "Your organization on pqkeep needs attention",
        "These notices of your organization on pqkeep are new:\n\n"
        "{about}\n\n"
        "What to do about each:\n\n"
        "    {here}/portal/notices\n\n"
        "You get this message as an owner or admin, at most once in an hour. You can\n"
        "switch it off on that page.\n",
    ),
    MailKind.OPERATOR_NOTICES: Template(
        "Your installation of pqkeep needs attention",
        "These notices about the installation of pqkeep at {here} are new:\n\n"
        "{about}\n\n"
        "What to do about each:\n\n"
        "    {here}/portal/operator\n\n"
        "The gateway's settings name this address in operators_mail. A message is sent at\n"
        "most once in an hour.\n",
    ),
    MailKind.WEBHOOK_DISABLED: Template(
        "A webhook of your organization on pqkeep was disabled",
        "You are an owner of an organization on pqkeep at {here}.\n"
        "At {at} the webhook {about} was disabled. Its receiver asked for no\n"
        "more messages, or took none for five days. Waiting messages were given up.\n"
        "When the receiver works again, enable the webhook on the Webhooks page of the\n"
        "portal, and send the failed messages again.\n",
    ),
}


def of_invitation(tenant_name: str, role: Role) -> str:
    """Return what a person is invited to. A name that may hold an address is left out."""
    words = ROLES[role]
    if _is_plain_name(tenant_name) is None:
        return f"an organization as {words}"
    return f'the organization "{tenant_name}" as {words}'


def of_key(algorithm: str, version: int, keyring: str, at: datetime) -> str:
    """Return the announcement for a key version."""
    return f"{algorithm} v{version} of the keyring {keyring} is destroyed at {shown_time(at)}"


def of_keyring(keyring: str, days: int) -> str:
    """Return the announcement for the retired versions in a keyring."""
    return f"retired key versions of the keyring {keyring} are destroyed after {days} days"


def of_deleted_keyring(keyring: str, at: datetime) -> str:
    """Return the announcement for all keys of a deleted keyring."""
    return f"all keys of the deleted keyring {keyring} are destroyed at {shown_time(at)}"


def of_tenant(at: datetime) -> str:
    """Return the announcement for all keys of a tenant."""
    return f"all keys of your organization are destroyed at {shown_time(at)}"


def shown_time(when: datetime) -> str:
    """Return a time for people, to the minute."""
    return f"{when:%Y-%m-%d %H:%M} UTC"
