"""A database server, with sessions that are lost, and the key service's database on it.

The server runs the real SQL on a real SQLite file. Its lock belongs to one session; where the
session ends, so do its transaction and its lock. The key service's side does what
``storage/postgresql.py`` does: one transaction at a time on one session, an epoch for each session.
Whoever waits for the lock ends a session that has not been heard of for some time.
"""

from __future__ import annotations

import asyncio
import contextvars
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from math import inf, nextafter
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.pool import NullPool
from tests.simulation.choices import Choices
from tests.simulation.event_loop import PROCESS, Process, SimulatedLoop

from pqkeep_keyservice.storage import postgresql
from pqkeep_keyservice.storage.database import Arguments, DatabaseUnavailableError, T
from pqkeep_keyservice.storage.inserts import Rows
from pqkeep_keyservice.storage.postgresql import HELD_SECONDS, RENEW_SECONDS

IDLE_IN_TRANSACTION_SECONDS = 10.0


class _Opened:
    """Which file the one engine connects to: one engine keeps the statements that it has compiled."""

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
    """The session is over."""


class InUseError(Exception):
    """Another session has the lock."""


class Session:
    """A connection to the server."""

    def __init__(self, server: Server, process: Process, number: int) -> None:
        self.server = server
        self.process = process
        self.number = number
        self.epoch = 0
        self.commits = 0
        """The number of its last commit."""
        self.changes = 0
        """How many rows its connection had changed before its transaction."""
        self.held_until = 0.0
        """Until when no other may end it."""
        self.is_over = False
        """For the server, which has rolled its transaction back then."""
        self.is_closed = False
        """For the client, which gets no answer any more."""
        self.on_lost: Callable[[], None] = lambda: None
        self.connection = server.connection()
        self.timer: asyncio.Handle = server.loop.call_soon(lambda: None)
        """Of its transaction."""
        self._newest_arrival = 0.0
        self._waiting: asyncio.Future[None] | None = None

    async def ask(self, do: Callable[[], object]) -> None:
        """Have the server do something, and wait until it says so. Raises LostError."""
        if self.is_closed:
            raise LostError
        loop, choices = self.server.loop, self.server.choices
        answer: asyncio.Future[None] = loop.create_future()
        self._waiting = answer
        when = max(loop.time() + self.server.delay(), nextafter(self._newest_arrival, inf))
        self._newest_arrival = when

        def arrive() -> None:
            if self.is_over:
                return
            try:
                do()
            except sqlite3.Error as error:
                if not answer.done():
                    answer.set_exception(error)
                return
            if not self.is_over:
                loop.call_later(choices.delay(0.00005, 0.001), self._answer, answer)

        loop.call_at(when, arrive, context=self.server.context)
        await answer

    def _answer(self, answer: asyncio.Future[None]) -> None:
        if not answer.done() and not self.is_closed:
            answer.set_result(None)

    def close(self) -> None:
        """Leave, from the client: the server notices after what is on its way there."""
        self.is_closed = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(LostError())
        loop = self.server.loop
        when = max(
            loop.time() + self.server.choices.delay(0.0001, 0.01),
            nextafter(self._newest_arrival, inf),
        )
        loop.call_at(when, self.server.end, self, context=self.server.context)

    def notice(self) -> None:
        """Learn, in the client's process, that the server has ended the session."""
        if not self.is_closed:
            self.is_closed = True
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_exception(LostError())
            self.on_lost()


class Server:
    """The database server."""

    def __init__(
        self, file: Path, loop: SimulatedLoop, seed: int, tell: Callable[..., None]
    ) -> None:
        self.loop = loop
        self.tell = tell
        self.choices = Choices(seed, "database")
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, None)
        self.holder: Session | None = None
        """Whose is the lock."""
        self.epoch = 0
        self.sessions: list[Session] = []
        self.down_until = 0.0
        self.refused_until: dict[Process, float] = {}
        """Until when a process gets no session: it is cut off."""
        self.slow_until = 0.0
        self.slow_seconds = 0.0
        self.fails_commits = 0.0
        """How likely a session ends with its commit, before or after it."""
        self.locked: Callable[[], None] = lambda: None
        self.committed: Callable[[Session, bool], None] = lambda *_: None
        """Called with each commit, and whether it changed a row."""
        self.commits = 0
        self.known_commits = 0
        """How many of them no key service can be unaware of."""
        self._file = file
        self._count = 0
        self._idle: list[sa.Connection] = []
        self.reader = self.connection()
        self.looker = driver_of(self.reader)
        """For who looks at what is committed."""

    def connection(self) -> sa.Connection:
        """Return a connection to the file that nobody uses."""
        if self._idle:
            return self._idle.pop()
        _OPENED.file = self._file
        return _ENGINE.connect()

    def delay(self) -> float:
        """Return how long a message is on its way here."""
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

    def lock(self, session: Session) -> None:
        """Give the lock to a session that asks for it. Raises InUseError."""
        if self.holder is not None and not self.holder.is_over:
            if self.holder.held_until < self.loop.time():
                self.tell("silent", self.holder.process.name)
                self.end(self.holder)
            raise InUseError
        self.holder = session
        self.renew(session)
        self.epoch += 1
        session.epoch = self.epoch
        self.tell("epoch", session.process.name, self.epoch)
        self.known_commits = self.commits
        self.locked()

    def renew(self, session: Session) -> None:
        """Hear of a session."""
        session.held_until = self.loop.time() + HELD_SECONDS

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

    def insert(self, session: Session, rows: Rows) -> None:
        """Insert rows in a transaction of their own."""
        self.begin(session)
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
        """Notice that a process is no more, after what it has sent."""
        for session in [each for each in self.sessions if each.process is process]:
            session.close()

    def restart(self, seconds: float) -> None:
        """Go down for so long."""
        self.down_until = self.loop.time() + seconds
        for session in tuple(self.sessions):
            self.end(session)

    def begin(self, session: Session) -> None:
        """Begin a transaction; a session that leaves it open for too long is ended."""
        driver = self._driver(session)
        driver.execute("BEGIN IMMEDIATE")
        session.changes = driver.total_changes
        session.timer = self.loop.call_later(
            IDLE_IN_TRANSACTION_SECONDS, self.end, session, context=self.context
        )

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
    """Return what is below a connection."""
    driver = connection.connection.driver_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


