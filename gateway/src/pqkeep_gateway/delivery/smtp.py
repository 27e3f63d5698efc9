"""Delivery by a mail server, over SMTP.

The connection is encrypted, and the server's certificate is verified first. Only a server on this
machine may be used without TLS. TLS is Python's own: the gateway has no cryptography library.
"""

import asyncio
import ssl
from email.message import EmailMessage

from aiosmtplib import (
    SMTP,
    SMTPDataError,
    SMTPException,
    SMTPRecipientsRefused,
    SMTPResponseException,
)

from pqkeep_gateway.config import Smtp
from pqkeep_gateway.delivery.mail_delivery import MailDeferredError, MailRejectedError
from pqkeep_gateway.outgoing_mail import OutgoingMail, is_email
from pqkeep_protocol.startup.secret_files import read_secret_text
from pqkeep_protocol.startup.settings import ConfigError

SECONDS = 10.0
"""The time to deliver one message."""
_PERMANENT = 500
"""The smallest reply code of a permanent error (RFC 5321, section 4.2.1)."""


class SmtpMailer:
    """A Mailer that opens a connection for each message."""

    def __init__(self, settings: Smtp, seconds: float = SECONDS) -> None:
        """Read the password and the certificates, and take the time for one message.

        Raises ConfigError.
        """
        if not is_email(settings.sender):
            raise ConfigError("smtp: the sender is not an e-mail address")
        self._settings = settings
        self._seconds = seconds
        self._password = _password(settings)
        self._tls = _context(settings)

    @property
    def sender(self) -> str:
        """The address in From."""
        return self._settings.sender

    async def send(self, mail: OutgoingMail, message: EmailMessage) -> None:
        """Hand one message to the server. Raises MailDeferredError, MailRejectedError."""
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._connection() as server,
            ):
                await server.send_message(message, sender=self.sender, recipients=[mail.to])
        except SMTPRecipientsRefused as refusal:
            raise _error_of(refusal.recipients[0]) from None
        except SMTPDataError as refusal:
            raise _error_of(refusal) from None
        except (SMTPException, OSError, TimeoutError) as error:
            raise MailDeferredError(_problem(error)) from None

    def _connection(self) -> SMTP:
        settings = self._settings
        return SMTP(
            hostname=settings.host,
            port=settings.port,
            username=settings.user,
            password=self._password,
            local_hostname=settings.sender.rpartition("@")[2],
            timeout=self._seconds,
            use_tls=settings.security == "tls",
            start_tls=settings.security == "starttls",
            tls_context=self._tls,
        )


def _error_of(refusal: SMTPResponseException) -> MailDeferredError | MailRejectedError:
    problem = _problem(refusal)
    return MailRejectedError(problem) if refusal.code >= _PERMANENT else MailDeferredError(problem)


def _problem(error: Exception) -> str:
    """Describe an error without the server's text, which may contain an address."""
    code = f" {error.code}" if isinstance(error, SMTPResponseException) else ""
    return f"the mail server: {type(error).__name__}{code}"


def _password(settings: Smtp) -> str | None:
    file = settings.password_file
    return None if file is None else read_secret_text(file, "SMTP password")


def _context(settings: Smtp) -> ssl.SSLContext | None:
    if settings.security == "none":
        return None
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except OSError as error:
        raise ConfigError(f"cannot use {settings.ca_file}: {error.strerror or error}") from None
