"""Starts and ends programs as processes, each with a user and an environment."""

import asyncio
import ctypes
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

STOP_SECONDS = 15.0
RENEWAL_SECONDS = 60.0
"""Seconds for a new process to become ready."""
READY_OPTION = "--ready-fd"
"""The option with the descriptor to which a ready process writes one byte."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass(frozen=True, slots=True)
class Identity:
    """The user, groups and environment of a program."""

    user: int
    group: int
    extra_group: int
    environment: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True, slots=True)
class Program:
    """A Python module or another program that is kept running."""

    name: str
    module: str | None
    """The Python module, or None if the first argument is the program."""
    arguments: Sequence[str]
    pass_fds: Sequence[int] = ()
    identity: Identity | None = None
    """The user of the process, or None for the supervisor's."""
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Further variables beside those of the identity or the supervisor."""
    is_renewed: bool = False
    """True if a reload renews the process. For other changes it only reloads its certificates."""
    is_one_of: str | None = None
    """A group of programs that can run without each other.

    If one cannot run while another of its group does, it stays stopped until a reload.
    """

    @property
    def command(self) -> Sequence[str]:
        """The command line."""
        if self.module is None:
            return self.arguments
        # -P: nothing is imported from the current directory
        return sys.executable, "-P", "-m", self.module, *self.arguments


def written(programs: Iterable[Program]) -> Sequence[Mapping[str, Any]]:
    """Return programs in JSON types."""
    return [asdict(program) for program in programs]


def read(programs: Iterable[Mapping[str, Any]]) -> Iterator[Program]:
    """Yield the programs that were written."""
    for program in programs:
        identity = program["identity"]
        parts = {
            "arguments": tuple(program["arguments"]),
            "pass_fds": tuple(program["pass_fds"]),
            "identity": None if identity is None else Identity(**identity),
        }
        yield Program(**{**program, **parts})


async def start(program: Program, ready: int | None = None) -> Process:
    """Start a process. It writes to the pipe's end ``ready`` when it is ready.

    The caller must read the output of a program that is not pqkeep's.
    """
    identity = program.identity
    options = () if ready is None else (READY_OPTION, str(ready))
    variables = identity.environment if identity else os.environ
    return await asyncio.create_subprocess_exec(
        *program.command,
        *options,
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE if program.module is None else None,
        pass_fds=(*program.pass_fds, *(() if ready is None else (ready,))),
        start_new_session=True,  # Ctrl-C reaches the supervisor alone
        preexec_fn=die_with(os.getpid()),
        user=identity.user if identity else None,
        group=identity.group if identity else None,
        extra_groups=[identity.extra_group] if identity else None,
        env={**variables, **program.environment},
    )


async def is_told_ready(pipe: int) -> bool:
    """Return True if a process becomes ready in time, False if it ends or takes too long.

    This closes the pipe's end.
    """
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(pipe, readable.set)
    try:
        async with asyncio.timeout(RENEWAL_SECONDS):
            await readable.wait()
        return bool(os.read(pipe, 1))
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)


def send_signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended."""
    with suppress(ProcessLookupError):
        process.send_signal(number)


async def end(process: Process, name: str) -> None:
    """Stop a process, unless it has ended."""
    if process.returncode is not None:
        return
    send_signal(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        _LOG.error("a process did not stop in time and is killed", program=name)
        process.kill()
        await process.wait()


def die_with(parent: int) -> Callable[[], None]:
    """Return a function that makes the kernel send SIGTERM when the parent dies; see prctl(2).

    It also ignores SIGHUP, which can arrive before the program handles signals.
    """

    def between_fork_and_exec() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        if os.getppid() != parent:
            os._exit(os.EX_TEMPFAIL)

    return between_fork_and_exec
