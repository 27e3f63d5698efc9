"""Rules over HTTP: listed, put and deleted by people, warned of by headers, and denied."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation

PATH = "/rules/algorithms"
TEXT = base64.b64encode(b"attack at dawn").decode()
NOW = datetime.now(UTC).replace(microsecond=0)
SINCE, LATER = NOW - timedelta(days=1), NOW + timedelta(days=400)
ALL_USES = [
    *("encrypt", "encapsulate", "wrap", "generate-data-key", "sign", "compute-mac"),
    "generate-key",
]
RULE: dict[str, Any] = {"algorithms": ["Kyber768"], "successor": "ML-KEM-1024"}
DEPRECATED = ("deprecation", "sunset", "link")


def text(when: datetime) -> str:
    """Return a time in the form of responses."""
    return f"{when:%Y-%m-%dT%H:%M:%S}.000Z"


@pytest.fixture
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant for this test only."""
    return new_tenant()


@pytest.fixture
def owner(tenant: Caller, new_person: Callable[..., Caller]) -> Caller:
    """The owner of the tenant."""
    return new_person(tenant.tenant_id)


def put(owner: Caller, name: str, **fields: Any) -> dict[str, Any]:
    """Put a rule, with a step-up."""
    response = owner.ask_proven("PUT", f"{PATH}/{name}", RULE | fields)
    assert response.is_success, response.text
    data: dict[str, Any] = response.json()["data"]
    return data


def test_a_rule_is_put_listed_and_shown(tenant: Caller, owner: Caller) -> None:
    """Missing fields have defaults; times are whole seconds in UTC; an API key reads the rule."""
    assert tenant.get(PATH)["rules"] == []
    shown = put(owner, "kem", warn_from="2026-07-01T02:00:00+02:00", deny_from=text(LATER))
    assert shown == {
        "name": "kem",
        "algorithms": ["Kyber768"],
        "keyrings": ["*"],
        "uses": ALL_USES,
        "successor": "ML-KEM-1024",
        "warn_from": "2026-07-01T00:00:00.000Z",
        "deny_from": text(LATER),
        "exceptions": [],
    }
    listed = tenant.get(PATH)
    assert (listed["rules"], listed["revision"]) == ([shown], 1)
    assert tenant.get(f"{PATH}/kem") == owner.get(f"{PATH}/kem") == shown
    for name in ("other", "-", "x" * 65):
        missing = (404, "ERR_NOT_FOUND_001", "name")
        assert refusal_of(tenant.ask("GET", f"{PATH}/{name}")) == missing
        assert refusal_of(owner.ask("DELETE", f"{PATH}/{name}")) == missing
    (record,) = tenant.get("/audit/records", operation="put-rule")["records"]
    assert (record["rule"], record["outcome"]) == ("kem", "success")
    assert record["principal"].startswith("user:")


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"algorithms": None}, "algorithms"),
    ({"algorithms": []}, "algorithms"),
    ({"algorithms": "Kyber768"}, "algorithms"),
    ({"algorithms": ["RSA"]}, "algorithms"),
    ({"algorithms": [["Kyber768"]]}, "algorithms"),
    ({"algorithms": ["Kyber768", "ML-KEM-768"]}, "algorithms"),
    ({"keyrings": []}, "keyrings"),
    ({"keyrings": ["-x"]}, "keyrings"),
    ({"keyrings": ["x*y"]}, "keyrings"),
    ({"keyrings": ["x"] * 51}, "keyrings"),
    ({"keyrings": {}}, "keyrings"),
    ({"uses": ["decrypt"]}, "uses"),
    ({"uses": ["re-encrypt"]}, "uses"),
    ({"uses": []}, "uses"),
    ({"successor": "Dilithium3"}, "successor"),
    ({"successor": "Kyber768"}, "successor"),
    ({"successor": "RSA"}, "successor"),
    ({"warn_from": "tomorrow"}, "warn_from"),
    ({"warn_from": "2027-01-01T00:00:00"}, "warn_from"),
    ({"warn_from": 1}, "warn_from"),
    ({"deny_from": "2027-01-01T00:00:00.5Z"}, "deny_from"),
    ({"deny_from": "9999-12-31T23:59:59-12:00"}, "deny_from"),
    ({"warn_from": "2028-01-01T00:00:00Z", "deny_from": "2027-01-01T00:00:00Z"}, "warn_from"),
    ({"exceptions": [{"api_key": 0, "until": "2027-01-01T00:00:00Z"}]}, "exceptions"),
    ({"exceptions": [{"api_key": True, "until": "2027-01-01T00:00:00Z"}]}, "exceptions"),
    ({"exceptions": [{"api_key": 1, "until": "soon"}]}, "exceptions"),
    ({"exceptions": [{"api_key": 1}]}, "exceptions"),
    ({"exceptions": [{"api_key": 1, "until": "2027-01-01T00:00:00Z"}] * 2}, "exceptions"),
    ({"profile": "cnsa-2.0"}, "profile"),
]


