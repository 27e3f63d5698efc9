"""Witnesses over HTTP: our own honest one, and litewitness."""

from __future__ import annotations

import re
import shutil
import sqlite3
import subprocess
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from tests.fixtures.installation import initialise_data
from tests.fixtures.processes import free_port
from tests.fixtures.witness import Witness, serving
from tests.patience import PATIENCE

from pqkeep_server.initialise import IN_FILES, Layout

BUILT = Path(__file__).parents[2] / ".interop" / "bin"
LITEWITNESS = shutil.which("litewitness", path=str(BUILT))
SSH_KEYGEN, SSH_AGENT, SSH_ADD = (
    shutil.which(name) or name for name in ("ssh-keygen", "ssh-agent", "ssh-add")
)
ORIGIN = "pqkeep.example/audit"


@dataclass(frozen=True)
class Running:
    """A running witness."""

    url: str
    vkey: str
    trust: Callable[[str], None]
    """Adds a key of the log."""


@contextmanager
def ours(_: Path) -> Iterator[Running]:
    """Run the honest witness of the tests."""
    witness = Witness()
    with serving(witness.add_checkpoint) as url:
        yield Running(url, witness.vkey, witness.trust)


@contextmanager
def litewitness(folder: Path) -> Iterator[Running]:
    """Run litewitness with a key in its own ssh-agent.

    The rows in litewitness's database are inserted here. The command for that cannot be built
    without another source of modules.
    """
    assert LITEWITNESS is not None
    key, agent, database = folder / "key", folder / "agent", folder / "witness.db"
    subprocess.run([SSH_KEYGEN, "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    shown = subprocess.run(
        [SSH_KEYGEN, "-l", "-f", key], check=True, capture_output=True, text=True
    )
    port = free_port()
    log = folder / "output"

    def insert(statement: str, *values: str) -> None:
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(statement, values)

    def trust(vkey: str) -> None:
        insert("INSERT INTO key (origin, key) VALUES (?, ?)", ORIGIN, vkey)

    with ExitStack() as stack:
        commands: tuple[list[str | Path], ...] = (
            [SSH_AGENT, "-D", "-a", agent],
            [
                *(LITEWITNESS, "-db", database, "-name", "witness.example/lite"),
                *("-key", shown.stdout.split()[1], "-ssh-agent", agent),
                *("-listen", f"127.0.0.1:{port}"),
            ],
        )
        for words in commands:
            process = subprocess.Popen(
                words, stdout=stack.enter_context(log.open("ab")), stderr=subprocess.STDOUT
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            if words[0] == SSH_AGENT:
                _until(agent.exists)
                environment = {"SSH_AUTH_SOCK": str(agent), "PATH": "/usr/bin:/bin"}
                subprocess.run([SSH_ADD, "-q", key], check=True, env=environment)
        _until(lambda: "vkey" in log.read_text())
        (vkey,) = re.findall(r'vkey="?([^\s"]+)', log.read_text())
        empty = b64encode(sha256().digest()).decode()
        insert("INSERT INTO log (origin, tree_size, tree_hash) VALUES (?, 0, ?)", ORIGIN, empty)
        yield Running(f"http://127.0.0.1:{port}", vkey, trust)


def _until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(
    params=[
        pytest.param(ours, id="ours"),
        pytest.param(
            litewitness,
            id="litewitness",
            marks=pytest.mark.skipif(LITEWITNESS is None, reason="make witnesses builds it"),
        ),
    ]
)
def witness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Running]:
    """A running witness of each implementation."""
    with request.param(tmp_path) as running:
        yield running


def with_witness(data: Path, url: str, vkey: str) -> None:
    """Make a data directory with a witness in the key service's settings."""
    initialise_data(data, IN_FILES, {})
    settings = Layout(data).key_service_settings
    table = f'[[witnesses]]\nurl = "{url}"\nkey = "{vkey}"\n'
    settings.write_text(f'origin = "{ORIGIN}"\n{settings.read_text()}\n{table}')
