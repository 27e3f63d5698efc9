"""Hashes and random bytes over HTTP. No key takes part, so there is no record."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.caller import Caller

from pqkeep_protocol.algorithms import MAX_RANDOM, HashFunction

NewTenant = Callable[..., Caller]
HELLO = b64encode(b"hello").decode()


@pytest.fixture(scope="module")
def caller(installation: Any) -> Caller:
    """Return a tenant without keys."""
    made: Caller = installation.new_tenant()
    return made


@pytest.mark.parametrize("function", HashFunction)
def test_a_hash_is_that_of_the_standard(function: HashFunction, caller: Caller) -> None:
    """Each function gives the digest of another implementation."""
    made = caller.post("/tools/hash", {"data": HELLO, "hash_algorithm": function.value})
    name = function.lower().replace("sha-", "sha").replace("sha3-", "sha3_")
    assert b64decode(made["hash"]) == hashlib.new(name, b"hello").digest()
    assert made["hash_algorithm"] == function


def test_hashes_have_limits(caller: Caller) -> None:
    """SHA-256 is the default. Unknown functions, other encodings and large data are refused."""
    made = caller.post("/tools/hash", {"data": HELLO})
    assert b64decode(made["hash"]) == hashlib.sha256(b"hello").digest()
    assert caller.post("/tools/hash", {"data": b64encode(bytes(1_048_576)).decode()})["hash"]
    for body, field in (
        ({"data": HELLO, "hash_algorithm": "MD5"}, "hash_algorithm"),
        ({"data": "@@"}, "data"),
        ({}, "data"),
        ({"data": b64encode(bytes(1_048_577)).decode()}, "data"),
        ({"data": HELLO, "algorithm": "Kyber768"}, "algorithm"),
    ):
        assert caller.refusal("/tools/hash", body) == (400, "ERR_INVALID_001", field)


@pytest.mark.parametrize("size", [1, 32, MAX_RANDOM])
def test_random_bytes_have_their_size(size: int, caller: Caller) -> None:
    """Two requests give different bytes of the size."""
    first, second = (
        b64decode(caller.post("/tools/random", {"size": size})["random"]) for _ in "ab"
    )
    assert len(first) == len(second) == size
    assert size == 1 or first != second


def test_random_bytes_have_limits(caller: Caller) -> None:
    """32 bytes are the default, also without a body; none and too many are refused."""
    assert len(b64decode(caller.post("/tools/random", {})["random"])) == 32
    for size in (0, -1, MAX_RANDOM + 1, "16", 1.5, True, 2**70):
        refused = caller.refusal("/tools/random", {"size": size})
        assert refused == (400, "ERR_INVALID_001", "size"), size


def test_they_leave_no_record(new_tenant: NewTenant) -> None:
    """The audit log of a tenant has refusals of these operations only."""
    caller = new_tenant()
    before = caller.get("/audit/records")["records"]
    caller.post("/tools/hash", {"data": HELLO})
    caller.post("/tools/random", {})
    assert caller.get("/audit/records")["records"] == before


@pytest.mark.threat("scoped-api-key")
def test_a_scope_names_them(new_tenant: NewTenant, installation: Any) -> None:
    """A scope for all keyrings can allow these functions. A scope for some keyrings cannot."""
    caller = new_tenant()
    for scope, allowed in (
        ({"operations": ["hash"]}, {"/tools/hash"}),
        ({"operations": ["generate-random"]}, {"/tools/random"}),
        ({"operations": ["use"]}, {"/tools/hash", "/tools/random"}),
        ({"operations": ["encrypt-only", "administer"]}, set[str]()),
        ({"operations": ["*"], "keyrings": ["default"]}, set[str]()),
    ):
        keys = f"/tenants/{caller.tenant_id}/api-keys"
        made = caller.post(keys, {"scopes": [scope]}, status=201)
        limited = installation.caller(made["api_key"], caller.tenant_id)
        for path, body in (("/tools/hash", {"data": HELLO}), ("/tools/random", {})):
            status = 200 if path in allowed else 403
            assert limited.ask("POST", path, body).status_code == status, (scope, path)
        assert caller.ask("DELETE", f"{keys}/{made['version']}").status_code == 200


def test_they_count_against_the_monthly_quota(new_tenant: NewTenant) -> None:
    """On a plan with a quota each successful request is one operation."""
    caller = new_tenant("free")
    caller.post("/tools/hash", {"data": HELLO})
    caller.post("/tools/random", {"size": 8})
    caller.refusal("/tools/random", {"size": 0})
    limits = {each["name"]: each["used"] for each in caller.get("/billing/limits")["limits"]}
    assert limits["operations_per_month"] == 2
