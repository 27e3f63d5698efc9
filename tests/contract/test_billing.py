"""Plans, subscriptions and invoices over HTTP, without a payment provider."""

from __future__ import annotations

import sqlite3
import time
import tomllib
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import httpx2
import psycopg
import pytest
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]

CHECKOUT = "/billing/subscriptions/checkout"
CANCEL = "/billing/subscriptions/cancel"
STEP_UP = (401, "ERR_MFA_013", None)
POLICY = (403, "ERR_POLICY_001", None)
X_WING = {"algorithm": "X-Wing"}
TIERS = ["free", "starter", "growth", "professional", "enterprise", "enterprise_plus"]


@pytest.fixture
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A program of a tenant on the free plan."""
    return new_tenant("free")


@pytest.fixture
def owner(tenant: Caller, new_person: Callable[..., Caller]) -> Caller:
    """The owner of that tenant."""
    return new_person(tenant.tenant_id)


@pytest.fixture
def ask(password: str) -> Callable[..., httpx2.Response]:
    """Step up, and send a request that needs it."""

    def send(person: Caller, path: str, body: object = None, key: str = "") -> httpx2.Response:
        token = person.post("/auth/step-up", {"password": password})["step_up_token"]
        headers = {"X-Step-Up-Token": token} | ({"Idempotency-Key": key} if key else {})
        return person.ask("POST", path, body, headers=headers)

    return send


@pytest.fixture
def buy(ask: Callable[..., httpx2.Response]) -> Callable[..., dict[str, Any]]:
    """Buy a tier; return the response's data."""

    def send(person: Caller, tier: str, key: str = "") -> dict[str, Any]:
        response = ask(person, CHECKOUT, {"tier": tier}, key)
        assert response.status_code == 200, response.text
        data: dict[str, Any] = response.json()["data"]
        return data

    return send


@pytest.fixture
def end_period(installation: Installation) -> Callable[[Caller], None]:
    """End a tenant's current period, directly in the database."""
    settings = installation.data / "gateway" / "settings.toml"
    database = tomllib.loads(settings.read_text())["database"]

    def end(tenant: Caller) -> None:
        now = time.time_ns() // 1000
        which = uuid.UUID(tenant.tenant_id).hex
        statement = f"UPDATE contracts SET period_end_us = {now} WHERE tenant_id = '{which}'"  # noqa: S608
        if database.startswith("postgresql://"):
            with psycopg.connect(database) as session:
                session.execute(statement.encode())
        else:
            path = settings.parent / database
            with closing(sqlite3.connect(path, timeout=PATIENCE)) as connection, connection:
                connection.execute(statement)

    return end


def _lines(owner: Caller) -> list[int]:
    """Return the amounts of the invoice lines, the oldest first."""
    listed = owner.get("/billing/invoices")
    assert listed["total"] == len(listed["invoices"])
    return [each["amount_cents"] for each in reversed(listed["invoices"])]


def _until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.25)


def test_nothing_is_sold_unless_the_operator_allows_it(own_rules: Installation) -> None:
    """Without a payment provider and without self_service, no plan can be bought."""
    owner = own_rules.person(own_rules.new_tenant("free").tenant_id)
    plans = owner.get("/billing/plans")["plans"]
    assert not any(each["self_service"] for each in plans)
    response = owner.ask_proven("POST", "/billing/subscriptions/checkout", {"tier": "starter"})
    assert refusal_of(response)[:2] == (403, "ERR_FORBIDDEN_001")
    assert owner.get("/billing/subscription")["tier"] == "free"


def test_anyone_may_see_the_plans(anonymous: Caller, tenant: Caller) -> None:
    """Prices, limits and algorithms of all tiers are public."""
    data = anonymous.get("/billing/plans")
    assert [each["tier"] for each in data["plans"]] == TIERS
    assert [each["monthly_price_cents"] for each in data["plans"]] == [
        *(0, 9900, 17900, 29900, 99900, 99900)
    ]
    assert [each["tier"] for each in data["plans"] if each["self_service"]] == TIERS[1:4]
    growth = data["plans"][2]
    assert (growth["plan"], growth["pqc_keys"], growth["operations_per_month"]) == (
        *("professional", 25),
        None,
    )
    assert (growth["requests_per_minute"], growth["currency"]) == (1000, "usd")
    assert "X-Wing" in growth["algorithms"]
    assert data["total"] == len(TIERS)
    assert tenant.get("/billing/plans") == data


