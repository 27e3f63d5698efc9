"""Every import contract of pyproject.toml catches a violation.

The linter runs three times: over the unchanged sources, with all violations, and with all new
modules. Its output names the import or the module of each contract.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
DISTRIBUTIONS = ("protocol", "keyservice", "gateway", "server", "sdk")
HEADING = re.compile(r"^(.+)\n-+\n\n", re.MULTILINE)

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
        "import pqkeep.audit._formats",
    ),
    "Input reader layers": (
        "sdk/src/pqkeep/inputs/_der.py",
        "import pqkeep.inputs._seen",
    ),
    "Local encryption layers": (
        "sdk/src/pqkeep/local/_recipients.py",
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
        "keyservice/src/pqkeep_keyservice/keys/key_versions.py",
        "import pqkeep_keyservice.storage.store",
    ),
    "Key service storage layers": (
        "keyservice/src/pqkeep_keyservice/storage/sqlite.py",
        "import pqkeep_keyservice.storage.store",
    ),
    "Ledger layers": (
        "keyservice/src/pqkeep_keyservice/ledger/records.py",
        "import pqkeep_keyservice.ledger.merkle",
    ),
    "Live layers": (
        "keyservice/src/pqkeep_keyservice/live/key_material.py",
        "import pqkeep_keyservice.live.worker_processes",
    ),
    "Operation layers": (
        "keyservice/src/pqkeep_keyservice/operations/kem_dem.py",
        "import pqkeep_keyservice.operations.table",
    ),
    "Audit layers": (
        "keyservice/src/pqkeep_keyservice/audit/log.py",
        "import pqkeep_keyservice.audit.service",
    ),
    "Key layers": (
        "keyservice/src/pqkeep_keyservice/keys/key_versions.py",
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
    "Gateway portal layers": (
        "gateway/src/pqkeep_gateway/portal/pages.py",
        "import pqkeep_gateway.portal.app",
    ),
    "Gateway transit layers": (
        "gateway/src/pqkeep_gateway/transit/keys.py",
        "import pqkeep_gateway.transit.routes",
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
    "Only the gateway's storage knows a database": (
        "gateway/src/pqkeep_gateway/tenancy/tenants.py",
        "import sqlalchemy",
    ),
    "The gateway's rules know no web framework and no provider": (
        "gateway/src/pqkeep_gateway/tenancy/billing.py",
        "import stripe",
    ),
    "Only wiring knows the gateway's clients": (
        "gateway/src/pqkeep_gateway/api/kem.py",
        "import pqkeep_gateway.key_client",
    ),
    "Few doors into the cryptography": (
        "keyservice/src/pqkeep_keyservice/transaction.py",
        "import pqkeep_keyservice.crypto.dem",
    ),
}
"""A file and a forbidden import for each contract."""


NEW_MODULES = [
    ("Client layers", "sdk/src/pqkeep/somewhere.py"),
    ("Command layers", "sdk/src/pqkeep/cli/somewhere.py"),
    ("Audit verification layers", "sdk/src/pqkeep/audit/somewhere.py"),
    ("Input reader layers", "sdk/src/pqkeep/inputs/somewhere.py"),
    ("Local encryption layers", "sdk/src/pqkeep/local/somewhere.py"),
    ("Protocol layers", "protocol/src/pqkeep_protocol/somewhere.py"),
    ("Start-up layers", "protocol/src/pqkeep_protocol/startup/somewhere.py"),
    ("Key service layers", "keyservice/src/pqkeep_keyservice/somewhere.py"),
    ("Key service storage layers", "keyservice/src/pqkeep_keyservice/storage/somewhere.py"),
    ("Ledger layers", "keyservice/src/pqkeep_keyservice/ledger/somewhere.py"),
    ("Live layers", "keyservice/src/pqkeep_keyservice/live/somewhere.py"),
    ("Operation layers", "keyservice/src/pqkeep_keyservice/operations/somewhere.py"),
    ("Audit layers", "keyservice/src/pqkeep_keyservice/audit/somewhere.py"),
    ("Key layers", "keyservice/src/pqkeep_keyservice/keys/somewhere.py"),
    ("Cryptography layers", "keyservice/src/pqkeep_keyservice/crypto/somewhere.py"),
    ("Gateway layers", "gateway/src/pqkeep_gateway/somewhere.py"),
    ("Gateway portal layers", "gateway/src/pqkeep_gateway/portal/somewhere.py"),
    ("Gateway transit layers", "gateway/src/pqkeep_gateway/transit/somewhere.py"),
    ("Gateway http layers", "gateway/src/pqkeep_gateway/http/somewhere.py"),
    ("Gateway api layers", "gateway/src/pqkeep_gateway/api/somewhere.py"),
    ("Gateway storage layers", "gateway/src/pqkeep_gateway/storage/somewhere.py"),
    ("Gateway people layers", "gateway/src/pqkeep_gateway/people/somewhere.py"),
    ("Gateway tenancy layers", "gateway/src/pqkeep_gateway/tenancy/somewhere.py"),
    ("Server layers", "server/src/pqkeep_server/somewhere.py"),
    ("Backup layers", "server/src/pqkeep_server/backup/somewhere.py"),
]
"""A module without a layer for each contract with exhaustive layers."""


def copy_sources(folder: Path) -> Path:
    """Copy only the sources and pyproject.toml."""
    folder.mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    for distribution in DISTRIBUTIONS:
        shutil.copytree(
            ROOT / distribution / "src",
            folder / distribution / "src",
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return folder


def lint_imports(copy: Path) -> tuple[int, str]:
    """Run the linter on a copy, which overrides the installed packages."""
    paths = [str(copy / distribution / "src") for distribution in DISTRIBUTIONS]
    ended = subprocess.run(
        [Path(sysconfig.get_path("scripts")) / "lint-imports", "--no-cache"],
        cwd=copy,
        env={"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return ended.returncode, ended.stdout + ended.stderr


def findings(said: str) -> Mapping[str, str]:
    """Return the linter's output for each broken contract."""
    _, *parts = HEADING.split(said.partition("Broken contracts\n")[2])
    return dict(zip(parts[::2], parts[1::2], strict=True))


