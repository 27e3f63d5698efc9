"""Arguments and options that several commands have."""

from typing import Annotated

import typer

from pqkeep.algorithms import Algorithm, HashAlgorithm

STANDARD = "-"
"""Names standard input, or standard output."""


def _algorithms() -> list[str]:
    return [each.value for each in Algorithm]


def _hash_algorithms() -> list[str]:
    return [each.value for each in HashAlgorithm]


AlgorithmArgument = Annotated[
    str,
    typer.Argument(
        metavar="ALGORITHM", help="The key's algorithm, such as X-Wing.", autocompletion=_algorithms
    ),
]
AlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME",
        help="An algorithm, such as X-Wing.",
        autocompletion=_algorithms,
        show_default=False,
    ),
]
KeyVersion = Annotated[
    int | None,
    typer.Option(
        "--key-version", "-k", metavar="N", min=1, help="A version of the key.", show_default=False
    ),
]
Hash = Annotated[
    HashAlgorithm,
    typer.Option("--hash", help="What the file is hashed with.", autocompletion=_hash_algorithms),
]
InputFile = Annotated[
    str, typer.Argument(metavar="FILE", help="What to read; - is standard input.")
]
OptionalInputFile = Annotated[
    str,
    typer.Argument(metavar="[FILE]", help="What to read; - is standard input.", show_default=False),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        "-o",
        metavar="FILE",
        help="What to write; - is standard output.",
        show_default=False,
    ),
]
Force = Annotated[
    bool, typer.Option("--force", "-f", help="Replace the file if it is there already.")
]
Armor = Annotated[bool, typer.Option("--armor", "-A", help="Write text instead of bytes.")]
Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant", metavar="ID", help="A tenant; without it your own.", show_default=False
    ),
]
