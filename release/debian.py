"""Debian packages: one file for each architecture, for Debian 12 and Debian 13.

Each package has its own environment in /opt, with one folder of modules for both Pythons: their
modules in machine code have different names, and everything else is the same.
"""

from __future__ import annotations

import datetime as dt
import gzip
import os
import shutil
import subprocess
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import typer.main

import pqkeep.cli
import pqkeep_server.cli
from release import pages
from release.wheels import PYTHONS, Wheel

FOLDER = Path(__file__).parent / "debian"
DEPLOY = Path(__file__).parents[1] / "deploy"
MAINTAINER = "the maintainers of pqkeep <maintainers@pqkeep.invalid>"
PYTHON = "python3 (>= 3.11~), python3 (<< 3.12~) | python3 (>= 3.13~), python3 (<< 3.14~)"
SYSUSERS = "systemd-standalone-sysusers | systemd | systemd-sysusers"
AGE_PLUGIN = (
    "age starts it for recipients and identities of pqkeep, when it is on the PATH. It has no"
    " options. pqkeep(1) describes the commands pqkeep age."
)


class ConflictError(Exception):
    """Two wheels have different content for one file."""


@dataclass(frozen=True)
class Package:
    """What makes a package, beside its version and architecture."""

    name: str
    roots: Sequence[str]
    """Distributions, with the extras that are in the package."""
    environment: str
    """The folder of its modules and programs."""
    programs: Mapping[str, int]
    """Its commands, with the section of each one's manual page."""
    units: Sequence[str]
    sysusers: Path
    fields: Mapping[str, str]
    summary: str
    description: str


SERVER = Package(
    name="pqkeep-server",
    roots=(
        "pqkeep-server",
        "pqkeep-gateway[opentelemetry,stripe]",
        "pqkeep-keyservice[pkcs11]",
    ),
    environment="opt/pqkeep",
    programs={"pqkeepd": 8},
    units=(
        *("pqkeep-gateway.service", "pqkeep-gateway@.service"),
        *("pqkeep-keyservice.service", "pqkeep-keyservice@.service"),
        *("pqkeep-backup.service", "pqkeep-backup.timer"),
    ),
    sysusers=DEPLOY / "systemd/pqkeep-sysusers.conf",
    fields={
        "Depends": f"{SYSUSERS}, init-system-helpers (>= 1.60)",
        "Recommends": "ca-certificates",
        "Suggests": "pqkeep, postgresql, valkey-server | redis-server",
    },
    summary="post-quantum cryptography service",
    description=(
        "pqkeep encrypts, wraps and signs for applications over HTTP, with ML-KEM, X-Wing, ML-DSA"
        " and SLH-DSA, for any number of tenants. One process has every private key, and writes a"
        " durable audit record before each response.\n\nThis package has the gateway, the key"
        " service and the command pqkeepd."
    ),
)
CLIENT = Package(
    name="pqkeep",
    roots=("pqkeep[cli,local,audit,kubernetes]",),
    environment="opt/pqkeep-client",
    programs={"pqkeep": 1, "age-plugin-pqkeep": 1},
    units=("pqkeep-kms-plugin.service",),
    sysusers=FOLDER / "pqkeep.sysusers",
    fields={
        "Recommends": "ca-certificates",
        "Suggests": "age, systemd-standalone-sysusers | systemd | systemd-sysusers",
    },
    summary="command-line client of the post-quantum cryptography service pqkeep",
    description=(
        "The command pqkeep encrypts files on this machine, signs and verifies, manages keys, and"
        " verifies exported audit logs. age-plugin-pqkeep serves age and SOPS.\n\nThe package also"
        " has the plugin of a Kubernetes API server, which is a unit of systemd."
    ),
)


def build(
    package: Package,
    wheels: Mapping[str, Iterable[Wheel]],
    bill: bytes,
    architecture: str,
    epoch: int,
    folder: Path,
) -> Path:
    """Write a package into a folder; return its path. ``wheels`` are the package's, for each Python.

    Raises ConflictError, and CalledProcessError with what dpkg-deb says.
    """
    every = {wheel.path.name: wheel for part in wheels.values() for wheel in part}.values()
    version = next(wheel.version for wheel in every if wheel.name == package.name)
    tree = folder / f"{package.name}-{architecture}"
    shutil.rmtree(tree, ignore_errors=True)
    _environment(tree / package.environment, package, every)
    _system_files(tree, package, version, bill, epoch)
    _control(tree, package, version, architecture, every)
    _normalize(tree, epoch)
    target = folder / f"{package.name}_{version}_{architecture}.deb"
    subprocess.run(
        [
            "dpkg-deb",
            "--root-owner-group",
            "-Zzstd",
            "-z6",
            "--threads-max=1",
            "--build",
            tree,
            target,
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)},
    )
    shutil.rmtree(tree)
    return target


