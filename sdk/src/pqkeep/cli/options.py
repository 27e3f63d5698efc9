"""Arguments and options of several commands."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from pqkeep.algorithms import Algorithm, HashAlgorithm

STANDARD = "-"
"""The name of standard input and standard output."""


def _algorithms() -> list[str]:
    return [algorithm.value for algorithm in Algorithm]


def _mac_algorithms() -> list[str]:
    return [Algorithm.HMAC_SHA_256.value, Algorithm.HMAC_SHA_512.value]


def _hash_algorithms() -> list[str]:
    return [algorithm.value for algorithm in HashAlgorithm]


_SPANS: Mapping[str, timedelta] = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
}
_SPAN = re.compile(r"([1-9][0-9]{0,6}) ?([wdhms])")


def _time(text: str, direction: int, example: str) -> datetime:
    """Return the time in a text: absolute, or a span before now (sign -1) or after now (sign 1)."""
    given = text.strip()
    span = _SPAN.fullmatch(given.lower())
    try:
        if span is not None:
            return datetime.now(UTC) + direction * int(span[1]) * _SPANS[span[2]]
        time = datetime.fromisoformat(given.upper())
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f"expected {example}, a day such as 2026-11-20, or a time such as 2026-11-20T17:31:10Z"
            " or 2026-11-20T17:31+01:00"
        ) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def past_time(text: str) -> datetime:
    """Return a time. A span such as 30m, 1h, 2d or 1w counts back from now."""
    return _time(text, -1, "30m, 1h, 2d or 1w before now")


def future_time(text: str) -> datetime:
    """Return a time. A span such as 12h, 90d or 1w counts from now."""
    return _time(text, 1, "12h, 90d or 1w from now")


PastTime = Annotated[
    datetime | None,
    typer.Option(
        metavar="TIME",
        parser=past_time,
        help="A span before now (30m, 1h, 2d, 1w), a day, or a time such as 2026-11-20T17:31:10Z. UTC unless an offset is given.",
        show_default=False,
    ),
]
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
MacAlgorithmOption = Annotated[
    str | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME",
        help="HMAC-SHA-256 (the default) or HMAC-SHA-512.",
        autocompletion=_mac_algorithms,
        show_default=False,
    ),
]
Shard = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The shard of the log, if there are several. Operator only.",
        show_default=False,
    ),
]
Log = Annotated[
    str | None,
    typer.Option(
        metavar="ID",
        help="The id of one of your logs, if there are several (pqkeep audit keys lists them).",
        show_default=False,
    ),
]
KeyringOption = Annotated[
    str | None,
    typer.Option(
        "--keyring",
        metavar="NAME",
        help="The key's keyring. The default is the keyring named default.",
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
    typer.Option("--hash", help="The hash algorithm.", autocompletion=_hash_algorithms),
]
InputFile = Annotated[
    str, typer.Argument(metavar="FILE", help="The file to read; - is standard input.")
]
InputFiles = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="The file to read; - is standard input.")
]
OptionalInputFile = Annotated[
    str,
    typer.Argument(
        metavar="[FILE]", help="The file to read; - is standard input.", show_default=False
    ),
]
To = Annotated[
    str | None,
    typer.Option(
        "--to",
        "-o",
        metavar="FILE",
        help="The file to write; - is standard output.",
        show_default=False,
    ),
]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace the file if it exists.")]
Armor = Annotated[bool, typer.Option("--armor", "-A", help="Write text instead of bytes.")]
AssociatedData = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT",
        help="Bind the data to this text, such as a record's name. Decrypting needs the same text.",
        show_default=False,
    ),
]
KeyContext = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="TEXT",
        help="The context of a keyring with derived keys, such as a customer's name. Decrypting "
        "needs the same text.",
        show_default=False,
    ),
]
SignatureContext = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="TEXT",
        help="Bind the signature to this text (ML-DSA only). Verifying needs the same text.",
        show_default=False,
    ),
]
Tenant = Annotated[
    str | None,
    typer.Option(
        "--tenant", metavar="ID", help="A tenant, by default your own.", show_default=False
    ),
]


def one_of(values: Sequence[str], *, metavar: str, help: str) -> Any:  # noqa: A002 - Typer's name
    """Return an option that completes these values. The service checks the value."""
    return typer.Option(
        metavar=metavar, help=help, autocompletion=lambda: list(values), show_default=False
    )
