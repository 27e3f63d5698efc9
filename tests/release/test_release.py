"""``make release``: what it makes, without a network and without a Debian tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
import typer.main
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, mldsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from release import archives, bills, debian, pages
from release.__main__ import NOTES_LINES, SIGNATURE, SUMS, ReleaseError, notes, sign, write_sums
from release.wheels import PYTHONS, Wheel, closure, environment
from tests.deploy.tools import needs

ROOT = Path(__file__).parents[2]
EPOCH = 1_800_000_000
SCRIPTS = sorted((ROOT / "release/debian").glob("*/*"))


def _wheel(
    folder: Path, name: str, requires: Iterable[str] = (), tag: str = "py3-none-any"
) -> Wheel:
    """Make a small wheel, with a module and a program of its name."""
    path = folder / f"{name}-0.1.0-{tag}.whl"
    lines = [f"Requires-Dist: {requirement}" for requirement in requires]
    head = ["Metadata-Version: 2.4", f"Name: {name}", "Version: 0.1.0", "License-Expression: MIT"]
    program = "pqkeepd" if name == "pqkeep_server" else name
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "def main() -> None: ...\n")
        archive.writestr(f"{name}-0.1.0.dist-info/METADATA", "\n".join([*head, *lines, "", ""]))
        archive.writestr(
            f"{name}-0.1.0.dist-info/entry_points.txt",
            f"[console_scripts]\n{program} = {name}:main\n",
        )
    return Wheel(path)


@pytest.fixture
def wheels(tmp_path: Path) -> list[Wheel]:
    """A server that needs one package, and another one on an old Python."""
    requires = ("other>=0.1", 'older; python_full_version < "3.12"', 'tool; extra == "tools"')
    return [
        _wheel(tmp_path, "pqkeep_server", requires),
        *(_wheel(tmp_path, name) for name in ("other", "older", "tool", "unneeded")),
    ]


def test_a_package_has_what_its_roots_need(wheels: list[Wheel]) -> None:
    """Requirements are followed with their extras, and with the markers of the named Python."""
    old, new = (environment(python, "x86_64") for python in PYTHONS)
    assert list(closure(["pqkeep-server"], wheels, new)) == ["other", "pqkeep-server"]
    assert "older" in closure(["pqkeep-server"], wheels, old)
    assert "tool" in closure(["pqkeep-server[tools]"], wheels, new)
    with pytest.raises(KeyError):
        closure(["absent"], wheels, new)


def _deb(folder: Path, wheels: list[Wheel]) -> Path:
    package = replace(debian.SERVER, roots=("pqkeep-server",))
    folder.mkdir()
    return debian.build(package, dict.fromkeys(PYTHONS, wheels), b"{}\n", "amd64", EPOCH, folder)


def test_a_debian_package_is_the_same_bytes_again(
    wheels: list[Wheel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another umask, folder and time make the same package, and its files belong to root."""
    dpkg_deb = needs("dpkg-deb")
    first = _deb(tmp_path / "first", wheels)
    old = os.umask(0o077)
    try:
        monkeypatch.setenv("TZ", "Asia/Tokyo")
        assert _deb(tmp_path / "second", wheels).read_bytes() == first.read_bytes()
    finally:
        os.umask(old)
    assert first.name == "pqkeep-server_0.1.0_amd64.deb"
    said = subprocess.run([dpkg_deb, "--contents", first], capture_output=True, check=True)
    lines = said.stdout.decode().splitlines()
    assert {line.split()[1] for line in lines} == {"root/root"}
    modes = {line.split()[5]: line.split()[0] for line in lines}
    assert modes["./opt/pqkeep/bin/pqkeepd"] == "-rwxr-xr-x"
    assert modes["./usr/share/doc/pqkeep-server/copyright"] == "-rw-r--r--"
    assert modes["./var/backups/pqkeep/"] == "drwx------"
    assert not any("__pycache__" in line for line in lines)
    installed = {line.split()[5].rpartition("/")[2] for line in lines if "systemd/system" in line}
    assert set(debian.SERVER.units) <= installed


def test_wheels_that_disagree_about_a_file_are_refused(tmp_path: Path) -> None:
    """Two wheels with different content for one module make no package."""
    (tmp_path / "other").mkdir()
    first = _wheel(tmp_path, "pqkeep_server")
    second = _wheel(tmp_path / "other", "pqkeep_server", tag="cp313-abi3-manylinux_2_34_x86_64")
    with zipfile.ZipFile(second.path, "w") as archive:
        archive.writestr("pqkeep_server/__init__.py", "another = True\n")
    with pytest.raises(debian.ConflictError, match="__init__"):
        _deb(tmp_path / "package", [first, second])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_maintainer_script_can_be_read(script: Path) -> None:
    """A POSIX shell reads each script, which ends at the first failure."""
    subprocess.run(["/bin/sh", "-n", script], check=True)
    assert "\nset -e\n" in script.read_text()


def test_a_purge_never_deletes_data() -> None:
    """No maintainer script removes a folder of data, backups or logs."""
    for script in SCRIPTS:
        for line in script.read_text().splitlines():
            words = line.split()
            if words[:1] in (["rm"], ["find"]):
                assert not any(word.startswith("/var/") for word in words), line


@pytest.mark.parametrize("program", ["pqkeep", "pqkeepd"])
def test_a_manual_page_has_every_command(program: str) -> None:
    """Each command of the program has a section, with its options."""
    page = debian.manual_page(program, "0.1.0", EPOCH).replace("\\-", "-").replace("\\:", "")
    command = typer.main.get_command(debian.COMMANDS[program])
    for name, child in getattr(command, "commands").items():  # noqa: B009 - Typer has no type for it
        for words, leaf in getattr(child, "commands", {}).items() or [("", child)]:
            assert f'.SS "{" ".join(filter(None, (program, name, words)))} ' in page
            options = [option for parameter in leaf.params for option in parameter.opts]
            assert all(option in page for option in options if option.startswith("--"))


