"""A database on a server, which several key services can reach, and one of them writes to.

One session does all the work. It holds the database's lock, so that no other key service writes.
When the session is lost, for whatever reason, nothing is answered until a new one holds the lock.
Another key service may have held it in between, so the new session begins a new epoch. A key service
that finds the lock taken waits for it: it stands by. ``writer.py`` has the rules.

The server is PostgreSQL (``postgresql.py``), or that of the simulation.
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
"""For one transaction. The gateway waits ten seconds for an answer."""
OPEN_SECONDS = 30.0
"""For the checks and the migrations, once the lock is held."""


class LostEpochError(Exception):
    """The epoch is over: another session has begun one."""


class Session(Protocol):
    """A session with a database server. Its methods raise the server's ``failures``."""

    async def take_lock(self) -> bool:
        """Take the database's lock, if it is free."""

    async def end_silent_holder(self) -> bool:
        """End the session that has the lock, if its time is over; return whether it was."""

    async def begin_epoch(self, seconds: float, *, has_waited: bool) -> Epoch:
        """Begin an epoch with the lock, and migrate. For some seconds none may end the session."""

    async def begin(self, epoch: int, *, writes: bool, renews: bool) -> None:
        """Begin a transaction. Raises LostEpochError where the epoch is over."""

    async def run(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Return what a function returns in the transaction."""

    async def commit(self) -> None:
        """Commit the transaction. Raises LostEpochError where the server rolls it back."""

    async def roll_back(self) -> None:
        """Roll the transaction back."""

    async def insert(self, epoch: int, rows: Rows) -> None:
        """Insert rows, durably on return. Raises LostEpochError where the epoch is over."""

    def has_ended(self) -> bool:
        """Return whether the server has hung up."""

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call a function when the server hangs up."""

    def terminate(self) -> None:
        """End the session at once, and what waits for it with an error."""

    async def abandon(self) -> None:
        """End the session without waiting for the server."""

    async def close(self) -> None:
        """End the session in an orderly way, if the server answers."""


class Server(Protocol):
    """A database server."""

    dialect: sa.Dialect
    failures: tuple[type[Exception], ...]
    """The errors after which a session is not used again."""
    refusals: tuple[type[Exception], ...]
    """The errors of statements after which it is."""
    in_use: str
    """The message that another key service has the lock."""

    async def connect(self) -> Session:
        """Open a session."""

    async def peek(
        self, function: Callable[[sa.Connection, *Arguments], T], *arguments: *Arguments
    ) -> T:
        """Return what a function reads in one snapshot, on a connection of its own."""

    async def scrub(self) -> bool:
        """Remove copies of deleted data; return whether it succeeded."""

    def error(self, error: BaseException) -> ConfigError | DatabaseUnavailableError:
        """Return what an error of the first session means."""

    async def close(self) -> None:
        """Close what is left of connections."""


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
        """The one that writes."""
        self._opening: Session | None = None
        """The one that is to write."""
        self._lock = asyncio.Lock()
        self._follows: asyncio.Task[None] | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._problem = WriteProblem.NO_RESPONSE
        """Why the last session was given up, or none could be opened."""

    @classmethod
    async def open(cls, server: Server, lock_seconds: float) -> Self:
        """Lock the database for this process and migrate it.

        Waits some seconds for the lock. Raises ConfigError, and DatabaseUnavailableError where a
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
        """Lock the database as ``open`` does, or where another has it go on without, and wait."""
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
        """See ``Database.insert``. None, too, when a transaction is due that renews the session."""
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
        number, found = await self.peek(_with_epoch, function, *arguments)
        if not number == epoch == self.writer.epoch:
            raise DatabaseUnavailableError
        return found

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
        """Have the session for a block, and give it up where the server does not answer in time."""
        async with self._lock:
            session = self._session
            if session is None:
                raise DatabaseUnavailableError(problem=self._problem)
            try:
                async with asyncio.timeout(RESPONSE_SECONDS):
                    yield session
            except self._server.refusals:
                raise  # the server refused the statement, and the session is still usable
            except self._server.failures as error:
                self._problem = problem_of(error)
                self._lost(session, described(error))
                raise DatabaseUnavailableError(problem=self._problem) from None
            except asyncio.CancelledError:
                self._lost(session, "interrupted")
                raise

    @asynccontextmanager
    async def _transaction(self, session: Session, writes: bool) -> AsyncIterator[None]:  # noqa: FBT001
        """Run a block in a transaction of the current epoch. It renews the session's time if due."""
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
        """Take the lock, or begin to stand by. Raises ConfigError and DatabaseUnavailableError."""
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
        """Carry decisions out until an epoch is begun, whatever fails; return whether one is."""
        last_error = ""
        while decision.do not in {Do.SERVE, Do.STOP}:
            try:
                decision = await self._carry_out(decision)
            except Exception as error:  # noqa: BLE001 - another try may succeed, whatever failed
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
        """Do what was decided; return what is to be done then.

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
        self.is_scrubbed = False  # unknown
        decision = self.writer.begun(epoch)
        session.on_end(lambda: self._lost(session, "the server hung up"))
        self._heartbeat = asyncio.create_task(self._renew(session))
        return decision

    async def _renew(self, session: Session) -> None:
        """Say that the session is in use, as long as it is."""
        while self._session is session:
            with suppress(DatabaseUnavailableError):
                await self.write(_nothing)
            await asyncio.sleep(RENEW_SECONDS)

    def _lost(self, session: Session, why: str) -> None:
        """Give a session up, and start to open another."""
        if self._session is not session:
            return
        self._session = None
        decision = self.writer.lost()
        _LOG.error("lost the connection to the database", error=why)
        self._follows = asyncio.create_task(self._reopen(session, decision))

    async def _reopen(self, lost: Session, decision: Decision) -> None:
        lost.terminate()  # ends the transaction that waits for it
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
    """Return the current epoch, and what a function returns."""
    number: int = connection.execute(sa.select(SERVICE_EPOCH.c.epoch)).scalar_one()
    return number, function(connection, *arguments)


def _nothing(_: sa.Connection) -> None:
    """Be a transaction that only renews the session's time."""


def described(error: BaseException) -> str:
    """Return what an error says, for messages and the log."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(getattr(error, "orig", None) or error) or type(error).__name__
