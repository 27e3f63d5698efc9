"""Idempotency-Key over HTTP: a repetition gets the first response, and nothing else happens."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]
KYBER = {"algorithm": "Kyber768"}
NAMES = ("tenant", "api key", "api key rotation", "generation", "rotation")


class Change:
    """One of the five requests that support the header, and its caller."""

    def __init__(self, name: str, operator: Caller, tenant: Caller) -> None:
        own = f"/tenants/{tenant.tenant_id}/api-keys"
        self.caller = operator if name == "tenant" else tenant
        self.path, self.body = {
            "tenant": ("/tenants", {"name": f"tenant {uuid.uuid4()}"}),
            "api key": (own, {}),
            "api key rotation": (own + "/rotate", {}),
            "generation": ("/kms/keys/generate", {"algorithm": "X-Wing"}),
            "rotation": ("/kms/keys/rotate", KYBER),
        }[name]

    def ask(self, key: str | None, body: object = None) -> httpx2.Response:
        """Make the request, with a key."""
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.caller.ask("POST", self.path, body or self.body, headers=headers)


@pytest.fixture
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant with a key."""
    made = new_tenant()
    made.post("/kms/keys/generate", KYBER, status=201)
    return made


@pytest.fixture(params=NAMES)
def change(request: pytest.FixtureRequest, operator: Caller, tenant: Caller) -> Change:
    """Each of the five requests."""
    return Change(request.param, operator, tenant)


def state(operator: Caller, tenant: Caller) -> list[Any]:
    """Return the state that the five requests could change."""
    return [
        len(tenant.get("/kms/keys")["keys"]),
        operator.get(f"/tenants/{tenant.tenant_id}/api-keys")["total"],
        operator.get("/tenants")["total"],
    ]


def test_the_first_answer_comes_again(change: Change, operator: Caller, tenant: Caller) -> None:
    """All repetitions get the first response's status and data; only the first changes data."""
    key = f"key-{uuid.uuid4()}"
    first = change.ask(key)
    assert first.is_success, first.text
    before = state(operator, tenant)
    for _ in range(3):
        again = change.ask(key)
        assert (again.status_code, again.json()["data"]) == (
            first.status_code,
            first.json()["data"],
        )
    assert state(operator, tenant) == before


def test_another_request_with_the_key_is_a_conflict(
    change: Change, operator: Caller, tenant: Caller, refused: Refused
) -> None:
    """The same key with another body or path is 409, and nothing changes.

    A rotated API key may not send anything else: 403.
    """
    key = f"key-{uuid.uuid4()}"
    assert change.ask(key).is_success
    before = state(operator, tenant)
    if change.body:
        another = {"name": "another", "algorithm": "Dilithium3"}
        response = change.ask(
            key, change.body | {each: another[each] for each in change.body & another.keys()}
        )
    else:  # and the path is all there is
        change.path = change.path.removesuffix("/rotate") + "/rotate" * (
            "rotate" not in change.path
        )
        response = change.ask(key)
    has_rotated = not change.path.endswith("/rotate") and not change.body
    refusal = (403, "ERR_FORBIDDEN_001") if has_rotated else (409, "ERR_CONFLICT_001")
    assert refused(response)[:2] == refusal
    assert state(operator, tenant) == before


BAD = ["", "x" * 256, "caf\u00e9", "tab\there"]


@pytest.mark.parametrize("text", BAD, ids=["empty", "long", "not ASCII", "not printable"])
def test_a_bad_key_is_named(
    text: str, change: Change, operator: Caller, tenant: Caller, refused: Refused
) -> None:
    """An invalid header is 400 and named, and nothing changes."""
    before = state(operator, tenant)
    headers = {"Idempotency-Key": text.encode()}
    response = change.caller.ask("POST", change.path, change.body, headers=headers)
    assert refused(response) == (400, "ERR_INVALID_001", "Idempotency-Key")
    assert state(operator, tenant) == before


def test_a_good_key_is_not_blamed_for_the_body(change: Change, refused: Refused) -> None:
    """A body with half of a surrogate pair is invalid JSON, with any key."""
    headers = {"Idempotency-Key": "a", "Content-Type": "application/json"}
    content = b'{"name":"\\ud800"}'
    response = change.caller.ask("POST", change.path, content=content, headers=headers)
    assert refused(response) == (400, "ERR_INVALID_001", None)


@pytest.mark.parametrize("name", ["generation", "rotation", "api key"])
def test_a_tenant_s_key_is_its_own(
    name: str, operator: Caller, tenant: Caller, new_tenant: Callable[..., Caller]
) -> None:
    """Two tenants with the same key both get their own new object."""
    other = new_tenant()
    other.post("/kms/keys/generate", KYBER, status=201)
    key = f"key-{uuid.uuid4()}"
    mine, theirs = (
        Change(name, operator, each).ask(key).json()["data"] for each in (tenant, other)
    )
    secret = "api_key" if name == "api key" else "public_key"
    assert mine[secret] != theirs[secret]


@pytest.mark.parametrize("name", ["api key", "api key rotation"])
def test_the_api_key_that_comes_again_works(
    name: str, installation: Installation, operator: Caller, tenant: Caller
) -> None:
    """The API key in the repeated response works."""
    change, key = Change(name, operator, tenant), f"key-{uuid.uuid4()}"
    first, again = (change.ask(key).json()["data"] for _ in range(2))
    made = again.get("new_key", again)["api_key"]
    assert made == first.get("new_key", first)["api_key"]
    assert installation.caller(made).get("/kms/keys")["total"] == 1


@pytest.mark.parametrize("rest", ["", "/rotate"])
def test_an_api_key_is_repeated_for_nobody_else(
    rest: str, installation: Installation, tenant: Caller, refused: Refused
) -> None:
    """Another API key of the tenant, with the same key and body, gets 409."""
    path = f"/tenants/{tenant.tenant_id}/api-keys"
    other = installation.caller(tenant.post(path, status=201)["api_key"])
    headers = {"Idempotency-Key": f"key-{uuid.uuid4()}"}
    assert tenant.ask("POST", path + rest, {}, headers=headers).status_code in {200, 201}
    assert refused(other.ask("POST", path + rest, {}, headers=headers)) == (
        409,
        "ERR_CONFLICT_001",
        "Idempotency-Key",
    )


def test_a_refusal_is_not_remembered(operator: Caller, tenant: Caller) -> None:
    """A key of a refused request can be used again."""
    made = Change("generation", operator, tenant)
    made.body = {"algorithm": "Dilithium3"}
    rotation = Change("rotation", operator, tenant)
    rotation.body = made.body
    key = f"key-{uuid.uuid4()}"
    assert rotation.ask(key).status_code == 404
    assert made.ask(None).is_success
    assert rotation.ask(key).is_success


def test_no_plaintext_is_kept(installation: Installation, operator: Caller, tenant: Caller) -> None:
    """The gateway's files never have the API key of the first response."""
    made = Change("api key", operator, tenant).ask(f"key-{uuid.uuid4()}").json()["data"]["api_key"]
    files = [path for path in Path(installation.data, "gateway").rglob("*") if path.is_file()]
    assert files
    assert not any(made.encode() in path.read_bytes() for path in files)
    assert not any(made[4:].encode() in path.read_bytes() for path in files)