def test_a_tier_is_bought_at_once(
    tenant: Caller, owner: Caller, buy: Callable[..., dict[str, Any]]
) -> None:
    """After the checkout, a program's next request is on the new plan, for a whole month."""
    assert tenant.refusal("/kms/keys/generate", X_WING) == POLICY
    data = buy(owner, "starter")
    assert (data["pending"], data["checkout_url"]) == (False, None)
    bought = data["subscription"]
    assert (bought["tier"], bought["plan"], bought["status"]) == ("starter", "starter", "active")
    assert bought["cancel_at_period_end"] is False
    start, end = (datetime.fromisoformat(bought[f"period_{each}"]) for each in ("start", "end"))
    assert timedelta(days=28) <= end - start <= timedelta(days=31)
    tenant.post("/kms/keys/generate", X_WING, status=201)
    shown = tenant.get("/billing/subscription")
    assert {name: shown[name] for name in bought} == bought
    (line,) = owner.get("/billing/invoices")["invoices"]
    assert (line["amount_cents"], line["currency"], line["tier"]) == (9900, "usd", "starter")
    assert (line["period_start"], line["period_end"]) == (
        bought["period_start"],
        bought["period_end"],
    )


def test_what_is_used_of_the_allowance(
    tenant: Caller, owner: Caller, buy: Callable[..., dict[str, Any]]
) -> None:
    """The plan free shows the month's operations with their quota. Other plans count nothing."""
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    for _ in range(3):
        tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    shown = tenant.get("/billing/subscription")
    assert (shown["tier"], shown["status"], shown["period_end"]) == ("free", "active", None)
    assert (shown["operations_used"], shown["operations_per_month"]) == (3, 1000)
    buy(owner, "starter")
    shown = owner.get("/billing/subscription")
    assert (shown["operations_used"], shown["operations_per_month"]) == (None, None)


def test_what_is_used_of_the_limits(tenant: Caller, owner: Caller) -> None:
    """Every limit of the plan is shown with its use: active keys, API keys, requests and operations."""

    def limits(caller: Caller) -> dict[str, tuple[int | None, int | None]]:
        shown = caller.get("/billing/limits")["limits"]
        return {each["name"]: (each["used"], each["limit"]) for each in shown}

    version = tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    tenant.post("/kem/encrypt", {"plaintext": "QUJD"})
    before = limits(tenant)
    used, allowed = before.pop("requests_per_minute")
    assert before == {"pqc_keys": (1, 2), "api_keys": (1, 2), "operations_per_month": (1, 1000)}
    assert allowed == 100
    assert used is not None
    retired = {"algorithm": "Kyber768", "key_version": version["key_version"]}
    tenant.post("/kms/keys/retire", retired)
    tenant.post(f"/tenants/{tenant.tenant_id}/api-keys/rotate")
    after = limits(owner)
    assert (after["pqc_keys"], after["api_keys"]) == ((0, 2), (1, 2))
    counted, _ = after["requests_per_minute"]
    assert counted is not None
    assert 0 < counted <= used + 3


def test_limits_that_are_none(new_tenant: Callable[..., Caller]) -> None:
    """A plan without quotas shows null for keys and operations."""
    shown = new_tenant("enterprise").get("/billing/limits")["limits"]
    limits = {each["name"]: (each["used"], each["limit"]) for each in shown}
    assert limits["pqc_keys"] == (0, None)
    assert limits["operations_per_month"] == (None, None)


def test_up_and_down(owner: Caller, buy: Callable[..., dict[str, Any]]) -> None:
    """A change of tier applies at once, and the rest of the period is billed or credited."""
    buy(owner, "starter")
    up = buy(owner, "growth")["subscription"]
    assert (up["tier"], up["plan"]) == ("growth", "professional")
    down = buy(owner, "starter")["subscription"]
    assert (down["plan"], down["period_end"]) == ("starter", up["period_end"])
    whole, more, less = _lines(owner)
    assert whole == 9900
    assert 7900 <= more <= 8000
    assert -8000 <= less <= -7900


def test_the_same_tier_again(
    owner: Caller, buy: Callable[..., dict[str, Any]], ask: Callable[..., httpx2.Response]
) -> None:
    """Buying the present tier is 409, and nothing is billed."""
    buy(owner, "starter")
    response = ask(owner, CHECKOUT, {"tier": "starter"})
    assert response.status_code == 409
    assert response.json()["error"]["error_code"] == "ERR_CONFLICT_001"
    assert _lines(owner) == [9900]


