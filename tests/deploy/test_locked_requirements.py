"""The locked requirements that are shipped beside the wheels."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
CRYPTOGRAPHY = {"cryptography", "pqcrypto", "pynacl", "pyopenssl", "pycryptodome"}


SHIPPED = ("run", "gateway", "keyservice", "kubernetes", "all")


def _locked(name: str) -> dict[str, str]:
    text = (REQUIREMENTS / f"{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", text, re.MULTILINE))


@pytest.mark.parametrize("process", ["gateway", "keyservice"])
def test_one_process_has_the_versions_of_both(process: str) -> None:
    """A package has the same locked version for one process and for the whole installation."""
    assert _locked(process).items() <= _locked("run").items()


def test_the_gateway_s_requirements_have_no_cryptography() -> None:
    """The gateway alone needs no cryptography package; the key service has two."""
    assert not _locked("gateway").keys() & CRYPTOGRAPHY
    assert _locked("keyservice").keys() & CRYPTOGRAPHY == {"cryptography", "pqcrypto"}


@pytest.mark.parametrize("process", ["gateway", "keyservice"])
def test_everything_that_a_process_needs_is_locked(process: str) -> None:
    """Each package that the two distributions of an image name is in its requirements."""
    for distribution in ("protocol", process):
        text = (REQUIREMENTS.parent / distribution / "pyproject.toml").read_text()
        named = tomllib.loads(text)["project"]["dependencies"]
        names = {re.split(r"[\[<>=~!]", each)[0] for each in named} - {"pqkeep-protocol"}
        assert names <= _locked(process).keys()


def test_the_plugin_s_requirements_are_its_extras() -> None:
    """The plugin for Kubernetes has the locked versions of the command, and what its extra names."""
    text = (REQUIREMENTS.parent / "sdk/pyproject.toml").read_text()
    extra = tomllib.loads(text)["project"]["optional-dependencies"]["kubernetes"]
    names = {re.split("[<>=]", requirement)[0] for requirement in extra}
    plugin, all_of_them = _locked("kubernetes"), _locked("run")
    assert names <= plugin.keys()
    assert {name: all_of_them.get(name) for name in plugin.keys() - names} == {
        name: version for name, version in plugin.items() if name not in names
    }


@pytest.mark.parametrize("shipped", SHIPPED)
def test_no_build_tool_is_shipped(shipped: str) -> None:
    """An installation needs no package that builds packages."""
    tools = {"hatchling", "hatch", "editables", "setuptools", "wheel", "flit-core", "pathspec"}
    assert not _locked(shipped).keys() & (tools | {"trove-classifiers", "pluggy", "pip", "uv"})


def test_a_release_has_every_extra_in_the_tested_version() -> None:
    """The release's lock file contains the installation's lock file, in the tested versions."""
    released = _locked("all")
    assert _locked("run").items() <= released.items()
    assert _locked("kubernetes").items() <= released.items()
    tested = _locked("dev")
    assert {name: tested.get(name) for name in released} == released
