"""A gateway with the key service of another shard than in its settings."""

from __future__ import annotations

import time
from pathlib import Path

import httpx2
import pytest
from tests.faults.conftest import FakeKeyService, gateway_process, until_healthy
from tests.patience import PATIENCE

from pqkeep_protocol.codec import Call, Refusal
from pqkeep_protocol.errors import ErrorKind
from pqkeep_server.initialise import Layout, initialise


@pytest.mark.threat("swapped-key-service")
def test_another_shards_key_service_is_asked_nothing(tmp_path: Path) -> None:
    """The wrong shard is not used, and the log says why. The right one is used when it appears."""
    layout, output = Layout(tmp_path / "data"), tmp_path / "output"
    initialise(layout, "pqo_nobody", signup="operator")
    asked: list[Call] = []

    def reply(call: Call) -> Refusal:
        asked.append(call)
        return Refusal(call.id, ErrorKind.UNAVAILABLE)

    with FakeKeyService(layout.socket) as fake:
        fake.reply, fake.shard = reply, "b"
        with (
            gateway_process(layout, output) as url,
            httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client,
        ):
            deadline = time.monotonic() + PATIENCE
            while "it belongs to the shard b, not default" not in output.read_text():
                assert client.get("/healthz").status_code == 503
                assert time.monotonic() < deadline, output.read_text()
                time.sleep(0.05)
            assert asked == []
            fake.shard = "default"
            until_healthy(client)
