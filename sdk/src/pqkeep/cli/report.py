"""``pqkeep report``: reports for auditors."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from pqkeep.cli.command import command
from pqkeep.cli.display import show_json
from pqkeep.cli.failures import NOT_VERIFIED, Refusal, printable
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import PastTime

app = typer.Typer(name="report", help="Save reports for auditors.", no_args_is_help=True)


@command(app, "migration")
def migration(
    invocation: Invocation,
    *,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="The directory to create.")
    ],
    since: PastTime = None,
    signed_by: Annotated[
        str | None,
        typer.Option(
            "--signed-by",
            metavar="KEYRING/ALGORITHM",
            help="Sign the bill of materials with this key, such as default/ML-DSA-65.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Save a migration report. Verify it with pqkeep audit verify DIR."""
    from pqkeep.migration import save_report  # noqa: PLC0415 - it loads cryptography

    if since is None:
        raise Refusal("the time is missing", "add --since, such as --since 2026-01-01")
    with invocation.connect() as client:
        report = save_report(client, out, since=_with_zone(since), signed_by=signed_by)
    for finding in report.findings:
        typer.echo(printable(str(finding)), err=True)
    if not report.is_verified:
        raise Refusal(
            f"{out}: the report does not verify", "look at the findings above", NOT_VERIFIED
        )
    if invocation.is_json:
        show_json({"directory": str(out), "verified": True})
    else:
        typer.echo(printable(f"{out}: saved, and verified"))


def _with_zone(time: datetime) -> datetime:
    return time if time.tzinfo is not None else time.astimezone()
