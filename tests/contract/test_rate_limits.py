"""The rate limit over HTTP: exact, separate for each tenant, and changed at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

from pqkeep_gateway.access.credentials import CredentialKind, new_credential

if TYPE_CHECKING:
    import httpx2

TOO_MANY = (429, "ERR_RATE_LIMIT_001", None)
Refused = Callable[["httpx2.Response"], tuple[int, str, str | None]]


@pytest.fixture
def limited(operator: Caller, new_tenant: Callable[..., Caller]) -> Callable[[object], Caller]:
    """Make a tenant with its own, unused rate limit."""

    def make(requests_per_minute: object, plan: str = "free") -> Caller:
        tenant = new_tenant(plan)
        _grant(operator, tenant, requests_per_minute)
        return tenant

    return make


def _grant(operator: Caller, tenant: Caller, requests_per_minute: object) -> None:
    changes = {"requests_per_minute": requests_per_minute}
    response = operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", changes)
    assert response.json()["data"]["requests_per_minute"] in (requests_per_minute, None)


def _admitted(tenant: Caller, attempts: int = 12) -> int:
    statuses = [tenant.ask("GET", "/kms/keys").status_code for _ in range(attempts)]
    assert statuses == sorted(statuses)
    assert set(statuses) <= {200, 429}
    return statuses.count(200)


@pytest.fixture(scope="module")
def responses(operator: Caller, new_tenant: Callable[..., Caller]) -> list[httpx2.Response]:
    """The responses to 400 concurrent requests of a tenant on free, which has 100 a minute."""
    tenant = new_tenant("free")
    with ThreadPoolExecutor(32) as pool:
        asked = [pool.submit(tenant.ask, "GET", "/kms/keys") for _ in range(400)]
        return [each.result() for each in asked]


def test_free_has_a_hundred_requests_a_minute(responses: list[httpx2.Response]) -> None:
    """Of 400 concurrent requests exactly 100 are admitted, and 300 are 429."""
    assert Counter(response.status_code for response in responses) == {200: 100, 429: 300}


def test_a_refusal_says_when_to_come_back(
    responses: list[httpx2.Response], refused: Refused
) -> None:
    """Every 429 has its code, Retry-After in whole seconds, and RateLimit fields."""
    for response in responses:
        if response.status_code == 429:
            assert refused(response) == TOO_MANY
            seconds = response.headers["retry-after"]
            assert seconds.isdecimal()
            assert 1 <= int(seconds) <= 60
            assert response.headers["ratelimit-limit"] == "100"
            assert response.headers["ratelimit-remaining"] == "0"
            assert response.headers["ratelimit-reset"] == str(seconds)


def _remaining(response: httpx2.Response) -> int:
    assert 1 <= int(response.headers["ratelimit-reset"]) <= 60
    assert response.headers["ratelimit-limit"] == "10"
    return int(response.headers["ratelimit-remaining"])


def test_every_answer_that_counts_says_what_is_left(
    limited: Callable[[object], Caller], operator: Caller
) -> None:
    """Every counted response has RateLimit fields: successes, JSON lines, and later refusals."""
    tenant = limited(10)
    responses = [
        tenant.ask("GET", "/kms/keys"),
        tenant.ask("POST", "/kms/keys/generate", {"algorithm": "Dilithium3"}),
        tenant.ask("POST", "/kms/keys/generate", {"algorithm": "nonsense"}),
        tenant.ask("GET", "/tenants/00000000-0000-4000-8000-000000000000"),
        tenant.ask("PATCH", f"/tenants/{tenant.tenant_id}", {"status": "active"}),
        tenant.ask("GET", "/audit/export"),
    ]
    assert [each.status_code for each in responses] == [200, 201, 400, 404, 403, 200]
    operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", {"status": "suspended"})
    responses.append(tenant.ask("GET", "/kms/keys"))
    assert responses[-1].status_code == 403
    assert [_remaining(each) for each in responses] == [9, 8, 7, 6, 5, 4, 3]


def test_answers_that_do_not_count_say_nothing(operator: Caller) -> None:
    """Uncounted responses have no RateLimit fields: the operator, unknown paths, and unknown credentials."""
    stranger = {"X-API-Key": new_credential(CredentialKind.API_KEY)}
    for response in (
        operator.ask("GET", "/tenants"),
        operator.ask("GET", "/nowhere"),
        operator.ask("GET", "/kms/keys", headers=stranger),
        operator.ask("GET", "/billing/plans"),
    ):
        assert not [name for name in response.headers if name.startswith("ratelimit")]


def test_nobody_else_waits(
    limited: Callable[[object], Caller], new_tenant: Callable[..., Caller], operator: Caller
) -> None:
    """While one tenant is refused, another one and the operator are admitted."""
    greedy, other = limited(1), new_tenant("free")
    greedy.get("/kms/keys")
    for _ in range(20):
        assert greedy.ask("GET", "/kms/keys").status_code == 429
        other.get("/kms/keys")
        operator.get("/tenants")


def test_all_keys_of_a_tenant_share_its_limit(
    installation: Installation, limited: Callable[[object], Caller], operator: Caller
) -> None:
    """Two API keys of a tenant share its rate limit."""
    first = limited(6)
    made = operator.post(f"/tenants/{first.tenant_id}/api-keys", status=201)
    second = installation.caller(made["api_key"], first.tenant_id)
    for caller in (first, second, first, second, first, second):
        caller.get("/kms/keys")
    for caller in (first, second):
        assert caller.ask("GET", "/kms/keys").status_code == 429


FAILING = {
    "400, no JSON": ("POST", "/kem/encrypt", b"{"),
    "400, an algorithm": ("POST", "/kem/encrypt", b'{"algorithm":"RSA"}'),
    "400, a field": ("POST", "/kem/encrypt", b"{}"),
    "403, policy": ("POST", "/kem/encrypt", b'{"algorithm":"X-Wing"}'),
    "403, archive": ("POST", "/kms/keys/archive", b"{}"),
    "403, for the operator": ("POST", "/tenants", b'{"name":"x"}'),
    "404, no key": ("POST", "/kem/encrypt", b'{"plaintext":"QUJD"}'),
    "404, no tenant": ("GET", "/tenants/x", b""),
}


@pytest.mark.parametrize(("method", "path", "content"), FAILING.values(), ids=FAILING.keys())
def test_what_fails_counts(
    limited: Callable[[object], Caller], method: str, path: str, content: bytes
) -> None:
    """A request that fails for any reason uses the rate limit like a successful one."""
    tenant = limited(3)
    statuses = [tenant.ask(method, path, content=content).status_code for _ in range(4)]
    assert statuses[0] in (400, 403, 404)
    assert statuses == [*3 * statuses[:1], 429]


def test_strangers_count_against_nobody(
    limited: Callable[[object], Caller], anonymous: Caller, refused: Refused
) -> None:
    """Requests without a valid credential are 401, never 429, and do not count for a tenant."""
    tenant = limited(3)
    stranger = new_credential(CredentialKind.API_KEY)
    for _ in range(40):
        for shown in (stranger, tenant.api_key[:-1], "x"):
            response = anonymous.ask("GET", "/kms/keys", headers={"X-API-Key": shown})
            assert response.status_code == 401
        assert anonymous.ask("GET", "/kms/keys").status_code == 401
    assert _admitted(tenant) == 3


def test_a_limit_is_changed_with_the_next_request(
    limited: Callable[[object], Caller], operator: Caller
) -> None:
    """A raised, lowered or reset limit applies from the next request on."""
    tenant = limited(2)
    assert _admitted(tenant) == 2
    _grant(operator, tenant, 5)
    assert _admitted(tenant) == 3
    _grant(operator, tenant, 1)
    assert _admitted(tenant) == 0
    _grant(operator, tenant, "plan")
    assert _admitted(tenant) == 12


@pytest.mark.parametrize(("tier", "events"), [("starter", 500), ("growth", 1000), ("free", 100)])
def test_the_limit_follows_the_tier(
    limited: Callable[..., Caller], operator: Caller, tier: str, events: int
) -> None:
    """After a change of tier its rate limit applies, as the refusal shows."""
    tenant = limited(1)
    tenant.get("/kms/keys")
    body = {"tier": tier, "requests_per_minute": "plan"}
    assert operator.ask("PATCH", f"/tenants/{tenant.tenant_id}", body).is_success
    with ThreadPoolExecutor(16) as pool:
        asked = [pool.submit(tenant.ask, "GET", "/kms/keys") for _ in range(events)]
        statuses = [each.result() for each in asked]
    last = [response for response in statuses if not response.is_success]
    assert [response.status_code for response in last] == [429]
    assert last[0].headers["ratelimit-limit"] == str(events)


def test_the_limit_comes_before_everything_in_the_request(
    limited: Callable[[object], Caller], refused: Refused
) -> None:
    """A request over the limit is 429, with any other error in it."""
    tenant = limited(1)
    tenant.get("/kms/keys")
    for content in (b"{", b'{"algorithm":"RSA"}', b'{"algorithm":"X-Wing"}'):
        response = tenant.ask("POST", "/kem/encrypt", content=content)
        assert refused(response) == TOO_MANY


def test_a_suspended_tenant_writes_no_more_records_than_its_limit(
    limited: Callable[[object], Caller], operator: Caller, refused: Refused
) -> None:
    """A suspended tenant gets its refusal within the limit; beyond it 429 without a record."""
    tenant = limited(2)
    path = f"/tenants/{tenant.tenant_id}"
    operator.ask("PATCH", path, {"status": "suspended"})
    responses = [tenant.ask("GET", "/kms/keys") for _ in range(10)]
    assert [each.status_code for each in responses] == [403] * 2 + [429] * 8
    assert refused(responses[0]) == (403, "ERR_FORBIDDEN_001", None)
    found = operator.get("/audit/records", order="desc", limit=20)["records"]
    assert (
        sum(each["outcome"] != "success" for each in found if each["tenant_id"] == tenant.tenant_id)
        == 2
    )


def test_a_big_request_is_refused_before_it_is_read(
    limited: Callable[[object], Caller], refused: Refused
) -> None:
    """A request over the limit is refused while its body is still arriving."""
    tenant = limited(1)
    tenant.get("/kms/keys")

    def chunks() -> Iterator[bytes]:
        for _ in range(3):
            yield os.urandom(1024)

    assert refused(tenant.ask("POST", "/kem/encrypt", content=chunks())) == TOO_MANY
