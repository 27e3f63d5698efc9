"""Keeps processes running: started in order, restarted with back-off, stopped in reverse.

A process can be renewed: a new one starts beside it. When the new one is ready, the old one drains,
and ends with its last connection.

When a process dies, the kernel closes the socket between the two, so the other notices at once. The
gateway answers 503 until the key service is back. The key service drops the calls of a gateway that
is gone. When the supervisor itself dies, the kernel sends the processes SIGTERM.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pqkeep_protocol.startup.logs import logger, write_logs
from pqkeep_server.exit_status import fail_on, message_of
from pqkeep_server.programs import (
    Program,
    die_with,
    end,
    is_told_ready,
    read,
    send_signal,
    start,
    written,
)

_LOG = logger(__name__)

FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 5.0
STEADY_SECONDS = 10.0
"""After a process ran this long, its next restart is quick again."""
MOST_FAILURES = 5
"""The number of failures in a row after which a process counts as lost.

A run of STEADY_SECONDS or more starts the count again.
"""
LEAVE_SECONDS = 120.0
"""The longest drain of a process. A gateway's idle connections end sooner."""
LEAVE = signal.SIGUSR1
"""The signal to drain: take no new connections, and end with the last open one."""
FATAL = {
    os.EX_CONFIG: "it cannot start as it is set up; see its message above",
    os.EX_SOFTWARE: "its self-test failed",
}
"""Exit statuses after which a restart would not help; see sysexits.h."""


NOTIFY_SOCKET = "NOTIFY_SOCKET"
"""The variable with the address for systemd's readiness message; see sd_notify(3)."""
MODULE = "pqkeep_server"
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class FatalExitError(Exception):
    """A process cannot run, and a restart would not help."""


