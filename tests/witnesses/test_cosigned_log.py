"""An installation with a witness: cosignatures in the API, in exports and in proofs."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from tests.fixtures.installation import Installation, running
from tests.fixtures.witness import Response, Witness, serving
from tests.patience import PATIENCE
from tests.portal.visitors import get_page
from tests.witnesses.conftest import ORIGIN, with_witness

from pqkeep import Client
from pqkeep.audit import verify


def until_state(client: Client, problem: str | None, size: int = 1) -> None:
    """Wait until the witness has this problem. For None, wait until it has cosigned this size."""
    deadline = time.monotonic() + PATIENCE
    while True:
        (found,) = client.audit.witnesses()
        if found.problem == problem and (problem is not None or (found.size or 0) >= size):
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def save_keys(client: Client, path: Path) -> str:
    """Save the keys of the log like a person; return the note key."""
    found = client.audit.keys()
    path.write_text(
        json.dumps(
            {
                "log_id": found.log_id,
                "note_key": found.note_key,
                "keys": [
                    json.loads(
                        json.dumps(
                            {
                                "algorithm": key.algorithm,
                                "key_version": key.key_version,
                                "public_key": _base64(key.public_key),
                            }
                        )
                    )
                    for key in found.keys
                ],
            }
        )
    )
    return str(found.note_key)


def _base64(data: bytes) -> str:
    import base64  # noqa: PLC0415

    return base64.b64encode(data).decode()


def of(installation: Installation, key: str) -> Client:
    """Return a client with a credential."""
    return Client(installation.base_url, installation.ready[key])


def test_a_witness_cosigns_the_log(tmp_path: Path) -> None:
    """A witness cosigns a running installation's log, and files verify with its key alone."""
    witness, is_known = Witness(), threading.Event()

    def respond(body: bytes) -> Response:
        is_known.wait(PATIENCE)
        return witness.add_checkpoint(body)

    data, keys = tmp_path / "data", tmp_path / "keys.json"
    with serving(respond) as url:
        with_witness(data, url, witness.vkey)
        with (
            running(tmp_path, data=data) as installation,
            of(installation, "api_key") as client,
        ):
            deadline = time.monotonic() + PATIENCE
            while client.audit.keys().note_key is None:
                assert time.monotonic() < deadline
                time.sleep(0.1)
            witness.trust(save_keys(client, keys))
            is_known.set()
            until_state(client, None)
            (state,) = client.audit.witnesses()
            assert (state.name, state.origin) == (witness.name, ORIGIN)
            assert state.size is not None
            (shown,) = (
                found
                for found in client.audit.checkpoints(after=state.size - 1, limit=1)
                if found.size == state.size
            )
            assert [found.witness for found in shown.cosignatures] == [witness.name]
            (record, *_) = client.audit.records(page_size=10)
            proof = tmp_path / "record.tlog-proof"
            proof.write_text(client.audit.tlog_proof(record.id))
            mine, whole = tmp_path / "mine.jsonl", tmp_path / "whole.jsonl"
            client.audit.export(mine)
            with of(installation, "operator_key") as operator:
                operator.audit.export(whole)
            person = installation.person(installation.ready["tenant_id"], "viewer")
            page = get_page(person, "/portal/audit").text
            assert witness.name in page
            assert "cosigned another history" not in page
    for files in ([mine], [whole], [proof]):
        report = verify(files, keys, witnesses=[witness.vkey])
        assert report.is_verified, report.findings
    assert report.proofs[0].id == record.id
    assert report.proofs[0].witnessed[0].size == state.size
