"""What the gateway loads, seen in an interpreter that has loaded nothing else."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

FORBIDDEN = ("cryptography", "pqcrypto", "pqkeep_keyservice")
EVERYTHING = """
import json, pkgutil, sys
import {package}
names = [m.name for m in pkgutil.walk_packages({package}.__path__, {package!r} + ".")]
for name in names:
    if not name.endswith("migrations.env") and ".versions." not in name:
        __import__(name)
print(json.dumps([names, sorted(sys.modules)]))
"""


def loaded(package: str) -> tuple[list[str], list[str]]:
    """Import every module of a package; return their names, and all that is loaded then."""
    ended = subprocess.run(
        [sys.executable, "-I", "-c", EVERYTHING.format(package=package)],
        capture_output=True,
        check=True,
        timeout=60,
    )
    names, modules = json.loads(ended.stdout)
    return names, modules


@pytest.mark.parametrize("package", ["pqkeep_gateway", "pqkeep_protocol"])
def test_no_cryptography_is_loaded(package: str) -> None:
    """Importing everything there is in the public half loads no cryptography, and no key service."""
    names, modules = loaded(package)
    assert package in modules
    assert set(names) - set(modules) == set()
    if package == "pqkeep_gateway":
        assert {"pqkeep_gateway.__main__", "pqkeep_gateway.wiring"} <= set(names)
    assert [name for name in modules if name.startswith(FORBIDDEN)] == []


def test_the_key_service_does_load_cryptography() -> None:
    """The same look at the key service finds cryptography: the test above can fail."""
    _, modules = loaded("pqkeep_keyservice")
    assert "cryptography" in modules
    assert "starlette" not in modules
    assert not any(name.startswith("pqkeep_gateway") for name in modules)
