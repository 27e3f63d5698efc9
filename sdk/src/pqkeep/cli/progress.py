"""Says on standard error how far long work has come, where somebody looks at a terminal."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LONG = 16 * 1024 * 1024
"""Bytes that take longer than it takes to read about them."""


class Progress:
    """A bar with bytes a second, which is there once it is known that the work is long."""

    def __init__(self, size: int | None, *, wanted: bool) -> None:
        """Show nothing yet. None: nobody knows how many bytes there will be."""
        self._size = size
        self._is_wanted = wanted and sys.stderr.isatty()
        self._done = 0
        self._bar: Bar | None = None

    def advance(self, done: int) -> None:
        """Count bytes that were done."""
        self._done += done
        if self._is_wanted and (self._size or self._done) > LONG:
            self._bar = self._bar or _bar(self._size)
            self._bar.update(self._bar.task_ids[0], completed=self._done)

    def close(self) -> None:
        """Take the bar away."""
        if self._bar is not None:
            self._bar.stop()


def _bar(size: int | None) -> "Bar":
    from rich import progress  # noqa: PLC0415 - it takes as long to load as all the rest
    from rich.console import Console  # noqa: PLC0415

    bar = progress.Progress(
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    bar.add_task("", total=size)
    bar.start()
    return bar