class SimulatedDatabase:
    """A Database on the server, for one process."""

    def __init__(self, server: Server, process: Process) -> None:
        self._server = server
        self._process = process
        self._session: Session | None = None
        self._epoch = 0
        self._lock = asyncio.Lock()
        self._reopening: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self.is_scrubbed = True

    @property
    def dialect(self) -> sa.Dialect:
        return _ENGINE.dialect

    @property
    def epoch(self) -> int:
        """The number of the session that has, or had, the lock."""
        return self._epoch

    @property
    def takeovers(self) -> int:
        """Not counted."""
        return 0

    @property
    def is_open(self) -> bool:
        """Whether it has a session."""
        return self._session is not None

    @property
    def is_standing_by(self) -> bool:
        """Never: it serves when it has the lock."""
        return False

    async def next_epoch(self, after: int) -> int:
        """Wait for another session than that."""
        while self._session is None or self._epoch == after:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.02)
        return self._epoch

    async def open(self) -> None:
        """Wait for the lock."""
        while True:
            try:
                await self._open_session()
            except (LostError, InUseError):
                await asyncio.sleep(self._server.choices.delay(0.1, 1.0))
            else:
                return

    async def write(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Database.write``."""
        async with self._answered() as session:
            return await self._transaction(session, function, *arguments)

    read = write

    async def insert(
        self, plan: Callable[[*Arguments], tuple[Rows, T] | None], *arguments: *Arguments
    ) -> T | None:
        """See ``Database.insert``: the server is asked once."""
        async with self._answered() as session:
            planned = plan(*arguments)
            if planned is None:
                return None
            rows, result = planned
            await session.ask(lambda: self._server.insert(session, rows))
            self._server.known_commits = max(self._server.known_commits, session.commits)
            return result

    @asynccontextmanager
    async def _answered(self) -> AsyncIterator[Session]:
        """Have the session for a block, and give it up where the server does not answer in time."""
        async with self._lock:
            session = self._session
            if session is None:
                raise DatabaseUnavailableError
            try:
                async with asyncio.timeout(postgresql.ANSWER_SECONDS):
                    yield session
            except sa.exc.IntegrityError:
                raise
            except (LostError, TimeoutError, sa.exc.SQLAlchemyError, sqlite3.Error):
                self._drop(session)
                raise DatabaseUnavailableError from None
            except asyncio.CancelledError:
                self._drop(session)
                raise

    async def query(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        server = self._server
        await asyncio.sleep(server.delay())
        if server.loop.time() < server.down_until:
            raise DatabaseUnavailableError
        reader = server.reader
        reader.exec_driver_sql("BEGIN")
        try:
            result = function(reader, *arguments)
        finally:
            reader.exec_driver_sql("ROLLBACK")
        await asyncio.sleep(server.delay())
        return result

    peek = query

    async def scrub(self) -> bool:
        await asyncio.sleep(self._server.delay())
        self.is_scrubbed = self._server.loop.time() >= self._server.down_until
        return self.is_scrubbed

    async def close(self) -> None:
        async with self._lock:
            last, self._session = self._session, None
        for task in (self._reopening, self._heartbeat):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        for session in (last, self._session):
            if session is not None:
                session.close()
        self._session = None

    async def _transaction(
        self,
        session: Session,
        function: Callable[[sa.Connection, *Arguments], T],
        *arguments: *Arguments,
    ) -> T:
        server = self._server
        await session.ask(lambda: server.begin(session))
        if session.is_over:
            raise LostError  # its connection may be another session's already
        try:
            result = function(session.connection, *arguments)
        except Exception:
            if not session.is_over:
                server.roll_back(session)
            raise
        await session.ask(lambda: server.commit(session))
        server.known_commits = max(server.known_commits, session.commits)
        return result

    async def _open_session(self) -> None:
        await asyncio.sleep(self._server.delay())
        session = self._server.open(self._process)
        in_use: list[InUseError] = []

        def lock() -> None:
            try:
                self._server.lock(session)
            except InUseError as error:
                in_use.append(error)

        try:
            async with asyncio.timeout(postgresql.ANSWER_SECONDS):
                await session.ask(lock)
        except TimeoutError:
            session.close()
            raise LostError from None
        except BaseException:
            session.close()
            raise
        if in_use:
            session.close()
            raise in_use[0]
        session.on_lost = lambda: self._drop(session)
        self._session = session
        self._epoch = session.epoch
        self._heartbeat = asyncio.create_task(self._renew(session))

    async def _renew(self, session: Session) -> None:
        """Say that the session is in use, as long as it is."""
        while self._session is session:
            async with self._lock:
                try:
                    async with asyncio.timeout(postgresql.ANSWER_SECONDS):
                        await session.ask(lambda: self._server.renew(session))
                except (LostError, TimeoutError):
                    self._drop(session)
            await asyncio.sleep(RENEW_SECONDS)

    def _drop(self, session: Session) -> None:
        """Give a session up, and start to open another."""
        if self._session is not session:
            return
        self._session = None
        self._reopening = asyncio.create_task(self._reopen(session))

    async def _reopen(self, lost: Session) -> None:
        lost.close()
        async with self._lock:
            pass
        await self.open()
