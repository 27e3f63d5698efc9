"""How a pqkeepd command fails: status 1 and one line on standard error. A usage error is status 2."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def fail_on(*errors: type[Exception]) -> Iterator[None]:
    """End the command with status 1 and the error's message where the block raises one of these."""
    try:
        yield
    except errors as error:
        typer.echo(f"pqkeepd: {error}", err=True)
        raise typer.Exit(1) from None
