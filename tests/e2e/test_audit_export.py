"""A running installation's audit log, exported and verified offline."""

from __future__ import annotations

import json
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

PQKEEP = Path(sysconfig.get_path("scripts")) / "pqkeep"
SLH_DSA = "SLH-DSA-SHA2-128s"


class Shelf:
    """A folder of responses, saved like curl does."""

    def __init__(self, folder: Path, base_url: str) -> None:
        self.folder = folder
        self.base_url = base_url

    def save(self, name: str, caller: Caller, path: str, **query: object) -> Path:
        """Save an answer as it came."""
        headers = {"X-API-Key": caller.api_key}
        params = {name: str(value) for name, value in query.items()}
        with httpx2.Client(
            base_url=self.base_url, headers=headers, trust_env=False, timeout=PATIENCE
        ) as client:
            response = client.get(f"/api/v1/audit{path}", params=params)
        assert response.status_code == 200, response.text
        file = self.folder / name
        file.write_bytes(response.content)
        return file


@pytest.fixture
def shelf(tmp_path: Path, installation: Installation) -> Shelf:
    """A folder of saved responses."""
    return Shelf(tmp_path, installation.base_url)


@pytest.fixture
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant with some records."""
    made = new_tenant()
    work(made, times=3)
    return made


def work(tenant: Caller, *, times: int) -> None:
    """Do something that is recorded."""
    for _ in range(times):
        tenant.ask("GET", "/kms/keys")
        tenant.ask("POST", "/kms/keys/generate", {"algorithm": "Kyber768"})


def sign(operator: Caller, algorithm: str = "Dilithium3") -> int:
    """Have the log signed; return its size."""
    size: int = operator.post("/audit/checkpoints", {"algorithm": algorithm}, status=201)["size"]
    return size


def verify(*arguments: str | Path) -> tuple[int, str]:
    """Run the command; return status and output."""
    ended = subprocess.run(
        [PQKEEP, "audit", "verify", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def test_a_whole_export(operator: Caller, tenant: Caller, shelf: Shelf) -> None:
    """The operator's export verifies with keys and checkpoints saved earlier."""
    sign(operator)  # so that both keys are there before they are saved
    sign(operator, SLH_DSA)
    keys = shelf.save("keys.json", operator, "/keys")
    kept = shelf.save("kept.json", operator, "/checkpoints")
    work(tenant, times=3)
    sign(operator)
    export = shelf.save("export.jsonl", operator, "/export")
    status, said = verify(export, kept, "--keys", keys)
    assert status == 0, said
    assert said.splitlines()[-1] == "verified"
    assert f"key         {SLH_DSA} version 1" in said


def test_a_tenants_export(operator: Caller, tenant: Caller, shelf: Shelf) -> None:
    """A tenant's export verifies, with the proof that it continues an older checkpoint."""
    first = sign(operator)
    keys = shelf.save("keys.json", tenant, "/keys")
    kept = shelf.save("kept.json", tenant, "/checkpoints", after=first - 1, limit=1)
    work(tenant, times=3)
    sign(operator)
    export = shelf.save("export.jsonl", tenant, "/export")
    second = json.loads(export.read_bytes().split(b"\n")[0])["size"]
    proof = shelf.save("p.json", tenant, "/consistency", first=first, second=second)
    status, said = verify(export, kept, proof, "--keys", keys)
    assert status == 0, said
    assert f"those of tenant {tenant.tenant_id}" in said
    status, said = verify(export, kept, "--keys", keys)
    assert status == 7
    assert f"consistency?first={first}&second={second}" in said


def test_an_edited_export(operator: Caller, tenant: Caller, shelf: Shelf) -> None:
    """If one word of a real export is changed, its record is named."""
    sign(operator)
    export = shelf.save("export.jsonl", tenant, "/export")
    lines = export.read_text().splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if '"type":"record"' in line)
    record = json.loads(lines[at])["record"]
    lines[at] = lines[at].replace(f'"{record["request_id"]}"', '"another"')
    export.write_text("".join(lines))
    status, said = verify(export)
    assert status == 7
    assert f"{export}:{at + 1}: edited: record {record['id']} (number {record['number']})" in said
