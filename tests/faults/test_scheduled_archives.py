"""A scheduled archive with several gateways: the key service carries it out, once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx2
import pytest
from tests.faults.conftest import gateway_process, until_healthy
from tests.fixtures import processes
from tests.fixtures.caller import TLS
from tests.fixtures.key_service import execute
from tests.patience import PATIENCE

from pqkeep_gateway.access.credentials import CredentialKind, new_credential
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import ScheduleArchive
from pqkeep_server.initialise import Layout, initialise

API = "/api/v1"
DAY_NS = 24 * 3600 * 10**9
AHEAD = f"""
import sys, time
from pqkeep_keyservice.process import main
real, ahead = time.time_ns, int(sys.argv.pop(1)) * {DAY_NS}
time.time_ns = lambda: real() + ahead
sys.exit(main())
"""
"""A key service with its clock some days ahead."""
KEM = {"algorithm": "Kyber768"}
GATEWAYS = ("first", "second", "third")


@contextmanager
def key_service(layout: Layout, output: Path, days: int) -> Iterator[None]:
    """Run a key service with its clock some days ahead."""
    words: list[str | Path] = [sys.executable, "-P", "-c", AHEAD, str(days)]
    with processes.running([*words, layout.key_service_settings], output):
        yield


def data(response: httpx2.Response) -> dict[str, Any]:
    """Return the data of a successful response."""
    assert response.is_success, response.text
    found: dict[str, Any] = response.json()["data"]
    return found


@pytest.fixture
def layout(tmp_path: Path, redis_server: str) -> tuple[Layout, str]:
    """The files of an installation with a shared Redis, and its operator's credential."""
    layout, operator_key = Layout(tmp_path), new_credential(CredentialKind.OPERATOR)
    initialise(layout, operator_key, signup="operator")
    with layout.gateway_settings.open("a") as settings:
        settings.write(f'redis_url = "redis://{redis_server}"\n')
    # Otherwise a clock that is a week ahead has to be so for a day first.
    with layout.key_service_settings.open("a") as settings:
        settings.write("least_destruction_days = 0\n")
    return layout, operator_key


def until_archived(status: Callable[[httpx2.Client], str], gateway: httpx2.Client) -> None:
    """Wait until a gateway shows the automatic archiving."""
    deadline = time.monotonic() + PATIENCE
    while status(gateway) != "archived":
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_it_is_carried_out_once(layout: tuple[Layout, str], tmp_path: Path) -> None:
    """Every gateway refuses the version until its time. Then it is archived with one record."""
    files, operator_key = layout
    operator = {"X-API-Key": operator_key}
    with ExitStack() as stack:
        first_life = stack.enter_context(ExitStack())
        first_life.enter_context(key_service(files, tmp_path / "keys-0", 0))
        gateways = [
            stack.enter_context(
                httpx2.Client(
                    base_url=stack.enter_context(gateway_process(files, tmp_path / name)),
                    timeout=PATIENCE,
                    trust_env=False,
                    verify=TLS,
                )
            )
            for name in GATEWAYS
        ]
        for gateway in gateways:
            until_healthy(gateway)
        made = data(
            gateways[0].post(
                f"{API}/tenants", json={"name": "one", "plan": "enterprise_plus"}, headers=operator
            )
        )
        tenant = made["id"]
        made = data(gateways[0].post(f"{API}/tenants/{tenant}/api-keys", headers=operator))
        headers = {"X-API-Key": made["api_key"]}
        data(gateways[0].post(f"{API}/kms/keys/generate", json=KEM, headers=headers))
        sealed = data(
            gateways[0].post(f"{API}/kem/encrypt", json={"plaintext": "QUJD"}, headers=headers)
        )
        data(gateways[0].post(f"{API}/kms/keys/rotate", json=KEM, headers=headers))
        execute(
            files.socket,
            ScheduleArchive(
                tenant=TenantId(UUID(tenant)),
                algorithm=Algorithm.ML_KEM_768,
                version=KeyVersion(1),
                days=7,
            ),
        )

        def status(gateway: httpx2.Client) -> str:
            asked = gateway.get(f"{API}/kms/keys/1", params=KEM, headers=headers)
            return str(data(asked)["status"]) if asked.is_success else ""

        def archives(gateway: httpx2.Client) -> list[tuple[str, int]]:
            asked = {"operation": "archive-key"}
            found = data(gateway.get(f"{API}/audit/records", params=asked, headers=headers))
            return [(each["principal"], each["key_version"]) for each in found["records"]]

        opening = {"ciphertext": sealed["ciphertext"], "key_version": 1}
        for gateway in gateways:
            assert status(gateway) == "retired"
            refused = gateway.post(f"{API}/kem/decrypt", json=opening, headers=headers)
            assert refused.status_code == 404
            assert archives(gateway) == []
        first_life.close()
        for number in (1, 2):
            with key_service(files, tmp_path / f"keys-{number}", 8):
                for gateway in gateways:
                    until_archived(status, gateway)
                    assert archives(gateway) == [("schedule", 1)]
