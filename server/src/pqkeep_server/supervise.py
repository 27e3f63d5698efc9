"""Keeps processes running: started in order, restarted with back-off, stopped in reverse.

A process can be renewed: another one is started beside it, and when that one serves, the old one is
told to leave, which it does when its last connection has ended.

When a process dies, the kernel closes the socket between the two, so the other notices at once: the
gateway answers 503 until the key service is back, and the key service drops the calls of a gateway
that is gone. When the supervisor itself dies, the kernel sends the processes SIGTERM.
"""

import asyncio
import ctypes
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0
STEADY_SECONDS = 10.0
"""After a process ran this long, its next restart is quick again."""
STOP_SECONDS = 15.0
RENEWAL_SECONDS = 60.0
"""How long a new process may take until it serves."""
LEAVE_SECONDS = 120.0
"""How long a process that was told to leave may stay: a gateway's idle connections end before."""
LEAVE = signal.SIGUSR1
"""What a process is sent to take no more connections, and end with the last one that it has."""
READY_OPTION = "--ready-fd"
"""The option by which a process learns where to write a byte when it serves."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)

FATAL = {
    os.EX_CONFIG: "it cannot start as it is set up; see its message above",
    os.EX_SOFTWARE: "its self-test failed",
}
"""Exit statuses after which a restart would not help; see sysexits.h."""


class FatalExitError(Exception):
    """A process cannot run, and a restart would not help."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who runs a program: user, groups and environment."""

    user: int
    group: int
    extra_group: int
    environment: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Program:
    """A Python module, or another program, to keep running as a process."""

    name: str
    module: str | None
    """None: the program is the first of the arguments."""
    arguments: Sequence[str]
    pass_fds: Sequence[int] = ()
    identity: Identity | None = None
    """None: whoever runs the supervisor."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Variables beside those of the identity, or of the supervisor."""
    is_renewed: bool = False
    """Whether a reload renews it; otherwise it is told to read again what it can: certificates."""
    is_one_of: str | None = None
    """The kind of several programs that do without each other: one that cannot run is left ended
    until a reload, as long as another one of the kind can."""

    @property
    def command(self) -> Sequence[str]:
        """The words that start it."""
        if self.module is None:
            return self.arguments
        # -P: nothing is imported from the current directory
        return sys.executable, "-P", "-m", self.module, *self.arguments


