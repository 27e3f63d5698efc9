"""``pqkeep data-key``, ``mac`` and ``verify-mac``, and the other commands with XAES-256-GCM."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING

import pytest

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

XAES = ("--algorithm", "XAES-256-GCM")


@pytest.mark.parametrize("algorithm", ["Kyber768", "XAES-256-GCM"])
def test_a_data_key(command: Command, tenant: Client, algorithm: str) -> None:
    """Unwrap returns the data key from --secret; without --secret no file has it."""
    tenant.keys.generate(algorithm)
    named = ("--algorithm", algorithm)
    made = command("data-key", *named, "--secret", "key", "--size", "64", "--to", "key.json")
    assert (made.status, made.out) == (0, b"")
    key = command.directory / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert len(key.read_bytes()) == 64
    assert command("unwrap", "key.json").out == key.read_bytes()
    alone = json.loads(command("data-key", *named).out)
    assert (alone["format"], "plaintext" in alone) == ("pqkeep/v1/wrapped-key", False)
    assert command("data-key", *named, "--secret", "-").status == 2
    assert command("data-key", *named, "--secret", "same", "--to", "same").status == 2
    assert command("data-key", *named, "--size", "24").status == 1


def test_a_mac(command: Command, tenant: Client) -> None:
    """The exit status of verify-mac is 0 for the file, and 7 for another file."""
    assert command("mac", stdin=b"a message").status == 4
    tenant.keys.generate("HMAC-SHA-256")
    (command.directory / "file").write_bytes(b"a message")
    made = command("mac", "file", "--to", "file.mac")
    assert (made.status, made.err) == (0, "")
    assert command("verify-mac", "file", "--mac", "file.mac").status == 0
    (command.directory / "file").write_bytes(b"another")
    ended = command("verify-mac", "file", "--mac", "file.mac")
    assert (ended.status, "the MAC is not the file's" in ended.err) == (7, True)


def test_the_cipher_works_in_the_service(command: Command, tenant: Client) -> None:
    """XAES-256-GCM works with --envelope; local encryption and public keys are refused."""
    tenant.keys.generate("XAES-256-GCM")
    (command.directory / "file").write_bytes(b"a secret")
    refused = command("encrypt", *XAES, "file")
    assert (refused.status, "in the service only" in refused.err) == (2, True)
    assert command("encrypt", *XAES, "--envelope", "file", "--to", "sealed").status == 0
    assert command("decrypt", "sealed", "--to", "-").out == b"a secret"
    refused = command("keys", "public-key", "XAES-256-GCM")
    assert (refused.status, "no public half" in refused.err) == (2, True)
    assert "fingerprint" in str(command("keys", "show", "XAES-256-GCM").out)
    assert "fingerprint" in str(command("keys", "rotate", "XAES-256-GCM").out)
    refused = command("keys", "import", "XAES-256-GCM", "file")
    assert (refused.status, "only the service makes its keys" in refused.err) == (2, True)


def test_a_context(command: Command) -> None:
    """A keyring with derived keys encrypts and decrypts with the same context only."""
    created = command("keyrings", "create", "cards", "--derived")
    assert (created.status, created.err) == (0, "")
    assert command("keys", "generate", "XAES-256-GCM", "--keyring", "cards").status == 0
    (command.directory / "file").write_bytes(b"a message")
    named = (*XAES, "--keyring", "cards")
    for form in ("--envelope", "--server-side"):
        made = command("encrypt", "file", form, *named, "--context", "customer 42", "--force")
        assert made.status == 0
        right = command("decrypt", "file.pqk", "--to", "-", "--context", "customer 42")
        assert right.out == b"a message"
        wrong = command("decrypt", "file.pqk", "--to", "-", "--context", "customer 43")
        assert (wrong.status, wrong.out) == (7, b"")
        without = command("decrypt", "file.pqk", "--to", "-")
        assert without.status == 1
        assert "context" in without.err
    assert command("encrypt", "file", "--envelope", *named, "--force").status == 1
    assert command("encrypt", "file", "--context", "x", "--force").status == 2
    made = command("data-key", *named, "--context", "x", "--secret", "key", "--to", "key.json")
    assert (made.status, made.err) == (0, "")
    opened = command("decrypt", "key.json", "--to", "-", "--context", "x")
    assert opened.out == (command.directory / "key").read_bytes()