class Supervisor:
    """Runs programs until it is stopped."""

    def __init__(self, programs: Sequence[Program]) -> None:
        """Start nothing yet."""
        self._programs = list(programs)
        self._keepers: dict[Program, asyncio.Task[None]] = {}
        self._is_over = asyncio.Event()
        self._lost: dict[Program, asyncio.Event] = {}
        """The programs that cannot run. Their event is set when they shall be tried again."""
        self._running: dict[Program, Process] = {}
        self._changing = asyncio.Lock()  # which process is a program's
        self._others: dict[Process, Program] = {}  # starting beside another, or draining
        self._reload: asyncio.Task[None] | None = None
        self._reloads_again = False
        self._endings: set[asyncio.Task[None]] = set()
        self._last_lines: dict[Program, str] = {}
        """The last line of standard error, for programs that are not part of pqkeep."""

    async def run(self, stop: asyncio.Event) -> None:
        """Keep every program running until ``stop``. Raises FatalExitError."""
        for program in self._programs:
            self._begin(program)
        ends = [asyncio.create_task(event.wait()) for event in (stop, self._is_over)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            changes = [*self._endings, *([] if self._reload is None else [self._reload])]
            for task in (*self._keepers.values(), *ends, *changes):
                task.cancel()
            ended = await asyncio.gather(*self._keepers.values(), return_exceptions=True)
            await asyncio.gather(*changes, return_exceptions=True)
            await asyncio.gather(*(end(process, of.name) for process, of in self._others.items()))
            removed = [program for program in self._running if program not in self._programs]
            for program in (*removed, *reversed(self._programs)):
                if program in self._running:
                    await end(self._running[program], program.name)
        for outcome in ended:
            if isinstance(outcome, Exception):
                raise outcome

    def add(self, programs: Iterable[Program]) -> None:
        """Start the programs with new names. They end last."""
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
                self._do_beside(self._drop(program))

    def reload(self) -> None:
        """Replace the programs that support it one after another, and make all others reload.

        If it is called during a replacement, it runs once more.
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
            await self._end_other(process, program)
        _LOG.info("a process was removed", program=program.name)

    @property
    def lost(self) -> frozenset[str]:
        """Programs that cannot run, by name, while others of their kind run."""
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
        """Start a new process and drain the old one. False if the new one does not become ready."""
        reading, writing = os.pipe()
        try:
            new = await self._start(program, writing)
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._others[new] = program
        if not await is_told_ready(reading):
            await self._end_other(new, program)
            return False
        async with self._changing:
            old, self._running[program] = self._running.get(program), new
            del self._others[new]
        for process, of in list(self._others.items()):
            if of is program:  # from an earlier renewal: two at a time are enough
                send_signal(process, signal.SIGTERM)
        if old is not None:
            self._others[old] = program
            send_signal(old, LEAVE)
            self._do_beside(self._end_after_leaving(old, program))
        _LOG.info("a process was renewed", program=program.name)
        return True

    def _do_beside(self, ending: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(ending)
        self._endings.add(task)
        task.add_done_callback(self._endings.discard)

    async def _end_after_leaving(self, process: Process, program: Program) -> None:
        """Wait for a process to drain, and end it after LEAVE_SECONDS."""
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_SECONDS):
                await process.wait()
        await self._end_other(process, program)

    async def _end_other(self, process: Process, program: Program) -> None:
        await end(process, program.name)
        del self._others[process]

    async def _keep(self, program: Program) -> None:
        retry, failures = FIRST_RETRY_SECONDS, 0
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
            is_steady = time.monotonic() - began > STEADY_SECONDS
            # By a signal it ends for another's reason; EX_TEMPFAIL says that it should be tried again.
            failures = (
                0 if is_steady or status in {0, os.EX_TEMPFAIL} or status < 0 else failures + 1
            )
            if status in FATAL or failures >= MOST_FAILURES:
                await self._until_mended(
                    program, FATAL.get(status) or self._repeated(program, status)
                )
                retry, failures = FIRST_RETRY_SECONDS, 0
                continue
            if is_steady:
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
        """Wait for a reload, if other programs of the kind run. Raises FatalExitError."""
        mended = self._lost[program] = asyncio.Event()
        kind = [other for other in self._programs if other.is_one_of == program.is_one_of]
        if program.is_one_of is None or all(other in self._lost for other in kind):
            raise FatalExitError(f"the {program.name} ended: {reason}")
        _LOG.critical(
            "a process cannot run, and the others go on; SIGHUP has it tried again",
            program=program.name,
            reason=reason,
        )
        await mended.wait()
        del self._lost[program]

    def _repeated(self, program: Program, status: int) -> str:
        """Return the reason why a failing program is not started again."""
        said = self._last_lines.get(program)
        cause = "see its message above" if said is None else f"it says: {said}"
        return (
            f"it ended {MOST_FAILURES} times right after its start, with status {status}; {cause}"
        )

    async def _start(self, program: Program, ready: int | None = None) -> Process:
        process = await start(program, ready)
        if process.stderr is not None:
            self._do_beside(self._pass_on(program, process.stderr))
        return process

    async def _pass_on(self, program: Program, lines: asyncio.StreamReader) -> None:
        """Write what a program says to standard error, and remember its last line."""
        with suppress(ValueError):  # a line without an end
            while line := await lines.readline():
                text = line.decode(errors="replace").strip()
                self._last_lines[program] = text or self._last_lines.get(program, "")
                sys.stderr.write(f"{program.name}: {text}\n")


@dataclass(frozen=True, slots=True)
class Plan:
    """The programs and settings of a supervisor process."""

    programs: Sequence[Program]
    places: str
    """Encoded addresses of the gateways, to ask for their readiness."""
    directory: str
    settings: Mapping[str, str]
    """The settings of gateways that a reload cannot change, for the process that reads them again."""


def become_supervisor(plan: Plan, kept: Iterable[int]) -> None:
    """Be, from now on, a process that supervises; these file descriptors stay open. Raises OSError."""
    file = os.memfd_create("plan")
    with os.fdopen(os.dup(file), "w") as writing:
        json.dump(
            {
                "programs": written(plan.programs),
                "places": plan.places,
                "directory": plan.directory,
                "settings": dict(plan.settings),
            },
            writing,
        )
    os.lseek(file, 0, os.SEEK_SET)
    for descriptor in (file, *kept):
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - no keyword
    command = _module("supervise", str(file))
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)  # until they are handled again
    os.execv(command[0], command)  # noqa: S606 - without a shell


def main(words: Sequence[str]) -> int:
    """Supervise the plan from a file descriptor, the only argument, until SIGTERM or SIGINT."""
    write_logs("pqkeepd")
    with os.fdopen(int(words[0])) as file:
        told = json.load(file)
    plan = Plan(**{**told, "programs": tuple(read(told["programs"]))})
    manager = ServiceManager(os.environ.pop(NOTIFY_SOCKET, ""))
    with fail_on(FatalExitError, status=os.EX_CONFIG):
        try:
            asyncio.run(_supervise(plan, manager))
        except OSError as error:
            raise FatalExitError(f"cannot start: {message_of(error)}") from None
    return os.EX_OK


async def _supervise(plan: Plan, manager: "ServiceManager") -> None:
    supervisor = Supervisor(plan.programs)
    stop = asyncio.Event()
    hangups = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, hangups.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    beside = [
        asyncio.create_task(_announce(plan, manager)),
        asyncio.create_task(_reload_when_told(supervisor, plan, hangups)),
    ]
    try:
        await supervisor.run(stop)
    finally:
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)


async def _announce(plan: Plan, manager: "ServiceManager") -> None:
    """Pass the states from the readiness helper to the service manager."""
    process = await _helper("announce", plan.places)
    try:
        while line := await process.stdout.readline():  # type: ignore[union-attr] # a pipe
            manager.tell(line.decode().rstrip())
        await process.wait()
    finally:
        await end(process, "wait for readiness")


async def _reload_when_told(supervisor: Supervisor, plan: Plan, hangups: asyncio.Event) -> None:
    """Do what each SIGHUP asks for, with the settings of that moment."""
    while True:
        await hangups.wait()
        hangups.clear()
        process = await _helper("reread", plan.directory)
        try:
            text, _ = await process.communicate(json.dumps(dict(plan.settings)).encode())
        finally:
            await end(process, "reading of the settings")
        if process.returncode == 0:
            found: Mapping[str, Any] = json.loads(text)
            key_services = tuple(read(found["programs"]))
            supervisor.add(key_services)
            supervisor.remove(found["kind"], {key_service.name for key_service in key_services})
            supervisor.reload()


async def _helper(*words: str) -> Process:
    return await asyncio.create_subprocess_exec(
        *_module(*words),
        stdin=PIPE if words[0] == "reread" else DEVNULL,
        stdout=PIPE,
        start_new_session=True,  # Ctrl-C reaches the supervisor alone
        preexec_fn=die_with(os.getpid()),
    )


def _module(*words: str) -> tuple[str, ...]:
    return sys.executable, "-P", "-m", MODULE, *words


class ServiceManager:
    """Receives readiness: systemd, if it started this process as Type=notify."""

    def __init__(self, address: str) -> None:
        """Take the address of its socket. Empty without one."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def tell(self, state: str) -> None:
        """Report a state, such as READY=1; see sd_notify(3)."""
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as peer, suppress(OSError):
            peer.connect(self._address)
            peer.send(state.encode())
