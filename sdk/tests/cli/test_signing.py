"""``pqkeep sign`` and ``pqkeep verify``."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

NOT_GOOD = "report.pdf: the signature is not good"


def test_a_file(command: Command, tenant: Client, file: Path) -> None:
    """FILE.sig says all that verifying it takes; a good signature ends with 0."""
    tenant.keys.generate("Dilithium3")
    ended = command("sign", file.name)
    assert (ended.status, ended.out) == (0, b"")
    assert ended.err == "report.pdf.sig: signed with Dilithium3 version 1\n"
    said = json.loads((command.directory / "report.pdf.sig").read_bytes())
    signature = base64.b64decode(said.pop("signature"))
    assert said == {
        "format": "pqkeep/v1/signature",
        "algorithm": "Dilithium3",
        "key_version": 1,
        "hash_algorithm": "SHA-512",
    }
    digest = hashlib.sha512(file.read_bytes()).digest()
    assert tenant.signatures.verify_hash(digest, signature, hash_algorithm="SHA-512", key_version=1)
    ended = command("verify", file.name)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == b"report.pdf: the signature is good, by Dilithium3 version 1\n"


@pytest.mark.parametrize("hash_algorithm", ["SHA-256", "SHA-384"])
def test_pipes(command: Command, tenant: Client, hash_algorithm: str) -> None:
    """What comes down a pipe is signed and verified, with each hash."""
    tenant.keys.generate("ML-DSA-87")
    data = os.urandom(3_000_000)
    options = ("--hash", hash_algorithm, "--algorithm", "ML-DSA-87")
    signature = command("sign", "-", *options, stdin=data)
    (command.directory / "data.sig").write_bytes(signature.out)
    ended = command("verify", "-", "data.sig", "--output", "json", stdin=data)
    assert (ended.status, json.loads(ended.out)) == (
        0,
        {
            "valid": True,
            "algorithm": "ML-DSA-87",
            "key_version": 1,
            "hash_algorithm": hash_algorithm,
        },
    )
    assert command("verify", "-", "data.sig", stdin=data[:-1]).status == 7
    assert command("verify", "-", stdin=data).status == 2


def test_not_good(command: Command, tenant: Client, file: Path) -> None:
    """A changed file ends with 7, whoever reads the result."""
    tenant.keys.generate("Dilithium3")
    command("sign", file.name)
    file.write_bytes(file.read_bytes() + b"x")
    ended = command("verify", file.name)
    assert (ended.status, ended.out) == (7, b"")
    assert ended.err.startswith(f"pqkeep: {NOT_GOOD}\n")
    ended = command("verify", file.name, "--output", "json")
    assert (ended.status, json.loads(ended.out)["valid"]) == (7, False)


def test_by_another_key_than_expected(command: Command, tenant: Client, file: Path) -> None:
    """A good signature of another key than the one that must have signed ends with 7."""
    tenant.keys.generate("Dilithium3")
    command("sign", file.name)
    assert command("verify", file.name, "-a", "Dilithium3", "-k", "1").status == 0
    assert command("verify", file.name, "-a", "ML-DSA-87").status == 7
    assert command("verify", file.name, "-k", "2").status == 7


def test_a_damaged_signature(command: Command, tenant: Client, file: Path) -> None:
    """A signature's file that is not as it was written is not good: it ends with 7."""
    tenant.keys.generate("Dilithium3")
    command("sign", file.name)
    path = command.directory / "report.pdf.sig"
    said = json.loads(path.read_bytes())
    for name, value in (
        ("format", "pqkeep/v1/wrapped-key"),
        ("key_version", True),
        ("key_version", "1"),
        ("signature", 1),
        ("signature", "AA="),
        ("signature", "AAAA"),
        ("hash_algorithm", "MD5"),
        ("hash_algorithm", "SHA-384"),
        ("more", 1),
    ):
        path.write_text(json.dumps(said | {name: value}))
        ended = command("verify", file.name)
        assert (ended.status, ended.out) == (7, b""), name


@pytest.mark.parametrize("text", [b"", b"[" * 100_000, b"\xff", b"{}"])
def test_no_signature(command: Command, file: Path, text: bytes) -> None:
    """A file that is no signature at all ends with 7, before the service is asked."""
    (command.directory / "other").write_bytes(text)
    ended = command.as_(PQKEEP_URL="http://127.0.0.1:1")("verify", file.name, "other")
    assert ended.status == 7
    assert ended.err.startswith("pqkeep: other is not pqkeep/v1/signature, or is damaged\n")
