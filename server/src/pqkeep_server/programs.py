"""Programs as processes: what is run as whom, how it is started, and how it is ended."""

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
"""How long a new process may take until it serves."""
READY_OPTION = "--ready-fd"
"""The option by which a process learns where to write a byte when it serves."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


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


def written(programs: Iterable[Program]) -> Sequence[Mapping[str, Any]]:
    """Return programs in what JSON can have."""
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
    """Start a process of a program; ``ready``: a pipe's end to which it writes when it serves.

    What a program says that is not pqkeep's has to be read.
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
