"""Delivery to a real mail server: always encrypted, with temporary and permanent errors."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pqkeep_gateway.access.credentials import Pepper
from pqkeep_gateway.config import Smtp
from pqkeep_gateway.delivery.mail_delivery import MailDeferredError, MailRejectedError
from pqkeep_gateway.delivery.smtp import SECONDS, SmtpMailer
from pqkeep_gateway.outgoing_mail import MailKind, OutgoingMail, compose, mailed_code, new_mail
from pqkeep_protocol.startup.settings import ConfigError

if TYPE_CHECKING:
    from tests.fixtures.certificate import Certificate
    from tests.fixtures.mail_server import MailServer

TO = "ada@example.com"
PASSWORD = "only the horse knows"  # noqa: S105 - a test password
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
async def hung_up() -> AsyncIterator[None]:
    """Give encrypted connections time to close."""
    yield
    await asyncio.sleep(0.2)


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    """A password file with the correct permissions."""
    path = tmp_path / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def plain(mail_server: MailServer) -> MailServer:
    """A server that offers no encryption."""
    mail_server.start()
    return mail_server


@pytest.fixture
def encrypted(mail_server: MailServer, certificate: Certificate) -> MailServer:
    """A server that requires encryption and the password."""
    mail_server.tls = certificate.context
    mail_server.password = PASSWORD.encode()
    mail_server.start()
    return mail_server


def mailer(server: MailServer, seconds: float = SECONDS, **settings: Any) -> SmtpMailer:
    """Return a mailer for a server, with a time limit."""
    named = {"host": "127.0.0.1", "port": server.port, "sender": "pqkeep@example.org", **settings}
    return SmtpMailer(Smtp(**named), seconds)


async def send(mailer: SmtpMailer, pepper: Pepper) -> OutgoingMail:
    """Send a mail with a code."""
    mail = new_mail(MailKind.CODE, TO, NOW, timedelta(minutes=10))
    message = compose(mail, pepper, mailer.sender, "https://keep.example.org")
    assert message is not None
    await mailer.send(mail, message)
    return mail


async def test_mail_is_delivered_encrypted(
    encrypted: MailServer, certificate: Certificate, password_file: Path, pepper: Pepper
) -> None:
    """Mail is delivered by STARTTLS, the default, with a trusted certificate and the password."""
    user: dict[str, Any] = {"user": "pqkeep", "password_file": password_file}
    mail = await send(mailer(encrypted, ca_file=str(certificate.path), **user), pepper)
    (message,) = encrypted.messages
    assert encrypted.recipients == [TO]
    assert (message["To"], message["From"]) == (TO, "pqkeep <pqkeep@example.org>")
    assert mailed_code(mail, pepper) in message.get_content()


async def test_encrypted_from_the_first_byte(
    mail_server: MailServer, certificate: Certificate, pepper: Pepper
) -> None:
    """With security = "tls" the connection is encrypted from its first byte."""
    mail_server.tls, mail_server.is_tls_from_the_start = certificate.context, True
    mail_server.start()
    await send(mailer(mail_server, security="tls", ca_file=str(certificate.path)), pepper)
    assert len(mail_server.messages) == 1


@pytest.mark.threat("network-observer")
async def test_what_cannot_be_encrypted_is_not_sent(
    plain: MailServer, password_file: Path, pepper: Pepper
) -> None:
    """A server without STARTTLS gets no password, no recipient and no text."""
    user: dict[str, Any] = {"user": "pqkeep", "password_file": password_file}
    for security in ("starttls", "tls"):
        with pytest.raises(MailDeferredError):
            await send(mailer(plain, security=security, seconds=3, **user), pepper)
    assert plain.recipients == []
    assert plain.messages == []


async def test_nobody_else_s_certificate_is_believed(
    encrypted: MailServer, password_file: Path, pepper: Pepper
) -> None:
    """A server with an untrusted certificate gets nothing."""
    user: dict[str, Any] = {"user": "pqkeep", "password_file": password_file}
    with pytest.raises(MailDeferredError):
        await send(mailer(encrypted, **user), pepper)
    assert encrypted.recipients == []


async def test_a_wrong_password_is_worth_another_try(
    encrypted: MailServer, certificate: Certificate, password_file: Path, pepper: Pepper
) -> None:
    """A rejected password defers the mail, since an operator can correct it."""
    encrypted.password = b"another"
    user: dict[str, Any] = {"user": "pqkeep", "password_file": password_file}
    with pytest.raises(MailDeferredError, match="535"):
        await send(mailer(encrypted, ca_file=str(certificate.path), **user), pepper)


async def test_without_encryption_on_this_machine(plain: MailServer, pepper: Pepper) -> None:
    """With security = "none" mail is delivered too."""
    await send(mailer(plain, security="none"), pepper)
    assert len(plain.messages) == 1


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("550 5.1.1 ada@example.com is unknown", MailRejectedError),
        ("450 4.2.1 later", MailDeferredError),
    ],
)
async def test_a_recipient_is_refused(
    plain: MailServer, pepper: Pepper, response: str, expected: type[Exception]
) -> None:
    """5xx is final and 4xx temporary; the log does not name the recipient."""
    plain.response = response
    with pytest.raises(expected, match=response[:3]) as refused:
        await send(mailer(plain, security="none"), pepper)
    assert "ada" not in str(refused.value)


async def test_a_server_that_is_away(mail_server: MailServer, pepper: Pepper) -> None:
    """Without a server the mail is deferred."""
    with pytest.raises(MailDeferredError):
        await send(mailer(mail_server, security="none"), pepper)


async def test_a_server_that_says_nothing(pepper: Pepper, mail_server: MailServer) -> None:
    """A server that accepts a connection and sends nothing is given up at the time limit."""
    with socket.create_server(("127.0.0.1", mail_server.port)), pytest.raises(MailDeferredError):
        await send(mailer(mail_server, security="none", seconds=1), pepper)


@pytest.mark.parametrize("sender", ["", "pqkeep", "pqkeep <a@b.example>", "a@b.example\r\nBcc: c"])
def test_a_sender_is_an_address(mail_server: MailServer, sender: str) -> None:
    """A sender that is not an address stops the start."""
    with pytest.raises(ConfigError, match="sender"):
        mailer(mail_server, sender=sender)


def test_a_password_that_others_can_read(mail_server: MailServer, password_file: Path) -> None:
    """A password file that others can read stops the start, and the password is not shown."""
    password_file.chmod(0o644)
    with pytest.raises(ConfigError, match="other users have access") as refused:
        mailer(mail_server, user="pqkeep", password_file=password_file)
    assert PASSWORD not in str(refused.value)


def test_certificates_that_are_not_there(mail_server: MailServer, tmp_path: Path) -> None:
    """A missing or invalid file of certificates stops the start."""
    (tmp_path / "none.pem").write_text("none")
    for name in ("missing.pem", "none.pem"):
        with pytest.raises(ConfigError, match=name):
            mailer(mail_server, ca_file=tmp_path / name)


def test_the_password_is_shown_nowhere(mail_server: MailServer, password_file: Path) -> None:
    """The reprs of the mailer and its settings do not contain the password."""
    configured = mailer(mail_server, user="pqkeep", password_file=password_file)
    assert PASSWORD not in repr(configured) + repr(vars(configured)["_settings"])
