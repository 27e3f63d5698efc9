"""Runs pqkeep's programs in children that kill themselves at a chosen point.

    python failpoint.py FOLDER

Each JSON line on standard input is a run: program, arguments, output, the kinds of points, and the
point of the kill (0: never). Standard output has its process id and then its exit status. There is
a point before each SQL statement that writes, or that begins or ends a transaction. There is also
one before each change of files in FOLDER. Points count only while the file FOLDER/armed exists.

The programs are imported once and forked, to make a run fast. They are unchanged: the points come
from SQLite's tracing and Python's audit hooks.
"""

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import uvloop  # noqa: F401 - imported here so that no child has to

from pqkeep_keyservice import process
from pqkeep_server import root_key
from pqkeep_server.cli import app
from pqkeep_server.initialise import Layout

CHANGES = frozenset(
    {"os.link", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "open"}
)
"""Python's audit events for changes of files."""
QUESTIONS = ("SELECT", "PRAGMA", "EXPLAIN", "--")
"""Calls that change nothing. A kill after such a call has the same effect as a kill before it."""


class Points:
    """Counts points, and kills the process at one of them."""

    def __init__(self, folder: str, last: int) -> None:
        self._folder = folder
        self._armed = f"{folder}/armed"
        self._left = last
        self._asking = False

    def pass_one(self) -> None:
        """Count a point, and perhaps die there."""
        if self._asking:
            return
        self._asking = True
        if os.path.exists(self._armed):  # noqa: PTH110 - a Path opens nothing either, but slower
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        self._asking = False

    def on_statement(self, statement: str) -> None:
        """Count a statement that is about to run."""
        if not statement.lstrip().upper().startswith(QUESTIONS):
            self.pass_one()

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Count an audit event of Python."""
        if event not in CHANGES or not str(arguments[0]).startswith(self._folder):
            return
        if event != "open" or (isinstance(arguments[2], int) and arguments[2] & os.O_CREAT):
            self.pass_one()

    def watch(self, kinds: str) -> None:
        """Begin to count all points, or only changes of files."""

        def on_connect(connection: Any, _: object) -> None:
            if isinstance(connection, sqlite3.Connection):
                connection.set_trace_callback(self.on_statement)

        if kinds == "all":
            sa.event.listen(sa.pool.Pool, "connect", on_connect)
        sys.addaudithook(self.on_event)


def rotate() -> None:
    """Run ``pqkeepd root-key rotate --destroy-old`` without waiting for an answer."""
    layout = Layout(Path(sys.argv[1]))
    root_key.rotate(layout, destroy_old=True, report=lambda _: None, last_requests_seconds=0)


PROGRAMS: Mapping[str, Callable[[], object]] = {
    "pqkeep_keyservice": lambda: sys.exit(process.main()),
    "pqkeepd": app,
    "rotate": rotate,
}


def run(
    folder: str, program: str, arguments: list[str], output: str, kinds: str, last: int
) -> None:
    """Become the program."""
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv = [program, *arguments]
    if last:
        Points(folder, last).watch(kinds)
    PROGRAMS[program]()


def main() -> None:
    """Fork a child for each line."""
    (folder,) = sys.argv[1:]
    for line in sys.stdin:
        wanted = json.loads(line)
        child = os.fork()
        if child == 0:
            run(folder, **wanted)
            sys.exit(0)
        print(child, flush=True)  # noqa: T201 - this is how the test hears of it
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
