"""The destination of results."""

from rich.console import Console

WIDTH = 160
"""Characters of a line in a file, wide enough for every table."""


def results_console() -> Console:
    """Return standard output, as wide as the terminal or as the widest table."""
    console = Console()
    return console if console.is_terminal else Console(width=max(WIDTH, console.width))
