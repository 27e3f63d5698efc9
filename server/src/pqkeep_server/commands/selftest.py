"""``pqkeepd selftest``."""

from typing import Annotated

import typer
from rich.console import Console

from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.exit_status import fail_on
from pqkeep_server.selftest import run as run_selftest


def selftest(
    *,
    openssl: Annotated[
        bool, typer.Option("--openssl", help="Test the SLH-DSA of the system's OpenSSL >= 3.5.")
    ] = False,
    openssl_library: Annotated[
        str, typer.Option(help="Another libcrypto than the system's, with --openssl.")
    ] = "",
) -> None:
    """Check every algorithm against its known answer, and print a table."""
    with fail_on(ConfigError):
        table, passed = run_selftest(openssl_library if openssl else None)
    Console().print(table)
    if not passed:
        typer.echo("pqkeepd: the cryptography of this installation must not be used", err=True)
        raise typer.Exit(1)
