"""A database server with unreliable sessions, for ``storage/fenced_database.py``.

The server runs the real SQL on a real SQLite file. One session has its lock. The end of a session
ends its transaction and its lock. A process that waits for the lock ends a session that has been
silent for some time. A transaction begins only with the newest fencing token.

The key service's side is the product's own ``FencedDatabase`` with its state machine.
"""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from math import inf, nextafter
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.pool import NullPool
from tests.simulation.choices import Choices
from tests.simulation.event_loop import PROCESS, Process, SimulatedLoop

from pqkeep_keyservice.storage.database import Arguments, DatabaseUnavailableError, Rows, T
from pqkeep_keyservice.storage.fenced_database import LostEpochError
from pqkeep_keyservice.storage.writer import HELD_SECONDS, Epoch
from pqkeep_protocol.startup.settings import ConfigError

Answer = TypeVar("Answer")

IDLE_IN_TRANSACTION_SECONDS = 10.0


class _Opened:
    """Names the database file for the only engine.

    One engine is enough, and keeps compiled statements.
    """

    file = Path()


_OPENED = _Opened()


def _connect() -> sqlite3.Connection:
    driver = sqlite3.connect(_OPENED.file, isolation_level=None, timeout=0)
    driver.execute("PRAGMA synchronous = OFF")
    driver.execute("PRAGMA foreign_keys = ON")
    return driver


_ENGINE = sa.create_engine(
    "sqlite://", creator=_connect, poolclass=NullPool, isolation_level="AUTOCOMMIT"
)


class LostError(Exception):
    """The session has ended."""


