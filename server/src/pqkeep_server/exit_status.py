"""How a pqkeepd command fails: one line on standard error, and status 1 unless it says another.

A usage error is status 2.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def fail_on(*errors: type[Exception], status: int = 1) -> Iterator[None]:
    """End the command with a status and the error's message where the block raises one of these."""
    try:
        yield
    except errors as error:
        typer.echo(f"pqkeepd: {error}", err=True)
        raise typer.Exit(status) from None
