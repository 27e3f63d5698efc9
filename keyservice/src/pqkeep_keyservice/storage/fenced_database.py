"""A database on a server that several key services can reach. Only one of them writes to it.

One session does all the work. It holds the database's lock, so that no other key service writes.
After the session is lost, requests are refused until a new session holds the lock. Another key
service may have held it in between, so each session begins a new epoch. The epoch is a fencing
token: the database refuses writes of an earlier one. A key service that does not get the lock is a
standby and waits for it. ``writer.py`` has the rules.

The server is PostgreSQL (``postgresql.py``) or the simulation's.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Protocol, Self

import sqlalchemy as sa

from pqkeep_keyservice.storage.database import Arguments, DatabaseUnavailableError, Rows, T
from pqkeep_keyservice.storage.schema import SERVICE_EPOCH
from pqkeep_keyservice.storage.writer import (
    HELD_SECONDS,
    LAST_RETRY_SECONDS,
    RENEW_SECONDS,
    Decision,
    Do,
    Epoch,
    Writer,
)
from pqkeep_protocol.commits import WriteProblem, problem_of
from pqkeep_protocol.startup.logs import logger
from pqkeep_protocol.startup.settings import ConfigError

_LOG = logger(__name__)

RESPONSE_SECONDS = 4.0
"""The time limit of one transaction. The gateway waits ten seconds for a response."""
OPEN_SECONDS = 30.0
"""The time limit of checks and migrations once the lock is held."""


class LostEpochError(Exception):
    """Another session has begun a newer epoch."""


class Session(Protocol):
    """A session with a database server. Its methods raise the errors in ``Server.failures``."""

    async def take_lock(self) -> bool:
        """Take the database's lock, if it is free."""

    async def end_silent_holder(self) -> bool:
        """End the holder's session if its time is over. Return whether it was ended."""

    async def begin_epoch(self, seconds: float, *, has_waited: bool) -> Epoch:
        """Begin an epoch with the lock, and migrate. The session is protected for ``seconds``."""

    async def begin(self, epoch: int, *, writes: bool, renews: bool) -> None:
        """Begin a transaction. Raises LostEpochError if the epoch has ended."""

    async def run(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function in the transaction, and return its result."""

    async def commit(self) -> None:
        """Commit the transaction. Raises LostEpochError if the server rolls it back."""

    async def roll_back(self) -> None:
        """Roll the transaction back."""

    async def insert(self, epoch: int, rows: Rows) -> None:
        """Insert rows, durable on return. Raises LostEpochError if the epoch has ended."""

    def has_ended(self) -> bool:
        """Return whether the server has closed the session."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call a function when the server closes the session."""

    def terminate(self) -> None:
        """End the session now. Calls that wait for it raise an error."""

    async def abandon(self) -> None:
        """End the session without waiting for the server."""

    async def close(self) -> None:
        """Close the session cleanly if the server responds."""


class Server(Protocol):
    """A database server."""

    dialect: sa.Dialect
    failures: tuple[type[Exception], ...]
    """Errors after which a session is given up."""
    refusals: tuple[type[Exception], ...]
    """Errors of statements after which the session remains usable."""
    in_use: str
    """The message for a lock that another key service holds."""

    async def connect(self) -> Session:
        """Open a session."""

    async def peek(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Run a function that reads one snapshot, on a separate connection."""

    async def scrub(self) -> bool:
        """Remove copies of deleted data. Return whether that succeeded."""

    def error(self, error: BaseException) -> ConfigError | DatabaseUnavailableError:
        """Return the error to raise for an error of the first session."""

    async def close(self) -> None:
        """Close the remaining connections."""


class _InUseError(ConfigError):
    pass


class FencedDatabase:
    """A Database in which each batch is one transaction on one session of a server."""

    def __init__(self, server: Server, writer: Writer) -> None:
        """See ``open`` and ``open_or_stand_by``."""
        self.writer = writer
        self.dialect = server.dialect
        self.is_scrubbed = True
        self._server = server
        self._session: Session | None = None
        """The session that writes."""
        self._opening: Session | None = None
        """The session that is being opened."""
        self._lock = asyncio.Lock()
        self._follows: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._problem = WriteProblem.NO_RESPONSE
        """Why the last session was lost, or why none could be opened."""

    @classmethod
    async def open(cls, server: Server, lock_seconds: float) -> Self:
        """Lock the database for this process, and migrate it.

        Waits ``lock_seconds`` for the lock. Raises ConfigError, and DatabaseUnavailableError if a
        later try may succeed.
        """
        opened = cls(server, Writer(stands_by=False))
        until = asyncio.get_running_loop().time() + lock_seconds
        while True:
            try:
                await opened._begin()
            except _InUseError:
                if asyncio.get_running_loop().time() >= until:
                    raise
                await asyncio.sleep(LAST_RETRY_SECONDS)
            else:
                return opened

    @classmethod
    async def open_or_stand_by(cls, server: Server) -> Self:
        """Like ``open``, but as a standby while another key service has the lock."""
        opened = cls(server, Writer())
        decision = await opened._begin()
        if decision.do is not Do.SERVE:
            opened._follows = asyncio.create_task(opened._stand_by(decision))
        return opened

    async def write(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Database.write``."""
        return await self._run(True, function, *arguments)  # noqa: FBT003 - positional arguments follow

    async def read(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Database.read``."""
        return await self._run(False, function, *arguments)  # noqa: FBT003 - positional arguments follow

    async def insert(
        self, plan: Callable[[*Arguments], tuple[Rows, T] | None], *arguments: *Arguments
    ) -> T | None:
        """See ``Database.insert``. Also returns None if a transaction must renew the session."""
        async with self._answered() as session:
            is_due = self.writer.is_renewal_due(asyncio.get_running_loop().time())
            planned = None if is_due else plan(*arguments)
            if planned is None:
                return None
            rows, result = planned
            await session.insert(self.writer.epoch, rows)
            return result

    async def query(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Database.query``."""
        epoch = self.writer.epoch
        if not epoch:
            raise DatabaseUnavailableError
        number, result = await self.peek(_with_epoch, function, *arguments)
        if not number == epoch == self.writer.epoch:
            raise DatabaseUnavailableError
        return result

    async def peek(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """See ``Database.peek``."""
        try:
            return await self._server.peek(function, *arguments)
        except self._server.failures as error:
            _LOG.warning("the database could not be read", error=described(error))
            raise DatabaseUnavailableError from None

    async def scrub(self) -> bool:
        """See ``Database.scrub``."""
        self.is_scrubbed = False
        try:
            self.is_scrubbed = await self._server.scrub()
        except self._server.failures as error:
            _LOG.warning("deleted keys could not be vacuumed", error=described(error))
        return self.is_scrubbed

    async def close(self) -> None:
        """See ``Database.close``."""
        async with self._lock:
            last, self._session = self._session, None
            self.writer.closed()
        await _end(self._follows)
        await _end(self._heartbeat)
        for session in (last, self._session, self._opening):
            if session is not None:
                await session.close()
        await self._server.close()

    async def _run(
        self,
        writes: bool,  # noqa: FBT001 - positional arguments follow
        function: Callable[[sa.Connection, *Arguments], T],
        *arguments: *Arguments,
    ) -> T:
        async with self._answered() as session, self._transaction(session, writes):
            return await session.run(function, *arguments)

    @asynccontextmanager
    async def _answered(self) -> AsyncIterator[Session]:
        """Yield the session to a block. Give it up if the server does not respond in time."""
        async with self._lock:
            session = self._session
            if session is None:
                raise DatabaseUnavailableError(problem=self._problem)
            try:
                async with asyncio.timeout(RESPONSE_SECONDS):
                    yield session
            except self._server.refusals:
                raise  # the server refused the statement, but the session is still usable
            except self._server.failures as error:
                self._problem = problem_of(error)
                self._lost(session, described(error))
                raise DatabaseUnavailableError(problem=self._problem) from None
            except asyncio.CancelledError:
                self._lost(session, "interrupted")
                raise

    @asynccontextmanager
    async def _transaction(self, session: Session, writes: bool) -> AsyncIterator[None]:  # noqa: FBT001
        """Run a block in a transaction of the current epoch. Renew the session's time if due."""
        began = asyncio.get_running_loop().time()
        renews = self.writer.is_renewal_due(began)
        await session.begin(self.writer.epoch, writes=writes, renews=renews)
        try:
            yield
        except Exception:
            await session.roll_back()
            raise
        await session.commit()
        if renews:
            self.writer.renewed(began)

    async def _begin(self) -> Decision:
        """Take the lock or become a standby. Raises ConfigError and DatabaseUnavailableError."""
        decision = self.writer.start()
        try:
            while decision.do is not Do.SERVE and not self.writer.is_standing_by:
                decision = await self._carry_out(decision)
        except BaseException as error:
            await self._abandon()
            if not isinstance(error, _InUseError):
                self.writer.failed()
            raise
        return decision

    async def _stand_by(self, decision: Decision) -> None:
        if await self._follow(decision):
            _LOG.warning("took the database's lock over", epoch=self.writer.epoch)

    async def _follow(self, decision: Decision) -> bool:
        """Carry out decisions until an epoch begins, despite errors. Return whether it did."""
        last_error = ""
        while decision.do not in {Do.SERVE, Do.STOP}:
            try:
                decision = await self._carry_out(decision)
            except Exception as error:  # noqa: BLE001 - after any failure another try may succeed
                if isinstance(error, DatabaseUnavailableError):
                    self._problem = error.problem
                if str(error) != last_error:
                    last_error = str(error)
                    _LOG.error(
                        "the connection to the database will be tried again", error=last_error
                    )
                decision = self.writer.failed()
        return decision.do is Do.SERVE

    async def _carry_out(self, decision: Decision) -> Decision:
        """Carry out a decision. Return the next one.

        Raises ConfigError and DatabaseUnavailableError.
        """
        if decision.after:
            await asyncio.sleep(decision.after)
        failures: tuple[type[Exception], ...] = (ConfigError, *self._server.failures)
        try:
            return await self._next(decision.do)
        except failures as error:
            raise self._server.error(error) from None

    async def _next(self, do: Do) -> Decision:
        writer, session = self.writer, self._opening
        if do is Do.CONNECT or session is None:
            await self._abandon()
            self._opening = await self._server.connect()
            return writer.opened()
        if do is Do.ASK_FOR_LOCK:
            return await self._ask_for_lock(session)
        if do is Do.LOOK_AT_HOLDER:
            async with asyncio.timeout(RESPONSE_SECONDS):
                if not await session.end_silent_holder():
                    return writer.holder_heard()
            _LOG.warning("ended the session of a key service that was silent", seconds=HELD_SECONDS)
            return writer.holder_ended()
        if do is Do.GIVE_UP:
            raise _InUseError(self._server.in_use)
        return await self._begin_epoch(session)

    async def _ask_for_lock(self, session: Session) -> Decision:
        async with asyncio.timeout(RESPONSE_SECONDS):
            is_free = await session.take_lock()
        if is_free:
            return self.writer.lock_got()
        was_standing_by = self.writer.is_standing_by
        decision = self.writer.lock_refused()
        if self.writer.is_standing_by and not was_standing_by:
            _LOG.info("standing by: another key service has the database's lock")
        return decision

    async def _begin_epoch(self, session: Session) -> Decision:
        async with asyncio.timeout(OPEN_SECONDS):
            epoch = await session.begin_epoch(OPEN_SECONDS, has_waited=self.writer.is_standing_by)
        if session.has_ended():
            raise DatabaseUnavailableError("the server hung up")
        self._session, self._opening = session, None
        self.is_scrubbed = False  # unknown so far
        decision = self.writer.begun(epoch)
        session.on_end(lambda: self._lost(session, "the server hung up"))
        self._heartbeat = asyncio.create_task(self._renew(session))
        return decision

    async def _renew(self, session: Session) -> None:
        """Renew the session's time while the session is in use."""
        while self._session is session:
            with suppress(DatabaseUnavailableError):
                await self.write(_nothing)
            await asyncio.sleep(RENEW_SECONDS)

    def _lost(self, session: Session, why: str) -> None:
        """Give up a session, and begin to open a new one."""
        if self._session is not session:
            return
        self._session = None
        decision = self.writer.lost()
        _LOG.error("lost the connection to the database", error=why)
        self._follows = asyncio.create_task(self._reopen(session, decision))

    async def _reopen(self, lost: Session, decision: Decision) -> None:
        lost.terminate()  # also ends a transaction that waits for it
        async with self._lock:
            await lost.abandon()
        if await self._follow(decision):
            _LOG.warning("connected to the database again", epoch=self.writer.epoch)

    async def _abandon(self) -> None:
        session, self._opening = self._opening, None
        if session is not None:
            await session.abandon()


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def _with_epoch(
    connection: sa.Connection,
    function: Callable[[sa.Connection, *Arguments], T],
    *arguments: *Arguments,
) -> tuple[int, T]:
    """Return the database's epoch and a function's result."""
    number: int = connection.execute(sa.select(SERVICE_EPOCH.c.epoch)).scalar_one()
    return number, function(connection, *arguments)


def _nothing(_: sa.Connection) -> None:
    """Do nothing: the transaction only renews the session's time."""


def described(error: BaseException) -> str:
    """Return an error's text for messages and the log."""
    if isinstance(error, TimeoutError):
        return "no response in time"
    return str(getattr(error, "orig", None) or error) or type(error).__name__