class Session:
    """A connection to the server: a ``fenced_database.Session``."""

    def __init__(self, server: Server, process: Process, number: int) -> None:
        self.server = server
        self.process = process
        self.number = number
        self.commits = 0
        """The number of its last commit."""
        self.changes = 0
        """The changed rows of its connection before its transaction."""
        self.held_until = 0.0
        """The time until which other sessions may not end it."""
        self.is_over = False
        """True for the server after it has rolled the transaction back."""
        self.is_closed = False
        """True for the client, which gets no more responses."""
        self._on_end: Callable[[], None] = lambda: None
        self.connection = server.connection()
        self.timer: asyncio.Handle = server.loop.call_soon(lambda: None)
        """Of its transaction."""
        self._newest_arrival = 0.0
        self._waiting: asyncio.Future[Any] | None = None

    async def ask(self, do: Callable[[], Answer]) -> Answer:
        """Run a function in the server, and wait for its result. Raises its exceptions."""
        if self.is_closed:
            raise LostError
        loop, choices = self.server.loop, self.server.choices
        response: asyncio.Future[Answer] = loop.create_future()
        self._waiting = response
        when = max(loop.time() + self.server.delay(), nextafter(self._newest_arrival, inf))
        self._newest_arrival = when

        def arrive() -> None:
            if self.is_over:
                return
            try:
                said = do()
            except (sqlite3.Error, LostEpochError) as error:
                if not response.done():
                    response.set_exception(error)
                return
            if not self.is_over:
                loop.call_later(choices.delay(0.00005, 0.001), self._answer, response, said)

        loop.call_at(when, arrive, context=self.server.context)
        return await response

    def _answer(self, response: asyncio.Future[Answer], said: Answer) -> None:
        if not response.done() and not self.is_closed:
            response.set_result(said)

    async def take_lock(self) -> bool:
        return await self.ask(lambda: self.server.lock(self))

    async def end_silent_holder(self) -> bool:
        return await self.ask(self.server.end_silent_holder)

    async def begin_epoch(self, seconds: float, *, has_waited: bool) -> Epoch:
        return await self.ask(lambda: self.server.begin_epoch(self, seconds, has_waited=has_waited))

    async def begin(self, epoch: int, *, writes: bool, renews: bool) -> None:
        await self.ask(lambda: self.server.begin(self, epoch, renews=renews))

    async def run(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        if self.is_over:
            raise LostError  # its connection may be another session's already
        return function(self.connection, *arguments)

    async def commit(self) -> None:
        await self.ask(lambda: self.server.commit(self))
        self.server.known_commits = max(self.server.known_commits, self.commits)

    async def roll_back(self) -> None:
        if not self.is_over:
            self.server.roll_back(self)

    async def insert(self, epoch: int, rows: Rows) -> None:
        await self.ask(lambda: self.server.insert(self, epoch, rows))
        self.server.known_commits = max(self.server.known_commits, self.commits)

    def on_end(self, callback: Callable[[], None]) -> None:
        self._on_end = callback

    async def abandon(self) -> None:
        self.terminate()

    async def close(self) -> None:
        self.terminate()

    def terminate(self) -> None:
        """End the session from the client. The server first gets earlier messages."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(LostError())
        loop = self.server.loop
        when = max(
            loop.time() + self.server.choices.delay(0.0001, 0.01),
            nextafter(self._newest_arrival, inf),
        )
        loop.call_at(when, self.server.end, self, context=self.server.context)

    def has_ended(self) -> bool:
        return self.is_closed

    def notice(self) -> None:
        """Learn in the client's process that the server has ended the session."""
        if not self.is_closed:
            self.is_closed = True
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_exception(LostError())
            self._on_end()


class Server:
    """The database server. Its clients see it as a SimulatedServer."""

    def __init__(
        self, file: Path, loop: SimulatedLoop, seed: int, tell: Callable[..., None]
    ) -> None:
        self.loop = loop
        self.tell = tell
        self.choices = Choices(seed, "database")
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, None)
        self.holder: Session | None = None
        """The session that holds the lock."""
        self.sessions: list[Session] = []
        self.down_until = 0.0
        self.refused_until: dict[Process, float] = {}
        """The time until which an isolated process gets no session."""
        self.slow_until = 0.0
        self.slow_seconds = 0.0
        self.fails_commits = 0.0
        """The probability that a commit ends its session, before or after the commit takes effect.
        """
        self.locked: Callable[[], None] = lambda: None
        self.committed: Callable[[Session, bool], None] = lambda *_: None
        """Called with each commit, and whether it changed a row."""
        self.commits = 0
        self.known_commits = 0
        """The number of commits that each key service must know of."""
        self._file = file
        self._count = 0
        self._idle: list[sa.Connection] = []
        self.reader = self.connection()
        self.looker = driver_of(self.reader)
        """A connection for reading committed rows."""

    def connection(self) -> sa.Connection:
        """Return an unused connection to the file."""
        if self._idle:
            return self._idle.pop()
        _OPENED.file = self._file
        return _ENGINE.connect()

    def delay(self) -> float:
        """Return the delay of a message."""
        seconds = self.choices.delay(0.00005, 0.001)
        return seconds + (self.slow_seconds if self.loop.time() < self.slow_until else 0.0)

    def open(self, process: Process) -> Session:
        """Open a session. Raises LostError."""
        if self.loop.time() < max(self.down_until, self.refused_until.get(process, 0.0)):
            raise LostError
        self._count += 1
        session = Session(self, process, self._count)
        self.sessions.append(session)
        return session

    def lock(self, session: Session) -> bool:
        """Give the lock to a session if it is free. Return True if it was."""
        if self.holder is not None and not self.holder.is_over:
            return False
        self.holder = session
        session.held_until = inf  # of no epoch yet
        self.locked()
        return True

    def end_silent_holder(self) -> bool:
        """End the session with the lock, if its time is over. Return True if it was."""
        holder = self.holder
        if holder is None or holder.is_over or holder.held_until >= self.loop.time():
            return False
        self.tell("silent", holder.process.name)
        self.end(holder)
        return True

    def begin_epoch(self, session: Session, seconds: float, *, has_waited: bool) -> Epoch:
        """Issue a fencing token to a session, which other sessions must not end for some seconds."""
        driver = self._driver(session)
        driver.execute(
            "UPDATE service_epoch SET epoch = epoch + 1, takeovers = takeovers + ?", [has_waited]
        )
        (row,) = driver.execute("SELECT epoch, takeovers FROM service_epoch")
        session.held_until = self.loop.time() + seconds
        self.tell("epoch", session.process.name, row[0])
        self.known_commits = self.commits
        return Epoch(*row)

    def commit(self, session: Session) -> None:
        """Commit the session's transaction, or lose it with the session."""
        fails = self.choices.happens(self.fails_commits)
        if fails and self.choices.happens(0.5):
            self.tell("commit lost", session.process.name)
            self.end(session)
            return
        session.timer.cancel()
        driver = self._driver(session)
        driver.execute("COMMIT")
        self.commits += 1
        session.commits = self.commits
        self.committed(session, driver.total_changes != session.changes)
        if fails:
            self.tell("answer lost", session.process.name)
            self.end(session)

    def insert(self, session: Session, epoch: int, rows: Rows) -> None:
        """Insert rows in a separate transaction, with the newest fencing token."""
        self.begin(session, epoch, renews=False)
        driver = self._driver(session)
        try:
            for table, of_table in rows.items():
                names, places = ", ".join(table.columns.keys()), ", ".join("?" * len(table.columns))
                text = f"INSERT INTO {table.name} ({names}) VALUES ({places})"  # noqa: S608
                driver.executemany(text, of_table)
        except sqlite3.Error:
            self.roll_back(session)
            raise
        self.commit(session)

    def end(self, session: Session) -> None:
        """End a session: roll back, and unlock."""
        if session.is_over:
            return
        session.is_over = True
        session.timer.cancel()
        self.sessions.remove(session)
        driver = self._driver(session)
        if driver.in_transaction:
            driver.execute("ROLLBACK")
        self._idle.append(session.connection)
        if self.holder is session:
            self.holder = None
        self.tell("session over", session.process.name)
        self.loop.call_later(
            self.choices.delay(0.0001, 0.01), session.notice, context=session.process.context.copy()
        )

    def kill(self, process: Process) -> None:
        """Notice a process's death, after its last messages."""
        for session in [each for each in self.sessions if each.process is process]:
            session.terminate()

    def restart(self, seconds: float) -> None:
        """Stop for some seconds."""
        self.down_until = self.loop.time() + seconds
        for session in tuple(self.sessions):
            self.end(session)

    def begin(self, session: Session, epoch: int, *, renews: bool) -> None:
        """Begin a transaction with the newest fencing token.

        A session that leaves it open too long is ended.
        """
        driver = self._driver(session)
        driver.execute("BEGIN IMMEDIATE")
        if not self.is_newest(session, epoch):
            driver.execute("ROLLBACK")
            raise LostEpochError
        if renews:
            session.held_until = self.loop.time() + HELD_SECONDS
        session.changes = driver.total_changes
        session.timer = self.loop.call_later(
            IDLE_IN_TRANSACTION_SECONDS, self.end, session, context=self.context
        )

    def is_newest(self, session: Session, epoch: int) -> bool:
        """Return True if a fencing token is the newest."""
        (newest,) = self._driver(session).execute("SELECT epoch FROM service_epoch").fetchone()
        return bool(newest == epoch)

    def roll_back(self, session: Session) -> None:
        """End the session's transaction without a trace."""
        session.timer.cancel()
        self._driver(session).execute("ROLLBACK")

    def close(self) -> None:
        """Close the file."""
        for session in tuple(self.sessions):
            session.is_over = True
            self._idle.append(session.connection)
        for connection in (*self._idle, self.reader):
            with suppress(sa.exc.SQLAlchemyError):
                connection.close()

    @staticmethod
    def _driver(session: Session) -> sqlite3.Connection:
        return driver_of(session.connection)


