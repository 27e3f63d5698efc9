"""The options of every command: the service, the credential, and the form of results."""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import pqkeep
from pqkeep.cli.failures import Refusal, printable
from pqkeep.private_files import read_api_key

if TYPE_CHECKING:
    from pqkeep.client import Client


RETRIES = 5


class Output(StrEnum):
    """The form of a result."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The options of all commands.

    No option takes an API key itself: all users of the machine can see a command's arguments.
    """

    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The service's address.", show_default=False),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A profile from pqkeep login.", show_default=False),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file of the API key.", show_default=False),
    ] = None
    compliance_profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Use only the algorithms of this profile: cnsa-2.0.",
            show_default=False,
        ),
    ] = None
    output: Annotated[
        Output, typer.Option(help="The form of results: for people or for programs.")
    ] = Output.TABLE
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Show no notes and no progress on standard error.")
    ] = False

    @property
    def is_json(self) -> bool:
        """True if the result is JSON."""
        return self.output is Output.JSON

    def connect(self, *, retries: int = RETRIES, api_key: str | None = None) -> "Client":
        """Return a client, by default with the API key of the options.

        Its warnings of rules are notes. Raises ConfigurationError, and OSError for the API key's file.
        """
        logging.getLogger("pqkeep").addHandler(_Notes(self.note))
        return pqkeep.Client(
            self.url,
            api_key or self.api_key(),
            profile=self.profile,
            compliance_profile=self.compliance_profile,
            retries=retries,
            on_wait=None if self.quiet or not sys.stderr.isatty() else _say_waiting,
        )

    def api_key(self) -> str | None:
        """Return the API key in the named file, if one is named."""
        if self.api_key_file is None:
            return None
        try:
            return read_api_key(self.api_key_file)
        except UnicodeDecodeError:
            pass  # whose message quotes the file
        raise Refusal(
            f"{self.api_key_file} is not the file of an API key",
            "name a file with only the API key",
        )

    def note(self, text: str) -> None:
        """Write a note for people to standard error."""
        if not self.quiet:
            typer.echo(printable(text), err=True)


class _Notes(logging.Handler):
    """Writes log lines as notes."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        """Write a note."""
        self._note(f"pqkeep: {record.getMessage()}")


def _say_waiting(url: str, seconds: float) -> None:
    typer.echo(
        printable(
            f"pqkeep: {url} has not responded yet; waiting for up to {seconds:.0f} s more"
            " (Ctrl-C ends it)"
        ),
        err=True,
    )
