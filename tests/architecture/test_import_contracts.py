"""Every import contract of pyproject.toml catches what it is there for."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

Lint = Callable[[Path], tuple[int, str]]

VIOLATIONS = {
    "The protocol stands on the standard library and msgspec": (
        "protocol/src/pqkeep_protocol/keys.py",
        "import sqlalchemy",
    ),
    "The gateway cannot reach private keys or cryptography": (
        "gateway/src/pqkeep_gateway/wiring.py",
        "from cryptography.hazmat.primitives.asymmetric import mlkem",
    ),
    "The key service reaches no HTTP, no gateway and no client": (
        "keyservice/src/pqkeep_keyservice/server.py",
        "import starlette",
    ),
    "The client knows only HTTP": (
        "sdk/src/pqkeep/__init__.py",
        "import pqkeep_protocol.keys",
    ),
    "Client layers": (
        "sdk/src/pqkeep/client.py",
        "import pqkeep.audit",
    ),
    "The command uses the client's public names": (
        "sdk/src/pqkeep/cli/audit.py",
        "import pqkeep.audit._merkle",
    ),
    "Command layers": (
        "sdk/src/pqkeep/cli/failures.py",
        "import pqkeep.cli.display",
    ),
    "Audit verification layers": (
        "sdk/src/pqkeep/audit/_merkle.py",
        "import pqkeep.audit._json",
    ),
    "Local encryption layers": (
        "sdk/src/pqkeep/local/_segments.py",
        "import pqkeep.local._header",
    ),
    "Protocol layers": (
        "protocol/src/pqkeep_protocol/algorithms.py",
        "import pqkeep_protocol.messages",
    ),
    "Start-up layers": (
        "protocol/src/pqkeep_protocol/startup/settings.py",
        "import pqkeep_protocol.startup.secret_files",
    ),
    "Key service layers": (
        "keyservice/src/pqkeep_keyservice/keys/keyring.py",
        "import pqkeep_keyservice.storage.store",
    ),
    "Key service storage layers": (
        "keyservice/src/pqkeep_keyservice/storage/sqlite.py",
        "import pqkeep_keyservice.storage.store",
    ),
    "Ledger layers": (
        "keyservice/src/pqkeep_keyservice/ledger/records.py",
        "import pqkeep_keyservice.ledger.tree",
    ),
    "Live layers": (
        "keyservice/src/pqkeep_keyservice/live/key_material.py",
        "import pqkeep_keyservice.live.worker_processes",
    ),
    "Operation layers": (
        "keyservice/src/pqkeep_keyservice/operations/wrapping.py",
        "import pqkeep_keyservice.operations.encryption",
    ),
    "Audit layers": (
        "keyservice/src/pqkeep_keyservice/audit/log.py",
        "import pqkeep_keyservice.audit.service",
    ),
    "Key layers": (
        "keyservice/src/pqkeep_keyservice/keys/keyring.py",
        "import pqkeep_keyservice.keys.changes",
    ),
    "Cryptography layers": (
        "keyservice/src/pqkeep_keyservice/crypto/mlkem.py",
        "import pqkeep_keyservice.crypto.kem",
    ),
    "Gateway layers": (
        "gateway/src/pqkeep_gateway/access/policy.py",
        "import pqkeep_gateway.tenancy.tenants",
    ),
    "Gateway http layers": (
        "gateway/src/pqkeep_gateway/http/field.py",
        "import pqkeep_gateway.http.pipeline",
    ),
    "Gateway api layers": (
        "gateway/src/pqkeep_gateway/api/kem.py",
        "import pqkeep_gateway.api.signature",
    ),
    "Gateway storage layers": (
        "gateway/src/pqkeep_gateway/storage/users.py",
        "import pqkeep_gateway.storage.invitations",
    ),
    "Gateway people layers": (
        "gateway/src/pqkeep_gateway/people/sessions.py",
        "import pqkeep_gateway.people.sign_in",
    ),
    "Gateway tenancy layers": (
        "gateway/src/pqkeep_gateway/tenancy/tenants.py",
        "import pqkeep_gateway.tenancy.api_keys",
    ),
    "Backup layers": (
        "server/src/pqkeep_server/backup/tables.py",
        "import pqkeep_server.backup.databases",
    ),
    "Server layers": (
        "server/src/pqkeep_server/supervise.py",
        "import pqkeep_server.dev",
    ),
    "The gateway's rules know no web framework and no database": (
        "gateway/src/pqkeep_gateway/tenancy/tenants.py",
        "import sqlalchemy",
    ),
    "Only wiring knows the gateway's concrete classes": (
        "gateway/src/pqkeep_gateway/api/kem.py",
        "import pqkeep_gateway.key_client",
    ),
    "Few doors into the cryptography": (
        "keyservice/src/pqkeep_keyservice/dispatch.py",
        "import pqkeep_keyservice.crypto.dem",
    ),
}
"""For each contract a file, and an import that it must not have."""


def test_the_sources_keep_every_contract(copy: Path, lint_imports: Lint) -> None:
    """An untouched copy passes."""
    status, said = lint_imports(copy)
    assert status == 0, said


def test_every_contract_has_its_violation(root: Path) -> None:
    """No contract is without a row, and no row without a contract."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    assert {contract["name"] for contract in contracts} == VIOLATIONS.keys()


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_violation_is_caught(copy: Path, lint_imports: Lint, contract: str) -> None:
    """With one import too many the linter fails and names the contract."""
    path, statement = VIOLATIONS[contract]
    file = copy / path
    source = file.read_text()
    assert statement not in source
    file.write_text(f"{source}\n{statement}\n")
    status, said = lint_imports(copy)
    assert status == 1, said
    assert f"{contract} BROKEN" in said.replace("\n", " ")


@pytest.mark.parametrize(
    ("contract", "path"),
    [
        ("Protocol layers", "protocol/src/pqkeep_protocol/somewhere.py"),
        ("Key service layers", "keyservice/src/pqkeep_keyservice/somewhere.py"),
        ("Key service storage layers", "keyservice/src/pqkeep_keyservice/storage/somewhere.py"),
        ("Ledger layers", "keyservice/src/pqkeep_keyservice/ledger/somewhere.py"),
        ("Live layers", "keyservice/src/pqkeep_keyservice/live/somewhere.py"),
        ("Gateway layers", "gateway/src/pqkeep_gateway/somewhere.py"),
        ("Gateway storage layers", "gateway/src/pqkeep_gateway/storage/somewhere.py"),
        ("Gateway people layers", "gateway/src/pqkeep_gateway/people/somewhere.py"),
        ("Gateway tenancy layers", "gateway/src/pqkeep_gateway/tenancy/somewhere.py"),
        ("Server layers", "server/src/pqkeep_server/somewhere.py"),
        ("Client layers", "sdk/src/pqkeep/somewhere.py"),
        ("Audit verification layers", "sdk/src/pqkeep/audit/somewhere.py"),
        ("Local encryption layers", "sdk/src/pqkeep/local/somewhere.py"),
    ],
)
def test_a_module_without_a_layer_is_caught(
    copy: Path, lint_imports: Lint, contract: str, path: str
) -> None:
    """The layers are exhaustive: a new module has no place until it is given one."""
    (copy / path).write_text('"""New."""\n')
    status, said = lint_imports(copy)
    assert status == 1, said
    assert contract in said
