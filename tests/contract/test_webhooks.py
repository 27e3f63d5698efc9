"""Webhooks over HTTP: created by people, seen by programs, checked by a receiver that is not ours."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook
from standardwebhooks.webhooks import WebhookVerificationError
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation, running
from tests.fixtures.webhook_receiver import receiving
from tests.patience import PATIENCE

from pqkeep import Client, NotFoundError
from pqkeep_gateway.storage.webhooks import MAX_WEBHOOKS

PATH = "/webhooks"
URL = "https://hooks.example.com/T0K3N?key=1"


@pytest.fixture
def tenant(new_tenant: Callable[..., Caller]) -> Caller:
    """A tenant for this test only."""
    return new_tenant()


@pytest.fixture
def owner(tenant: Caller, new_person: Callable[..., Caller]) -> Caller:
    """Its owner."""
    return new_person(tenant.tenant_id)


@pytest.fixture(scope="module")
def reaching(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation with webhooks that may reach this machine."""
    settings = {"webhook_networks": ["127.0.0.0/8"]}
    with running(tmp_path_factory.mktemp("webhooks"), settings=settings) as started:
        yield started


def create(owner: Caller, url: str = URL, name: str = "on-call") -> dict[str, Any]:
    """Create a webhook; return it with its secret."""
    created: dict[str, Any] = owner.post_proven(PATH, {"name": name, "url": url}, status=201)
    return created


def test_people_change_webhooks_and_programs_see_them(tenant: Caller, owner: Caller) -> None:
    """The secret is shown once, and each change is recorded.

    The program's output shows no path or secret.
    """
    created = create(owner)
    secret = created.pop("secret")
    path = f"{PATH}/{created['id']}"
    assert owner.get(PATH) == {"webhooks": [created]}
    (seen,) = tenant.get(PATH)["webhooks"]
    assert seen == {**created, "url": "https://hooks.example.com"}
    assert refusal_of(tenant.ask("POST", PATH, {"name": "x", "url": URL}))[0] == 403
    changed = owner.ask_proven("PATCH", path, {"name": "pager", "active": False}).json()["data"]
    assert (changed["name"], changed["state"], changed["url"]) == ("pager", "disabled", URL)
    assert refusal_of(tenant.ask("POST", f"{path}/test")) == (409, "ERR_CONFLICT_001", None)
    owner.ask_proven("PATCH", path, {"active": True}).raise_for_status()
    rotated = owner.post_proven(f"{path}/secret", {"overlap_seconds": 60})
    assert rotated["secret"] != secret
    assert rotated["previous_secret_until"] is not None
    owner.ask_proven("DELETE", path).raise_for_status()
    assert owner.get(PATH) == {"webhooks": []}
    for method, rest in (("DELETE", ""), ("POST", "/secret")):
        gone = owner.ask_proven(method, path + rest)
        assert refusal_of(gone) == (404, "ERR_NOT_FOUND_001", "webhook")
    records = tenant.get("/audit/records")["records"]
    operations = {record["operation"] for record in records if "webhook" in record["operation"]}
    assert operations >= {
        "create-webhook",
        "change-webhook",
        "rotate-webhook-secret",
        "remove-webhook",
    }
    assert "T0K3N" not in str(records)
    assert secret not in str(records)


@pytest.mark.threat("webhook-into-the-network")
@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "https://127.0.0.1/",
        "https://2130706433/",
        "https://[::ffff:169.254.169.254]/",
        "https://ada:secret@hooks.example.com/",
        "unix:///run/pqkeep/keys.sock",
    ],
)
def test_urls_that_are_not_public_are_refused(owner: Caller, url: str) -> None:
    """A webhook gets no private address, no plain HTTP and no other scheme: new or changed."""
    wanted = (400, "ERR_INVALID_001", "url")
    response = owner.ask_proven("POST", PATH, {"name": "inside", "url": url})
    assert refusal_of(response) == wanted
    assert url not in response.text
    path = f"{PATH}/{create(owner)['id']}"
    assert refusal_of(owner.ask_proven("PATCH", path, {"url": url})) == wanted


