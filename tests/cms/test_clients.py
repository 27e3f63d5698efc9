"""pqkeep cms exchanges messages with Bouncy Castle and OpenSSL 3.5: ``make interop`` brings both."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.installation import Installation

INTEROP = Path(__file__).parents[2] / ".interop"
BUILT = INTEROP / "bouncycastle"
JAR = BUILT / "bouncy-castle-1.jar"
OPENSSL = INTEROP / "openssl"
LIBRARIES = OPENSSL / f"usr/lib/{platform.machine()}-linux-gnu"
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}
CONTENT = b"pay Bob 10 EUR"
pytestmark = pytest.mark.campaign
needs_bouncy_castle = pytest.mark.skipif(not JAR.exists(), reason="make interop builds it")
needs_openssl = pytest.mark.skipif(not LIBRARIES.exists(), reason="make interop unpacks it")
signatures = pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ("Dilithium3", "ML-DSA-65"),
        ("ML-DSA-87", "ML-DSA-87"),
        ("SLH-DSA-SHA2-128f", "SLH-DSA-SHA2-128f"),
    ],
)
kems = pytest.mark.parametrize(
    ("algorithm", "name"), [("Kyber768", "ML-KEM-768"), ("ML-KEM-1024", "ML-KEM-1024")]
)
Run = Callable[..., None]


@pytest.fixture
def run(installation: Installation, tmp_path: Path) -> Run:
    """Run a program as a new tenant, in a directory with a file."""
    tenant = installation.new_tenant()
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = installation.environment(tenant.api_key) | {"PATH": path, "HOME": str(tmp_path)}
    (tmp_path / "report").write_bytes(CONTENT)

    def program(*words: str | Path, status: int = 0) -> None:
        ended = subprocess.run(
            words, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True
        )
        assert ended.returncode == status, ended.stdout + ended.stderr

    return program


def bouncy_castle(run: Run, *words: str) -> None:
    run("java", "-cp", f"{JAR}:{BUILT / 'dependency'}/*", "Cms", *words)


def openssl(run: Run, command: str, status: int = 0) -> None:
    """Run Debian's program with the C library that it was built for."""
    loader = LIBRARIES / LOADERS[platform.machine()]
    program = (loader, "--library-path", LIBRARIES, OPENSSL / "usr/bin/openssl")
    run(*program, *command.split(), status=status)


@needs_bouncy_castle
@kems
def test_encryption(algorithm: str, name: str, run: Run, tmp_path: Path) -> None:
    """Bouncy Castle's message to a key of pqkeep opens, and pqkeep's to a key of Bouncy Castle."""
    run("pqkeep", "keys", "generate", algorithm)
    run("pqkeep", "keys", "public-key", algorithm, "--format", "der", "--to", "key.der")
    bouncy_castle(run, "encrypt", "key.der", "report", "sealed.p7m")
    run("pqkeep", "cms", "decrypt", "sealed.p7m", "--to", "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT

    bouncy_castle(run, "generate", name, "private.der", "public.der")
    run("pqkeep", "cms", "encrypt", "report", "--public-key", "public.der")
    bouncy_castle(run, "decrypt", "private.der", "report.p7m", "opened")
    assert (tmp_path / "opened").read_bytes() == CONTENT


@needs_bouncy_castle
@signatures
def test_signatures(algorithm: str, name: str, run: Run, tmp_path: Path) -> None:
    """Bouncy Castle verifies what a key of pqkeep signed, and pqkeep what Bouncy Castle signed."""
    run("pqkeep", "keys", "generate", algorithm)
    run("pqkeep", "keys", "public-key", algorithm, "--format", "der", "--to", "key.der")
    run("pqkeep", "cms", "sign", "report", "-a", algorithm)
    bouncy_castle(run, "verify", "key.der", "report.p7m", "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT

    bouncy_castle(run, "generate", name, "private.der", "public.der")
    for command in ("sign", "sign-without-attributes"):
        bouncy_castle(run, command, "private.der", "report", f"{command}.p7m")
        read = ("pqkeep", "cms", "verify", f"{command}.p7m", "--to", f"{command}.copy")
        run(*read, "--public-key", "public.der")
        assert (tmp_path / f"{command}.copy").read_bytes() == CONTENT
        run(*read, "--force", "--public-key", "key.der", status=7)


@needs_openssl
@signatures
def test_openssl_verifies(algorithm: str, name: str, run: Run, tmp_path: Path) -> None:
    """OpenSSL verifies what a certified key of pqkeep signed, and refuses other content."""
    run("pqkeep", "keys", "generate", algorithm)
    run("pqkeep", "keys", "public-key", algorithm, "--format", "pem", "--to", "key.pem")
    openssl(run, "req -x509 -newkey ML-DSA-65 -noenc -subj /CN=ca -keyout ca.key -out ca.pem")
    issue = "x509 -new -subj /CN=signer -force_pubkey key.pem -out signer.pem"
    openssl(run, f"{issue} -CA ca.pem -CAkey ca.key")
    sign = ("pqkeep", "cms", "sign", "report", "-a", algorithm, "--certificate", "signer.pem")
    run(*sign)
    verify = "cms -verify -binary -inform DER -CAfile ca.pem -purpose any -out copy -in"
    openssl(run, f"{verify} report.p7m")
    assert (tmp_path / "copy").read_bytes() == CONTENT
    run(*sign, "--detached")
    openssl(run, f"{verify} report.p7s -content report")
    (tmp_path / "other").write_bytes(CONTENT + b"0")
    openssl(run, f"{verify} report.p7s -content other", status=4)


@needs_openssl
@signatures
def test_openssl_signs(algorithm: str, name: str, run: Run, tmp_path: Path) -> None:
    """What OpenSSL signed is good: with a certificate, by a key identifier, detached, in BER."""
    openssl(run, f"req -x509 -newkey {name} -noenc -subj /CN=s -keyout key.pem -out signer.pem")
    openssl(run, "pkey -in key.pem -pubout -out public.pem")
    digest = "sha256" if "128" in name else "sha512"
    sign = f"cms -sign -binary -md {digest} -in report -signer signer.pem -inkey key.pem"
    for options in ("", "-keyid", "-nocerts", "-stream"):
        openssl(run, f"{sign} -outform DER -nodetach {options} -out signed.p7m")
        for key in ("signer.pem", "public.pem"):
            read = ("pqkeep", "cms", "verify", "signed.p7m", "--public-key", key)
            run(*read, "--to", "copy", "--force")
            assert (tmp_path / "copy").read_bytes() == CONTENT
    openssl(run, f"{sign} -outform DER -out signed.p7s")
    detached = ("pqkeep", "cms", "verify", "signed.p7s", "--public-key", "public.pem", "--content")
    run(*detached, "report")
    (tmp_path / "other").write_bytes(CONTENT + b"0")
    run(*detached, "other", status=7)
