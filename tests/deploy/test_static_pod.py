"""The example of a static pod for the Kubernetes plugin, checked by Kubernetes' schemas."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from tests.deploy.tools import needs

FOLDER = Path(__file__).parents[2] / "deploy"
POD = FOLDER / "kubernetes/pqkeep-kms-plugin.yaml"
UNIT = FOLDER / "systemd/pqkeep-kms-plugin.service"
PQKEEP = Path(sysconfig.get_path("scripts")) / "pqkeep"


@pytest.mark.parametrize("kubernetes", ["1.29.0", "1.37.0"])
def test_the_pod_is_valid(kubernetes: str) -> None:
    """The pod is valid in the oldest and in the newest version of Kubernetes."""
    command = [needs("kubernetes-validate"), "--strict", "-k", kubernetes, str(POD)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


def test_a_static_pod_needs_no_api_server() -> None:
    """The kubelet refuses a static pod that names objects of the API server."""
    spec = yaml.safe_load(POD.read_text())["spec"]
    assert "serviceAccountName" not in spec
    assert {next(iter(volume.keys() - {"name"})) for volume in spec["volumes"]} == {"hostPath"}
    assert all("valueFrom" not in each for one in spec["containers"] for each in one["env"])


def test_both_examples_start_the_command_with_known_options() -> None:
    """The pod and the unit pass options that the command has."""
    (container,) = yaml.safe_load(POD.read_text())["spec"]["containers"]
    (line,) = (text for text in UNIT.read_text().splitlines() if text.startswith("ExecStart="))
    of_unit = line.partition(" kms-plugin ")[2].split()
    for options in (container["args"], of_unit):
        assert options
        assert _status(*options) == 0
        assert _status(*options, "--no-such") == 2


def _status(*options: str) -> int:
    command = [str(PQKEEP), "kms-plugin", *options, "--help"]
    return subprocess.run(command, capture_output=True, check=False).returncode