def module_of(path: str) -> str:
    """Return the name of the module in a file."""
    dotted = path.partition("/src/")[2].removesuffix(".py").replace("/", ".")
    return dotted.removesuffix(".__init__")


@pytest.fixture(scope="module")
def of_violations(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The linter's output for each contract, with all violations."""
    copy = copy_sources(tmp_path_factory.mktemp("violations") / "copy")
    for path, statement in VIOLATIONS.values():
        file = copy / path
        source = file.read_text()
        assert statement not in source
        file.write_text(f"{source}\n{statement}\n")
    status, said = lint_imports(copy)
    assert status == 1, said
    return findings(said)


@pytest.fixture(scope="module")
def of_new_modules(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The linter's output for each contract, with all new modules."""
    copy = copy_sources(tmp_path_factory.mktemp("modules") / "copy")
    for _, path in NEW_MODULES:
        (copy / path).write_text('"""New."""\n')
    status, said = lint_imports(copy)
    assert status == 1, said
    return findings(said)


def test_the_sources_keep_every_contract(tmp_path: Path) -> None:
    """An untouched copy passes."""
    status, said = lint_imports(copy_sources(tmp_path / "copy"))
    assert status == 0, said


def test_every_contract_has_its_violation() -> None:
    """Every contract has a row here, and every row has a contract."""
    contracts = _contracts()
    assert {contract["name"] for contract in contracts} == VIOLATIONS.keys()
    exhaustive = {contract["name"] for contract in contracts if contract.get("exhaustive")}
    assert exhaustive == {contract for contract, _ in NEW_MODULES}


@pytest.mark.parametrize("contract", VIOLATIONS)
def test_a_violation_is_caught(of_violations: Mapping[str, str], contract: str) -> None:
    """A forbidden import breaks its contract, and the linter names the import."""
    path, statement = VIOLATIONS[contract]
    imported = statement.split()[1]
    if not imported.startswith("pqkeep"):
        imported = imported.partition(".")[0]  # of other packages the linter sees the whole
    assert f"{module_of(path)} -> {imported} (l." in of_violations[contract]


@pytest.mark.parametrize(("contract", "path"), NEW_MODULES)
def test_a_module_without_a_layer_is_caught(
    of_new_modules: Mapping[str, str], contract: str, path: str
) -> None:
    """A new module without a layer breaks the contract, because layers are exhaustive."""
    assert f"- {module_of(path)}\n" in of_new_modules[contract]


def _contracts() -> list[dict[str, Any]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts: list[dict[str, Any]] = settings["tool"]["importlinter"]["contracts"]
    return contracts
