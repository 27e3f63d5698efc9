"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def code(text: str) -> str:
    """Return a text as code."""
    return f"`{text}`"


def codes(texts: Iterable[str], separator: str = " ") -> str:
    """Return texts as code."""
    return separator.join(map(code, texts))


def cell(text: str) -> str:
    """Return a text for a table cell: on one line, without vertical bars."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = (f"| {' | '.join(cells)} |" for cells in rows)
    return "\n".join([f"| {' | '.join(header)} |", f"|{'---|' * len(header)}", *lines])