def test_what_is_not_a_rule_is_refused_with_its_field(owner: Caller, tenant: Caller) -> None:
    """Each wrong value is 400 ERR_INVALID_001 with its field, and nothing is stored."""
    for body, field in WRONG:
        response = owner.ask("PUT", f"{PATH}/kem", RULE | body)
        assert refusal_of(response) == (400, "ERR_INVALID_001", field), body
    for body, field in (
        ({}, "name"),
        ({"name": "x"}, "algorithms"),
        ({"profile": "pci"}, "profile"),
        ({"profile": "cnsa-2.0", "name": "x"}, "name"),
        ({"profile": "cnsa-2.0", "successor": "X-Wing"}, "successor"),
        ({"profile": "cnsa-2.0", "algorithms": ["X-Wing"]}, "algorithms"),
    ):
        response = owner.ask("PUT", PATH, body)
        assert refusal_of(response) == (400, "ERR_INVALID_001", field), body
    assert tenant.get(PATH)["rules"] == []


@pytest.mark.threat("stolen-api-key")
def test_only_owners_and_admins_change_rules_with_a_step_up(
    tenant: Caller,
    owner: Caller,
    new_person: Callable[..., Caller],
    new_tenant: Callable[..., Caller],
) -> None:
    """No API key and no lower role changes a rule, no role without a step-up; others see none."""
    developer = new_person(tenant.tenant_id, role="developer")
    viewer = new_person(tenant.tenant_id, role="viewer")
    for caller in (tenant, developer, viewer):
        for method, path, body in (
            ("PUT", f"{PATH}/kem", RULE),
            ("PUT", PATH, {"profile": "cnsa-2.0"}),
            ("DELETE", f"{PATH}/kem", None),
        ):
            response = caller.ask_proven(method, path, body)
            assert refusal_of(response)[:2] == (403, "ERR_FORBIDDEN_001")
    assert refusal_of(owner.ask("PUT", f"{PATH}/kem", RULE))[:2] == (401, "ERR_MFA_013")
    assert tenant.get(PATH)["rules"] == []
    admin = new_person(tenant.tenant_id, role="admin")
    put(admin, "kem", deny_from=text(LATER))
    assert refusal_of(admin.ask("DELETE", f"{PATH}/kem"))[:2] == (401, "ERR_MFA_013")
    for reader in (tenant, developer, viewer):
        assert [rule["name"] for rule in reader.get(PATH)["rules"]] == ["kem"]
    assert new_tenant().get(PATH)["rules"] == []


@pytest.mark.threat("compromised-gateway")
def test_a_rule_is_never_weakened_over_http(owner: Caller) -> None:
    """Weaker changes are 403 with the operator's command in the message; stricter ones pass."""
    put(owner, "kem", deny_from=text(LATER), keyrings=["cards.*"])
    for change in (
        {"deny_from": text(LATER + timedelta(days=1)), "keyrings": ["cards.*"]},
        {"keyrings": ["cards.*"]},
        {"deny_from": text(LATER), "keyrings": ["cards.a"]},
        {"deny_from": text(LATER), "keyrings": ["cards.*"], "uses": ["encrypt"]},
    ):
        response = owner.ask_proven("PUT", f"{PATH}/kem", RULE | change)
        assert refusal_of(response)[:2] == (403, "ERR_POLICY_001"), change
        assert "pqkeepd rules" in response.json()["error"]["message"]
    refused = owner.ask_proven("DELETE", f"{PATH}/kem")
    assert refusal_of(refused)[:2] == (403, "ERR_POLICY_001")
    stricter = {"deny_from": text(LATER - timedelta(days=1)), "keyrings": ["*"]}
    assert put(owner, "kem", **stricter)["keyrings"] == ["*"]
    put(owner, "draft")
    deleted = owner.ask_proven("DELETE", f"{PATH}/draft").json()["data"]
    assert [rule["name"] for rule in deleted["rules"]] == ["kem"]