def test_a_cancellation_and_its_end(
    tenant: Caller,
    owner: Caller,
    buy: Callable[..., dict[str, Any]],
    ask: Callable[..., httpx2.Response],
    end_period: Callable[[Caller], None],
) -> None:
    """A cancelled plan runs to its period's end; then everything can be read, and free's rules apply."""
    buy(owner, "starter")
    tenant.post("/kms/keys/generate", X_WING, status=201)
    sealed = tenant.post("/kem/encrypt", {**X_WING, "plaintext": "QUJD"})
    cancelled = ask(owner, CANCEL).json()["data"]["subscription"]
    assert (cancelled["status"], cancelled["cancel_at_period_end"]) == ("active", True)
    assert ask(owner, CANCEL).json()["data"]["subscription"] == cancelled
    tenant.post("/kem/encrypt", {**X_WING, "plaintext": "QUJD"})
    end_period(tenant)
    _until(lambda: tenant.get("/billing/subscription")["status"] == "ended")
    shown = tenant.get("/billing/subscription")
    assert (shown["tier"], shown["plan"], shown["operations_per_month"]) == (
        *("starter", "free"),
        1000,
    )
    assert tenant.refusal("/kem/encrypt", {**X_WING, "plaintext": "QUJD"}) == POLICY
    read = {**X_WING, "ciphertext": sealed["ciphertext"], "key_version": 1}
    assert tenant.post("/kem/decrypt", read)["plaintext"] == "QUJD"
    assert tenant.get("/billing/subscription")["operations_used"] == 1
    assert _lines(owner) == [9900]
    buy(owner, "starter")
    tenant.post("/kem/encrypt", {**X_WING, "plaintext": "QUJD"})


def test_the_next_period(
    tenant: Caller,
    owner: Caller,
    buy: Callable[..., dict[str, Any]],
    end_period: Callable[[Caller], None],
) -> None:
    """A plan that is not cancelled is billed once for another month."""
    first = buy(owner, "starter")["subscription"]
    end_period(tenant)
    _until(lambda: len(_lines(owner)) > 1)
    shown = tenant.get("/billing/subscription")
    assert (shown["plan"], shown["status"]) == ("starter", "active")
    assert shown["period_start"] > first["period_start"]
    time.sleep(6)  # longer than the gateway waits before it looks again
    assert _lines(owner) == [9900, 9900]


def test_going_on_after_all(
    owner: Caller, buy: Callable[..., dict[str, Any]], ask: Callable[..., httpx2.Response]
) -> None:
    """Checkout of a cancelled tier withdraws the cancellation, free of charge."""
    buy(owner, "starter")
    ask(owner, CANCEL)
    assert buy(owner, "starter")["subscription"]["cancel_at_period_end"] is False
    assert _lines(owner) == [9900]


def test_nothing_to_cancel(
    owner: Caller, ask: Callable[..., httpx2.Response], refused: Refused
) -> None:
    """Without a purchase a cancellation is 409; the operator's plan stays."""
    assert refused(ask(owner, CANCEL)) == (409, "ERR_CONFLICT_001", None)


@pytest.mark.parametrize("tier", ["free", "enterprise", "gold", "", 1, True, ["starter"], {}, None])
def test_what_is_not_sold(
    owner: Caller, ask: Callable[..., httpx2.Response], refused: Refused, tier: object
) -> None:
    """A tier that is unknown or not sold is 422 with its field, and nothing is bought."""
    refusal = refused(ask(owner, CHECKOUT, {"tier": tier}))
    assert refusal == (422, "ERR_INVALID_001", "tier")
    assert owner.get("/billing/invoices") == {"invoices": [], "total": 0}


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'"starter"', b'{"tier":"\xff"}'])
def test_malformed_bodies(owner: Caller, password: str, refused: Refused, content: bytes) -> None:
    """A body that is not a JSON object is 400."""
    token = owner.post("/auth/step-up", {"password": password})["step_up_token"]
    response = owner.ask("POST", CHECKOUT, content=content, headers={"X-Step-Up-Token": token})
    assert refused(response) == (400, "ERR_INVALID_001", None)


def test_a_step_up_is_needed(
    owner: Caller, new_person: Callable[..., Caller], password: str, refused: Refused
) -> None:
    """Buying and cancelling without a token, or with a used or foreign one, are 401."""
    other = new_person(owner.tenant_id)
    foreign = other.post("/auth/step-up", {"password": password})["step_up_token"]
    used = owner.post("/auth/step-up", {"password": password})["step_up_token"]
    body = {"tier": "starter"}
    response = owner.ask("POST", CHECKOUT, body, headers={"X-Step-Up-Token": used})
    assert response.status_code == 200
    for headers in ({}, {"X-Step-Up-Token": used}, {"X-Step-Up-Token": foreign}):
        assert refused(owner.ask("POST", CHECKOUT, {"tier": "growth"}, headers=headers)) == STEP_UP
        assert refused(owner.ask("POST", CANCEL, headers=headers)) == STEP_UP
    shown = owner.get("/billing/subscription")
    assert (shown["tier"], shown["cancel_at_period_end"]) == ("starter", False)