@pytest.mark.threat("other-tenant")
def test_webhooks_have_limits_and_belong_to_their_tenant(
    tenant: Caller, owner: Caller, new_tenant: Callable[..., Caller], new_person: Any
) -> None:
    """Names are unique, and ten is the most.

    Developers see no webhooks, and other tenants get 404.
    """
    created = create(owner)
    again = owner.ask_proven("POST", PATH, {"name": "on-call", "url": URL})
    assert refusal_of(again) == (409, "ERR_CONFLICT_001", "name")
    for number in range(1, MAX_WEBHOOKS):
        create(owner, name=f"hook-{number}")
    more = owner.ask_proven("POST", PATH, {"name": "more", "url": URL})
    assert refusal_of(more)[:2] == (403, "ERR_FORBIDDEN_001")
    developer = new_person(tenant.tenant_id, "developer")
    assert refusal_of(developer.ask("GET", PATH))[0] == 403
    stranger = new_person(new_tenant().tenant_id)
    path = f"{PATH}/{created['id']}"
    for method, rest in (("GET", "/deliveries"), ("POST", "/test")):
        assert refusal_of(stranger.ask(method, path + rest))[0] == 404
    assert refusal_of(stranger.ask_proven("PATCH", path, {"active": False}))[0] == 404
    assert stranger.get(PATH) == {"webhooks": []}


def test_a_test_message_arrives_and_can_be_sent_again(reaching: Installation) -> None:
    """A test message is verified by the reference library; the client sees and resends it."""
    tenant = reaching.new_tenant()
    owner = reaching.person(tenant.tenant_id)
    with ExitStack() as stack:
        receiver = stack.enter_context(receiving(500))
        created = create(owner, receiver.url)
        client = stack.enter_context(Client(reaching.base_url, tenant.api_key))
        waiting = client.webhooks.test(created["id"])
        assert (waiting.type, waiting.state) == ("webhook-test", "waiting")
        failed = _settled(client, created["id"])
        assert (failed.attempts, failed.status, failed.problem) == (1, 500, None)
        client.webhooks.resend(created["id"], failed.id)
        while (sent := _settled(client, created["id"])).state != "delivered":
            time.sleep(0.1)
        assert (sent.id, sent.status) == (failed.id, 204)
        assert [received.id for received in receiver.requests] == [failed.id] * 2
        received = receiver.requests[-1]
        content = Webhook(created["secret"]).verify(received.body, received.headers)
        assert content["data"] == {"webhook": "on-call"}
        assert client.webhooks.list()[0].last_success_at is not None
        for _ in range(3):
            client.webhooks.test(created["id"])
        path = f"/webhooks/{created['id']}/deliveries"
        first = owner.get(path, limit=3)
        second = owner.get(path, limit=3, after=first["next"])
        assert (len(first["deliveries"]), first["total"]) == (3, 4)
        assert [delivery["id"] for delivery in second["deliveries"]] == [failed.id]
        with pytest.raises(NotFoundError):
            client.webhooks.resend(created["id"], created["id"])


def test_the_documented_receiver() -> None:
    """The documented function takes a signed message once, and refuses a changed one."""
    page = Path(__file__).parents[2] / "docs" / "webhooks.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    defined: dict[str, Any] = {}
    exec(code, defined)  # noqa: S102 - ours
    secret, body, now = "whsec_" + "A" * 43 + "=", '{"type":"webhook-test"}', datetime.now(UTC)
    headers = {
        "webhook-id": "1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": Webhook(secret).sign("1", now, body),
    }
    taken: set[str] = set()
    assert defined["take"](secret, body, headers, taken) == {"type": "webhook-test"}
    assert defined["take"](secret, body, headers, taken) is None
    with pytest.raises(WebhookVerificationError):
        defined["take"](secret, body + " ", headers, taken)


def _settled(client: Client, webhook: str) -> Any:
    """Return the newest message, once it was tried."""
    deadline = time.monotonic() + PATIENCE
    while True:
        newest = next(client.webhooks.deliveries(webhook))
        if newest.status is not None or newest.problem is not None:
            return newest
        assert time.monotonic() < deadline
        time.sleep(0.05)