def test_a_warned_operation_has_the_dates_of_its_rule(tenant: Caller, owner: Caller) -> None:
    """New data and keys get Deprecation, Sunset and a link; reading and other keys get none."""
    key = {"algorithm": "Kyber768"}
    made = tenant.ask("POST", "/kms/keys/generate", key)
    assert not any(name in made.headers for name in DEPRECATED)
    put(owner, "kem", warn_from=text(SINCE), deny_from=text(LATER))
    expected = (
        f"@{SINCE.timestamp():.0f}",
        format_datetime(LATER, usegmt=True),
        '</api/v1/rules/algorithms/kem>; rel="deprecation"; type="application/json"',
    )
    public_key = made.json()["data"]["public_key"]
    warned = [
        tenant.ask("POST", "/kem/encrypt", key | {"plaintext": TEXT}),
        tenant.ask("POST", "/kem/encrypt", key | {"plaintext": TEXT, "public_key": public_key}),
        tenant.ask("POST", "/kem/encapsulate", key | {"key_version": 1}),
        tenant.ask("POST", "/kem/data-key", key),
        tenant.ask("POST", "/kem/encrypt/batch", key | {"items": [{"plaintext": TEXT}]}),
        tenant.ask("POST", "/kms/keys/rotate", key),
    ]
    for response in warned:
        assert response.is_success, response.text
        assert tuple(response.headers.get(name) for name in DEPRECATED) == expected
    ciphertext = warned[0].json()["data"]
    tenant.post("/kms/keys/generate", {"algorithm": "X-Wing"}, status=201)
    for path, body in (
        ("/kem/decrypt", ciphertext),
        ("/kem/encrypt", {"algorithm": "X-Wing", "plaintext": TEXT}),
        ("/kem/re-encrypt", ciphertext | {"to": {"algorithm": "X-Wing"}}),
    ):
        response = tenant.ask("POST", path, body)
        assert response.is_success, response.text
        assert not any(name in response.headers for name in DEPRECATED), path
    records = tenant.get("/audit/records", rule="kem", outcome="success")["records"]
    assert [record["operation"] for record in records] == [
        *("put-rule", "encrypt", "encrypt", "encapsulate", "generate-data-key", "encrypt"),
        "rotate-key",
    ]


def test_a_batch_names_each_rule_and_has_the_earliest_date(tenant: Caller, owner: Caller) -> None:
    """Each warned item names its rule. The headers have the earliest denial."""
    names = ("Kyber768", "X-Wing", "ML-KEM-1024")
    for name in names:
        tenant.post("/kms/keys/generate", {"algorithm": name}, status=201)
    earlier = LATER - timedelta(days=9)
    put(owner, "kem", warn_from=text(SINCE), deny_from=text(LATER))
    put(owner, "x-wing", algorithms=["X-Wing"], warn_from=text(NOW), deny_from=text(earlier))
    items = [{"algorithm": name, "plaintext": TEXT} for name in names]
    response = tenant.ask("POST", "/kem/encrypt/batch", {"items": items})
    results = response.json()["data"]["results"]
    assert [result.get("warning") for result in results] == [
        {
            "rule": "kem",
            "deprecation": text(SINCE),
            "sunset": text(LATER),
            "successor": "ML-KEM-1024",
        },
        {
            "rule": "x-wing",
            "deprecation": text(NOW),
            "sunset": text(earlier),
            "successor": "ML-KEM-1024",
        },
        None,
    ]
    assert response.headers["sunset"] == format_datetime(earlier, usegmt=True)
    assert "/x-wing>" in response.headers["link"]