def test_of_many_with_one_token_one_buys(owner: Caller, password: str) -> None:
    """Of concurrent checkouts with one step-up token exactly one succeeds."""
    token = owner.post("/auth/step-up", {"password": password})["step_up_token"]
    headers = {"X-Step-Up-Token": token}

    def check_out(number: int) -> int:
        body = {"tier": TIERS[1 + number % 3]}
        return owner.ask("POST", CHECKOUT, body, headers=headers).status_code

    with ThreadPoolExecutor(12) as threads:
        statuses = sorted(threads.map(check_out, range(12)))
    assert statuses.count(200) == 1
    assert set(statuses) <= {200, 401, 409}  # 409: the tier that was just bought
    assert len(_lines(owner)) == 1


@pytest.mark.parametrize("role", ["admin", "developer", "viewer"])
def test_only_owners_buy(
    tenant: Caller, new_person: Callable[..., Caller], refused: Refused, role: str
) -> None:
    """Other roles see the subscription, but cannot buy, cancel or see invoices."""
    person = new_person(tenant.tenant_id, role)
    person.get("/billing/subscription")
    for method, path in (("POST", CHECKOUT), ("POST", CANCEL), ("GET", "/billing/invoices")):
        body = {"tier": "starter"} if path == CHECKOUT else None
        assert refused(person.ask(method, path, body)) == (403, "ERR_FORBIDDEN_001", None)


def test_programs_do_not_buy(tenant: Caller, operator: Caller, refused: Refused) -> None:
    """An API key and the operator's credential are 403; the operator changes plans elsewhere."""
    for caller in (tenant, operator):
        for method, path in (("POST", CHECKOUT), ("POST", CANCEL), ("GET", "/billing/invoices")):
            body = {"tier": "starter"} if path == CHECKOUT else None
            assert refused(caller.ask(method, path, body)) == (403, "ERR_FORBIDDEN_001", None)
    assert refused(operator.ask("GET", "/billing/subscription"))[0] == 403


def test_asking_again(owner: Caller, ask: Callable[..., httpx2.Response], refused: Refused) -> None:
    """With an Idempotency-Key a checkout and a cancellation happen once, with equal responses."""
    body = {"tier": "starter"}
    first = ask(owner, CHECKOUT, body, "buy").json()["data"]
    cancelled = ask(owner, CANCEL, None, "cancel").json()["data"]
    assert ask(owner, CHECKOUT, body, "buy").json()["data"] == first
    assert ask(owner, CANCEL, None, "cancel").json()["data"] == cancelled
    assert owner.get("/billing/subscription")["cancel_at_period_end"] is True
    other = refused(ask(owner, CHECKOUT, {"tier": "growth"}, "buy"))
    assert other == (409, "ERR_CONFLICT_001", "Idempotency-Key")
    assert _lines(owner) == [9900]


def test_the_operator_s_word_holds(
    tenant: Caller,
    owner: Caller,
    operator: Caller,
    buy: Callable[..., dict[str, Any]],
    ask: Callable[..., httpx2.Response],
    refused: Refused,
) -> None:
    """A plan set by the operator replaces a purchased one."""
    buy(owner, "starter")
    path = f"/tenants/{tenant.tenant_id}"
    operator.ask("PATCH", path, {"plan": "enterprise"})
    shown = owner.get("/billing/subscription")
    assert (shown["tier"], shown["status"], shown["period_end"]) == ("enterprise", "active", None)
    assert refused(ask(owner, CANCEL))[0] == 409
    assert operator.get(path)["plan"] == "enterprise"
    assert buy(owner, "growth")["subscription"]["tier"] == "growth"
    assert operator.get(path)["plan"] == "professional"


def test_what_is_bought_is_in_the_log(
    tenant: Caller,
    owner: Caller,
    buy: Callable[..., dict[str, Any]],
    ask: Callable[..., httpx2.Response],
    end_period: Callable[[Caller], None],
) -> None:
    """Each change is recorded with the person, a contract's end with the gateway, and refusals too."""
    tenant.ask("POST", CHECKOUT, {"tier": "starter"})
    buy(owner, "starter")
    buy(owner, "growth")
    ask(owner, CANCEL)
    end_period(tenant)
    _until(lambda: tenant.get("/billing/subscription")["status"] == "ended")
    wanted = {"check-out", "subscribe-starter", "subscribe-growth"}
    wanted |= {"cancel-subscription", "end-subscription"}
    _until(lambda: wanted <= {each["operation"] for each in _records(tenant)})
    user = f"user:{owner.get('/auth/me')['id']}"
    found = [
        (each["operation"], each["principal"], each["outcome"])
        for each in _records(tenant)
        if each["operation"] in wanted
    ]
    assert found == [
        ("check-out", "api-key:1", "ERR_FORBIDDEN_001"),
        ("subscribe-starter", user, "success"),
        ("subscribe-growth", user, "success"),
        ("cancel-subscription", user, "success"),
        ("end-subscription", "gateway", "success"),
    ]


def _records(tenant: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tenant.get("/audit/records", limit=500)["records"]
    return found
