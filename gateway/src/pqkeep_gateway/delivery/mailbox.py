"""A folder with one file a message, for development."""

import asyncio
from email.message import EmailMessage
from pathlib import Path

from pqkeep_gateway.mail.mail_delivery import MailDeferredError
from pqkeep_gateway.mail.outgoing_mail import OutgoingMail
from pqkeep_protocol.startup.settings import ConfigError

SENDER = "pqkeep@localhost"


class Mailbox:
    """A Mailer. A message that is delivered twice is one file."""

    def __init__(self, folder: Path) -> None:
        """Create the folder if it does not exist. Raises ConfigError."""
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot use the mailbox {folder}: {error.strerror}") from None
        self._folder = folder

    @property
    def sender(self) -> str:
        """The address in From."""
        return SENDER

    async def send(self, mail: OutgoingMail, message: EmailMessage) -> None:
        """Write one message, atomically. Raises MailDeferredError."""
        name = f"{mail.created_at:%Y%m%dT%H%M%S.%fZ}-{mail.kind}-{mail.id}.eml"
        try:
            content = message.as_bytes(policy=message.policy.clone(linesep="\n"))
            await asyncio.to_thread(self._write, name, content)
        except OSError as error:
            raise MailDeferredError(f"the mailbox: {error.strerror}") from None

    def _write(self, name: str, message: bytes) -> None:
        draft = self._folder / f".{name}"
        draft.touch(0o600)
        draft.write_bytes(message)
        draft.rename(self._folder / name)
