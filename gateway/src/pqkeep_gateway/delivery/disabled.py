"""No delivery: for an installation whose operator has set no mail up."""

from email.message import EmailMessage

from pqkeep_gateway.mail.outgoing_mail import OutgoingMail


class DisabledMailer:
    """A Mailer that drops everything. What needs a letter is refused before it is written."""

    @property
    def sender(self) -> str:
        """Nobody's address."""
        return "nobody@localhost"

    async def send(self, mail: OutgoingMail, message: EmailMessage) -> None:
        """Drop one message."""
