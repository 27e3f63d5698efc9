"""The commands and settings of the pages for operators and auditors work, in order.

Commands that cannot run here are in a table with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fixtures.installation import Installation

from pqkeep_gateway.config import Config as Gateway
from pqkeep_keyservice.config import Config as KeyService
from pqkeep_protocol.documents import decode_toml
from pqkeep_protocol.startup.settings import ConfigError, converted
from pqkeep_server.start_settings import StartSettings

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted({*DOCS.glob("*.md"), *(ROOT / "deploy").glob("*.md")} - {DOCS / "sdk.md"})
"""All pages except the one with the client's TOML file."""
SNIPPET = re.compile(r"^ *```toml\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.DOTALL | re.MULTILINE)

ELSEWHERE: Mapping[str, str] = {
    "pqkeepd doctor": "finds faults in an installation of one user: server/tests/test_doctor.py",
    "--root-key b-root.key": "needs a backup of several shards: tests/backup",
    "destructions cancel": "needs a scheduled destruction: tests/e2e/test_destructions.py",
    "pqkeepd rules": "needs a tenant with rules: tests/e2e/test_operators_rules.py",
    "--witness": "needs witnesses: tests/witnesses",
    "softhsm2-util": "needs a token: tests/backup/test_root_key_sources.py",
    "--to 'pkcs11": "needs a token: tests/backup/test_root_key_sources.py",
    "--to 'command": "needs a program of root: tests/backup/test_root_key_sources.py",
    "--to 'credential": "needs a service manager: tests/backup/test_root_key_sources.py",
    "migrate-store": "needs a server and a stopped service: tests/backup/test_store_migration.py",
    "kill -HUP": "needs an installation of root: tests/e2e/test_several_gateways.py",
    "pqkeepd dev": "is the installation of these tests",
    "--keys-database postgresql": "needs a server: tests/shards",
    "pip install": "is installed already",
}
"""Commands that do not run here, by a part of them."""


def _partial(form: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return settings, of which each may be missing."""
    hints = msgspec.inspect.type_info(form)
    assert isinstance(hints, msgspec.inspect.StructType)
    types = {name: kind for base in form.__mro__ for name, kind in _annotations(base).items()}
    fields = [(field.name, types[field.name], None) for field in hints.fields]
    return msgspec.defstruct(form.__name__, fields, forbid_unknown_fields=True)


def _annotations(form: type) -> dict[str, Any]:
    return dict(form.__annotations__) if issubclass(form, msgspec.Struct) else {}


FORMS = [_partial(form) for form in (Gateway, KeyService, StartSettings)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_of_a_page_are_settings(page: Path) -> None:
    """Each TOML snippet has names and values of one of the settings files."""
    for snippet in SNIPPET.findall(page.read_text()):
        settings, faults = decode_toml(snippet, dict[str, Any]), []
        for form in FORMS:
            try:
                converted(page.name, settings, form, Path("/"))
            except ConfigError as error:
                faults.append(error)
        assert len(faults) < len(FORMS), (snippet, faults)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md"], ids=lambda page: page.name)
def test_targets_of_make_exist(page: Path) -> None:
    """Each make command on a page names a target of the Makefile."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:^|`)make ([a-z0-9-]+)", page.read_text(), re.MULTILINE)
    assert set(named) <= targets


def commands(page: str) -> list[str]:
    """Return a page's shell commands that run here, one text for each fence."""
    fences = SHELL.findall((DOCS / page).read_text())
    return [
        "".join(
            command
            for command in re.findall(r"(?:[^\n]*\\\n)*[^\n]*\n", fence)
            if not any(part in command for part in ELSEWHERE)
        )
        for fence in fences
    ]


def replaced(script: str, places: Mapping[str, str]) -> str:
    """Return a script with patterns replaced."""
    for pattern, text in places.items():
        script = re.sub(pattern, text, script, flags=re.MULTILINE)
    return script


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_operations_in_order(
    start: Callable[..., Installation],
    shell: Callable[[str, Mapping[str, str]], str],
    tmp_path: Path,
) -> None:
    """An operator who follows operations.md from the beginning to the end meets no error."""
    installation = start()
    tenant = installation.new_tenant()
    environment = installation.environment(installation.ready["operator_key"])
    places = {
        r"\bNEWDIR\b": "restored",
        r"rm -r DIR/gateway": "cp DIR/gateway/settings.toml DIR/gateway/pepper .; "
        "rm -r restored/gateway",
        r"DIR/gateway$": "restored/gateway",
        r"\bDIR\b": str(installation.data),
        r"\bFILE\b": "backup",
        r"\bID\b": tenant.tenant_id,
        r"--root-key root.key": f"--root-key {installation.data}/keyservice/root.key",
    }
    newest = ""
    for script in commands("operations.md"):
        written = shell(replaced(script, {**places, r"\b0\.1200\b": newest}), environment)
        if "pqkeepd backup" in script:
            (newest,) = re.findall(r"\b\d+\.\d+\b", written)
    assert newest


@pytest.mark.timeout(300)
def test_audit_in_order(
    start: Callable[..., Installation],
    shell: Callable[[str, Mapping[str, str]], str],
    tmp_path: Path,
) -> None:
    """An auditor who follows audit.md from the beginning to the end meets no error."""
    installation = start()
    environment = installation.environment(installation.ready["api_key"])
    (tmp_path / "header").write_text(f"X-API-Key: {installation.ready['api_key']}")
    (tmp_path / "operator").write_text(f"X-API-Key: {installation.ready['operator_key']}")
    places = {
        r"^0 \* \* \* \* +": "",
        "/etc/pqkeep/header": "header",
        "https://pqkeep.example": installation.base_url,
        "/var/lib/anchors/": "",
    }
    for script in commands("audit.md"):
        shell(replaced(script, places), environment)


@pytest.mark.campaign
@pytest.mark.timeout(300)
def test_shards_in_order(
    start: Callable[..., Installation],
    shell: Callable[[str, Mapping[str, str]], str],
    tmp_path: Path,
) -> None:
    """A shard is added, drained, exported and removed by the commands of scaling.md."""
    installation = start()
    environment = installation.environment(installation.ready["operator_key"])
    for script in commands("scaling.md"):
        shell(re.sub(r"\bDIR\b", str(installation.data), script), environment)
        if "shard add" in script:
            installation.stop()
            installation = start(data=installation.data)
            environment["PQKEEP_URL"] = installation.base_url
