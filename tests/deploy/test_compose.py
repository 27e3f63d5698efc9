"""The Compose files, read by Compose's own library."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.tools import needs

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose"
VARIABLES = {"GATEWAY": "64001", "KEYSERVICE": "64002"}


def _services(name: str) -> dict[str, Any]:
    read = subprocess.run(
        [needs("compose"), COMPOSE / name],
        env={**os.environ, **VARIABLES},
        capture_output=True,
        text=True,
        check=False,
    )
    assert read.returncode == 0, read.stderr
    services: dict[str, Any] = json.loads(read.stdout)["services"]
    return services


@pytest.mark.parametrize("name", ["compose.yaml", "several.yaml"])
def test_every_service_is_confined(name: str) -> None:
    """Compose accepts the file. Every service is read-only, without new rights and capabilities."""
    for service, found in _services(name).items():
        assert found["read_only"], service
        assert found["cap_drop"] == ["ALL"], service
        assert found["security_opt"] == ["no-new-privileges:true"], service
        assert not found.get("privileged"), service
        words = " ".join([*(found.get("environment") or {}), *(found.get("secrets") or ())])
        assert "PASSWORD" not in words, service


def test_only_the_gateway_has_a_network() -> None:
    """Databases, key service and commands meet at sockets, and only the gateway has a port."""
    services = _services("compose.yaml")
    reachable = {name for name, found in services.items() if found.get("network_mode") != "none"}
    assert reachable == {"gateway"}
    assert {name for name, found in services.items() if found.get("ports")} == {"gateway"}
    rooted = {name for name, found in services.items() if found.get("user") == "0:0"}
    assert rooted == {"initialise", "admin"}
    assert rooted == {name for name, found in services.items() if found.get("cap_add")}


def test_each_process_has_its_own_volume() -> None:
    """The gateway mounts no volume of the key service except that of the sockets."""
    services = _services("compose.yaml")
    volumes = {
        name: {each["source"] for each in services[name]["volumes"]}
        for name in ("gateway", "keyservice", "postgresql", "valkey")
    }
    assert volumes["gateway"] & volumes["keyservice"] == {"run", "postgresql-socket"}
    assert "postgresql" not in volumes["gateway"] | volumes["keyservice"]
    assert not volumes["valkey"] & volumes["keyservice"]
