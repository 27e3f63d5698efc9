"""The source address of a request, with and without a reverse proxy."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import httpx2
import pytest
from tests.contract.conftest import PROXY
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE

from pqkeep_gateway.access.credential_lookups import UNKNOWN_CREDENTIALS
from pqkeep_gateway.access.credentials import CredentialKind, new_credential

OTHER = "127.0.0.3"
CLIENT, ANOTHER = "192.0.2.7", "192.0.2.8"

NEW_PHRASE = "the horse prefers oats"
TOKENS: Mapping[str, tuple[CredentialKind, str, Mapping[str, str]]] = {
    "/auth/accept-invitation": (CredentialKind.INVITATION, "token", {"password": NEW_PHRASE}),
    "/auth/confirm-registration": (
        CredentialKind.REGISTRATION,
        "token",
        {"name": "y", "password": NEW_PHRASE},
    ),
    "/auth/reset-password": (
        CredentialKind.PASSWORD_RESET,
        "token",
        {"new_password": NEW_PHRASE},
    ),
    "/auth/mfa/verify": (
        CredentialKind.CHALLENGE,
        "challenge_token",
        {"totp_code": "123456"},
    ),
}
"""Where anonymous clients send a token: its kind and field, and the other fields."""

Ask = Callable[..., httpx2.Response]


@pytest.fixture
def ask(closed: Installation) -> Iterator[Ask]:
    """Send a request from one of this machine's addresses.

    One of the addresses is a trusted proxy.
    """
    with ExitStack() as stack:
        clients = {
            address: stack.enter_context(
                httpx2.Client(
                    base_url=closed.base_url + "/api/v1",
                    transport=httpx2.HTTPTransport(local_address=address),
                    headers={"X-API-Key": closed.ready["operator_key"]},
                    timeout=PATIENCE,
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
    """A trusted proxy's client is recorded; for other peers the peer itself."""
    assert ask(peer, "POST", "/tenants", CLIENT, json={"name": f"by {peer}"}).status_code == 201
    query = {"operation": "create-tenant"}
    response = ask(peer, "GET", "/audit/records", ANOTHER, params=query)
    newest = max(response.json()["data"]["records"], key=lambda record: record["id"])
    assert newest["source_address"] == recorded


def test_an_api_key_is_bound_to_the_client_s_address(ask: Ask) -> None:
    """Behind a trusted proxy the client's address must be allowed. Others are not believed."""
    made = ask(PROXY, "POST", "/tenants", ANOTHER, json={"name": f"bound {uuid.uuid4()}"})
    keys = f"/tenants/{made.json()['data']['id']}/api-keys"
    allowed = {"allowed_addresses": [f"{CLIENT}/32"]}
    api_key = ask(PROXY, "POST", keys, ANOTHER, json=allowed).json()["data"]["api_key"]

    def status(peer: str, client: str) -> int:
        return ask(peer, "GET", "/kms/keys", client, headers={"X-API-Key": api_key}).status_code

    assert [status(PROXY, CLIENT), status(PROXY, f"::ffff:{CLIENT}")] == [200, 200]
    assert [status(PROXY, ANOTHER), status(OTHER, CLIENT), status(PROXY, PROXY)] == [401] * 3


def test_an_api_key_is_bound_where_a_client_hides_its_address(ask: Ask) -> None:
    """A client cannot use the proxy's network by adding a header."""
    made = ask(PROXY, "POST", "/tenants", ANOTHER, json={"name": f"hidden {uuid.uuid4()}"})
    keys = f"/tenants/{made.json()['data']['id']}/api-keys"
    allowed = {"allowed_addresses": [f"{PROXY}/32"]}
    api_key = ask(PROXY, "POST", keys, ANOTHER, json=allowed).json()["data"]["api_key"]

    def status(**headers: str) -> int:
        shown = {"X-API-Key": api_key, **headers}
        return ask(PROXY, "GET", "/kms/keys", CLIENT, headers=shown).status_code

    assert [status(), status(Forwarded=f"for={CLIENT}"), status(Forwarded="")] == [401] * 3
    assert ask(PROXY, "GET", "/kms/keys", PROXY, headers={"X-API-Key": api_key}).status_code == 200


def test_budgets_are_the_client_s(ask: Ask) -> None:
    """A client that exhausts its budget of unknown credentials affects no other client."""

    def status(client: str, credential: str | None = None) -> int:
        shown = {"X-API-Key": credential or new_credential(CredentialKind.API_KEY)}
        return ask(PROXY, "GET", "/kms/keys", client, headers=shown).status_code

    def status_of_token(client: str, path: str) -> int:
        kind, field, others = TOKENS[path]
        body = {field: new_credential(kind), **others}
        return ask(PROXY, "POST", path, client, json=body).status_code

    tenant = ask(PROXY, "POST", "/tenants", CLIENT, json={"name": f"tenant {uuid.uuid4()}"}).json()[
        "data"
    ]
    path = f"/tenants/{tenant['id']}/api-keys"
    api_key = ask(PROXY, "POST", path, CLIENT).json()["data"]["api_key"]
    rounds = 2 * UNKNOWN_CREDENTIALS.events // (1 + len(TOKENS)) + 1
    statuses = [
        (status(CLIENT), *(status_of_token(CLIENT, path) for path in TOKENS)) for _ in range(rounds)
    ]
    for each in zip(*statuses, strict=True):
        assert len(set(each)) == 2
        assert 429 in each
    assert status(ANOTHER) == 401
    assert all(status_of_token(ANOTHER, path) != 429 for path in TOKENS)
    assert status(CLIENT, api_key) == 200
