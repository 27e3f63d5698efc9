"""The generated parts of the documentation are current, and each threat has a test."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests import threats
from tests.docs import code_tables
from tests.docs.first_change import NEW, PAGE
from tests.docs.generated import ROOT, document, documents
from tests.fixtures.processes import ENVIRONMENT
from tests.patience import PATIENCE

from pqkeep_gateway.config import PREFIX, Config
from pqkeep_protocol.startup.settings import read_settings
from pqkeep_server.initialise import ROLES, settings_of

NAMED_PATH = re.compile(
    r"`((?:protocol|keyservice|gateway|server|sdk|tests|docs)/[\w/.-]+)(?:::\w+)?`"
)
RELATIVE = [str(path.relative_to(ROOT)) for path in documents()]


@pytest.mark.parametrize("page", RELATIVE)
def test_make_docs_changes_nothing(page: str) -> None:
    """The page equals the output of ``make docs``."""
    assert (ROOT / page).read_text() == document(ROOT / page), "run make docs"


def test_every_threat_has_a_test() -> None:
    """Each threat of SECURITY.md has a test, and no test names an unknown threat."""
    shown = {name for test in threats.marked_tests() for name in test.threats}
    assert shown == threats.threats().keys()


def test_every_attacker_has_a_threat_of_its_own() -> None:
    """Each row of an attacker in SECURITY.md has a unique name."""
    attacks = (ROOT / "SECURITY.md").read_text().partition("## Attacks")[2]
    rows = re.findall(r"^\| (?!attacker|---)(.*?) \|", attacks, re.MULTILINE)
    names = [found.group(2) for row in rows if (found := threats.LINK.fullmatch(row))]
    assert len(names) == len(set(names)) == len(rows)


def test_an_unknown_threat_ends_the_collection(tmp_path: Path) -> None:
    """A marker with a name that SECURITY.md does not have is an error before the first test."""
    (tmp_path / "conftest.py").write_text(
        "from tests.threats import require_known_threats\n"
        "def pytest_collection_modifyitems(items):\n    require_known_threats(items)\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.threat('stranger', 'dragon')\ndef test_it(): pass\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "ignore", tmp_path],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "SECURITY.md has no threat dragon" in ended.stderr
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR


@pytest.mark.parametrize("role", ROLES)
def test_every_setting_is_explained(role: str) -> None:
    """Each setting has its own text in the source."""
    form, _ = ROLES[role]
    assert [setting.name for setting in settings_of(form) if not setting.explanation] == []


def test_every_path_that_is_named_exists() -> None:
    """The pages for contributors name only existing files and folders."""
    paths = {
        path
        for page in ("docs/architecture.md", "docs/first-change.md", "docs/testing.md")
        for path in re.findall(NAMED_PATH, (ROOT / page).read_text())
    }
    made = {name for name, _ in NEW.findall(PAGE.read_text())}
    assert len(paths) > 50
    assert [path for path in sorted(paths - made) if not _exists(path)] == []


def _exists(path: str) -> bool:
    """Return True if a path exists in the root, or in a distribution's package."""
    distribution, _, inner = path.partition("/")
    package = code_tables.DISTRIBUTIONS.get(distribution, "")
    return (ROOT / path).exists() or (ROOT / distribution / "src" / package / inner).exists()


def test_variables_of_the_environment_are_settings(tmp_path: Path) -> None:
    """The reader of settings accepts the variables in configuration.md."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    shown = re.findall(r"^export (PQKEEP_GATEWAY_\w+)=(.*)$", text, re.MULTILINE)
    environment = {name: shlex.split(value)[0] for name, value in shown}
    file = tmp_path / "gateway.toml"
    file.write_text('database = "a.sqlite3"\npepper_file = "p"\nkey_service_socket = "s"\n')
    assert read_settings(file, Config, environment, PREFIX).port == 8443