def driver_of(connection: sa.Connection) -> sqlite3.Connection:
    """Return the driver's connection below a connection."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


class SimulatedServer:
    """The server as one process sees it: a ``fenced_database.Server``."""

    failures: tuple[type[Exception], ...] = (
        LostError,
        LostEpochError,
        sa.exc.SQLAlchemyError,
        sqlite3.Error,
        OSError,
    )
    refusals: tuple[type[Exception], ...] = (sa.exc.IntegrityError, sqlite3.IntegrityError)
    in_use = "in use"

    def __init__(self, server: Server, process: Process) -> None:
        self._server = server
        self._process = process
        self.dialect: sa.Dialect = _ENGINE.dialect

    async def connect(self) -> Session:
        await asyncio.sleep(self._server.delay())
        return self._server.open(self._process)

    async def peek(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        server = self._server
        await asyncio.sleep(server.delay())
        if server.loop.time() < server.down_until:
            raise LostError
        reader = server.reader
        reader.exec_driver_sql("BEGIN")
        try:
            result = function(reader, *arguments)
        finally:
            reader.exec_driver_sql("ROLLBACK")
        await asyncio.sleep(server.delay())
        return result

    async def scrub(self) -> bool:
        await asyncio.sleep(self._server.delay())
        return self._server.loop.time() >= self._server.down_until

    def error(self, error: BaseException) -> ConfigError | DatabaseUnavailableError:
        return error if isinstance(error, ConfigError) else DatabaseUnavailableError()

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""
