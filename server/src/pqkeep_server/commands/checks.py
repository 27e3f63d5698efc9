"""``pqkeepd doctor``, ``config check`` and ``selftest``: looks at an installation, and changes nothing."""

import os
from collections.abc import Mapping
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from pqkeep_keyservice.crypto.selftest import run
from pqkeep_keyservice.crypto.signature import signature_schemes
from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS, Implementation
from pqkeep_keyservice.crypto.slhdsa_openssl import OpenSsl, is_installed
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm
from pqkeep_protocol.startup.settings import ConfigError
from pqkeep_server.commands.arguments import Data, SettingsOrData
from pqkeep_server.doctor import Note, examine
from pqkeep_server.exit_status import fail_on
from pqkeep_server.initialise import Layout
from pqkeep_server.settings_check import (
    UnreachableError,
    check_database,
    check_settings,
    settings_files,
)


def doctor(*, data: Data) -> None:
    """Look at an installation, running as it should be; status 1 where something is wrong."""
    is_well = True
    for subject, problems in examine(Layout(data.absolute())):
        is_good = all(isinstance(problem, Note) for problem in problems)
        is_well = is_well and is_good
        typer.echo(f"{subject}: {'good' if is_good else 'wrong'}")
        for problem in problems:
            typer.echo(f"  {_printable(problem)}")
    if not is_well:
        raise typer.Exit(1)


def _printable(text: str) -> str:
    """Escape what a terminal would obey: names of files, and answers, are the gateway's."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def check_config(settings: SettingsOrData) -> None:
    """Check settings as their process would, with the environment; start nothing.

    A database on a server is connected to, and not changed: status 75 where it does not answer.
    Of a data directory all settings are checked: the gateway's, every shard's, and those of start.
    """
    with (
        fail_on(UnreachableError, status=os.EX_TEMPFAIL),
        fail_on(ConfigError, OSError, status=os.EX_CONFIG),
    ):
        for file in settings_files(settings):
            checked = check_settings(file)
            if checked.link is not None:
                checked.link.warn()
            check_database(file)
            typer.echo(f"{file}: the {checked.role} can start with these settings")


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
        table, passed = _run_selftest(openssl_library if openssl else None)
    Console().print(table)
    if not passed:
        typer.echo("pqkeepd: the cryptography of this installation must not be used", err=True)
        raise typer.Exit(1)


def _run_selftest(openssl: str | None) -> tuple[Table, bool]:
    """Return the table, and whether everything passed. Raises ConfigError.

    ``openssl``: "" for the system's libcrypto, or a library's path; None for the system's if it has
    SLH-DSA, else pqcrypto.
    """
    is_pqcrypto = openssl is None and not is_installed()
    implementation: Implementation = Pqcrypto() if is_pqcrypto else OpenSsl(openssl or None)
    passed = run(signature_schemes(implementation))
    return _table(passed, type(implementation).__name__), all(passed.values())


def _table(passed: Mapping[Algorithm, bool], slh_dsa: str) -> Table:
    table = Table("algorithm", "standard", "implementation", "result")
    for algorithm, holds in passed.items():
        table.add_row(
            algorithm,
            ALGORITHMS[algorithm].standard,
            slh_dsa.lower() if algorithm in PARAMETER_SETS else "cryptography",
            "[green]passed[/green]" if holds else "[red]FAILED[/red]",
        )
    return table
