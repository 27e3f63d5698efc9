"""No text from a client is in a metric, in the access log or in a trace."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator

import httpx2
import pytest
from tests.fixtures.collector import Collector, running_collector
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

CANARY = "canary-7f3a9c51"


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector of traces."""
    with running_collector() as running:
        yield running


def test_a_canary_is_seen_nowhere(start: Callable[..., Installation], collector: Collector) -> None:
    """Bodies, credentials, paths, queries, headers, names and cookies leave no trace."""
    settings = {
        "access_log": True,
        "transit": True,
        "log_format": "json",
        "opentelemetry": {"endpoint": collector.endpoint},
    }
    installation = start(settings=settings)
    tenant = installation.demo()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    plaintext = base64.b64encode(CANARY.encode()).decode()
    sealed = tenant.post("/kem/encrypt", {"plaintext": plaintext})["ciphertext"]
    tenant.post("/kem/decrypt", {"ciphertext": sealed, "key_version": 1})
    installation.operator().post("/tenants", {"name": CANARY}, status=201)
    with httpx2.Client(base_url=installation.base_url, timeout=PATIENCE, trust_env=False) as client:
        key = {"X-API-Key": installation.ready["api_key"]}
        token = {"X-Vault-Token": installation.ready["api_key"]}
        for method, path, body, headers in (
            ("POST", "/api/v1/kem/encrypt", {CANARY: 1, "algorithm": CANARY}, key),
            ("POST", "/api/v1/kem/encrypt", {"plaintext": CANARY}, {"X-API-Key": CANARY}),
            ("GET", f"/api/v1/kms/keys?algorithm={CANARY}", None, key),
            ("GET", f"/api/v1/tenants/{CANARY}", None, key),
            ("GET", f"/{CANARY}", None, {"Authorization": CANARY, "Cookie": f"a={CANARY}"}),
            ("PUT", "/docs", None, {"User-Agent": CANARY, "Referer": CANARY}),
            (CANARY.upper(), "/api/v1/kem/encrypt", None, key),
            ("POST", "/api/v1/auth/login", {"email": f"{CANARY}@x.y", "password": CANARY}, {}),
            ("GET", "/v1/auth/token/lookup-self", None, token),
            ("POST", f"/v1/transit/encrypt/{CANARY}", {"plaintext": plaintext}, token),
            ("POST", f"/v1/transit/keys/{CANARY}", {"type": CANARY, CANARY: CANARY}, token),
            ("LIST", f"/v1/transit/keys?after={CANARY}", None, {"X-Vault-Token": CANARY}),
            ("GET", f"/v1/{CANARY}", None, {"Authorization": f"Bearer {CANARY}"}),
            ("POST", "/v1/auth/approle/login", {"role_id": CANARY, "secret_id": CANARY}, {}),
            (
                "POST",
                "/v1/auth/approle/login",
                {"role_id": CANARY, "secret_id": installation.ready["api_key"]},
                {"X-Vault-Namespace": CANARY},
            ),
        ):
            client.request(method, path, json=body, headers=headers)
    metrics = httpx2.get(
        f"{installation.ready['management_url']}/metrics", timeout=PATIENCE, trust_env=False
    ).text
    installation.stop()
    lines = [
        json.loads(line)
        for line in installation.output.splitlines()
        if '"request answered"' in line
    ]
    answered = {(line.get("route"), line["outcome"]) for line in lines}
    assert ("/api/v1/kem/encrypt", "success") in answered
    assert ("/api/v1/kem/encrypt", "ERR_AUTH_001") in answered
    assert ("/v1/transit/encrypt/{name}", "success") in answered
    assert ("/v1/auth/token/lookup-self", "success") in answered
    assert ("/api/v1/tenants/{tenant_id}", "ERR_NOT_FOUND_001") in answered
    assert tenant.tenant_id in {line.get("tenant") for line in lines}
    assert (
        'pqkeep_requests_total{algorithm="Kyber768",operation="encrypt",outcome="success"} 1.0'
        in metrics
    )
    secrets = (CANARY, plaintext, sealed[:64], tenant.api_key, installation.ready["operator_key"])
    spans = {span.name for span in collector.spans}
    assert {"POST /api/v1/kem/encrypt", "key service Decrypt"} <= spans
    sent = b"".join(collector.received)
    for secret in secrets:
        assert secret.encode() not in sent
        assert secret not in metrics
        assert not any(secret.lower() in json.dumps(line).lower() for line in lines)
    assert tenant.tenant_id not in metrics
    assert tenant.tenant_id.encode() not in sent
