"""OpenBao whose root key a Transit key encrypts: it starts and unseals by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fixtures import processes
from tests.fixtures.openbao import NEEDS_OPENBAO, OPENBAO
from tests.patience import PATIENCE

pytestmark = [
    pytest.mark.campaign,
    NEEDS_OPENBAO,
    pytest.mark.parametrize("server", ["sqlite", "openbao"], indirect=True),
]
SECRET = {"card": "4111 1111 1111 1111"}


@pytest.fixture
def settings(server: Any, tmp_path: Path, name: str) -> Path:
    """The settings of an OpenBao that is sealed by a key of the server."""
    seal = {
        "address": server.address,
        "token": server.token,
        "key_name": name,
        "mount_path": "transit/",
    }
    storage = tmp_path / "storage"
    file = tmp_path / "settings.json"
    port = processes.free_port()
    file.write_text(
        json.dumps(
            {
                "listener": {"tcp": {"address": f"{processes.HOST}:{port}", "tls_disable": True}},
                "storage": {"file": {"path": str(storage)}},
                "seal": {"transit": seal},
                "api_addr": f"http://{processes.HOST}:{port}",
                "log_level": "warn",
            }
        )
    )
    return file


@contextmanager
def sealed(settings: Path, *, is_new: bool = False) -> Iterator[httpx2.Client]:
    """Run OpenBao with its storage and seal. Yield a client, unsealed unless the storage is new."""
    assert OPENBAO is not None
    output = settings.with_name("sealed")
    process = processes.start([OPENBAO, "server", f"-config={settings}"], output)
    address = json.loads(settings.read_text())["api_addr"]
    try:
        with httpx2.Client(base_url=f"{address}/v1/", timeout=PATIENCE, trust_env=False) as client:
            ready = is_listening if is_new else is_active
            processes.wait_until(lambda: ready(client), process, output)
            yield client
    finally:
        processes.stop(process)


def is_listening(client: httpx2.Client) -> bool:
    try:
        return client.get("sys/seal-status").is_success
    except httpx2.TransportError:
        return False


def is_active(client: httpx2.Client) -> bool:
    return is_listening(client) and client.get("sys/health").status_code == 200


def test_auto_unseal(server: Any, settings: Path, name: str) -> None:
    """OpenBao initialises.

    It unseals after a restart, after rotations, and with a higher minimum version.
    """
    transit = server.client().secrets.transit
    transit.create_key(name)
    with sealed(settings, is_new=True) as client:
        made = client.put("sys/init", json={"recovery_shares": 1, "recovery_threshold": 1})
        assert made.status_code == 200, made.text
        token = {"X-Vault-Token": made.json()["root_token"]}
    with sealed(settings) as client:
        assert client.post("sys/mounts/secret", headers=token, json={"type": "kv"}).is_success
        assert client.post("secret/card", headers=token, json=SECRET).is_success
    for floor in (1, 2, 3):
        transit.update_key_configuration(name, min_decryption_version=floor)
        with sealed(settings) as client:
            assert client.get("secret/card", headers=token).json()["data"] == SECRET
        transit.rotate_key(name)
        with sealed(settings) as client:
            assert client.get("secret/card", headers=token).json()["data"] == SECRET
    assert transit.read_key(name)["data"]["latest_version"] == 4
