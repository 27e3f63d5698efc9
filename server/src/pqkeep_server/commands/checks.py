"""``pqkeepd doctor``, ``config check`` and ``selftest``: checks that change nothing."""

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
    check_files,
    check_settings,
    settings_files,
)


def doctor(*, data: Data) -> None:
    """Check a running installation. The status is 1 if anything is wrong."""
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
    """Escape control characters: file names and responses are under the gateway's control."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def check_config(settings: SettingsOrData) -> None:
    """Check settings and environment as the process would, without starting it.

    The files that the settings name are read, with the rights of the settings' owner. Databases on
    servers are connected to but not changed. The status is 75 if one does not respond. In
    a data directory, the settings of the gateway, of every shard and of pqkeepd start are checked.
    """
    with (
        fail_on(UnreachableError, status=os.EX_TEMPFAIL),
        fail_on(ConfigError, OSError, status=os.EX_CONFIG),
    ):
        for file in settings_files(settings):
            checked = check_settings(file)
            if checked.link is not None:
                checked.link.warn()
            check_files(file)
            check_database(file)
            typer.echo(f"{file}: valid settings of the {checked.role}")


def selftest(
    *,
    openssl: Annotated[
        bool,
        typer.Option(
            "--openssl", help="Test SLH-DSA in the system's OpenSSL, version 3.5 or later."
        ),
    ] = False,
    openssl_library: Annotated[
        str, typer.Option(help="With --openssl, the path of another libcrypto.")
    ] = "",
) -> None:
    """Test every algorithm with known answers and print a table."""
    with fail_on(ConfigError):
        table, passed = _run_selftest(openssl_library if openssl else None)
    Console().print(table)
    if not passed:
        typer.echo("pqkeepd: a self-test failed: do not use this installation", err=True)
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
