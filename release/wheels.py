"""Wheels: downloaded by hash, with their metadata, and what of them a distribution needs."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

PYTHONS = ("3.11", "3.13")
"""The Python of Debian 12, and of Debian 13."""
MACHINES: Mapping[str, str] = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's name of each architecture, with Debian's."""
GLIBC = (17, 24, 26, 28, 31, 34, 36)
"""Versions 2.N of the C library that Debian 12 can serve."""


@dataclass(frozen=True)
class Wheel:
    """A file of a distribution."""

    path: Path

    @cached_property
    def name(self) -> str:
        """The distribution's name, in its canonical form."""
        return str(parse_wheel_filename(self.path.name)[0])

    @cached_property
    def version(self) -> str:
        """The distribution's version."""
        return str(parse_wheel_filename(self.path.name)[1])

    @cached_property
    def glibc(self) -> int:
        """The N of the oldest C library 2.N that it needs; 0 without machine code."""
        tags = self.path.stem.rpartition("-")[2].split(".")
        found = [int(number) for tag in tags for number in re.findall(r"manylinux_2_(\d+)_", tag)]
        found += [17 for tag in tags if tag.startswith("manylinux2014")]
        return min(found, default=0)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the file, in hexadecimal."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    @cached_property
    def metadata(self) -> Message:
        """Name, licence, summary and requirements."""
        with zipfile.ZipFile(self.path) as archive:
            (name,) = (
                member for member in archive.namelist() if member.endswith(".dist-info/METADATA")
            )
            return HeaderParser().parsestr(archive.read(name).decode())

    def needs(self, extras: Iterable[str], environment: Mapping[str, str]) -> list[Requirement]:
        """Return its requirements with these extras."""
        all_of_them = [Requirement(text) for text in self.metadata.get_all("Requires-Dist", [])]
        return [
            requirement
            for requirement in all_of_them
            if requirement.marker is None
            or any(
                requirement.marker.evaluate({**environment, "extra": extra})
                for extra in ("", *extras)
            )
        ]


def environment(python: str, machine: str) -> dict[str, str]:
    """Return the values of markers for a Python on a Linux machine."""
    return {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def download(requirements: Path, target: Path, python: str, machine: str) -> list[Wheel]:
    """Download the wheels of locked requirements for a Python and a machine, where they are missing.

    Removes other files from the target. Raises CalledProcessError.
    """
    target.mkdir(parents=True, exist_ok=True)
    needed = target.parent / f"{target.name}.txt"
    marked = _needed(requirements.read_text(), environment(python, machine))
    if not (needed.exists() and needed.read_text() == marked):
        for old in target.iterdir():
            old.unlink()
        version = python.replace(".", "")
        tags = [f"manylinux_2_{number}_{machine}" for number in GLIBC]
        partial = target.parent / f"{target.name}.partial"
        partial.write_text(marked)
        command: list[str | Path] = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"),
            *("--no-deps", "--require-hashes", f"--requirement={partial}", f"--dest={target}"),
            *(f"--python-version={python}", "--implementation=cp"),
            *(f"--abi={abi}" for abi in (f"cp{version}", "abi3", "none")),
            *(f"--platform={tag}" for tag in (*tags, f"manylinux2014_{machine}", "any")),
        ]
        subprocess.run(command, check=True)
        partial.rename(needed)
    return wheels_in(target)


def wheels_in(folder: Path) -> list[Wheel]:
    """Return the wheels of a folder, by name."""
    return [Wheel(path) for path in sorted(folder.glob("*.whl"))]


def _needed(requirements: str, values: Mapping[str, str]) -> str:
    """Return the requirements with true markers, without the markers: pip uses its own Python's values."""
    kept = []
    for entry in re.split(r"\n(?=\S)", requirements):
        first, line_end, hashes = entry.partition("\n")
        name, _, marker = first.removesuffix("\\").partition(" ; ")
        if not marker or Marker(marker.strip()).evaluate(dict(values)):
            kept.append(f"{name.strip()} \\{line_end}{hashes}")
    return "\n".join(kept)


def closure(
    roots: Sequence[str], wheels: Iterable[Wheel], values: Mapping[str, str]
) -> dict[str, Wheel]:
    """Return the wheels that the roots (``name[extra]``) need, with the roots, by name.

    Raises KeyError for a requirement without a wheel.
    """
    available = {wheel.name: wheel for wheel in wheels}
    found: dict[str, set[str]] = {}
    waiting = [Requirement(root) for root in roots]
    while waiting:
        requirement = waiting.pop()
        name = str(canonicalize_name(requirement.name))
        if name in found and requirement.extras <= found[name]:
            continue
        found[name] = found.get(name, set()) | requirement.extras
        waiting += available[name].needs(found[name], values)
    return {name: available[name] for name in sorted(found)}
