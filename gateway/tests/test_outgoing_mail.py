"""Mail has the right content and token, and no user input in its headers."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage

import pytest

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, kind_of
from pqkeep_gateway.languages import ENGLISH, LANGUAGES
from pqkeep_gateway.outgoing_mail import (
    InvalidAddressError,
    MailKind,
    OutgoingMail,
    compose,
    mailed_code,
    mailed_token,
    new_mail,
    of_invitation,
    of_key,
)

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
TO = "ada@example.com"
PORTAL = "https://keep.example.org"
TOKENS = {
    MailKind.INVITATION: CredentialKind.INVITATION,
    MailKind.REGISTRATION: CredentialKind.REGISTRATION,
    MailKind.PASSWORD_RESET: CredentialKind.PASSWORD_RESET,
}
OTHERS = sorted(LANGUAGES.keys() - {ENGLISH})
WORD = re.compile(r"[a-z]{4,}")
ABOUT = {
    MailKind.INVITATION: of_invitation("Northwind Health", Role.VIEWER),
    MailKind.DESTRUCTION_SCHEDULED: of_key("Kyber768", 3, "payments", NOW),
    MailKind.APPROVAL_REQUESTED: "Make ada@example.com owner instead of admin",
    MailKind.NOTICES: "- No backup was made yet. Run pqkeepd backup.\n- And 3 more notices.",
    MailKind.OPERATOR_NOTICES: "- Messages wait more than 5 minutes.",
    MailKind.WEBHOOK_DISABLED: "on-call",
}
"""What mails of some kinds announce."""
SENT = [kind for kind in MailKind if kind is not MailKind.DISCARDED]


def new(kind: MailKind) -> OutgoingMail:
    """Return a mail."""
    return new_mail(kind, TO, NOW, timedelta(hours=1), "grace@example.com")


def sent(mail: OutgoingMail, pepper: Pepper) -> EmailMessage:
    """Return the message in its sent form."""
    message = compose(mail, pepper, "pqkeep@example.org", PORTAL)
    assert message is not None
    return message


@pytest.mark.parametrize("kind", SENT)
def test_mail_is_short_plain_text_from_us(kind: MailKind, pepper: Pepper) -> None:
    """Each kind is ASCII text of under 1,000 characters with a link to the portal and no gaps."""
    message = sent(new(kind), pepper)
    text = message.get_content()
    assert message.get_content_type() == "text/plain"
    assert message.as_bytes().isascii()
    assert PORTAL in text
    assert len(text) < 1000
    assert "{" not in text
    headers = dict(message.items())
    assert headers["From"] == "pqkeep <pqkeep@example.org>"
    assert headers["To"] == TO
    assert headers["Auto-Submitted"] == "auto-generated"
    assert headers["Message-ID"].endswith("@example.org>")


@pytest.mark.parametrize("language", OTHERS)
@pytest.mark.parametrize("kind", SENT)
def test_mail_is_in_the_language_of_its_recipient(
    kind: MailKind, language: str, pepper: Pepper
) -> None:
    """Subject and text have no line of the English mail, except links, names and numbers."""
    mail = new_mail(kind, TO, NOW, timedelta(hours=1), "The operator", ABOUT.get(kind, ""))
    english, other = sent(mail, pepper), sent(replace(mail, language=language), pepper)
    assert other["Content-Language"] == language
    assert english["Content-Language"] == ENGLISH
    assert other["Subject"] != english["Subject"]
    assert other.as_bytes().isascii()
    both = set(english.get_content().splitlines()) & set(other.get_content().splitlines())
    assert {line for line in both if WORD.search(line) and "://" not in line} == set()
    assert len(other.get_content()) < 1200
    assert "{" not in other.get_content()


def test_an_unknown_language_is_english(pepper: Pepper) -> None:
    """A mail of a later version's language is English, and is sent."""
    mail = replace(new(MailKind.CODE), language="xx")
    assert sent(mail, pepper)["Subject"] == "Your code for pqkeep"


