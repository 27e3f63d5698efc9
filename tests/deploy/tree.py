"""A Debian installation in a folder: made once, changed in memory only, entered with chroot.

``enter`` gives this process its own mounts and process ids. So nothing remains at its end: no
mount, no process, and no change in the folder.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from packaging.markers import Marker

INSIDE = "PQKEEP_INSIDE"
PACKAGES = ("ca-certificates", "curl", "make", "openssl", "python3", "python3-venv")
WHEELS = Path("wheels")
PROGRAMS = Path("/opt/pqkeep")
SECONDS = 300.0
GLIBC = (17, 24, 26, 28, 31, 34)
ENVIRONMENT = {"PATH": "/opt/pqkeep/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


@dataclass(frozen=True)
class Suite:
    """A release of Debian."""

    name: str
    python: str
    post_quantum: bool
    """True if its OpenSSL has post-quantum key exchange."""


SUITES = {
    each.name: each
    for each in (
        Suite("bookworm", "3.11", post_quantum=False),
        Suite("trixie", "3.13", post_quantum=True),
    )
}


class CampaignError(Exception):
    """A step failed. The text is the observation."""


def prepare(folder: Path, suite: Suite, requirements: Path) -> None:
    """Make a tree and download its packages, each once. Needs root and the network."""
    if not (folder / "tree").exists():
        folder.mkdir(parents=True, exist_ok=True)
        browser = ("chromium",) if suite.post_quantum else ()
        packages = f"--include={','.join((*PACKAGES, *browser))}"
        partial = folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        command: list[str | Path] = [
            *("unshare", "--mount"),  # what it mounts is gone with it, however it ends
            *("mmdebstrap", "--quiet", "--variant=minbase", packages, suite.name, partial),
        ]
        subprocess.run(command, check=True)
        partial.rename(folder / "tree")
    needed = folder / "requirements.txt"
    needed.write_text(_needed(requirements.read_text(), _python_version(folder / "tree")))
    version = suite.python.replace(".", "")
    targets = [f"manylinux_2_{number}_{platform.machine()}" for number in GLIBC]
    download: list[str | Path] = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"),
        *("--require-hashes", f"--requirement={needed}", f"--dest={folder / WHEELS}"),
        *(f"--python-version={suite.python}", "--implementation=cp"),
        *(f"--abi={abi}" for abi in (f"cp{version}", "abi3", "none")),
        *(f"--platform={target}" for target in (*targets, "any")),
    ]
    subprocess.run(download, check=True)


def _python_version(tree: Path) -> str:
    program = [
        "chroot",
        str(tree),
        "python3",
        "-c",
        "import platform; print(platform.python_version())",
    ]
    return subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _needed(requirements: str, version: str) -> str:
    """Return the requirements for a Python version, because pip uses the markers of its own version."""
    environment = {"python_full_version": version}
    kept = []
    for entry in re.split(r"\n(?=\S)", requirements):
        first, line_end, hashes = entry.partition("\n")
        name, _, marker = first.removesuffix("\\").partition(" ; ")
        if not marker or Marker(marker.strip()).evaluate(environment):
            kept.append(f"{name.strip()} \\{line_end}{hashes}")
    return "\n".join(kept)


def is_inside() -> bool:
    """Return True if this process has its own mounts and process ids."""
    return INSIDE in os.environ


def enter() -> None:
    """Restart this program with its own mounts and process ids, unless it already has them."""
    if not is_inside():
        own = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        program = [sys.executable, "-m", "tests.deploy", *sys.argv[1:]]
        os.execvpe(own[0], [*own, *program], {**os.environ, INSIDE: "1"})  # noqa: S606 - without a shell


class Tree:
    """An entered tree: its original files, with all changes in memory."""

    def __init__(self, folder: Path, dist: Path) -> None:
        """Mount it. The wheels are in ``/wheels``."""
        memory = folder / "memory"
        memory.mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", memory)
        for name in ("upper", "work", "root"):
            (memory / name).mkdir()
        layers = f"lowerdir={folder / 'tree'},upperdir={memory / 'upper'},workdir={memory / 'work'}"
        self.root = memory / "root"
        _run("mount", "-t", "overlay", "-o", layers, "overlay", self.root)
        _run("mount", "-t", "proc", "proc", self.root / "proc")
        _run("mount", "-t", "tmpfs", "tmpfs", self.root / "dev/shm")
        self.path("/etc/hosts").write_text("127.0.0.1 localhost\n")
        shutil.copytree(folder / WHEELS, self.root / WHEELS)
        shutil.copytree(dist, self.root / WHEELS, dirs_exist_ok=True)

    def path(self, inside: str | Path) -> Path:
        """Return the outside path of one of its files."""
        return self.root / str(inside).lstrip("/")

    def said(self, *command: str | Path, status: int | None = 0, text: str = "") -> str:
        """Return a command's output. Raises CampaignError for another status."""
        done = subprocess.run(
            self.command(*command),
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        if status is not None and done.returncode != status:
            raise CampaignError(f"{command} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    @contextmanager
    def running(
        self, *command: str | Path, until: str, pass_fds: Sequence[int] = ()
    ) -> Iterator[Running]:
        """Run a program for a block, which begins when the program has written a text."""
        name = f"log-{time.monotonic_ns()}"
        with self.path(name).open("wb") as log:
            process = subprocess.Popen(
                self.command(*command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=ENVIRONMENT,
                pass_fds=pass_fds,
            )
        running = Running(process, self.path(name))
        try:
            running.wait_for(until)
            yield running
        finally:
            process.terminate()
            process.wait(SECONDS)

    def command(self, *command: str | Path) -> list[str]:
        """Return a command that runs another one in the tree."""
        return ["chroot", str(self.root), *map(str, command)]


@dataclass(frozen=True)
class Running:
    """A program running in a tree."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, text: str) -> None:
        """Wait until its output has a text. Raises CampaignError."""
        wait_until(lambda: text in self.log.read_text() or self.process.poll() is not None)
        if text not in self.log.read_text():
            raise CampaignError(f"it ended:\n{self.log.read_text()}")


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition. Raises CampaignError."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise CampaignError("it was not so in time")
        time.sleep(0.05)


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)