def _environment(root: Path, package: Package, wheels: Iterable[Wheel]) -> None:
    modules = root / "lib/python3/site-packages"
    for wheel in wheels:
        _unpack(wheel, modules)
    for python in PYTHONS:
        (root / f"lib/python{python}").symlink_to("python3")
    programs = root / "bin"
    programs.mkdir()
    (programs / "python").symlink_to("/usr/bin/python3")
    (programs / "python3").symlink_to("python")
    (root / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for name in package.programs:
        module, _, function = _entry_point(modules, name).partition(":")
        (programs / name).write_text(
            f"#!/{package.environment}/bin/python -P\n"
            f"import sys\n\nfrom {module} import {function}\n\nsys.exit({function}())\n"
        )


def _unpack(wheel: Wheel, modules: Path) -> None:
    """Write a wheel's files. Raises ConflictError if another wheel has another file of that name."""
    with zipfile.ZipFile(wheel.path) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            data_folder = path.parts[0].endswith(".data")
            if member.is_dir() or (data_folder and path.parts[1] not in {"purelib", "platlib"}):
                continue  # headers, and scripts of other commands
            target = modules.joinpath(*path.parts[2 if data_folder else 0 :])
            data = archive.read(member)
            is_metadata = ".dist-info/" in member.filename
            if target.exists() and not is_metadata and target.read_bytes() != data:
                raise ConflictError(f"{wheel.path.name}: {member.filename}")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            if member.external_attr >> 16 & 0o100:
                target.chmod(0o755)


def _entry_point(modules: Path, program: str) -> str:
    for file in sorted(modules.glob("pqkeep*.dist-info/entry_points.txt")):
        parser = ConfigParser()
        parser.read_string(file.read_text())
        if parser.has_option("console_scripts", program):
            return parser.get("console_scripts", program)
    raise ConflictError(f"no wheel has the program {program}")


def _system_files(tree: Path, package: Package, version: str, bill: bytes, epoch: int) -> None:
    files: dict[str, bytes] = {}
    for unit in package.units:
        text = (DEPLOY / "systemd" / unit).read_text()
        text = text.replace("=/opt/pqkeep/", f"=/{package.environment}/")
        files[f"usr/lib/systemd/system/{unit}"] = text.encode()
    files[f"usr/lib/sysusers.d/{package.name}.conf"] = package.sysusers.read_bytes()
    for program in package.programs:
        text, section = manual_page(program, version, epoch), package.programs[program]
        files[f"usr/share/man/man{section}/{program}.{section}.gz"] = gzip.compress(
            text.encode(), mtime=0
        )
        if program in COMMANDS:
            for shell, place in pages.SHELLS.items():
                files[place.format(program)] = pages.completion(program, shell).encode()
    documents = f"usr/share/doc/{package.name}"
    files[f"{documents}/copyright"] = _copyright().encode()
    files[f"{documents}/sbom.cdx.json"] = bill
    changes = (DEPLOY.parent / "CHANGELOG.md").read_bytes()
    files[f"{documents}/changelog.gz"] = gzip.compress(changes, mtime=0)
    if package.name == SERVER.name:
        (tree / "etc/pqkeep").mkdir(parents=True)
        (tree / "var/backups/pqkeep").mkdir(parents=True)
        for path in (
            *DEPLOY.glob("observability/*"),
            *DEPLOY.glob("*.sql"),
            *DEPLOY.glob("*.conf"),
        ):
            files[f"{documents}/examples/{path.name}"] = path.read_bytes()
        network = DEPLOY / "systemd/pqkeep-keyservice.service.d/network.conf"
        files[f"{documents}/examples/network.conf"] = network.read_bytes()
    for name, data in files.items():
        target = tree / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    programs = tree / "usr/bin"
    programs.mkdir()
    for program in package.programs:
        (programs / program).symlink_to(f"/{package.environment}/bin/{program}")


COMMANDS = {"pqkeepd": pqkeep_server.cli.app, "pqkeep": pqkeep.cli.app}


def manual_page(program: str, version: str, epoch: int) -> str:
    """Return the manual page of a program, in roff."""
    date = _date(epoch)
    section = {**SERVER.programs, **CLIENT.programs}[program]
    if program not in COMMANDS:
        purpose = "decrypt files of age with keys of pqkeep"
        return pages.plain_page(program, section, purpose, AGE_PLUGIN, version, date)
    command = typer.main.get_command(COMMANDS[program])
    return pages.manual_page(command, program, section, version, date)


def _control(
    tree: Path, package: Package, version: str, architecture: str, wheels: Iterable[Wheel]
) -> None:
    glibc = max(17, *(wheel.glibc for wheel in wheels))
    depends = f"{PYTHON}, libc6 (>= 2.{glibc}), libgcc-s1, libstdc++6"
    size = sum(path.stat().st_size for path in tree.rglob("*") if path.is_file())
    fields = {
        "Package": package.name,
        "Version": version,
        "Architecture": architecture,
        "Maintainer": MAINTAINER,
        "Installed-Size": str(size // 1024),
        "Section": "net",
        "Priority": "optional",
        **package.fields,
        "Depends": ", ".join(filter(None, (depends, package.fields.get("Depends")))),
    }
    lines = [f"{name}: {value}\n" for name, value in fields.items()]
    text = package.description.replace("\n\n", "\n.\n").replace("\n", "\n ")
    lines.append(f"Description: {package.summary}\n {text}\n")
    control = tree / "DEBIAN"
    control.mkdir()
    (control / "control").write_text("".join(lines))
    for script in ("preinst", "postinst", "prerm", "postrm"):
        shutil.copyfile(FOLDER / package.name / script, control / script)


def _normalize(tree: Path, epoch: int) -> None:
    """Give each file one time, and the mode that depends on its content only."""
    backups = tree / "var/backups/pqkeep"
    for path in (*tree.rglob("*"), tree):
        if not path.is_symlink():
            is_program = path.is_dir() or path.stat().st_mode & 0o100 or _is_script(path)
            path.chmod(0o700 if path == backups else 0o755 if is_program else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def _is_script(path: Path) -> bool:
    return path.parent.name in {"DEBIAN", "bin"} and path.read_bytes().startswith(b"#!")


def _date(epoch: int) -> str:

    return dt.datetime.fromtimestamp(epoch, dt.UTC).date().isoformat()


def _copyright() -> str:
    return (
        "pqkeep is licensed under the Apache License, Version 2.0, which is in"
        " /usr/share/common-licenses/Apache-2.0.\n\nThe licences of the Python packages in it are"
        " named in sbom.cdx.json, and their texts are beside their modules, in the folders"
        " *.dist-info.\n"
    )
