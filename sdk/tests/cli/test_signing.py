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
    """FILE.sig has everything for verification. For a valid signature the exit status is 0."""
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
    """Data from a pipe is signed and verified, with each hash."""
    tenant.keys.generate("ML-DSA-87")
    data = os.urandom(3_000_000)
    options = ("--hash", hash_algorithm, "--algorithm", "ML-DSA-87")
    signature = command("sign", "-", *options, stdin=data)
    (command.directory / "data.sig").write_bytes(signature.out)
    ended = command("verify", "-", "--signature", "data.sig", "--output", "json", stdin=data)
    assert (ended.status, json.loads(ended.out)) == (
        0,
        {
            "valid": True,
            "algorithm": "ML-DSA-87",
            "key_version": 1,
            "hash_algorithm": hash_algorithm,
        },
    )
    assert command("verify", "-", "--signature", "data.sig", stdin=data[:-1]).status == 7
    assert command("verify", "-", stdin=data).status == 2


def test_not_good(command: Command, tenant: Client, file: Path) -> None:
    """For a changed file the exit status is 7, with both forms of output."""
    tenant.keys.generate("Dilithium3")
    command("sign", file.name)
    file.write_bytes(file.read_bytes() + b"x")
    ended = command("verify", file.name)
    assert (ended.status, ended.out) == (7, b"")
    assert ended.err.startswith(f"pqkeep: {NOT_GOOD}\n")
    ended = command("verify", file.name, "--output", "json")
    assert (ended.status, json.loads(ended.out)["valid"]) == (7, False)


def test_by_another_key_than_expected(command: Command, tenant: Client, file: Path) -> None:
    """For a valid signature by another key than the named one, the exit status is 7."""
    tenant.keys.generate("Dilithium3")
    command("sign", file.name)
    assert command("verify", file.name, "-a", "Dilithium3", "-k", "1").status == 0
    assert command("verify", file.name, "-a", "ML-DSA-87").status == 7
    assert command("verify", file.name, "-k", "2").status == 7


def test_a_damaged_signature(command: Command, tenant: Client, file: Path) -> None:
    """For a damaged signature file the exit status is 1, and the error names the damage."""
    tenant.keys.generate("Dilithium3")
    command("sign", file.name)
    path = command.directory / "report.pdf.sig"
    said = json.loads(path.read_bytes())
    for name, value, status, what in (
        ("format", "pqkeep/v1/wrapped-key", 1, "is pqkeep/v1/wrapped-key"),
        ("key_version", True, 1, "key_version has the wrong type"),
        ("key_version", "1", 1, "key_version has the wrong type"),
        ("signature", 1, 1, "signature is not a string"),
        ("signature", "AA=", 1, "signature is not base64"),
        ("signature", "AAAA", 1, "with 3 bytes and not 3309"),
        ("hash_algorithm", "MD5", 1, "an unknown kind of hash"),
        ("hash_algorithm", "SHA-384", 7, NOT_GOOD),
        ("more", 1, 1, "an unknown member"),
    ):
        path.write_text(json.dumps(said | {name: value}))
        ended = command("verify", file.name)
        assert (ended.status, ended.out, what in ended.err) == (status, b"", True), ended.err


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (b"", "is empty"),
        (b"[" * 100_000, "begins like JSON"),
        (b"\xff", "is one byte"),
        (b"{}", "a JSON object of an unknown form"),
    ],
)
def test_no_signature(command: Command, file: Path, text: bytes, what: str) -> None:
    """For a file that is not a signature the exit status is 1, before any request."""
    (command.directory / "other").write_bytes(text)
    ended = command.as_(PQKEEP_URL="http://127.0.0.1:1")(
        "verify", file.name, "--signature", "other"
    )
    assert ended.status == 1
    assert (ended.err.startswith("pqkeep: other is "), what in ended.err) == (True, True)


