"""Says on standard error what a long command is doing, where somebody looks at a terminal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def progress(first: str) -> Iterator[Callable[[str], None]]:
    """Yield what to tell. Nothing is written where standard error is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(first) as status:
        yield status.update
