"""``pqkeep inventory``: saved bills of materials and their signatures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sdk.tests.cli.conftest import Command

    from pqkeep import Client


def test_a_signed_bill_of_materials_is_saved_and_verified(command: Command, tenant: Client) -> None:
    """The document and its JWS are saved and verify; a changed document does not."""
    tenant.keys.generate("Kyber768")
    tenant.keys.generate("Dilithium3")
    saved = command.directory / "cbom.json"
    assert command("inventory", "cbom", "--out", saved, "--cyclonedx", "1.6").status == 0
    plain = saved.read_bytes()
    assert json.loads(plain)["specVersion"] == "1.6"
    signing = ("inventory", "cbom", "--out", saved, "--signed-by", "default/ML-DSA-65")
    assert command(*signing).status != 0
    again = command(*signing, "--cyclonedx", "1.6", "--verify", "--force")
    assert again.status == 0, again.err
    assert saved.read_bytes() == plain
    assert command("verify", saved).status == 0
    saved.write_bytes(plain.replace(b'"state":"active"', b'"state":"destroyed"'))
    assert command("verify", saved).status == 7
    assert command("inventory", "cbom", "--out", saved, "--verify").status == 2
