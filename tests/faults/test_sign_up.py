"""Permission to create tenants, on a separate gateway, because sign-ups are counted by address."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from tests.fixtures.caller import TLS
from tests.patience import PATIENCE

TENANTS = "/api/v1/tenants"


@pytest.fixture
def stranger(gateway_alone: tuple[httpx2.Client, str]) -> Iterator[httpx2.Client]:
    """A client without a credential."""
    with httpx2.Client(
        base_url=gateway_alone[0].base_url, trust_env=False, verify=TLS, timeout=PATIENCE
    ) as client:
        yield client


@pytest.mark.parametrize("gateway_alone", ["open"], indirect=True)
def test_open_sign_up_is_rate_limited(
    gateway_alone: tuple[httpx2.Client, str], stranger: httpx2.Client
) -> None:
    """Sign-ups from one address are limited: then 429 with Retry-After."""
    _, operator_key = gateway_alone
    client = stranger
    responses = [client.post(TENANTS, json={"name": f"tenant {n}"}) for n in range(40)]
    statuses = [response.status_code for response in responses]
    made = statuses.count(201)
    assert 1 <= made < 40
    assert statuses == made * [201] + (40 - made) * [429]
    refused = responses[-1]
    assert refused.json()["error"]["error_code"] == "ERR_RATE_LIMIT_001"
    assert 1 <= int(refused.headers["retry-after"]) <= 3600
    operator = {"X-API-Key": operator_key}
    made_by_operator = client.post(TENANTS, json={"name": "more"}, headers=operator)
    assert made_by_operator.status_code == 201


@pytest.mark.parametrize("gateway_alone", ["operator"], indirect=True)
def test_closed_sign_up_needs_the_operator(
    gateway_alone: tuple[httpx2.Client, str], stranger: httpx2.Client
) -> None:
    """If sign-up is not open, only the operator's credential can make a tenant."""
    client, _ = gateway_alone
    assert client.post(TENANTS, json={"name": "y"}).status_code == 403
    refused = stranger.post(TENANTS, json={"name": "y"})
    assert refused.status_code == 401
    assert refused.json()["error"]["error_code"] == "ERR_AUTH_001"


@pytest.mark.parametrize("gateway_alone", ["operator"], indirect=True)
@pytest.mark.usefixtures("gateway_alone")
def test_the_credential_comes_before_the_body(stranger: httpx2.Client) -> None:
    """Without open sign-up, an anonymous client's body is not read: 401."""
    assert stranger.post(TENANTS, content=b"not JSON").status_code == 401
