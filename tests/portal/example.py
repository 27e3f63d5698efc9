"""A tenant as after some months of use, for pictures."""

from __future__ import annotations

import math
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.fixtures.caller import PASSWORD, Caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_server.initialise import KEYS_FILE, Layout

NAME = "Northwind Health"
OWNER = "maria.keller@northwind.example"
NEWCOMER = "ida@fjord.example"
MEMBERS = {
    "anna.berg@northwind.example": "owner",
    "jonas.lind@northwind.example": "admin",
    "priya.nair@northwind.example": "developer",
    "deploy-review@northwind.example": "viewer",
}
INVITED = {"sam.okafor@northwind.example": "developer", "audit@kline-partners.example": "viewer"}
OTHERS = {
    "Aster Logistics": "professional",
    "Blue Harbor Bank": "enterprise_plus",
    "Cedar Clinic": "free",
    "Delta Archive": "enterprise",
    "Elm Street Software": "free",
}
KEYRINGS: tuple[dict[str, Any], ...] = (
    {
        "name": "payments.cards",
        "description": "Card numbers",
        "labels": {"team": "payments", "env": "production"},
        "purposes": ["encrypt", "decrypt", "wrap", "unwrap"],
        "rotation_days": 90,
    },
    {
        "name": "releases",
        "description": "Signatures of what we ship",
        "labels": {"team": "platform"},
        "purposes": ["sign", "verify"],
    },
)
API_KEYS: tuple[dict[str, Any], ...] = (
    {
        "name": "payments-worker",
        "scopes": [{"operations": ["use"], "keyrings": ["payments.*"]}],
        "allowed_addresses": ["192.0.2.0/24"],
    },
    {
        "name": "ci-verifier",
        "scopes": [{"operations": ["verify-only"], "algorithms": ["Dilithium3"]}],
        "expires_at": "2099-12-31T23:59:59Z",
    },
    {},
    {},
)
BROWSERS = (
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) Version/18.1 Safari/605.1.15",
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_1 like Mac OS X) Version/18.1 Mobile Safari/604.1",
)
CAMPAIGN = "cards-2026"
WEBHOOK = {"name": "on-call", "url": "https://hooks.northwind.example/pqkeep"}
ISSUER = {
    "url": "https://token.actions.githubusercontent.com",
    "audience": "https://keep.northwind.example",
    "algorithms": ["RS256"],
}
ROLE = {
    "claims": {"repository": "northwind/shop", "ref": ["refs/heads/main", "refs/tags/v*"]},
    "scopes": [{"operations": ["use"]}],
}
MESSAGE = "cGF0aWVudCByZWNvcmQgMjA5MQ=="
HOURS = 30 * 24
HOUR = 3600
SETTINGS = {"api_key_overlap_seconds": HOUR}
"""The installation's settings: the overlap of a rotated API key is long enough for a picture."""
SHARES = {"encrypt": 300, "decrypt": 180, "sign": 60, "verify": 110, "refused": 4}
"""Operations in a busy hour."""


@dataclass(frozen=True)
class Example:
    """Signed-in people."""

    owner: Caller
    newcomer: Caller
    """The owner of an empty tenant."""
    operator: Caller


def make(installation: Installation) -> Example:
    """Make tenants, keys, people and uses through the API; distribute the counts over a month."""
    operator = installation.operator()
    made = operator.post("/tenants", {"name": NAME, "plan": "enterprise_plus"}, status=201)
    tenant_id = made["id"]
    first = operator.post(f"/tenants/{tenant_id}/api-keys", status=201)
    tenant = installation.caller(first["api_key"], tenant_id)
    _use_keys(installation, tenant)
    owner = installation.person(tenant_id, email=OWNER)
    _make_keyrings(tenant, owner)
    _make_people(installation, owner)
    _make_api_keys(owner)
    migrate(tenant, owner, KEYRINGS[0]["name"])
    owner.post_proven("/webhooks", WEBHOOK, status=201)
    trust(owner)
    _ask_approval(owner)
    for name, plan in OTHERS.items():
        other = operator.post("/tenants", {"name": name, "plan": plan}, status=201)
    operator.ask("PATCH", f"/tenants/{other['id']}", {"status": "suspended"})
    empty = operator.post("/tenants", {"name": "Fjord Studio", "plan": "free"}, status=201)
    _spread_counts(installation, tenant_id)
    session = installation.caller(None)
    session.post("/auth/operator", {"operator_key": installation.ready["operator_key"]})
    return Example(owner, installation.person(empty["id"], email=NEWCOMER), session)


def _use_keys(installation: Installation, tenant: Caller) -> None:
    for name in ("Kyber768", "X-Wing", "Dilithium3", "SLH-DSA-SHA2-128s"):
        tenant.post("/kms/keys/generate", {"algorithm": name}, status=201)
    for version in (1, 2, 3):
        for _ in range(6 * version):
            sealed = tenant.post("/kem/encrypt", {"plaintext": MESSAGE, "algorithm": "Kyber768"})
        opened = {"ciphertext": sealed["ciphertext"], "key_version": version}
        tenant.post("/kem/decrypt", opened)
        tenant.post("/kms/keys/rotate", {"algorithm": "Kyber768"}, status=201)
    tenant.post("/kms/keys/rotate", {"algorithm": "Dilithium3"}, status=201)
    for _ in range(9):
        signed = tenant.post("/signature/sign", {"message": MESSAGE, "algorithm": "Dilithium3"})
    shown = {"message": MESSAGE, "signature": signed["signature"], "key_version": 2}
    for _ in range(4):
        tenant.post("/signature/verify", {**shown, "algorithm": "Dilithium3"})
    installation.archive(tenant.tenant_id, Algorithm("Kyber768"), 1)
    for _ in range(2):
        tenant.refusal("/kem/decrypt", {"ciphertext": sealed["ciphertext"], "key_version": 1})


