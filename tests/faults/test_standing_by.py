"""A gateway connected to a standby, and later to an active key service."""

from __future__ import annotations

from pathlib import Path

import httpx2
from tests.faults.conftest import FakeKeyService, gateway_process, until_healthy
from tests.patience import PATIENCE

from pqkeep_server.initialise import Layout, initialise
from pqkeep_server.settings_file import edited


def test_a_gateway_is_not_healthy_before_it_reaches_who_serves(tmp_path: Path) -> None:
    """With only the standby /healthz is 503; with an active key service it is 200."""
    layout, output = Layout(tmp_path / "data"), tmp_path / "output"
    initialise(layout, "pqo_nobody", signup="operator")
    standby = layout.socket.with_name("standby.sock")
    shards = {"default": {"sockets": [f"../run/{each.name}" for each in (layout.socket, standby)]}}
    settings = edited(
        layout.gateway_settings.read_text(), {"key_service_socket": None, "shards": shards}
    )
    layout.gateway_settings.write_text(settings)
    with (
        FakeKeyService(standby) as standing_by,
        gateway_process(layout, output) as url,
        httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client,
    ):
        standing_by.epoch = 0
        while "connected to the key service" not in output.read_text():
            assert client.get("/healthz").status_code == 503
        assert client.get("/healthz").status_code == 503
        with FakeKeyService(layout.socket):
            until_healthy(client)
        standing_by.epoch = 2
        until_healthy(client)
