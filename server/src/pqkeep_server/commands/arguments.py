"""Arguments that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path, typer.Option(help="The data directory.", file_okay=False)]
UserIds = Annotated[
    tuple[int, int, int] | None,
    typer.Option(
        metavar="GATEWAY KEYSERVICE GROUP",
        help="Ids to use in place of the users pqkeep-gateway and pqkeep-keyservice and the group"
        " pqkeep, which are made where they are missing.",
    ),
]
Settings = Annotated[
    Path, typer.Argument(metavar="FILE", help="The settings file.", dir_okay=False)
]
