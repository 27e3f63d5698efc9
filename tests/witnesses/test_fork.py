"""A restored log that is shorter than a third-party witness knows: pqkeep reports a conflict."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.backup.conftest import (  # noqa: F401 - fixtures
    UNKNOWN,
    Command,
    RecoveryKey,
    command,
    recovery_key,
)
from tests.fixtures.installation import running
from tests.portal.visitors import get_page
from tests.witnesses.conftest import BUILT, Running, with_witness
from tests.witnesses.test_cosigned_log import of, save_keys, until_state

from pqkeep.audit import verify

if TYPE_CHECKING:
    from pqkeep import Client

pytestmark = pytest.mark.campaign


def grow(client: Client, count: int) -> None:
    """Add records."""
    for _ in range(count):
        client.keys.list()


def verify_elsewhere(client: Client, folder: Path, witness: Running) -> None:
    """Verify a record's proof with another implementation, if it is built."""
    verifier = BUILT / "verify-proof"
    if not verifier.exists():
        return
    policy, proof = folder / "policy", folder / "record.tlog-proof"
    log = client.audit.keys().note_key
    policy.write_text(f"log {log}\nwitness one {witness.vkey}\ngroup all all one\nquorum all\n")
    proof.write_text(client.audit.tlog_proof(1))
    subprocess.run([verifier, policy, proof], check=True)
    proof.write_text(proof.read_text().replace("index 0", "index 1"))
    assert subprocess.run([verifier, policy, proof], check=False, capture_output=True).returncode


@pytest.mark.threat("keys-database-rollback")
def test_a_witness_refuses_a_forked_restore(
    witness: Running,
    tmp_path: Path,
    command: Command,  # noqa: F811
    recovery_key: RecoveryKey,  # noqa: F811
) -> None:
    """Unknown, cosigned, cosigned again; after a restore unknown again, then in conflict for good."""
    data, keys, file = tmp_path / "data", tmp_path / "keys.json", tmp_path / "backup"
    with_witness(data, witness.url, witness.vkey)
    with running(tmp_path, data=data) as installation, of(installation, "api_key") as client:
        grow(client, 3)
        until_state(client, "unknown-log")
        witness.trust(save_keys(client, keys))
    with running(tmp_path, data=data) as installation, of(installation, "api_key") as client:
        until_state(client, None)
        verify_elsewhere(client, tmp_path, witness)
        export = tmp_path / "export.jsonl"
        client.audit.export(export)
        assert verify([export], keys, witnesses=[witness.vkey]).is_verified
    status, said = command(
        "backup", "--data", data, "--recovery-key", recovery_key.public, "--to", file
    )
    assert status == 0, said
    with running(tmp_path, data=data) as installation, of(installation, "api_key") as client:
        grow(client, 20)
        with of(installation, "operator_key") as operator:
            size = operator.audit.sign_checkpoint().size
    with running(tmp_path, data=data) as installation, of(installation, "api_key") as client:
        until_state(client, None, size)
    new = tmp_path / "new"
    status, said = command(
        *("restore", file, "--recovery-key", recovery_key.private, "--data", new),
        *("--root-key", data / "keyservice" / "root.key", *UNKNOWN, "--keep", "mailbox"),
    )
    assert status == 0, said
    with running(tmp_path, data=new) as installation, of(installation, "api_key") as client:
        grow(client, 2)
        until_state(client, "unknown-key")
        status, said = command("doctor", "--data", new)
        assert (status, "does not know the key of the log" in said) == (1, True)
        witness.trust(save_keys(client, keys))
    for records in (2, 60):  # fewer than the witness has seen, then more, but others
        with running(tmp_path, data=new) as installation, of(installation, "api_key") as client:
            grow(client, records)
            until_state(client, "conflict")
            status, said = command("doctor", "--data", new)
            assert (status, "has cosigned another history" in said) == (1, True)
            with of(installation, "operator_key") as operator:
                (found,) = operator.audit.records(operation="witness-conflict")
            assert found.outcome == "begun"
            person = installation.person(installation.ready["tenant_id"], "viewer")
            assert "cosigned another history" in get_page(person, "/portal/audit").text
            assert "a witness has cosigned another history" in installation.output