def test_a_denied_operation_names_rule_date_and_successor(tenant: Caller, owner: Caller) -> None:
    """New data and keys are 403 ERR_POLICY_001 from the date on; reading goes on."""
    key = {"algorithm": "Kyber768"}
    tenant.post("/kms/keys/generate", key, status=201)
    sealed = tenant.post("/kem/encrypt", key | {"plaintext": TEXT})
    tenant.post("/kms/keys/generate", {"algorithm": "ML-KEM-1024"}, status=201)
    other = tenant.post("/kem/encrypt", {"algorithm": "ML-KEM-1024", "plaintext": TEXT})
    put(owner, "kem", deny_from=text(SINCE))
    for path, body, field in (
        ("/kem/encrypt", key | {"plaintext": TEXT}, "algorithm"),
        ("/kem/encapsulate", key | {"key_version": 1}, "algorithm"),
        ("/kem/key/wrap", key | {"key_version": 1, "symmetric_key": "A" * 43 + "="}, "algorithm"),
        ("/kem/data-key", key, "algorithm"),
        ("/kem/re-encrypt", other | {"to": key}, "to"),
        ("/kms/keys/rotate", key, "algorithm"),
    ):
        response = tenant.ask("POST", path, body)
        assert refusal_of(response) == (403, "ERR_POLICY_001", field), path
        message = response.json()["error"]["message"]
        for part in ("kem", f"{SINCE:%Y-%m-%dT%H:%M:%SZ}", "ML-KEM-1024"):
            assert part in message, path
        assert not any(name in response.headers for name in DEPRECATED)
    batch = {"items": [{"plaintext": TEXT}], **key}
    (item,) = tenant.post("/kem/encrypt/batch", batch)["results"]
    assert item["error"]["error_code"] == "ERR_POLICY_001"
    assert "ML-KEM-1024" in item["error"]["message"]
    assert tenant.post("/kem/decrypt", sealed)["plaintext"] == TEXT
    records = tenant.get("/audit/records", rule="kem", outcome="rule-denied")["records"]
    assert {record["operation"] for record in records} == {
        *("encrypt", "encapsulate", "wrap", "generate-data-key", "re-encrypt", "rotate-key")
    }


def test_a_profile_makes_its_rules(tenant: Caller, owner: Caller) -> None:
    """A profile's rules have the request's dates and the profile's algorithms: all, or none."""
    profiles = {profile["name"]: profile for profile in tenant.get("/rules/profiles")["profiles"]}
    assert list(profiles) == ["cnsa-2.0", "eu-hybrid"]
    for profile, allowed in (
        ("cnsa-2.0", {"ML-KEM-1024", "ML-DSA-87", "HMAC-SHA-512", "XAES-256-GCM"}),
        ("eu-hybrid", {"X-Wing", "Composite-ML-DSA", "HMAC-SHA-256", "HMAC-SHA-512"}),
    ):
        rules = profiles[profile]["rules"]
        whole = [rule for rule in rules if "sign" in rule["uses"]]
        assert not allowed & {name for rule in whole for name in rule["algorithms"]}
        assert {rule["successor"] for rule in whole} <= allowed
    body = {"profile": "cnsa-2.0", "warn_from": text(SINCE), "deny_from": text(LATER)}
    for _ in range(2):  # a repetition changes nothing
        response = owner.ask_proven("PUT", PATH, body)
        assert response.is_success, response.text
        put_rules = response.json()["data"]["rules"]
        assert [
            {key: rule[key] for key in ("name", "algorithms", "uses", "successor")}
            for rule in put_rules
        ] == sorted(profiles["cnsa-2.0"]["rules"], key=lambda rule: rule["name"])
        assert {(rule["warn_from"], rule["deny_from"]) for rule in put_rules} == {
            (text(SINCE), text(LATER))
        }
    earlier = {"name": "eu-hybrid.signature", "algorithms": ["ML-DSA-87"], "deny_from": text(LATER)}
    assert owner.ask_proven("PUT", PATH, earlier).is_success
    refused = owner.ask_proven("PUT", PATH, {"profile": "eu-hybrid", "warn_from": text(SINCE)})
    assert refused.status_code == 403
    names = {rule["name"] for rule in tenant.get("/rules/algorithms")["rules"]}
    assert {name for name in names if name.startswith("eu")} == {"eu-hybrid.signature"}
    named = {"name": "by-body", "algorithms": ["HMAC-SHA-256"]}
    listed = owner.ask_proven("PUT", PATH, named).json()["data"]["rules"]
    assert "by-body" in [rule["name"] for rule in listed]


def test_scopes_that_use_keys_read_rules(tenant: Caller, installation: Installation) -> None:
    """An API key reads rules with a scope of the whole tenant that names or includes it."""
    for scope, may in (
        ({"operations": ["use"]}, True),
        ({"operations": ["list-rules"]}, True),
        ({"operations": ["administer"]}, True),
        ({"operations": ["use"], "keyrings": ["cards"]}, False),
        ({"operations": ["decrypt-only"]}, False),
    ):
        path = f"/tenants/{tenant.tenant_id}/api-keys"
        limits = {"scopes": [scope], "allow_absent_keyrings": True}
        made = installation.operator().post(path, limits, status=201)
        caller = installation.caller(made["api_key"], tenant.tenant_id)
        for path in (PATH, "/rules/profiles"):
            assert caller.ask("GET", path).is_success is may, scope