class Supervisor:
    """Runs programs until it is stopped."""

    def __init__(self, programs: Sequence[Program]) -> None:
        """Start nothing yet."""
        self._programs = list(programs)
        self._keepers: dict[Program, asyncio.Task[None]] = {}
        self._is_over = asyncio.Event()
        self._lost: dict[Program, asyncio.Event] = {}
        """The programs that cannot run, and what is set when they are to be tried again."""
        self._running: dict[Program, Process] = {}
        self._changing = asyncio.Lock()  # which process is a program's
        self._others: dict[Process, Program] = {}  # starting beside another, or leaving
        self._reload: asyncio.Task[None] | None = None
        self._reloads_again = False
        self._farewells: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Keep every program running until ``stop``. Raises FatalExitError."""
        for program in self._programs:
            self._begin(program)
        ends = [asyncio.create_task(each.wait()) for each in (stop, self._is_over)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changes = [*self._farewells, *([] if self._reload is None else [self._reload])]
            for task in (*self._keepers.values(), *ends, *changes):
                task.cancel()
            ended = await asyncio.gather(*self._keepers.values(), return_exceptions=True)
            await asyncio.gather(*changes, return_exceptions=True)
            await asyncio.gather(*(_end(each, of.name) for each, of in self._others.items()))
            removed = [each for each in self._running if each not in self._programs]
            for program in (*removed, *reversed(self._programs)):
                if program in self._running:
                    await _end(self._running[program], program.name)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome

    def add(self, programs: Iterable[Program]) -> None:
        """Keep these running, too, beside those that are there by name. They end last."""
        known = {program.name for program in self._programs}
        for program in programs:
            if program.name not in known:
                self._programs.insert(0, program)
                self._begin(program)
                _LOG.info("a process was added", program=program.name)

    def remove(self, kind: str, names: Collection[str]) -> None:
        """End the programs of a kind that have none of these names."""
        for program in tuple(self._programs):
            if program.is_one_of == kind and program.name not in names:
                self._programs.remove(program)
                self._say_farewell(self._drop(program))

    def reload(self) -> None:
        """Renew the programs that can be, one after another, and tell the others to read again.

        While that goes on, another call has it done once more.
        """
        for mended in self._lost.values():
            mended.set()
        if self._reload is None or self._reload.done():
            self._reload = asyncio.create_task(self._reload_all())
        else:
            self._reloads_again = True

    def pids(self) -> dict[str, int]:
        """Return the ids of the running processes, by program name."""
        return {program.name: process.pid for program, process in self._running.items()}

    def _begin(self, program: Program) -> None:
        keeper = asyncio.create_task(self._keep(program))
        keeper.add_done_callback(self._end_all)
        self._keepers[program] = keeper

    def _end_all(self, _: asyncio.Task[None]) -> None:
        self._is_over.set()

    async def _drop(self, program: Program) -> None:
        async with self._changing:  # it is not being started
            keeper = self._keepers.pop(program)
            keeper.remove_done_callback(self._end_all)
            keeper.cancel()
            self._lost.pop(program, None)
            process = self._running.pop(program, None)
            if process is not None:
                self._others[process] = program
        if process is not None:
            await self._dismiss(process, program)
        _LOG.info("a process was removed", program=program.name)

    @property
    def lost(self) -> frozenset[str]:
        """The programs that cannot run, by name, while others of their kind go on."""
        return frozenset(program.name for program in self._lost)

    async def _reload_all(self) -> None:
        while True:
            self._reloads_again = False
            for program in self._programs:
                if not program.is_renewed:
                    with suppress(KeyError, ProcessLookupError):
                        self._running[program].send_signal(signal.SIGHUP)
            await self._renew_all()
            if not self._reloads_again:
                return

    async def _renew_all(self) -> None:
        for program in tuple(self._programs):
            if program.is_renewed and not await self._renew(program):
                _LOG.error(
                    "a new process did not start, and the old ones go on", program=program.name
                )
                return

    async def _renew(self, program: Program) -> bool:
        """Start another process, and have the old one leave; False if the new one does not serve."""
        reading, writing = os.pipe()
        try:
            new = await self._start(program, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._others[new] = program
        if not await _is_told_ready(reading):
            await self._dismiss(new, program)
            return False
        async with self._changing:
            old, self._running[program] = self._running.get(program), new
            del self._others[new]
        for process, of in list(self._others.items()):
            if of is program:  # from an earlier renewal: two at a time are enough
                _signal(process, signal.SIGTERM)
        if old is not None:
            self._others[old] = program
            _signal(old, LEAVE)
            self._say_farewell(self._see_out(old, program))
        _LOG.info("a process was renewed", program=program.name)
        return True

    def _say_farewell(self, farewell: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(farewell)
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)

    async def _see_out(self, process: Process, program: Program) -> None:
        """Wait until a process has left, and end it if it stays too long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), LEAVE_SECONDS)
        await self._dismiss(process, program)

    async def _dismiss(self, process: Process, program: Program) -> None:
        await _end(process, program.name)
        del self._others[process]

    async def _keep(self, program: Program) -> None:
        retry = FIRST_RETRY_SECONDS
        while True:
            began = time.monotonic()
            async with self._changing:
                if program not in self._running:
                    self._running[program] = await self._start(program)
                process = self._running[program]
            status = await process.wait()
            async with self._changing:
                if self._running.get(program) is not process:  # it has been renewed
                    continue
                del self._running[program]
            if status in FATAL:
                await self._until_mended(program, FATAL[status])
                retry = FIRST_RETRY_SECONDS
                continue
            if time.monotonic() - began > STEADY_SECONDS:
                retry = FIRST_RETRY_SECONDS
            _LOG.warning(
                "a process ended and will be started again",
                program=program.name,
                status=status,
                seconds=retry,
            )
            await asyncio.sleep(retry)
            retry = min(2 * retry, LAST_RETRY_SECONDS)

    async def _until_mended(self, program: Program, reason: str) -> None:
        """Wait for a reload, if others of its kind go on without it. Raises FatalExitError."""
        mended = self._lost[program] = asyncio.Event()
        kind = [each for each in self._programs if each.is_one_of == program.is_one_of]
        if program.is_one_of is None or all(each in self._lost for each in kind):
            raise FatalExitError(f"the {program.name} ended: {reason}")
        _LOG.critical(
            "a process cannot run, and the others go on; SIGHUP has it tried again",
            program=program.name,
            reason=reason,
        )
        await mended.wait()
        del self._lost[program]

    async def _start(self, program: Program, ready: int | None = None) -> Process:
        identity = program.identity
        options = () if ready is None else (READY_OPTION, str(ready))
        variables = identity.environment if identity else os.environ
        return await asyncio.create_subprocess_exec(
            *program.command,
            *options,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(*program.pass_fds, *(() if ready is None else (ready,))),
            start_new_session=True,  # Ctrl-C reaches the supervisor alone
            preexec_fn=die_with(os.getpid()),
            user=identity.user if identity else None,
            group=identity.group if identity else None,
            extra_groups=[identity.extra_group] if identity else None,
            env={**variables, **program.environment},
        )


async def _is_told_ready(pipe: int) -> bool:
    """Return whether a process says in time that it serves: False if it ends, or takes too long.

    The pipe's end is closed.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(pipe, readable.set)
    try:
        await asyncio.wait_for(readable.wait(), RENEWAL_SECONDS)
        return bool(os.read(pipe, 1))
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


async def _end(process: Process, name: str) -> None:
    """Stop a process, unless it has ended."""
    if process.returncode is not None:
        return
    _signal(process, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), STOP_SECONDS)
    except TimeoutError:
        _LOG.error("a process did not stop in time and is killed", program=name)
        process.kill()
        await process.wait()


def die_with(parent: int) -> Callable[[], None]:
    """Return a function that asks the kernel for SIGTERM when the parent dies; see prctl(2).

    A program that is told to read something again before it listens for that ignores it.
    """

    def between_fork_and_exec() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if os.getppid() != parent:
            os._exit(os.EX_TEMPFAIL)

    return between_fork_and_exec