def test_manual_pages_have_no_warning_of_roff(tmp_path: Path) -> None:
    """The program man formats each page without a warning, and an ASCII terminal shows it all."""
    man = needs("man")
    for program in (*debian.SERVER.programs, *debian.CLIENT.programs):
        page = tmp_path / f"{program}.8"
        text = debian.manual_page(program, "0.1.0", EPOCH)
        assert text.isascii()
        page.write_text(text)
        said = subprocess.run([man, "--warnings", page], capture_output=True, check=True)
        assert said.stderr == b""


@pytest.mark.parametrize("shell", pages.SHELLS)
def test_a_shell_reads_its_completion(shell: str, tmp_path: Path) -> None:
    """The script of each shell names the program, and a shell that is installed can read it."""
    script = tmp_path / shell
    script.write_text(pages.completion("pqkeepd", shell))
    assert "_PQKEEPD_COMPLETE" in script.read_text()
    if program := shutil.which(shell):
        subprocess.run([program, "-n", script], check=True)


def test_a_bill_is_valid_and_the_same_again(wheels: list[Wheel]) -> None:
    """The strict schema of CycloneDX accepts a bill, which has each wheel's hash and licence."""
    values = [environment(python, "x86_64") for python in PYTHONS]
    roots = ("pqkeep-server[tools]",)
    made = bills.bill("a.deb", "0.1.0", roots, wheels, values, EPOCH)
    assert made == bills.bill("a.deb", "0.1.0", roots, list(reversed(wheels)), values, EPOCH)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(made.decode()) is None
    text = made.decode()
    assert all(wheel.digest in text for wheel in wheels)
    assert '"id": "MIT"' in text
    assert "pkg:pypi/tool@0.1.0" in text


def test_an_archive_is_the_same_bytes_again(tmp_path: Path) -> None:
    """An archive does not depend on the order of files; its files belong to root."""
    files = {"install.sh": b"#!/bin/sh\n", "b/c": b"2", "a": b"1"}
    archives.archive(tmp_path / "1.tar.gz", "top", files, EPOCH)
    archives.archive(tmp_path / "2.tar.gz", "top", dict(reversed(files.items())), EPOCH)
    assert (tmp_path / "1.tar.gz").read_bytes() == (tmp_path / "2.tar.gz").read_bytes()
    with tarfile.open(tmp_path / "1.tar.gz") as tar:
        seen = [(member.name, member.mode, member.uid, member.mtime) for member in tar]
    assert seen == [
        ("top", 0o755, 0, EPOCH),
        ("top/a", 0o644, 0, EPOCH),
        ("top/b", 0o755, 0, EPOCH),
        ("top/b/c", 0o644, 0, EPOCH),
        ("top/install.sh", 0o755, 0, EPOCH),
    ]


def _key_file(folder: Path, key: mldsa.MLDSA65PrivateKey | ec.EllipticCurvePrivateKey) -> Path:
    file = folder / "release.key"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return file


@pytest.mark.threat("changed-download")
def test_the_sums_are_signed_by_the_named_key(tmp_path: Path) -> None:
    """The signature covers the sums of all files. After a change of any file it is wrong."""
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "a.deb").write_bytes(b"a")
    (dist / "b.whl").write_bytes(b"b")
    write_sums(dist)
    key = mldsa.MLDSA65PrivateKey.generate()
    sign(dist, _key_file(tmp_path, key))
    sums, signature = (dist / SUMS).read_bytes(), (dist / SIGNATURE).read_bytes()
    assert [line.split()[1] for line in sums.decode().splitlines()] == ["a.deb", "b.whl"]
    key.public_key().verify(signature, sums)
    with pytest.raises(InvalidSignature):
        key.public_key().verify(signature, sums + b"\n")
    write_sums(dist)
    assert not (dist / SIGNATURE).exists(), "an old signature stays"


def test_another_kind_of_key_signs_nothing(tmp_path: Path) -> None:
    """A classical key, an absent file and a damaged file are refused with the file's name."""
    (tmp_path / SUMS).write_text("")
    damaged = tmp_path / "damaged"
    damaged.write_text("no key")
    classical = _key_file(tmp_path, ec.generate_private_key(ec.SECP256R1()))
    for file in (classical, damaged, tmp_path / "absent"):
        with pytest.raises(ReleaseError, match=file.name):
            sign(tmp_path, file)
    assert not (tmp_path / SIGNATURE).exists()


def test_notes_are_short() -> None:
    """The notes of this version have at most 30 lines, and an unknown version has none."""
    changelog = (ROOT / "CHANGELOG.md").read_text()
    made = notes("0.1.0", changelog)
    assert len(made.splitlines()) <= NOTES_LINES
    assert "](" not in made, "links of the repository lead nowhere in a release"
    with pytest.raises(ReleaseError, match=r"9\.9\.9"):
        notes("9.9.9", changelog)


def test_everything_has_one_version() -> None:
    """The five distributions and the chart have the same version."""
    versions = {
        tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]["version"]
        for name in ("protocol", "keyservice", "gateway", "server", "sdk")
    }
    assert len(versions) == 1
    (version,) = versions
    chart = (ROOT / "deploy/helm/pqkeep/Chart.yaml").read_text()
    assert f"\nversion: {version}\n" in chart
    assert f'appVersion: "{version}"' in chart or f"appVersion: {version}\n" in chart
