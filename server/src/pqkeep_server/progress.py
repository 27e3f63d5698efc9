"""Shows the progress of a long command, and counts in words."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 tenant, 2 tenants."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a step. It shows nothing unless standard error is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(first) as status:
        yield status.update
