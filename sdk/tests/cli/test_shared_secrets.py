"""``pqkeep encapsulate``, ``decapsulate``, ``wrap`` and ``unwrap``."""

from __future__ import annotations

import json
import os
import stat
from typing import TYPE_CHECKING

import pytest

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command


def test_a_shared_secret(command: Command, tenant: Client) -> None:
    """Decapsulate returns the 32 bytes of encapsulate, in a file with mode 0600."""
    tenant.keys.generate("X-Wing")
    made = command("encapsulate", "--algorithm", "X-Wing", "--secret", "secret")
    assert (made.status, made.err) == (0, "")
    said = json.loads(made.out)
    assert (said["algorithm"], said["key_version"]) == ("X-Wing", 1)
    assert "shared_secret" not in said
    secret = command.directory / "secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert len(secret.read_bytes()) == 32
    assert command("decapsulate", stdin=made.out).out == secret.read_bytes()
    assert command("decapsulate", "-", "--to", "again", stdin=made.out).status == 0
    assert (command.directory / "again").read_bytes() == secret.read_bytes()


def test_a_secret_down_a_pipe(command: Command, tenant: Client) -> None:
    """The secret may go to a pipe if the KEM ciphertext goes to a file."""
    tenant.keys.generate("Kyber768")
    assert command("encapsulate", "--secret", "-").status == 2
    made = command("encapsulate", "--secret", "-", "--to", "kem.json")
    assert (made.status, len(made.out)) == (0, 32)
    assert command("decapsulate", "kem.json").out == made.out


def test_nothing_is_left_of_half_of_it(command: Command, tenant: Client) -> None:
    """If one of the two files exists, neither is written."""
    tenant.keys.generate("Kyber768")
    (command.directory / "kem.json").write_text("mine")
    assert command("encapsulate", "--secret", "secret", "--to", "kem.json").status == 1
    assert command.names() == {"kem.json"}


@pytest.mark.parametrize("size", [16, 64])
def test_a_wrapped_key(command: Command, tenant: Client, size: int) -> None:
    """Unwrap returns wrap's input; the wrapped key names the key that unwraps it."""
    tenant.keys.generate("Kyber768")
    key = os.urandom(size)
    wrapped = command("wrap", stdin=key)
    assert json.loads(wrapped.out)["format"] == "pqkeep/v1/wrapped-key"
    tenant.keys.rotate("Kyber768")
    assert command("unwrap", stdin=wrapped.out).out == key


def test_no_key(command: Command, tenant: Client) -> None:
    """Input of another size is refused: too much by the command, other sizes by the service."""
    tenant.keys.generate("Kyber768")
    assert command("wrap", stdin=bytes(65)).status == 2
    assert command("wrap", stdin=bytes(17)).status == 1


def test_a_changed_wrapped_key(command: Command, tenant: Client) -> None:
    """For a changed wrapped key the exit status is 7. For another kind of file it is 1."""
    tenant.keys.generate("Kyber768")
    said = json.loads(command("wrap", stdin=bytes(32)).out)
    said["wrapped_key"] = said["wrapped_key"][:-8] + "AAAAAAA="
    wrapped = command("wrap", stdin=bytes(32)).out
    ended = command("decapsulate", stdin=wrapped)
    assert (ended.status, "use pqkeep unwrap for this file" in ended.err) == (1, True)
    for text, status, what in (
        (json.dumps(said).encode(), 7, "ERR_KEM_012"),
        (b"", 1, "standard input is empty"),
        (bytes(32), 1, "standard input is 32 bytes"),
    ):
        ended = command("unwrap", stdin=text)
        assert (ended.status, ended.out, what in ended.err) == (status, b"", True)