@pytest.mark.parametrize(
    "algorithm", ["Dilithium3", "ML-DSA-87", "Composite-ML-DSA", "SLH-DSA-SHA2-128f"]
)
def test_offline(command: Command, tenant: Client, file: Path, algorithm: str) -> None:
    """A public key's file verifies signatures without a service and an API key."""
    tenant.keys.generate(algorithm)
    assert command("sign", file.name, "--algorithm", algorithm).status == 0
    for form, name in (("pqkeep", "key.json"), ("raw", "key.bin")):
        options = ("--format", form, "--to", name)
        assert command("keys", "public-key", algorithm, *options).status == 0
    offline = command.as_(PQKEEP_URL="", PQKEEP_API_KEY_FILE="")
    for name in ("key.json", "key.bin"):
        ended = offline("verify", file.name, "--public-key", name)
        good = f"report.pdf: the signature is good, by {algorithm} version 1\n".encode()
        assert (ended.status, ended.out, ended.err) == (0, good, "")
    tenant.keys.rotate(algorithm)
    for form, name in (("pqkeep", "new.json"), ("raw", "new.bin")):
        options = ("--format", form, "--to", name)
        assert command("keys", "public-key", algorithm, *options).status == 0
    file.write_bytes(file.read_bytes() + b"x")
    for name in ("new.json", "new.bin", "key.json", "key.bin", file.name):
        ended = offline("verify", file.name, "--public-key", name)
        assert (ended.status, ended.out) == (2 if name == file.name else 7, b"")


def test_offline_under_a_compliance_profile(command: Command, tenant: Client, file: Path) -> None:
    """Under CNSA 2.0 only ML-DSA-87 is verified, also offline."""
    for algorithm, status in (("Dilithium3", 5), ("ML-DSA-87", 0)):
        tenant.keys.generate(algorithm)
        assert command("sign", file.name, "-a", algorithm, "--force").status == 0
        to = ("--to", "key.json", "--force")
        assert command("keys", "public-key", algorithm, *to).status == 0
        profile = ("--compliance-profile", "cnsa-2.0")
        ended = command("verify", file.name, "--public-key", "key.json", *profile)
        assert ended.status == status


@pytest.mark.parametrize("algorithm", ["Dilithium3", "ML-DSA-87"])
def test_a_signature_for_one_use(
    command: Command, tenant: Client, file: Path, algorithm: str
) -> None:
    """With --context the signature is ML-DSA over the file, valid for that context, online and offline."""
    tenant.keys.generate(algorithm)
    ended = command("sign", file.name, "--context", "contracts", "-a", algorithm)
    assert (ended.status, ended.err) == (0, f"report.pdf.sig: signed with {algorithm} version 1\n")
    said = json.loads((command.directory / "report.pdf.sig").read_bytes())
    signature = base64.b64decode(said.pop("signature"))
    assert said == {
        "format": "pqkeep/v1/context-signature",
        "algorithm": algorithm,
        "key_version": 1,
        "context": "contracts",
    }
    assert tenant.signatures.verify(
        file.read_bytes(), signature, key_version=1, algorithm=algorithm, context=b"contracts"
    )
    command("keys", "public-key", algorithm, "--to", "key.json")
    for offline in ((), ("--public-key", "key.json")):
        assert command("verify", file.name, "--context", "contracts", *offline).status == 0
        for other in ((), ("--context", "invoices"), ("--context", "")):
            ended = command("verify", file.name, *other, *offline)
            assert (ended.status, ended.out) == (7, b"")
    file.write_bytes(file.read_bytes() + b"!")
    assert command("verify", file.name, "--context", "contracts").status == 7


def test_a_context_is_not_taken_for_granted(command: Command, tenant: Client, file: Path) -> None:
    """--context refuses signatures without a context, and algorithms other than ML-DSA."""
    tenant.keys.generate("Dilithium3")
    assert command("sign", file.name).status == 0
    assert command("verify", file.name, "--context", "contracts").status == 7
    ended = command(
        "sign", file.name, "--context", "contracts", "-a", "Composite-ML-DSA", "--force"
    )
    assert (ended.status != 0, ended.out) == (True, b"")
    ended = command("sign", file.name, "--context", "x" * 256, "--force")
    assert "255 bytes" in ended.err


def test_a_key_that_begins_like_json_is_a_key(command: Command, tenant: Client, file: Path) -> None:
    """One key in 256 begins with a brace, and is still not taken for JSON."""
    tenant.keys.generate("Dilithium3")
    assert command("sign", file.name).status == 0
    (file.parent / "key.bin").write_bytes(b"{" + bytes([0xFF] * 1951))
    ended = command("verify", file.name, "--public-key", "key.bin")
    assert "the signature is not good" in ended.err
