"""``pqkeepd recovery-key create``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from pqkeep_server.backup import recovery_key
from pqkeep_server.backup.recovery_key import RecoveryKeyError
from pqkeep_server.exit_status import fail_on


def create(
    *,
    private: Annotated[
        Path, typer.Option(help="The file to write the private half to. It opens backups.")
    ],
    public: Annotated[
        Path,
        typer.Option(help="The file to write the public half to. Backups are encrypted to it."),
    ],
    algorithm: Annotated[
        Literal["ML-KEM-1024", "X-Wing"], typer.Option(help="The KEM.")
    ] = "ML-KEM-1024",
) -> None:
    """Make a recovery key. Do so on another machine, and keep the private half there."""
    with fail_on(RecoveryKeyError):
        recovery_key.create(algorithm, private, public)
    typer.echo(
        f"{private} opens every backup that is made with {public}.\n"
        "Keep it away from the machine that pqkeep runs on: only the public half belongs there."
    )
