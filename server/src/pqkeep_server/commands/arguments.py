"""Arguments that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[Path, typer.Option(help="The data directory.", file_okay=False)]
Settings = Annotated[
    Path, typer.Argument(metavar="FILE", help="The settings file.", dir_okay=False)
]
