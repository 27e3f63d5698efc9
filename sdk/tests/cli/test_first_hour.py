"""The first hour of a new user: options in any place, and hints for missing keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command


def test_options_before_the_command(command: Command, tenant: Client, base_url: str) -> None:
    """The common options may stand before or after the command's name."""
    tenant.keys.generate("Kyber768")
    before = command("--output", "json", "keys", "list")
    behind = command("keys", "list", "--output", "json")
    assert json.loads(before.out)["total"] == 1
    assert before == behind
    elsewhere = command.as_(PQKEEP_URL="http://127.0.0.1:1")
    assert elsewhere("--url", base_url, "-q", "keys", "show", "Kyber768").status == 0
    assert command("--compliance-profile", "cnsa-2.0", "keys", "show", "Kyber768").status == 5


def test_behind_the_command_counts_more(command: Command, tenant: Client, base_url: str) -> None:
    """An option after the command overrides the same one before it, even with a default value."""
    tenant.keys.generate("Kyber768")
    shown = command("--output", "json", "keys", "list", "--output", "table")
    assert shown.out.startswith(b"ALGORITHM")
    wrong = ("--url", "http://127.0.0.1:1", "--api-key-file", "nowhere")
    key_file = command.environment["PQKEEP_API_KEY_FILE"]
    right = ("--url", base_url, "--api-key-file", key_file)
    assert command(*wrong, "keys", "list", *right).status == 0
    assert command(*right, "keys", "list", *wrong).status == 1


def test_before_audit_verify(command: Command, tenant: Client) -> None:
    """A command with its own options also accepts the common options before it."""
    tenant.keys.generate("Kyber768")
    assert command("audit", "export", "--to", "export.jsonl").status == 0
    ended = command("--output", "json", "audit", "verify", "export.jsonl")
    assert json.loads(ended.out)["verified"] is True


@pytest.mark.parametrize(
    ("arguments", "algorithm"),
    [
        (("encrypt", "report.pdf"), "Kyber768"),
        (("encrypt", "report.pdf", "--server-side", "-a", "X-Wing"), "X-Wing"),
        (("encrypt", "report.pdf", "--compliance-profile", "cnsa-2.0"), "ML-KEM-1024"),
        (("sign", "report.pdf"), "Dilithium3"),
        (("sign", "report.pdf", "--compliance-profile", "cnsa-2.0"), "ML-DSA-87"),
        (("encapsulate", "--secret", "secret", "--to", "sent"), "Kyber768"),
        (("wrap", "key", "--to", "wrapped"), "Kyber768"),
        (("keys", "public-key", "X-Wing"), "X-Wing"),
        (("keys", "rotate", "X-Wing"), "X-Wing"),
    ],
)
def test_a_key_that_is_missing(
    command: Command, file: Path, arguments: tuple[str, ...], algorithm: str
) -> None:
    """Without an active key, the error names the command that makes one."""
    (command.directory / "key").write_bytes(bytes(32))
    before = command.names()
    ended = command(*arguments)
    assert (ended.status, ended.out) == (4, b"")
    hint = f"        generate a key: pqkeep keys generate {algorithm}; list keys: pqkeep keys list"
    assert ended.err.splitlines()[1] == hint
    assert command.names() == before


def test_a_version_that_is_missing(command: Command, file: Path) -> None:
    """For a missing version, the error does not suggest another version."""
    for arguments in (("sign", file.name, "-k", "9"), ("keys", "show", "X-Wing", "-k", "9")):
        ended = command(*arguments)
        assert (ended.status, "generate" in ended.err) == (4, False)


def test_records_say_who(command: Command, tenant: Client) -> None:
    """The table of records has the principal, such as the API key."""
    tenant.keys.generate("Kyber768")
    heading, first, *_ = command("audit", "records", "--limit", "1").out.decode().splitlines()
    assert "PRINCIPAL" in heading
    assert "api-key:1" in first


def test_a_key_if_there_is_none(command: Command, tenant: Client) -> None:
    """With --if-absent a key is generated once, and shown on each repetition."""
    first = command("keys", "generate", "Kyber768", "--if-absent", "--output", "json")
    assert command("keys", "generate", "Kyber768").status == 1
    again = command("keys", "generate", "Kyber768", "--if-absent", "--output", "json")
    assert (first.status, again.status) == (0, 0)
    assert json.loads(again.out) == json.loads(first.out)
    assert len(tenant.keys.list()) == 1
