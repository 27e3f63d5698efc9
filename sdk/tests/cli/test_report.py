"""``pqkeep report migration``: a directory that ``pqkeep audit verify`` verifies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

    from pqkeep import Client


def test_a_report_is_saved_and_verified(command: Command, tenant: Client) -> None:
    """The report verifies with the client alone, and an edited one names the file."""
    tenant.keys.generate("Kyber768")
    tenant.kem.encrypt(b"text", algorithm="Kyber768")
    directory = command.directory / "report"
    saving = ("report", "migration", "--since", "30d", "--out", directory)
    done = command(*saving)
    assert done.status == 0, done.err
    assert command(*saving).status != 0
    assert command("report", "migration", "--out", directory).status == 2
    assert command("audit", "verify", directory).status == 0
    assert command("audit", "verify", directory, directory).status == 2
    inventory = directory / "inventory.json"
    inventory.write_text(inventory.read_text().replace('"uses": 1,', '"uses": 2,'))
    edited = command("audit", "verify", directory)
    assert edited.status == 7
    assert b"default/Kyber768/1 has 1 uses in the records, not 2" in edited.out
