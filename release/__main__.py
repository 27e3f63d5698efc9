"""``make release``: complete ``dist/``, where ``make wheels`` has put the five wheels."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import mldsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from release import archives, bills, debian
from release.wheels import MACHINES, PYTHONS, Wheel, closure, download, environment, wheels_in

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".release"
LOCK = ROOT / "requirements/all.txt"
NOTES_LINES = 30
SUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
EXTRAS = (
    "pqkeep[cli,local,audit,kubernetes,sql]",
    "pqkeep-gateway[opentelemetry,stripe]",
    "pqkeep-keyservice[pkcs11]",
    "pqkeep-server[valkey]",
)
BUNDLED = ("run.txt", "kubernetes.txt", "all.txt", "deploy.tar.gz")


class ReleaseError(Exception):
    """A release cannot be made. The text says why, and what to do."""


def main() -> int:
    """Make a release, or the part that the arguments leave. Exit status 1: it cannot be made."""
    parser = argparse.ArgumentParser(prog="make release")
    parser.add_argument("--key", type=Path, help="the ML-DSA private key (PEM) that signs the sums")
    parser.add_argument("--dirty", action="store_true", help="permit changes that no commit has")
    parser.add_argument("--machine", choices=MACHINES, action="append", help="only this machine")
    parser.add_argument(
        "--images", action="store_true", help="also build the container images: needs root"
    )
    arguments = parser.parse_args()
    os.umask(0o022)
    try:
        if not arguments.dirty:
            _require_commit()
        machines = arguments.machine or list(MACHINES)
        make(ROOT / "dist", machines, _epoch(), arguments.key, images=arguments.images)
    except (ReleaseError, debian.ConflictError) as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    return 0


def make(
    dist: Path, machines: Sequence[str], epoch: int, key: Path | None, *, images: bool = False
) -> None:
    """Add packages, bundles, bills, chart, notes, sums and a signature to a folder with the wheels.

    Raises ReleaseError if the images cannot be built.
    """
    own = wheels_in(dist)
    version = one_version(own)
    for wheel in own:
        _write_bill(
            dist, wheel.path.name, version, [wheel.name], {"3.11": [wheel]}, "x86_64", epoch
        )
    for machine in machines:
        locked = {
            python: download(LOCK, CACHE / machine / python, python, machine) for python in PYTHONS
        }
        make_packages(dist, own, locked, machine, epoch)
        target = dist / f"pqkeep-{version}-linux-{bundle_machine(machine)}.tar.gz"
        parts = {python: [*own, *wheels] for python, wheels in locked.items()}
        every = {wheel.path.name: wheel for wheels in parts.values() for wheel in wheels}.values()
        others = [*(dist / name for name in BUNDLED), ROOT / "LICENSE"]
        archives.bundle(target, every, others, epoch)
        _write_bill(dist, target.name, version, EXTRAS, parts, machine, epoch)
        print(f"made {target.name}", flush=True)
    archives.chart(dist / f"pqkeep-{version}-chart.tgz", ROOT / "deploy/helm/pqkeep", epoch)
    if images:
        _make_images(epoch)
    (dist / "RELEASE-NOTES.md").write_text(notes(version, (ROOT / "CHANGELOG.md").read_text()))
    write_sums(dist)
    if key is not None:
        sign(dist, key)
    else:
        print(f"not signed: name the private key with ARGS='--key FILE' for {SIGNATURE}")


def bundle_machine(machine: str) -> str:
    """Return the name that a bundle has for a machine."""
    return "arm64" if machine == "aarch64" else machine


def make_packages(
    dist: Path,
    own: Sequence[Wheel],
    locked: Mapping[str, Sequence[Wheel]],
    machine: str,
    epoch: int,
) -> list[Path]:
    """Build both Debian packages for a machine, with their bills; return their paths."""
    made = []
    for package in (debian.SERVER, debian.CLIENT):
        parts = {
            python: list(
                closure(package.roots, [*own, *wheels], environment(python, machine)).values()
            )
            for python, wheels in locked.items()
        }
        name = f"{package.name}_{one_version(own)}_{MACHINES[machine]}.deb"
        bill = _write_bill(dist, name, one_version(own), package.roots, parts, machine, epoch)
        made.append(debian.build(package, parts, bill, MACHINES[machine], epoch, dist))
        print(f"made {made[-1].name}", flush=True)
    return made


def one_version(own: Sequence[Wheel]) -> str:
    """Return the version of the five wheels. Raises ReleaseError if they differ."""
    versions = {wheel.version for wheel in own}
    if len(versions) != 1:
        raise ReleaseError(f"dist/ has wheels of several versions: {sorted(versions)}")
    return versions.pop()


def _write_bill(
    dist: Path,
    name: str,
    version: str,
    roots: Sequence[str],
    parts: Mapping[str, Sequence[Wheel]],
    machine: str,
    epoch: int,
) -> bytes:
    every = {wheel.path.name: wheel for wheels in parts.values() for wheel in wheels}.values()
    values = [environment(python, machine) for python in parts]
    made = bills.bill(name, version, roots, every, values, epoch)
    (dist / f"{name}.cdx.json").write_bytes(made)
    return made


def _make_images(epoch: int) -> None:
    done = subprocess.run(
        [ROOT / "deploy/containers/images"],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
        check=False,
    )
    if done.returncode:
        raise ReleaseError("the container images were not built: see above")


def notes(version: str, changelog: str) -> str:
    """Return the release notes: how to begin, and the first changes, in 30 lines at most.

    Raises ReleaseError if the changelog does not have the version.
    """
    parts = re.split(r"^## ", changelog, flags=re.MULTILINE)
    section = next((part for part in parts if part.startswith(f"{version}:")), None)
    if section is None:
        raise ReleaseError(f"CHANGELOG.md has no section {version}: write it first")
    changes = [line for line in section.splitlines()[1:] if line.startswith("- ")]
    changes = [
        re.sub(r" ?\(\[[^]]*\]\([^)]*\)\)|\[([^]]*)\]\([^)]*\)", r"\1", line) for line in changes
    ]
    head = [
        f"# pqkeep {version}",
        "",
        "Verify the files first, then install: docs/installation.md says how.",
        "Before an upgrade, make a backup. An older version refuses a database with a newer schema.",
        "",
    ]
    capacity = NOTES_LINES - len(head)
    if len(changes) > capacity:
        left = len(changes) - capacity + 1
        changes = [*changes[: capacity - 1], f"- {left} more are in CHANGELOG.md."]
    return "\n".join([*head, *changes, ""])


def write_sums(dist: Path) -> None:
    """Write the SHA-256 of each file of the folder, and remove an older signature."""
    for name in (SUMS, SIGNATURE):
        (dist / name).unlink(missing_ok=True)
    lines = []
    for path in sorted(dist.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (dist / SUMS).write_text("".join(lines))


def sign(dist: Path, key_file: Path) -> None:
    """Sign the sums with an ML-DSA key. Raises ReleaseError if the file has no such key."""
    try:
        key = load_pem_private_key(key_file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ReleaseError(f"{key_file} is not a private key in PEM without a password") from error
    if not isinstance(key, mldsa.MLDSA65PrivateKey | mldsa.MLDSA87PrivateKey):
        raise ReleaseError(f"{key_file} is not a key of ML-DSA-65 or ML-DSA-87")
    (dist / SIGNATURE).write_bytes(key.sign((dist / SUMS).read_bytes()))
    print(f"signed {SUMS}")


def _require_commit() -> None:
    said = _git("status", "--porcelain")
    if said:
        raise ReleaseError(f"changes that no commit has (--dirty permits them):\n{said}")


def _epoch() -> int:
    """Return the time of the commit, or SOURCE_DATE_EPOCH."""
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError("this is no checkout of git: set SOURCE_DATE_EPOCH, and use --dirty")
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
