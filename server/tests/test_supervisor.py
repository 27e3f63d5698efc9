"""The supervisor with small real programs that record events."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.patience import PATIENCE

from pqkeep_server.programs import Program
from pqkeep_server.supervise import FatalExitError, Supervisor

SOURCE = """
import os, signal, sys, time

log, name, behaviour, *options = sys.argv[1:]

def note(what):
    with open(log, "a") as file:
        file.write(f"{name} {what} {os.getpid()}\\n")

def stop(*_):
    note("stopped")
    sys.exit(0)

signal.signal(signal.SIGTERM, signal.SIG_IGN if behaviour == "stubborn" else stop)
if behaviour == "reloading":
    signal.signal(signal.SIGHUP, lambda *_: note("reloaded"))
if behaviour == "renewed":
    def leave(*_):
        note("left")
        sys.exit(0)
    signal.signal(signal.SIGUSR1, leave)
if behaviour == "staying":
    signal.signal(signal.SIGUSR1, lambda *_: note("told"))
if "--ready-fd" in options:
    if os.path.exists(log + ".broken"):
        note("failed")
        sys.exit(78)
note("started")
if "--ready-fd" in options:
    os.write(int(options[1]), b"1")
if behaviour.isdigit():
    sys.exit(int(behaviour))
time.sleep(60)
"""


class Stage:
    """A folder with a supervised program and its log."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "log"
        self.module = folder / "pqkeep_test_program.py"
        self.module.write_text(SOURCE)

    def program(self, name: str, behaviour: str = "well") -> Program:
        """Return a program: one that serves, one that ends, or one that ignores signals."""
        return Program(
            name,
            self.module.stem,
            (str(self.log), name, behaviour),
            is_renewed=behaviour in {"renewed", "staying"},
        )

    def events(self) -> list[tuple[str, str, int]]:
        """Return name, event and process id of all events."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(name, what, int(pid)) for name, what, pid in map(str.split, lines)]

    def fail(self, *, is_failing: bool) -> None:
        """Make new processes end before they serve, or make them work again."""
        broken = Path(f"{self.log}.broken")
        broken.touch() if is_failing else broken.unlink()

    async def until(self, condition: Callable[[list[tuple[str, str, int]]], bool]) -> None:
        """Wait until the log has an event."""
        async with asyncio.timeout(PATIENCE):
            while not condition(self.events()):  # noqa: ASYNC110 - another process writes the log
                await asyncio.sleep(0.01)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """A stage with Python's path."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    stage = Stage(tmp_path)
    yield stage
    for _, what, pid in stage.events():
        with suppress(ProcessLookupError):
            if what == "started" and b"pqkeep_test_program" in _command(pid):
                os.kill(pid, signal.SIGKILL)


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_they_are_stopped_in_reverse(stage: Stage) -> None:
    """Programs are stopped in reverse order by SIGTERM, and none is left."""
    supervisor = Supervisor([stage.program(name) for name in ("a", "b", "c")])
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    await stage.until(lambda events: len(events) == 3)
    assert supervisor.pids() == {name: pid for name, _, pid in stage.events()}
    stop.set()
    await asyncio.wait_for(running, PATIENCE)
    stopped = [name for name, what, _ in stage.events() if what == "stopped"]
    assert stopped == ["c", "b", "a"]
    assert not any(_command(pid) for _, _, pid in stage.events())


async def test_what_is_killed_is_started_again(stage: Stage) -> None:
    """A killed program is restarted with another process id; its neighbour continues."""
    supervisor = Supervisor([stage.program("a"), stage.program("b")])
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    await stage.until(lambda events: len(events) == 2)
    before = supervisor.pids()
    os.kill(before["a"], signal.SIGKILL)
    await stage.until(lambda events: len(events) == 3)
    after = supervisor.pids()
    assert after["a"] != before["a"]
    assert after["b"] == before["b"]
    stop.set()
    await asyncio.wait_for(running, PATIENCE)


async def test_programs_are_told_to_reload(stage: Stage) -> None:
    """Each program gets SIGHUP, and continues even if it ignores the signal."""
    supervisor = Supervisor([stage.program("a", "reloading"), stage.program("b")])
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    await stage.until(lambda events: len(events) == 2)
    before = supervisor.pids()
    supervisor.reload()
    await stage.until(lambda events: ("a", "reloaded", before["a"]) in events)
    stop.set()
    await asyncio.wait_for(running, PATIENCE)
    stopped = {name: pid for name, what, pid in stage.events() if what == "stopped"}
    assert stopped == before


@asynccontextmanager
async def _running(supervisor: Supervisor) -> AsyncIterator[None]:
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(running, PATIENCE)


