"""Until requests are served, ``pqkeepd start`` reports the reason. Then it reports readiness."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx2
import psycopg.sql
import pytest
from tests.e2e.test_two_users import folder
from tests.fixtures import processes
from tests.fixtures.postgresql import PostgresServer, options_of
from tests.fixtures.processes import HOST
from tests.fixtures.two_users import IDS, pqkeepd, pqkeepd_program
from tests.patience import PATIENCE
from tests.sampling import later

from pqkeep_server.initialise import Layout, Stores
from pqkeep_server.settings_file import edited

__all__ = ["folder"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


@contextmanager
def service_manager(folder: Path) -> Iterator[socket.socket]:
    """Act as systemd for a service of Type=notify: a socket that receives its state."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind(str(folder / "notify"))
        own.settimeout(PATIENCE)
        yield own


@pytest.mark.parametrize(
    "has_management",
    [pytest.param(True, id="management"), later(pytest.param(False, id="public"))],
)
def test_ready_is_said_when_requests_are_answered(
    has_management: bool,  # noqa: FBT001 - parametrized
    folder: Path,
    postgres_server: PostgresServer,
    own_postgresql: Callable[[], AbstractContextManager[Stores]],
) -> None:
    """While a database refuses connections start names it, and READY=1 comes afterwards."""
    own = folder / str(has_management)
    own.mkdir()
    with own_postgresql() as databases, service_manager(own) as manager:
        layout = Layout(own / "data")
        made = pqkeepd("init", "--data", layout.directory, *IDS, *options_of(databases))
        assert made.returncode == 0, made.stderr
        port, management = processes.free_port(), processes.free_port()
        address = f"{HOST}:{management}" if has_management else "off"
        settings = layout.gateway_settings
        changes: dict[str, object] = {"port": port, "management_address": address}
        settings.write_text(edited(settings.read_text(), changes))

        def allow(word: str) -> None:
            name = psycopg.sql.Identifier(databases.keys.rpartition("/")[2])
            statement = psycopg.sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS " + word)
            with postgres_server._connected() as connection:
                connection.execute(statement.format(name))

        allow("false")
        command = ["/usr/bin/env", f"NOTIFY_SOCKET={manager.getsockname()}", *pqkeepd_program()]
        output = own / "output"
        with processes.running([*command, "start", "--data", layout.directory], output):
            told = manager.recv(4096).decode()
            while "key_service" not in told and "503" not in told:
                assert told.startswith("STATUS=not ready: ")
                told = manager.recv(4096).decode()
            assert "requests are not answered yet" in output.read_text()
            assert "ready: requests are answered" not in output.read_text()
            allow("true")
            while (told := manager.recv(4096).decode()) != "READY=1":
                assert told.startswith("STATUS=not ready: ")
            path = f":{management}/readyz" if has_management else f":{port}/healthz"
            assert httpx2.get(f"http://{HOST}{path}", timeout=PATIENCE).status_code == 200
            assert "ready: requests are answered" in output.read_text()