@pytest.mark.parametrize(
    "name", ["Northwind Health", "Müller & Co. (Bern)", "evil.example", "a\nb"]
)
def test_an_invitation_says_to_what(name: str, pepper: Pepper) -> None:
    """An invitation names the inviter, the organization and the role, but no name that may be an address."""
    about = of_invitation(name, Role.ADMIN)
    mail = new_mail(MailKind.INVITATION, TO, NOW, timedelta(hours=1), "grace@example.com", about)
    message = sent(mail, pepper)
    text = message.get_content()
    assert message.as_bytes().isascii()
    assert "grace@example.com invites you" in text
    assert "an admin, who manages keys" in text
    assert (name in text) == (name[0] in "NM")


@pytest.mark.parametrize(("kind", "credential"), TOKENS.items())
def test_a_link_stays_in_one_piece(
    kind: MailKind, credential: CredentialKind, pepper: Pepper
) -> None:
    """The token follows the # of a link, on one line of the message."""
    mail = new(kind)
    (token,) = re.findall(
        r"^    https://[a-z./-]+#(\w+)\r$", sent(mail, pepper).as_string(), re.MULTILINE
    )
    assert token == mailed_token(mail, credential, pepper)
    assert kind_of(token) is credential


@pytest.mark.parametrize("kind", [text for text in SENT if text not in TOKENS])
def test_other_mail_contains_no_token(kind: MailKind, pepper: Pepper) -> None:
    """Mails of other kinds do not contain a token."""
    assert not re.search(r"#|pq[a-z]_", sent(new(kind), pepper).as_string())


def test_a_token_depends_on_mail_and_pepper(pepper: Pepper) -> None:
    """The token depends on the mail, the pepper and the purpose, and on nothing else."""
    first, second = new(MailKind.INVITATION), new(MailKind.INVITATION)
    kind = CredentialKind.INVITATION
    tokens = {
        mailed_token(first, kind, pepper),
        mailed_token(second, kind, pepper),
        mailed_token(first, CredentialKind.PASSWORD_RESET, pepper),
        mailed_token(first, kind, Pepper(bytes(32))),
    }
    assert len(tokens) == 4
    assert mailed_token(replace(first), kind, pepper) in tokens


def test_codes_have_six_digits(pepper: Pepper) -> None:
    """Codes have six digits, with leading zeros, and are seldom equal."""
    codes = [mailed_code(new(MailKind.CODE), pepper) for _ in range(2000)]
    assert all(re.fullmatch(r"[0-9]{6}", code) for code in codes)
    assert any(code.startswith("0") for code in codes)
    assert len(set(codes)) > 1900


def test_discarded_mail_is_not_composed(pepper: Pepper) -> None:
    """Mail for an unknown address has no message."""
    assert compose(new(MailKind.DISCARDED), pepper, "pqkeep@example.org", PORTAL) is None


@pytest.mark.parametrize(
    "address",
    [
        "ada@example.com\r\nBcc: eve@example.com",
        "ada@example.com\nBcc: eve@example.com",
        "ada@example.com, eve@example.com",
        "ada@example.com,eve@example.com",
        "ada@example.com>",
        "Ada <ada@example.com>",
        "ada@example.com (eve)",
        "ada",
        "",
    ],
)
def test_what_is_no_address_is_in_no_header(address: str, pepper: Pepper) -> None:
    """An address with a line end, a second address or other text is refused."""
    with pytest.raises(InvalidAddressError):
        compose(replace(new(MailKind.CODE), to=address), pepper, "a@b", PORTAL)


def test_the_repr_of_a_mail_shows_no_secret() -> None:
    """The repr of a mail does not contain its address or its salt."""
    mail = new(MailKind.INVITATION)
    assert "example.com" not in repr(mail)
    assert repr(mail.salt) not in repr(mail)
