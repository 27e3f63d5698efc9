"""The locked requirements that are shipped beside the wheels."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).parents[2] / "requirements"
CRYPTOGRAPHY = {"cryptography", "pqcrypto", "pynacl", "pyopenssl", "pycryptodome"}


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
