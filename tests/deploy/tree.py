"""A Debian installation in a folder: made once, changed in memory only, entered with chroot.

``enter`` gives this process its own mounts and process ids. So nothing remains at its end: no
mount, no process, and no change in the folder.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from release.wheels import download

INSIDE = "PQKEEP_INSIDE"
PACKAGES = ("ca-certificates", "curl", "make", "openssl", "python3", "python3-venv")
WHEELS = Path("wheels")
PROGRAMS = Path("/opt/pqkeep")
SECONDS = 300.0
BOOT = """\
control=$(findmnt --noheadings --types cgroup2 --output TARGET | head -n 1)
mkdir "$control/pqkeep-$$"
echo $$ > "$control/pqkeep-$$/cgroup.procs"
exec unshare --mount --pid --fork --kill-child --cgroup --uts --ipc sh -euc '
mount --bind "$0" "$0"
cd "$0"
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for folder in run tmp dev; do mount -t tmpfs -o mode=0755 tmpfs $folder; done
chmod 1777 tmp
for name in null zero full random urandom tty; do
    touch dev/$name
    mount --bind /dev/$name dev/$name
done
mkdir -m 1777 dev/shm
mount -t tmpfs tmpfs dev/shm
ln -s /proc/self/fd dev/fd
ln -s pts/ptmx dev/ptmx
pivot_root . mnt
umount -l /mnt
exec env -i container=pqkeep PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
' "$0"
"""
"""Makes a tree a system with systemd as its first process, in a control group of its own."""
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
    """Make a tree with Python, and download its wheels, each once. Needs root and the network."""
    browser = ("chromium",) if suite.post_quantum else ()
    make_tree(folder, suite, *PACKAGES, *browser)
    download(requirements, folder / WHEELS, suite.python, platform.machine())


def make_tree(folder: Path, suite: Suite, *packages: str) -> None:
    """Make a tree with packages of Debian, once. Needs root and the network."""
    if (folder / "tree").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / "partial"
    shutil.rmtree(partial, ignore_errors=True)
    command: list[str | Path] = [
        *("unshare", "--mount"),  # what it mounts is gone with it, however it ends
        *("mmdebstrap", "--quiet", "--variant=minbase"),
        *((f"--include={','.join(packages)}",) if packages else ()),
        *(suite.name, partial),
    ]
    subprocess.run(command, check=True)
    partial.rename(folder / "tree")


def is_inside() -> bool:
    """Return True if this process has its own mounts and process ids."""
    return INSIDE in os.environ


def enter(module: str, *more: str) -> None:
    """Restart a module with its own mounts and process ids, unless this process already has them.

    ``more`` has further options of ``unshare``.
    """
    if not is_inside():
        own = ["unshare", *more, "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        program = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execvpe(own[0], [*own, *program], {**os.environ, INSIDE: "1"})  # noqa: S606 - without a shell


class Tree:
    """An entered tree: its original files, with all changes in memory."""

    def __init__(self, folder: Path, dist: Path) -> None:
        """Mount it. The wheels, and the files of a release, are in ``/wheels``."""
        self._first = 0
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
        if (folder / WHEELS).exists():
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
        if self._first:
            namespaces = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--root", "--wd")
            return ["nsenter", f"--target={self._first}", *namespaces, *map(str, command)]
        return ["chroot", str(self.root), *map(str, command)]

    @contextmanager
    def booted(self) -> Iterator[None]:
        """Run the tree's systemd for a block. The commands of the block run beside it."""
        with self.path("log-boot").open("wb") as log:
            process = subprocess.Popen(
                ["/bin/sh", "-euc", BOOT, str(self.root)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        group = f"pqkeep-{process.pid}"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        try:
            wait_until(lambda: process.poll() is not None or self._is_up(children.read_text()))
            if process.poll() is not None:
                raise CampaignError(f"systemd ended:\n{self.path('log-boot').read_text()}")
            yield
        finally:
            self._first = 0
            process.kill()
            process.wait()
            for control in _control_groups(group):
                control.rmdir()

    def _is_up(self, children: str) -> bool:
        """Return True if a process is systemd, and has started what starts with the system."""
        first = int(children.split(maxsplit=1)[0]) if children.split() else 0
        if not first or Path(f"/proc/{first}/comm").read_text() != "systemd\n":
            return False
        self._first = first
        return self.said("systemctl", "is-system-running", status=None) in (
            "running\n",
            "degraded\n",  # it can load no module of the kernel
        )


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


def _control_groups(name: str) -> Iterator[Path]:
    """Yield the empty folders of a control group, inner folders first."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mounted, kind, *_ = line.split()
        top = Path(mounted, name)
        if kind == "cgroup2" and top.exists():
            wait_until(partial(_is_empty, top))
            folders = [path for path in top.rglob("*") if path.is_dir()]
            yield from sorted(folders, reverse=True)
            yield top


def _is_empty(group: Path) -> bool:
    return "populated 0" in (group / "cgroup.events").read_text()


def _run(*command: str | Path) -> None:
    subprocess.run(command, check=True)
