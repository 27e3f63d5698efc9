"""The command ``pqkeep``, from the extra ``pqkeep[cli]``. It uses the client's public names only."""

import sys

try:
    import typer
except ModuleNotFoundError:
    sys.exit("pqkeep: the command is not installed: pip install 'pqkeep[cli]'")

from importlib.metadata import version
from typing import Annotated

from pqkeep.cli import audit

app = typer.Typer(
    name="pqkeep",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(audit.app)


def _show_version(value: bool) -> None:  # noqa: FBT001 - a Typer callback
    if value:
        typer.echo(f"pqkeep {version('pqkeep')}")
        raise typer.Exit


@app.callback()
def pqkeep(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Print the version, and exit."
        ),
    ] = False,
) -> None:
    """Work with pqkeep, the post-quantum cryptography service."""


__all__ = ["app"]