async def test_programs_are_renewed_one_after_another(stage: Stage) -> None:
    """Each old process is drained after the new one serves, and before the next renewal."""
    supervisor = Supervisor([stage.program(name, "renewed") for name in ("a", "b")])
    async with _running(supervisor):
        await stage.until(lambda events: len(events) == 2)
        before = supervisor.pids()
        supervisor.reload()
        await stage.until(lambda events: len(events) == 6)
        assert [event[:2] for event in stage.events()[2:5:2]] == [
            ("a", "started"),
            ("b", "started"),
        ]
        left = {name: pid for name, what, pid in stage.events() if what == "left"}
        assert left == before
        assert not set(supervisor.pids().values()) & set(before.values())


async def test_what_does_not_start_takes_no_place(stage: Stage) -> None:
    """If a new process ends before it serves, the old processes continue."""
    supervisor = Supervisor([stage.program(name, "renewed") for name in ("a", "b")])
    async with _running(supervisor):
        await stage.until(lambda events: len(events) == 2)
        before = supervisor.pids()
        stage.fail(is_failing=True)
        supervisor.reload()
        await stage.until(lambda events: any(what == "failed" for _, what, _ in events))
        assert supervisor.pids() == before
        stage.fail(is_failing=False)
        supervisor.reload()
        await stage.until(lambda events: sum(what == "left" for _, what, _ in events) == 2)
    assert sum(what == "failed" for _, what, _ in stage.events()) == 1


async def test_of_one_program_two_processes_are_the_most(stage: Stage) -> None:
    """A process that ignores its drain is stopped at the next renewal."""
    supervisor = Supervisor([stage.program("a", "staying")])
    async with _running(supervisor):
        await stage.until(lambda events: len(events) == 1)
        first = supervisor.pids()["a"]
        supervisor.reload()
        await stage.until(lambda events: ("a", "told", first) in events)
        assert ("a", "stopped", first) not in stage.events()
        supervisor.reload()
        await stage.until(lambda events: ("a", "stopped", first) in events)
    assert not any(_command(pid) for _, _, pid in stage.events())


async def test_what_is_killed_after_a_renewal_is_started_again(stage: Stage) -> None:
    """A process from a renewal is restarted like the one before."""
    supervisor = Supervisor([stage.program("a", "renewed")])
    async with _running(supervisor):
        await stage.until(lambda events: len(events) == 1)
        supervisor.reload()
        await stage.until(lambda events: any(what == "left" for _, what, _ in events))
        os.kill(supervisor.pids()["a"], signal.SIGKILL)
        await stage.until(lambda events: sum(what == "started" for _, what, _ in events) == 3)


async def test_restarts_come_ever_more_slowly(stage: Stage) -> None:
    """A program that always fails is restarted with growing pauses."""
    supervisor = Supervisor([stage.program("a", "1")])
    stop = asyncio.Event()
    began = time.monotonic()
    running = asyncio.create_task(supervisor.run(stop))
    await stage.until(lambda events: len(events) == 4)
    assert time.monotonic() - began >= 0.1 + 0.2 + 0.4
    stop.set()
    await asyncio.wait_for(running, PATIENCE)
    assert len(stage.events()) <= 5


@pytest.mark.parametrize(
    ("status", "message"),
    [(os.EX_CONFIG, "cannot start as it is set up"), (os.EX_SOFTWARE, "self-test failed")],
)
async def test_a_fatal_exit_ends_everything(stage: Stage, status: int, message: str) -> None:
    """An exit status that a restart would not change stops all programs, and names the program."""
    supervisor = Supervisor([stage.program("good"), stage.program("bad", str(status))])
    with pytest.raises(FatalExitError, match=f"the bad ended: .*{message}"):
        await asyncio.wait_for(supervisor.run(asyncio.Event()), PATIENCE)
    assert supervisor.pids() == {} or not any(map(_command, supervisor.pids().values()))
    assert not any(_command(pid) for _, _, pid in stage.events())


async def test_what_ends_again_and_again_ends_everything(stage: Stage) -> None:
    """A program that fails right after each start is given up with its exit status."""
    supervisor = Supervisor([stage.program("well"), stage.program("failing", "1")])
    with pytest.raises(FatalExitError, match=r"failing ended: it ended 5 times .* status 1"):
        await asyncio.wait_for(supervisor.run(asyncio.Event()), PATIENCE)
    started = [name for name, what, _ in stage.events() if what == "started"]
    assert (started.count("failing"), started.count("well")) == (5, 1)


