"""SIGTERM to pqkeepd before it is ready ends it at once with status 0, and leaves nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fixtures import processes
from tests.fixtures.installation import initialise_data
from tests.fixtures.processes import HOST
from tests.fixtures.two_users import IDS, pqkeepd, pqkeepd_program
from tests.patience import PATIENCE
from tests.sampling import later

from pqkeep_server.initialise import IN_FILES, Layout
from pqkeep_server.settings_file import edited

"""Seconds: two processes end one after the other, on a busy machine."""
SLEEP = "/usr/bin/sleep"
PROJECT = Path(__file__).parents[2] / "server" / "pyproject.toml"


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder that other users can reach."""
    with tempfile.TemporaryDirectory(prefix="pqkeep-") as made:
        Path(made).chmod(0o711)
        yield Path(made)


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts connections and never responds."""
    with socket.create_server((HOST, 0)) as listener:
        yield listener.getsockname()[1]


def _made(folder: Path, command: str) -> Layout:
    """Make an installation in a folder, for a command that runs it."""
    layout = Layout(folder / "data")
    if command == "start":
        made = pqkeepd("init", "--data", layout.directory, *IDS)
        assert made.returncode == 0, made.stderr
        text = layout.gateway_settings.read_text()
        ports = {"port": processes.free_port(), "management_address": "off"}
        layout.gateway_settings.write_text(edited(text, ports))
    else:
        initialise_data(layout.directory, IN_FILES, {})
    return layout


def _processes_of(layout: Layout) -> dict[int, str]:
    """Return the processes with a data directory in their arguments, and the root key commands."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(layout.directory) in words:
            found[int(entry.parent.name)] = words
    return found


def _ended(
    command: str, layout: Layout, when: Callable[[subprocess.Popen[bytes], str], bool]
) -> str:
    """Start a command, end it when a condition is true, and return its output."""
    options = ("--port", "0") if command == "dev" else ()
    output = layout.directory.parent / "output"
    words = [*pqkeepd_program(), command, *options, "--data", str(layout.directory)]
    process = processes.start(words, output)
    try:
        processes.wait_until(lambda: when(process, output.read_text()), process, output)
        process.send_signal(signal.SIGTERM)
        status = process.wait(PATIENCE)
    finally:
        processes.stop(process, signal.SIGKILL)
    said = output.read_text()
    assert status == 0, said
    assert "Traceback" not in said
    assert "killed" not in said
    deadline = time.monotonic() + PATIENCE
    while left := _processes_of(layout):  # what the kernel tells of the end of its parent
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    return said


def _is_locked(layout: Layout) -> Callable[[subprocess.Popen[bytes], str], bool]:
    return lambda _process, _said: (layout.directory / "lock").exists()


def _has_child(process: subprocess.Popen[bytes], _said: str) -> bool:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return bool(children.read_text().split())


def _says_what_is_missing(_process: subprocess.Popen[bytes], said: str) -> bool:
    return "requests are not answered yet" in said


NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="start needs root")
START, DEV = pytest.param("start", marks=NEEDS_ROOT), "dev"
"""The commands. ``make test`` runs each test with one of them."""


@pytest.mark.parametrize("command", [START, later(DEV)])
def test_before_it_starts_anything(command: str, folder: Path) -> None:
    """If a signal comes before the first process starts, the status is 0, and a start works."""
    layout = _made(folder, command)
    _ended(command, layout, _is_locked(layout))


@pytest.mark.parametrize("command", [later(START), DEV])
def test_while_it_starts_processes(command: str, folder: Path) -> None:
    """A process that has just been started ends with it."""
    layout = _made(folder, command)
    _ended(command, layout, _has_child)


@pytest.mark.parametrize(
    ("command", "which"),
    [
        pytest.param("start", "accounts", marks=NEEDS_ROOT),
        ("dev", "keys"),
        later(pytest.param("start", "keys", marks=NEEDS_ROOT)),
        later(("dev", "accounts")),
    ],
)
def test_while_a_database_hangs(command: str, which: str, folder: Path, silent: int) -> None:
    """Processes that wait for an unresponsive database server end at once."""
    layout = _made(folder, command)
    settings = layout.gateway_settings if which == "accounts" else layout.key_service_settings
    address = f"postgresql://somebody@{HOST}:{silent}/name"
    settings.write_text(edited(settings.read_text(), {"database": address}))
    _ended(command, layout, _says_what_is_missing)


@pytest.mark.parametrize("command", [later(START), DEV])
def test_while_a_root_key_is_waited_for(command: str, folder: Path) -> None:
    """The root key command ends with the key service that waits for it."""
    layout = _made(folder, command)
    settings = layout.key_service_settings
    source = {"1": {"command": ["/bin/sh", "-c", f"exec {SLEEP} 1000 # {layout.directory}"]}}
    changes = {"root_key_file": None, "root_keys": source}
    settings.write_text(edited(settings.read_text(), changes))
    _ended(command, layout, _says_what_is_missing)


@pytest.mark.parametrize(
    ("program", "module"),
    [("pqkeepd", "typer"), ("pqkeep_gateway", "structlog"), ("pqkeep_keyservice", "structlog")],
)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_during_imports(
    program: str, module: str, number: signal.Signals, tmp_path: Path
) -> None:
    """Ctrl-C while Python imports a program ends it by the signal, without a traceback."""
    (tmp_path / f"{module}.py").write_text("print('importing', flush=True)\nopen(0).read()\n")
    scripts = tomllib.loads(PROJECT.read_text())["project"]["scripts"]
    if program in scripts:
        entry, _, function = scripts[program].partition(":")
        words = ["-c", f"from {entry} import {function} as main; main()"]
    else:
        words = ["-m", program, "settings.toml"]
    process = subprocess.Popen(
        [sys.executable, "-P", *words],
        env={"PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert (process.returncode, said) == (-number, b"")


@pytest.mark.parametrize("command", [later(START), DEV])
def test_signals_without_a_meaning(command: str, folder: Path) -> None:
    """SIGUSR1 and SIGUSR2 do not end pqkeepd or the processes of a key service."""
    layout = _made(folder, command)

    def is_told(process: subprocess.Popen[bytes], _said: str) -> bool:
        pids = processes.children_by_module(process.pid)
        if "pqkeep_keyservice" not in pids or not layout.operator_socket.exists():
            return False
        told = [process.pid, pids["pqkeep_keyservice"]]
        for pid in told:
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                os.kill(pid, number)
        return all(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in told)  # not ended

    said = _ended(command, layout, is_told)
    assert "a process ended" not in said
