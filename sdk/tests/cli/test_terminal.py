"""Output in a terminal."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from pqkeep import Client

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command, Terminal

LONG = 40_000_000


def test_no_bytes_to_a_terminal(command: Command, terminal: type[Terminal], tenant: Client) -> None:
    """Bytes that a terminal could interpret are written there only if forced."""
    tenant.keys.generate("Kyber768")
    refused = "the output is binary"
    for arguments in (("keys", "public-key", "Kyber768", "--format", "raw"), ("encrypt", "-")):
        status, shown = terminal(command, *arguments).end()
        assert (status, refused in shown) == (2, True)
    status, shown = terminal(command, "keys", "public-key", "Kyber768").end()
    assert (status, shown.startswith("{")) == (0, True)
    for data, is_text in (("Grüße\n".encode(), True), (b"a\x1b[2Jb", False), (b"\xff", False)):
        path = command.directory / "encrypted"
        path.write_bytes(command("encrypt", "-", stdin=data).out)
        with path.open("rb") as file:
            status, shown = terminal(command, "decrypt", "-", stdin=file).end()
        assert (status, refused in shown) == ((0, False) if is_text else (2, True))
        assert not is_text or shown == "Grüße\r\n"
    status, shown = terminal(command, "decrypt", "encrypted", "--to", "-", "--quiet").end()
    assert (status, refused in shown) == (0, False)


def test_progress(command: Command, terminal: type[Terminal], tenant: Client) -> None:
    """In a terminal long work shows progress in bytes and bytes per second, unless --quiet."""
    tenant.keys.generate("Kyber768")
    (command.directory / "long").write_bytes(bytes(LONG))
    status, shown = terminal(command, "encrypt", "long").end()
    assert status == 0
    assert "40.0/40.0 MB" in shown
    assert re.search(r"[\d.]+ [MG]B/s", shown)
    status, shown = terminal(command, "encrypt", "long", "--force", "--quiet").end()
    assert (status, shown) == (0, "")
    assert command("encrypt", "long", "--force").err.count("\n") == 1


def test_a_table_of_80_columns(
    command: Command, terminal: type[Terminal], operator_command: Command
) -> None:
    """A table fits into the terminal: long text is folded, and nothing is lost."""
    (command.directory / "x").touch()
    name = "a name of many words " + os.urandom(40).hex()
    created = operator_command("tenants", "create", name, "--quiet", "--output", "json")
    assert created.status == 0
    status, shown = terminal(operator_command, "tenants", "list").end()
    assert status == 0
    assert max(map(len, shown.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines())) <= 80
    assert "…" not in shown


def test_a_name_that_would_act_on_a_terminal(
    operator_command: Command, terminal: type[Terminal]
) -> None:
    """Control characters in a tenant's name do not reach the terminal."""
    name = f"\x1b[2J{os.urandom(8).hex()}"
    assert operator_command("tenants", "create", name).status in {0, 1}
    _, shown = terminal(operator_command, "tenants", "list").end()
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("decapsulate",), "standard input is empty"),
        (("unwrap",), "standard input is empty"),
        (("recipients", "-"), "empty"),
        (("decrypt", "-"), "empty"),
        (("re-encrypt", "-"), "empty"),
    ],
)
def test_standard_input_that_is_a_terminal(
    command: Command, terminal: type[Terminal], words: tuple[str, ...], expected: str
) -> None:
    """A command that waits for typed input says so, and ends at the first Ctrl-D."""
    run = terminal(command, *words)
    run.respond("end it with Ctrl-D", "\x04")
    status, shown = run.end()
    assert (status, expected in shown) == (1, True), shown
