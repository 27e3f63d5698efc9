"""Keeps processes running: started in order, restarted with back-off, stopped in reverse.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0
STEADY_SECONDS = 10.0
"""After a process ran this long, its next restart is quick again."""
STOP_SECONDS = 15.0

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
    """A Python module to keep running as a process."""

    name: str
    module: str
    arguments: Sequence[str]
    pass_fds: Sequence[int] = ()
    identity: Identity | None = None
    """None: whoever runs the supervisor."""


class Supervisor:
    """Runs programs until it is stopped."""

    def __init__(self, programs: Sequence[Program]) -> None:
        """Start nothing yet."""
        self._programs = programs
        self._running: dict[Program, asyncio.subprocess.Process] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Keep every program running until ``stop``. Raises FatalExitError."""
        keepers = [asyncio.create_task(self._keep(program)) for program in self._programs]
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*keepers, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*keepers, stopped):
                task.cancel()
            ended = await asyncio.gather(*keepers, return_exceptions=True)
            for program in reversed(self._programs):
                await self._stop(program)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome

    def reload(self) -> None:
        """Have every program read again what it can read again: certificates."""
        for process in self._running.values():
            process.send_signal(signal.SIGHUP)

    def pids(self) -> dict[str, int]:
        """Return the ids of the running processes, by program name."""
        return {program.name: process.pid for program, process in self._running.items()}

    async def _keep(self, program: Program) -> None:
        retry = FIRST_RETRY_SECONDS
        while True:
            began = time.monotonic()
            process = self._running[program] = await self._start(program)
            status = await process.wait()
            del self._running[program]
            if status in FATAL:
                raise FatalExitError(f"the {program.name} ended: {FATAL[status]}")
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

    async def _start(self, program: Program) -> asyncio.subprocess.Process:
        identity = program.identity
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # nothing is imported from the current directory
            "-m",
            program.module,
            *program.arguments,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=program.pass_fds,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone
            preexec_fn=die_with(os.getpid()),
            user=identity.user if identity else None,
            group=identity.group if identity else None,
            extra_groups=[identity.extra_group] if identity else None,
            env=identity.environment if identity else None,
        )

    async def _stop(self, program: Program) -> None:
        process = self._running.get(program)
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_SECONDS)
        except TimeoutError:
            _LOG.error("a process did not stop in time and is killed", program=program.name)
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