def _make_keyrings(tenant: Caller, owner: Caller) -> None:
    for fields, algorithm in zip(KEYRINGS, ("Kyber768", "ML-DSA-87"), strict=True):
        tenant.post("/kms/keyrings", fields, status=201)
        named = {"keyring": fields["name"], "algorithm": algorithm}
        tenant.post("/kms/keys/generate", named, status=201)
    of_it = {"algorithm": "Kyber768", "key_version": 2}
    owner.post_proven("/kms/keys/archive", {**of_it, "delay_days": 14})
    tenant.post("/kms/keys/disable", {"algorithm": "Dilithium3", "key_version": 1})


def migrate(tenant: Caller, owner: Caller, keyring: str) -> None:
    """Put rules that warn, and a campaign with a scan, a moved ciphertext and a running canary."""
    rules = {"profile": "cnsa-2.0", "warn_from": "2026-01-01T00:00:00Z"}
    put = owner.ask_proven(
        "PUT", "/rules/algorithms", rules | {"deny_from": "2099-01-01T00:00:00Z"}
    )
    assert put.is_success, put.text
    old, new = ({"keyring": keyring, "algorithm": name} for name in ("Kyber768", "ML-KEM-1024"))
    tenant.post("/kms/keys/generate", new, status=201)
    for _ in range(12):
        sealed = tenant.post("/kem/encrypt", {"plaintext": MESSAGE, **old})
    plan = {"sources": [old], "target": new, "description": "Cards to ML-KEM-1024"}
    put = tenant.ask("PUT", f"/campaigns/{CAMPAIGN}", plan)
    assert put.is_success, put.text
    read = {**old, "ciphertext": sealed["ciphertext"], "key_version": sealed["key_version"]}
    tenant.post("/kem/re-encrypt", {**read, "to": new, "campaign": CAMPAIGN})
    now = datetime.now(UTC)
    scan = {
        "place": "payments.cards",
        "sha256": "5f" * 32,
        "scanned_at": now.isoformat(),
        "counts": [{**old, "key_version": 1, "count": 17}],
    }
    tenant.post(f"/campaigns/{CAMPAIGN}/scans", scan, status=201)
    until = {"until": (now + timedelta(days=14)).isoformat()}
    owner.post_proven(f"/campaigns/{CAMPAIGN}/canary", until, status=201)
    tenant.refusal("/kem/decrypt", read)


def trust(owner: Caller) -> None:
    """Put an issuer of workloads' tokens with fetched keys, and a role."""
    paths = f"/tenants/{owner.tenant_id}/workloads"
    for path, body in (
        ("issuers/ci-github", ISSUER),
        ("roles/ci-deploy", ROLE | {"issuer": "ci-github"}),
    ):
        put = owner.ask_proven("PUT", f"{paths}/{path}", body)
        assert put.is_success, put.text


def _make_people(installation: Installation, owner: Caller) -> None:
    for email, role in MEMBERS.items():
        installation.person(owner.tenant_id, role, email)
    for email, role in INVITED.items():
        fields = {"email": email, "role": role}
        owner.post_proven(f"/tenants/{owner.tenant_id}/invitations", fields, status=201)
    for browser in BROWSERS:
        elsewhere = installation.caller(None)
        elsewhere.client.headers["User-Agent"] = browser
        elsewhere.post("/auth/login", {"email": OWNER, "password": PASSWORD})


def _make_api_keys(owner: Caller) -> None:
    path = f"/tenants/{owner.tenant_id}/api-keys"
    for fields in API_KEYS:
        made = owner.post_proven(path, fields, status=201)
    owner.ask_proven("DELETE", f"{path}/{made['version']}")
    owner.post_proven(f"{path}/rotate")


def _ask_approval(owner: Caller) -> None:
    """Require approval, and let a keyring's deletion wait for it."""
    put = owner.ask_proven("PATCH", "/auth/organization", {"require_approval": True})
    assert put.is_success, put.text
    asked = owner.ask_proven("DELETE", f"/kms/keyrings/{KEYRINGS[1]['name']}")
    assert asked.is_success, asked.text


def _spread_counts(installation: Installation, tenant_id: str) -> None:
    """Write a month's counts, different by day, as if the tenant were older."""
    now = int(time.time()) // HOUR
    rows = []
    for hour in range(now - HOURS, now):
        of_day = math.sin((hour % 24 - 6) / 24 * 2 * math.pi) * 0.45 + 0.55
        rows += [
            (tenant_id, hour, name, round(many * of_day * (0.6 + hour * 37 % 13 / 20)))
            for name, many in SHARES.items()
        ]
    database = Layout(installation.data).key_service / KEYS_FILE
    with closing(sqlite3.connect(database, timeout=PATIENCE)) as connection, connection:
        connection.executemany("INSERT OR REPLACE INTO operation_counts VALUES (?, ?, ?, ?)", rows)
