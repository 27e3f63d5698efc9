"""What every command is called with: where the service is, who asks, and how to answer."""

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
    """How a result is written."""

    TABLE = "table"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """The options that all commands have.

    There is none for an API key itself: everybody on the machine can see a command's arguments.
    """

    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The service's address.", show_default=False),
    ] = None
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A profile that pqkeep login wrote.", show_default=False),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file with the API key.", show_default=False),
    ] = None
    compliance_profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Use this profile's algorithms only: cnsa-2.0.", show_default=False
        ),
    ] = None
    output: Annotated[
        Output, typer.Option(help="How to write results: for people, or for programs.")
    ] = Output.TABLE
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No notes and no progress on standard error.")
    ] = False

    @property
    def is_json(self) -> bool:
        """Whether a program reads the result."""
        return self.output is Output.JSON

    def connect(self, *, retries: int = RETRIES) -> "Client":
        """Return a client. Raises ConfigurationError, and OSError for the API key's file."""
        return pqkeep.Client(
            self.url,
            self.api_key(),
            profile=self.profile,
            compliance_profile=self.compliance_profile,
            retries=retries,
        )

    def api_key(self) -> str | None:
        """Return what the API key's file holds, if one is named."""
        if self.api_key_file is None:
            return None
        try:
            return read_api_key(self.api_key_file)
        except UnicodeDecodeError:
            pass  # whose message quotes the file
        raise Refusal(f"{self.api_key_file} holds no API key", "name a file with nothing else")

    def note(self, text: str) -> None:
        """Tell people something that is no result."""
        if not self.quiet:
            typer.echo(printable(text), err=True)
