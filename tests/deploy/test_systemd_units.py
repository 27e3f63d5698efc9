"""The units in deploy/systemd, checked by systemd itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.deploy.tools import needs

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
SERVICES = sorted(path.name.replace("@.", "@1.") for path in UNITS.glob("*.service"))
"""Templates, with one instance each."""
EXPOSURE = "20"
"""The highest exposure of a unit, in tenths."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root directory with these units, the system's units, and the programs that they name."""
    needs("systemd-analyze")
    root = tmp_path_factory.mktemp("root")
    shutil.copytree("/usr/lib/systemd/system", root / "usr/lib/systemd/system", symlinks=True)
    shutil.copytree(UNITS, root / "etc/systemd/system")
    for name in (
        "opt/pqkeep/bin/python",
        "opt/pqkeep/bin/pqkeepd",
        "opt/pqkeep/bin/pqkeep",
        "bin/sh",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch(mode=0o755)
    return root


def _analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [needs("systemd-analyze"), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_every_unit_is_valid(tree: Path) -> None:
    """Systemd reads each unit without a complaint."""
    said = _analyze("verify", f"--root={tree}", *SERVICES, "pqkeep-backup.timer")
    ours = [line for line in said.stdout.splitlines() if "pqkeep" in line]
    assert (said.returncode, ours) == (0, [])


@pytest.mark.parametrize("unit", SERVICES)
def test_every_service_is_confined(tree: Path, unit: str) -> None:
    """No service's exposure is above 2.0 of 10, including the key service with its network."""
    limit = f"--threshold={EXPOSURE}"
    said = _analyze("security", "--offline=true", f"--root={tree}", limit, unit)
    assert said.returncode == 0, said.stdout


def test_the_gateway_s_unit_hides_the_key_service_s_files() -> None:
    """Each unit cannot see the other unit's folder, and can write only to its own folder."""
    for unit, other in (("gateway", "keyservice"), ("keyservice", "gateway")):
        lines = (UNITS / f"pqkeep-{unit}.service").read_text().splitlines()
        assert f"InaccessiblePaths=-/var/lib/pqkeep/{other}" in lines
        (writable,) = (line for line in lines if line.startswith("ReadWritePaths="))
        assert other not in writable
        assert f"User=pqkeep-{unit}" in lines


@pytest.mark.parametrize(("unit", "differing"), [("gateway", 1), ("keyservice", 5)])
def test_an_instance_is_confined_as_the_only_one_is(unit: str, differing: int) -> None:
    """A template equals the unit for one process, except for names, folders and ports."""
    only = (UNITS / f"pqkeep-{unit}.service").read_text().splitlines()
    instance = (UNITS / f"pqkeep-{unit}@.service").read_text().splitlines()
    others = {line for line in only if line not in instance}
    assert others <= {line for line in only if "pqkeep" in line}
    assert len(others) == differing
