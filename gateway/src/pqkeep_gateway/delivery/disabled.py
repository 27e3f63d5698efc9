"""No delivery: for an installation without a mail server."""

from email.message import EmailMessage

from pqkeep_gateway.mail.outgoing_mail import OutgoingMail


class DisabledMailer:
    """A Mailer that discards everything. Requests that need mail are refused before."""

    @property
    def sender(self) -> str:
        """A placeholder."""
        return "nobody@localhost"

    async def send(self, mail: OutgoingMail, message: EmailMessage) -> None:
        """Discard one message."""
