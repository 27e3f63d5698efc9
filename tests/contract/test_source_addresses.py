"""Whose address a request has, behind a reverse proxy and without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import httpx2
import pytest
from tests.fixtures.installation import Installation

from pqkeep_gateway.access.credential_lookups import UNKNOWN_CREDENTIALS
from pqkeep_gateway.access.credentials import CredentialKind, new_credential

PROXY, OTHER = "127.0.0.2", "127.0.0.3"
CLIENT, ANOTHER = "192.0.2.7", "192.0.2.8"

Ask = Callable[..., httpx2.Response]


@pytest.fixture
def ask(start: Callable[..., Installation]) -> Iterator[Ask]:
    """Send a request from one of this machine's addresses; one of them is a trusted proxy."""
    installation = start(settings={"trusted_proxies": [f"{PROXY}/32"]})
    with ExitStack() as stack:
        clients = {
            address: stack.enter_context(
                httpx2.Client(
                    base_url=installation.base_url + "/api/v1",
                    transport=httpx2.HTTPTransport(local_address=address),
                    headers={"X-API-Key": installation.ready["operator_key"]},
                    timeout=30,
                )
            )
            for address in (PROXY, OTHER)
        }

        def send(peer: str, method: str, path: str, client: str, **options: object) -> object:
            headers = {"X-Forwarded-For": client, **options.pop("headers", {})}  # type: ignore[dict-item]
            return clients[peer].request(method, path, headers=headers, **options)  # type: ignore[arg-type]

        yield send  # type: ignore[misc]


@pytest.mark.parametrize(("peer", "recorded"), [(PROXY, CLIENT), (OTHER, OTHER)])
def test_records_have_the_client_s_address(ask: Ask, peer: str, recorded: str) -> None:
    """A trusted proxy's client is recorded; of anybody else the peer itself."""
    assert ask(peer, "POST", "/tenants", CLIENT, json={"name": "x"}).status_code == 201
    query = {"operation": "create-tenant"}
    answer = ask(peer, "GET", "/audit/records", ANOTHER, params=query)
    addresses = {each["source_address"] for each in answer.json()["data"]["records"]}
    assert addresses & {PROXY, OTHER, CLIENT} == {recorded}


def test_budgets_are_the_client_s(ask: Ask) -> None:
    """A client that uses its budget up stops neither its proxy's other clients nor known credentials."""

    def status(client: str, credential: str | None = None) -> int:
        shown = {"X-API-Key": credential or new_credential(CredentialKind.API_KEY)}
        return ask(PROXY, "GET", "/kms/keys", client, headers=shown).status_code

    tenant = ask(PROXY, "POST", "/tenants", CLIENT, json={"name": "x"}).json()["data"]
    path = f"/tenants/{tenant['id']}/api-keys"
    api_key = ask(PROXY, "POST", path, CLIENT).json()["data"]["api_key"]
    statuses = [status(CLIENT) for _ in range(2 * UNKNOWN_CREDENTIALS.events + 1)]
    assert 401 in statuses
    assert 429 in statuses
    assert status(ANOTHER) == 401
    assert status(CLIENT, api_key) == 200
