"""Bouncy Castle and pqkeep cms read each other's messages: ``make interop`` builds the program."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.installation import Installation

BUILT = Path(__file__).parents[2] / ".interop/bouncycastle"
JAR = BUILT / "bouncy-castle-1.jar"
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(not JAR.exists(), reason="make interop builds it"),
]
Run = Callable[..., None]


@pytest.fixture
def run(installation: Installation, tmp_path: Path) -> Run:
    """Run a program as a new tenant, in a directory with a file."""
    tenant = installation.new_tenant()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = installation.environment(tenant.api_key) | {"PATH": path, "HOME": str(tmp_path)}
    (tmp_path / "report").write_bytes(b"pay Bob 10 EUR")

    def program(*words: str) -> None:
        subprocess.run(words, cwd=tmp_path, env=environment, check=True)

    return program


def bouncy_castle(run: Run, *words: str) -> None:
    run("java", "-cp", f"{JAR}:{BUILT / 'dependency'}/*", "Cms", *words)


@pytest.mark.parametrize("algorithm", ["Kyber768", "ML-KEM-1024"])
def test_encryption(algorithm: str, run: Run, tmp_path: Path) -> None:
    """Bouncy Castle's message to a key of pqkeep opens."""
    run("pqkeep", "keys", "generate", algorithm)
    run("pqkeep", "keys", "public-key", algorithm, "--format", "der", "--to", "key.der")
    bouncy_castle(run, "encrypt", "key.der", "report", "sealed.p7m")
    run("pqkeep", "cms", "decrypt", "sealed.p7m", "--to", "copy")
    assert (tmp_path / "copy").read_bytes() == b"pay Bob 10 EUR"


@pytest.mark.parametrize("algorithm", ["Dilithium3", "ML-DSA-87", "SLH-DSA-SHA2-128f"])
def test_signatures(algorithm: str, run: Run, tmp_path: Path) -> None:
    """Bouncy Castle verifies what a key of pqkeep signed."""
    run("pqkeep", "keys", "generate", algorithm)
    run("pqkeep", "keys", "public-key", algorithm, "--format", "der", "--to", "key.der")
    run("pqkeep", "cms", "sign", "report", "-a", algorithm)
    bouncy_castle(run, "verify", "key.der", "report.p7m", "copy")
    assert (tmp_path / "copy").read_bytes() == b"pay Bob 10 EUR"