async def test_a_foreign_program_is_given_up_with_what_it_says(
    stage: Stage, capfd: pytest.CaptureFixture[str]
) -> None:
    """The last line of a foreign program is the cause, and all lines are passed on."""
    script = "echo first >&2; echo 'unknown rule +client|setinfo' >&2; exit 1"
    supervisor = Supervisor([Program("valkey", None, ("/bin/sh", "-c", script))])
    with pytest.raises(FatalExitError, match=r"it says: unknown rule \+client\|setinfo"):
        await asyncio.wait_for(supervisor.run(asyncio.Event()), PATIENCE)
    assert "valkey: first" in capfd.readouterr().err


async def test_told_to_stop_before_anything_runs(stage: Stage) -> None:
    """A stop before the start leaves nothing running."""
    stop = asyncio.Event()
    stop.set()
    supervisor = Supervisor([stage.program("a")])
    await asyncio.wait_for(supervisor.run(stop), PATIENCE)
    await asyncio.sleep(0.5)
    assert not any(_command(pid) for _, _, pid in stage.events())


async def test_a_program_that_cannot_be_started(stage: Stage) -> None:
    """If a program cannot be started, run raises an error."""
    program = stage.program("a")
    supervisor = Supervisor([Program(program.name, program.module, program.arguments, (9_999,))])
    with pytest.raises(Exception, match=r"."):
        await asyncio.wait_for(supervisor.run(asyncio.Event()), PATIENCE)


async def test_one_of_a_kind_that_cannot_run_leaves_the_others(stage: Stage) -> None:
    """A program that cannot run stays stopped until a reload.

    If no program of its kind can run, all end.
    """
    well = replace(stage.program("a"), is_one_of="kind")
    lost = replace(stage.program("b", str(os.EX_CONFIG)), is_one_of="kind")
    supervisor = Supervisor([well, lost])
    async with _running(supervisor):
        await stage.until(lambda events: {name for name, _, _ in events} == {"a", "b"})
        await stage.until(lambda _: supervisor.lost == {"b"})
        assert list(supervisor.pids()) == ["a"]
        supervisor.reload()
        await stage.until(lambda _: len(_of(stage, "b")) == 2 and supervisor.lost == {"b"})
    alone = Supervisor([lost, replace(lost, name="c")])
    with pytest.raises(FatalExitError, match="cannot start as it is set up"):
        await asyncio.wait_for(alone.run(asyncio.Event()), PATIENCE)


async def test_programs_are_added(stage: Stage) -> None:
    """A new program is started beside the others; a known one is not started twice."""
    supervisor = Supervisor([stage.program("a")])
    async with _running(supervisor):
        await stage.until(lambda events: len(events) == 1)
        for _ in range(2):
            supervisor.add([stage.program("a"), stage.program("b")])
        await stage.until(lambda _: len(_of(stage, "b")) == 1)
        os.kill(supervisor.pids()["b"], signal.SIGKILL)
        await stage.until(lambda _: len(_of(stage, "b")) == 2)
    stopped = [name for name, what, _ in stage.events() if what == "stopped"]
    assert stopped == ["a", "b"]


async def test_programs_are_removed(stage: Stage) -> None:
    """Programs of a kind that are no longer named end for good; the others continue."""
    a, b, c = (replace(stage.program(name), is_one_of="kind") for name in ("a", "b", "c"))
    other = stage.program("d")
    supervisor = Supervisor([a, b, c, other])
    async with _running(supervisor):
        await stage.until(lambda events: len(events) == 4)
        for _ in range(2):
            supervisor.remove("kind", {"a", "c"})
        await stage.until(lambda events: ("b", "stopped") in {event[:2] for event in events})
        os.kill(supervisor.pids()["a"], signal.SIGKILL)
        await stage.until(lambda _: len(_of(stage, "a")) == 2)
        await stage.until(lambda _: sorted(supervisor.pids()) == ["a", "c", "d"])
        assert len(_of(stage, "b")) == 1


async def test_what_was_to_be_removed_is_stopped_with_the_others(stage: Stage) -> None:
    """A stop during a removal leaves nothing running."""
    a, b, c = (replace(stage.program(name), is_one_of="kind") for name in ("a", "b", "c"))
    supervisor = Supervisor([a, b])
    stop = asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    await stage.until(lambda events: len(events) == 2)
    supervisor.add([c])
    supervisor.remove("kind", {"a", "c"})
    stop.set()
    await asyncio.wait_for(running, PATIENCE)
    stopped = [name for name, what, _ in stage.events() if what == "stopped" and name != "c"]
    assert stopped == ["b", "a"]


def _of(stage: Stage, name: str) -> list[int]:
    """Return the started processes of a program."""
    return [pid for of, what, pid in stage.events() if (of, what) == (name, "started")]
