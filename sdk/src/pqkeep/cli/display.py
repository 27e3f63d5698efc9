"""Results on standard output: tables for people, JSON for programs."""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from typing import Any

import typer

from pqkeep.cli.failures import printable
from pqkeep.cli.invocation import Invocation
from pqkeep.cli.options import STANDARD

PIPED_WIDTH = 1000
"""The width for output to a program: no line is folded."""


def as_json(value: Any, precision: str = "milliseconds") -> Any:
    """Return a value in JSON types, as the service's API shows it."""
    match value:
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case datetime():
            return _time(value, precision)
        case Mapping():
            return {name: as_json(member, precision) for name, member in value.items()}
        case list() | tuple():
            return [as_json(member, precision) for member in value]
        case _ if is_dataclass(value):
            return as_json(_fields(value), precision)
        case _:
            return value


def show_json(value: Any) -> None:
    """Write a value as JSON."""
    typer.echo(json.dumps(as_json(value), indent=2))


def show_json_line(value: Any) -> None:
    """Write an object of the audit log as one line, with times in their signed form."""
    typer.echo(json.dumps(as_json(value, "microseconds")))


def show_rows(
    invocation: Invocation, name: str, rows: Sequence[Any], columns: Mapping[str, str]
) -> None:
    """Show objects of one kind: as a table of some fields, or as JSON with all fields."""
    if invocation.is_json:
        show_json({name: rows, "total": len(rows)})
    else:
        show_table(rows, columns)


def show_table(rows: Iterable[Any], columns: Mapping[str, str]) -> None:
    """Show some fields of objects under these headings."""
    from rich.console import Console  # noqa: PLC0415 - it takes as long to load as all the rest
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns.values():
        table.add_column(heading, overflow="fold")

    def text(value: Any) -> Text:
        return Text(_cell(value), no_wrap=isinstance(value, datetime))

    for row in rows:
        table.add_row(*(text(getattr(row, name)) for name in columns))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    with console.capture() as shown:
        console.print(table)
    for line in shown.get().splitlines():
        typer.echo(line.rstrip())


def show_facts(invocation: Invocation, facts: Any) -> None:
    """Show the fields of one object: one per line, or as a JSON object."""
    if invocation.is_json:
        show_json(facts)
        return
    facts = _fields(facts) if is_dataclass(facts) else facts
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        typer.echo(f"{name.replace('_', ' '):{width}}{_cell(value)}")


def show_written(invocation: Invocation, name: str, done: str, **facts: Any) -> None:
    """Report a written file: as a note on standard error, or as JSON."""
    if name == STANDARD:
        return
    if invocation.is_json:
        show_json({"file": name, **facts})
    else:
        invocation.note(f"{name}: {done}")


def _cell(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return _time(value, "seconds")
        case tuple() | list():
            return ", ".join(map(_cell, value))
        case _:
            return printable(str(as_json(value)))


def _fields(value: Any) -> dict[str, Any]:
    return asdict(value)


def _time(value: datetime, precision: str) -> str:
    return value.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")
