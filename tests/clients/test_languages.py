"""The clients of all languages behave alike, and read each other's files: ``make interop`` runs it."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from tests.clients.driver import HOSTILE, RUNNERS, WRITING, Suite, new_tenant, reading
from tests.fixtures.installation import Installation

BUILT = [name for name, (*_, program) in RUNNERS.items() if Path(program).exists()]
pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(len(BUILT) < 2, reason="make interop builds the other programs"),
]


@pytest.mark.parametrize("language", BUILT)
def test_behaviour(installation: Installation, tmp_path: Path, language: str) -> None:
    """In each case, results, errors, retries and requests are the same as the Python client's."""
    with Suite(installation, tmp_path) as suite:
        assert suite.failures(suite.run(RUNNERS[language])) == {}


@pytest.mark.parametrize("language", BUILT)
def test_hostile_bytes(installation: Installation, tmp_path: Path, language: str) -> None:
    """A response that is no HTTP, or never ends, is an error of pqkeep within the deadline."""
    with Suite(installation, tmp_path, json.loads(HOSTILE.read_text())) as suite:
        assert suite.failures(suite.run(RUNNERS[language])) == {}


@pytest.mark.parametrize(("writer", "reader"), [*product(BUILT, BUILT)])
def test_files_of_another_language(
    installation: Installation, tmp_path: Path, writer: str, reader: str
) -> None:
    """Each language reads the others' files, and refuses damaged files with the same errors."""
    tenant = new_tenant(installation)
    with Suite(installation, tmp_path, WRITING, tenant) as suite:
        lines = suite.run(RUNNERS[writer])
        assert suite.failures(lines) == {}
    with Suite(installation, tmp_path, reading(lines), tenant) as suite:
        assert suite.failures(suite.run(RUNNERS[reader])) == {}
