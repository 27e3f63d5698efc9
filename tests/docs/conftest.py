"""The document under test, its programs, and a tenant with a key of each algorithm."""

from __future__ import annotations

import base64
import os
import re
import sqlite3
import subprocess
import sysconfig
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

from pqkeep_protocol.algorithms import KEY_PAIRS, Algorithm

DOCUMENT = Path(__file__).parents[2] / "docs" / "cryptography.md"
EXAMPLE = re.compile(
    r"^<!-- example: ([a-z-]+) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class StoredKey:
    """A row of the key service's table of keys."""

    tenant_id: str
    version: int
    public_key: bytes
    sealed: bytes


@dataclass(frozen=True)
class Service:
    """A tenant's view of a running installation, and its data directory."""

    caller: Caller
    data: Path

    def post(self, path: str, **fields: object) -> dict[str, Any]:
        """Return the data of a request that must succeed. Bytes are sent as base64."""
        response = self._send(path, fields)
        assert response.is_success, response.text
        data: dict[str, Any] = response.json()["data"]
        return data

    def read(self, path: str, name: str, **fields: object) -> bytes:
        """Return one binary field of the data of a request that must succeed."""
        return base64.b64decode(self.post(path, **fields)[name], validate=True)

    def refusal(self, path: str, **fields: object) -> tuple[int, str]:
        """Return status and code of a request that must be refused."""
        response = self._send(path, fields)
        assert not response.is_success, response.text
        return response.status_code, response.json()["error"]["error_code"]

    def stored(self, algorithm: Algorithm) -> StoredKey:
        """Return the stored first version of the tenant's key, without the log's own keys."""
        query = (
            "SELECT tenant_id, version, public_key, sealed_seed FROM keys"
            " WHERE tenant_id = ? AND algorithm = ? ORDER BY version"
        )
        database = f"file:{self.data / 'keyservice' / 'keys.sqlite3'}?mode=ro"
        tenant = UUID(self.caller.tenant_id).hex
        with closing(sqlite3.connect(database, uri=True)) as connection:
            row = connection.execute(query, (tenant, algorithm.value)).fetchone()
        return StoredKey(*row)

    @property
    def root_key(self) -> bytes:
        """The root key."""
        return (self.data / "keyservice" / "root.key").read_bytes()

    def check_value(self) -> bytes:
        """Return the stored check value of the root key."""
        database = f"file:{self.data / 'keyservice' / 'keys.sqlite3'}?mode=ro"
        with closing(sqlite3.connect(database, uri=True)) as connection:
            row = connection.execute("SELECT check_value FROM root_keys WHERE id = 1").fetchone()
        return bytes(row[0])

    def _send(self, path: str, fields: Mapping[str, object]) -> httpx2.Response:
        body = {
            name: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for name, value in fields.items()
        }
        return self.caller.ask("POST", path, body)


@pytest.fixture(scope="session")
def document() -> str:
    """The text of the document."""
    return DOCUMENT.read_text()


@pytest.fixture(scope="session")
def sources(document: str) -> Mapping[str, str]:
    """The programs in the document, by name."""
    return dict(EXAMPLE.findall(document))


@pytest.fixture
def example(sources: Mapping[str, str]) -> Callable[[str], dict[str, Any]]:
    """Run a program of the document alone; return its names."""

    def run(name: str) -> dict[str, Any]:
        namespace: dict[str, Any] = {"__name__": name}
        program = compile(sources[name], f"{DOCUMENT.name}: {name}", "exec")
        exec(program, namespace)  # noqa: S102 - the document's own programs
        return namespace

    return run


@pytest.fixture(scope="session")
def service(installation: Installation) -> Service:
    """A tenant of a running installation, and its stored rows."""
    return Service(installation.new_tenant(), installation.data)


@pytest.fixture(scope="session")
def public_keys(service: Service) -> Mapping[Algorithm, bytes]:
    """The public keys of version 1 of every algorithm's key, as the API returns them."""
    return {
        algorithm: service.read("/kms/keys/generate", "public_key", algorithm=algorithm)
        for algorithm in KEY_PAIRS
    }


@pytest.fixture
def shell(tmp_path: Path) -> Callable[[str, Mapping[str, str]], str]:
    """Run commands in the test's folder; return their output. They must succeed."""

    def run(script: str, environment: Mapping[str, str]) -> str:
        ended = subprocess.run(
            ["/bin/bash", "-eo", "pipefail", "-c", script],
            cwd=tmp_path,
            env={
                "PATH": f"{sysconfig.get_path('scripts')}:{os.defpath}",
                "HOME": str(tmp_path),
                "NO_PROXY": "*",
                **environment,
            },
            capture_output=True,
            check=False,
            text=True,
        )  # the test's time limit ends it: a page can have many commands
        assert ended.returncode == 0, (script, ended.stdout, ended.stderr)
        return ended.stdout

    return run
