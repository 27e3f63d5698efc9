"""Stripe as payment provider: requests to it, accepted webhooks, and refused ones.

Stripe is a small local server. Stripe's own library sends the requests. It also signs and verifies
webhooks.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

import httpx2
import pytest
from stripe import WebhookSignature
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation, running
from tests.patience import PATIENCE
from tests.sampling import later

from pqkeep_gateway.http.pipeline import UNVERIFIED
from pqkeep_server.initialise import IN_FILES

Refused = Callable[[httpx2.Response], tuple[int, str, str | None]]
Ask = Callable[..., httpx2.Response]

CHECKOUT = "/billing/subscriptions/checkout"
CANCEL = "/billing/subscriptions/cancel"
WEBHOOK = "/billing/webhooks/stripe"
PRICES = {"starter": "price_s", "growth": "price_g", "professional": "price_p"}
API_SECRET = "sk_test_everybodys"  # noqa: S105 - everybody's in the tests
WEBHOOK_SECRET = "whsec_everybodys"  # noqa: S105 - the same
RETURN = "https://portal.example.org/billing"
SIGNATURE = (400, "ERR_INVALID_001", "Stripe-Signature")
MONTH = 2_592_000
SLOW_SECONDS = 11.0


@dataclass
class Stripe:
    """The requests to the server, and its responses."""

    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str], dict[str, str]]] = field(default_factory=list)
    """Method and path, form, headers."""
    ails: str = ""

    def respond(self, method: str, path: str, form: dict[str, str]) -> tuple[int, object]:
        """Return the response."""
        if path == "/v1/checkout/sessions":
            name = f"cs_{uuid.uuid4().hex}"
            url = f"https://checkout.stripe.com/c/pay/{name}"
            return 200, {"id": name, "object": "checkout.session", "url": url}
        found = self.subscriptions[path.rsplit("/", 1)[1]]
        if method == "POST":
            found["cancel_at_period_end"] = form.get("cancel_at_period_end") == "true"
            found["items"]["data"][0]["price"]["id"] = form.get(
                "items[0][price]", PRICES["starter"]
            )
        return 200, found


def _error(kind: str) -> dict[str, Any]:
    return {"error": {"type": kind, "message": "not for everybody to know", "code": kind}}


AILMENTS: dict[str, tuple[int, object]] = {
    "500": (500, _error("api_error")),
    "402": (402, _error("card_error")),
    "401": (401, _error("invalid_request_error")),
    "404": (404, _error("invalid_request_error")),
    "nonsense": (200, "nonsense"),
    "another form": (200, {"object": "checkout.session"}),
    "a list": (200, []),
    "a text": (200, '"text"'),
    "too many": (429, _error("rate_limit_error")),
}


def _handler(stripe: Stripe) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve()

        def do_POST(self) -> None:
            self._serve()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            form = dict(parse_qsl(body.decode()))
            stripe.asked.append(
                (
                    f"{self.command} {self.path}",
                    form,
                    {k.lower(): v for k, v in self.headers.items()},
                )
            )
            if stripe.ails == "down":
                self.close_connection = True
                return
            if stripe.ails == "slow":
                time.sleep(SLOW_SECONDS)
            status, said = AILMENTS.get(stripe.ails) or stripe.respond(
                self.command, self.path, form
            )
            data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
            with suppress(ConnectionError):  # whoever asked may not wait so long
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

    return Handler


@dataclass(frozen=True)
class Shop:
    """An installation that sells through Stripe, and the Stripe server."""

    installation: Installation
    stripe: Stripe
    database: str

    def tell(
        self,
        event: dict[str, Any],
        *,
        secret: str = WEBHOOK_SECRET,
        at: float | None = None,
        header: str | None = None,
    ) -> httpx2.Response:
        """Send a webhook with Stripe's signature."""
        payload = json.dumps(event)
        when = int(time.time() if at is None else at)
        signed = WebhookSignature.generate_signature_header(payload, secret, when)
        headers = {b"Stripe-Signature": (signed if header is None else header).encode("latin-1")}
        return self.installation.caller(None).ask(
            "POST", WEBHOOK, content=payload.encode(), headers=headers
        )

    def apply_notice(self, event: dict[str, Any]) -> None:
        """Send a webhook that must be accepted."""
        response = self.tell(event)
        assert (response.status_code, response.json()["data"]) == (200, {"received": True}), (
            response.text
        )


@pytest.fixture(scope="module", params=["sqlite", later("postgresql")])
def shop(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shop]:
    """An installation for each kind of database."""
    folder = tmp_path_factory.mktemp("shop")
    stripe = Stripe()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(stripe))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with ExitStack() as stack:
        stack.callback(thread.join)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        databases = IN_FILES
        if request.param == "postgresql":
            databases = stack.enter_context(request.getfixturevalue("own_postgresql")())
        for name, secret in (("api-key", API_SECRET), ("webhook-secret", WEBHOOK_SECRET)):
            (folder / name).write_text(secret + "\n")
            (folder / name).chmod(0o600)
        settings = {
            "stripe": {
                "secret_key_file": str(folder / "api-key"),
                "webhook_secret_file": str(folder / "webhook-secret"),
                "return_url": RETURN,
                "prices": PRICES,
                "api": f"http://127.0.0.1:{server.server_port}",
            }
        }
        started = stack.enter_context(running(folder, databases=databases, settings=settings))
        yield Shop(started, stripe, request.param)


@pytest.fixture
def stripe(shop: Shop) -> Stripe:
    """Stripe without errors and without earlier requests."""
    shop.stripe.ails = ""
    shop.stripe.asked.clear()
    return shop.stripe


@pytest.fixture
def tenant(shop: Shop) -> Caller:
    """A program of a tenant on free."""
    return shop.installation.new_tenant("free")


@pytest.fixture
def owner(shop: Shop, tenant: Caller) -> Caller:
    """The owner of that tenant."""
    return shop.installation.person(tenant.tenant_id)


@pytest.fixture
def ask(password: str) -> Ask:
    """Step up, and send a request that needs it."""

    def send(person: Caller, path: str, body: object = None, key: str = "") -> httpx2.Response:
        token = person.post("/auth/step-up", {"password": password})["step_up_token"]
        headers = {"X-Step-Up-Token": token} | ({"Idempotency-Key": key} if key else {})
        return httpx2.post(
            f"{person.client.base_url}/api/v1{path}",
            json=body,
            headers=headers,
            cookies=person.client.cookies,
            timeout=PATIENCE,
            trust_env=False,
        )

    return send


def _subscription(tenant: Caller, name: str = "", **changes: object) -> dict[str, Any]:
    """Return a subscription in Stripe's form."""
    now = int(time.time())
    item = {
        "id": "si_1",
        "object": "subscription_item",
        "price": {"id": PRICES["starter"], "object": "price"},
        "current_period_start": now,
        "current_period_end": now + MONTH,
    }
    return {
        "id": name or f"sub_{uuid.uuid4().hex}",
        "object": "subscription",
        "created": now,
        "status": "active",
        "cancel_at_period_end": False,
        "cancel_at": None,
        "customer": "cus_1",
        "items": {"object": "list", "data": [item]},
        "metadata": {"pqkeep_tenant": tenant.tenant_id},
        **changes,
    }


def _event(kind: str, about: dict[str, Any], after: int = 0) -> dict[str, Any]:
    """Return a Stripe event, dated some seconds after its subject began."""
    return {
        "id": f"evt_{uuid.uuid4().hex}",
        "object": "event",
        "type": kind,
        "created": about["created"] + after,
        "data": {"object": about},
    }


CREATED = "customer.subscription.created"
UPDATED = "customer.subscription.updated"
DELETED = "customer.subscription.deleted"


def _on(price: str, subscription: dict[str, Any]) -> dict[str, Any]:
    """Return a subscription at another price."""
    (item,) = subscription["items"]["data"]
    return {**subscription, "items": {"data": [{**item, "price": {"id": price}}]}}


def _shown(tenant: Caller) -> tuple[str, str, bool]:
    data = tenant.get("/billing/subscription")
    return data["plan"], data["status"], data["cancel_at_period_end"]


FREE = ("free", "active", False)
STARTER = ("starter", "active", False)
ENDED = ("free", "ended", False)


def test_a_checkout_is_begun_and_nothing_changed(
    stripe: Stripe, tenant: Caller, owner: Caller, ask: Ask
) -> None:
    """A checkout opens Stripe's page; the plan changes only after Stripe's event."""
    data = ask(owner, CHECKOUT, {"tier": "growth"}).json()["data"]
    assert data["checkout_url"].startswith("https://checkout.stripe.com/c/pay/cs_")
    assert (data["pending"], data["subscription"]) == (True, None)
    ((request, form, headers),) = stripe.asked
    assert request == "POST /v1/checkout/sessions"
    assert form == {
        "mode": "subscription",
        "line_items[0][price]": PRICES["growth"],
        "line_items[0][quantity]": "1",
        "client_reference_id": tenant.tenant_id,
        "subscription_data[metadata][pqkeep_tenant]": tenant.tenant_id,
        "success_url": RETURN,
        "cancel_url": RETURN,
    }
    assert headers["authorization"] == f"Bearer {API_SECRET}"
    assert _shown(tenant) == FREE


def test_what_is_sold_has_a_price(shop: Shop, owner: Caller, ask: Ask, refused: Refused) -> None:
    """Only tiers with a price at Stripe can be bought."""
    plans = owner.get("/billing/plans")["plans"]
    assert {each["tier"] for each in plans if each["self_service"]} == PRICES.keys()
    response = ask(owner, CHECKOUT, {"tier": "enterprise"})
    assert refused(response) == (422, "ERR_INVALID_001", "tier")


def test_a_checkout_asked_for_again(stripe: Stripe, owner: Caller, ask: Ask) -> None:
    """With an Idempotency-Key a repetition returns the same page, and Stripe gets one request."""
    first = ask(owner, CHECKOUT, {"tier": "starter"}, "1").json()["data"]
    assert ask(owner, CHECKOUT, {"tier": "starter"}, "1").json()["data"] == first
    ((_, _, headers),) = stripe.asked
    assert headers["idempotency-key"].startswith("pqkeep-")
    assert ask(owner, CHECKOUT, {"tier": "growth"}, "1").status_code == 409


def test_a_webhook_changes_the_plan(shop: Shop, tenant: Caller) -> None:
    """After the signed event the next request is on the new plan, and the log names Stripe."""
    assert tenant.refusal("/kms/keys/generate", {"algorithm": "X-Wing"})[0] == 403
    shop.apply_notice(_event(CREATED, _subscription(tenant)))
    tenant.post("/kms/keys/generate", {"algorithm": "X-Wing"}, status=201)
    assert _shown(tenant) == STARTER
    records = tenant.get("/audit/records", operation="subscribe-starter")["records"]
    assert [each["principal"] for each in records] == ["stripe"]


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ("trialing", STARTER),
        ("past_due", STARTER),
        ("incomplete", FREE),
        ("unpaid", ("free", "unpaid", False)),
        ("canceled", FREE),
        ("incomplete_expired", FREE),
    ],
)
def test_what_a_status_means(
    shop: Shop, tenant: Caller, status: str, shown: tuple[str, str, bool]
) -> None:
    """A subscription is in force exactly with Stripe's running statuses."""
    shop.apply_notice(_event(CREATED, _subscription(tenant, status=status)))
    assert _shown(tenant) == shown


def test_unpaid_and_paid_again(shop: Shop, tenant: Caller) -> None:
    """An unpaid subscription is not in force until it is paid."""
    made = _subscription(tenant)
    shop.apply_notice(_event(CREATED, made))
    shop.apply_notice(_event(UPDATED, {**made, "status": "unpaid"}, 1))
    assert _shown(tenant) == ("free", "unpaid", False)
    shop.apply_notice(_event(UPDATED, made, 2))
    assert _shown(tenant) == STARTER


def test_a_bad_signature(shop: Shop, tenant: Caller, refused: Refused) -> None:
    """A missing, foreign, malformed or swapped signature is 400, and nothing changes."""
    event = _event(CREATED, _subscription(tenant))
    other = WebhookSignature.generate_signature_header("{}", WEBHOOK_SECRET)
    for response in (
        shop.tell(event, secret="whsec_another"),  # noqa: S106 - nobody's
        shop.tell(event, header=other),
        *(shop.tell(event, header=each) for each in ("", "t=1", "t=x,v1=y", ",,=", "t=1,v1=ü")),
    ):
        assert refused(response) == SIGNATURE
    bare = shop.installation.caller(None).ask("POST", WEBHOOK, event)
    assert refused(bare) == SIGNATURE
    assert _shown(tenant) == FREE


def test_a_signature_that_is_too_old(shop: Shop, tenant: Caller, refused: Refused) -> None:
    """A webhook is refused five minutes after its signature, and accepted just before."""
    event = _event(CREATED, _subscription(tenant))
    assert refused(shop.tell(event, at=time.time() - 310)) == SIGNATURE
    assert _shown(tenant) == FREE
    assert shop.tell(event, at=time.time() - 280).status_code == 200
    assert _shown(tenant) == STARTER


def test_valid_webhooks_are_not_limited(shop: Shop, tenant: Caller) -> None:
    """An address that exceeds the limit of unsigned webhooks can still send signed ones."""
    event = _event(CREATED, _subscription(tenant))
    for _ in range(UNVERIFIED.events + 10):
        shop.apply_notice(event)


def test_an_oversized_webhook(shop: Shop, tenant: Caller, refused: Refused) -> None:
    """More than 128 KiB is refused, with any signature."""
    event = _event(CREATED, _subscription(tenant)) | {"more": "x" * 131_072}
    assert refused(shop.tell(event)) == (400, "ERR_INVALID_001", None)
    assert _shown(tenant) == FREE


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"1", b'"\xff"', b"\xff", b"[" * 5000])
def test_signed_nonsense(shop: Shop, content: bytes) -> None:
    """Signed data that is not an event is refused."""
    text = content.decode("utf-8", "replace")
    signed = WebhookSignature.generate_signature_header(text, WEBHOOK_SECRET)
    response = shop.installation.caller(None).ask(
        "POST", WEBHOOK, content=content, headers={"Stripe-Signature": signed}
    )
    assert response.status_code in (400, 422)


def test_an_unknown_kind_of_event(shop: Shop, tenant: Caller) -> None:
    """An event of an unknown kind is accepted, and changes nothing."""
    shop.apply_notice(_event("payment_intent.created", {"created": 1, "id": "pi_1"}))
    shop.apply_notice(_event("customer.subscription", _subscription(tenant)))
    assert _shown(tenant) == FREE


@pytest.mark.parametrize("metadata", [{}, {"pqkeep_tenant": "x"}, {"pqkeep_tenant": "0" * 32}])
def test_what_belongs_to_nobody_here(shop: Shop, tenant: Caller, metadata: dict[str, str]) -> None:
    """Another product's subscription is accepted, and changes nothing."""
    shop.apply_notice(_event(CREATED, _subscription(tenant, metadata=metadata)))
    assert _shown(tenant) == FREE


@pytest.mark.parametrize(
    "changes",
    [
        {"items": {"data": []}},
        {"items": {"data": [{"id": "si_1", "price": {"id": "price_s"}}]}},
        {"status": "on holiday"},
        {"metadata": None},
    ],
)
def test_what_is_not_understood(
    shop: Shop, tenant: Caller, refused: Refused, changes: dict[str, Any]
) -> None:
    """A genuine event in an unknown form is 422, so that Stripe reports it and repeats it."""
    response = shop.tell(_event(CREATED, _subscription(tenant, **changes)))
    assert refused(response) == (422, "ERR_INVALID_001", None)
    assert _shown(tenant) == FREE


def test_a_price_that_is_not_sold(shop: Shop, tenant: Caller, refused: Refused) -> None:
    """A new subscription at an unknown price is 422; a known subscription keeps its tier."""
    made = _subscription(tenant)
    response = shop.tell(_event(CREATED, _on("price_x", made)))
    assert refused(response) == (422, "ERR_INVALID_001", None)
    shop.apply_notice(_event(CREATED, made))
    shop.apply_notice(_event(UPDATED, _on("price_x", {**made, "cancel_at_period_end": True}), 1))
    assert _shown(tenant) == ("starter", "active", True)


def test_a_replay_changes_nothing(shop: Shop, tenant: Caller) -> None:
    """A repeated event after a later one of the same second is ignored."""
    made = _subscription(tenant)
    first = _event(CREATED, made)
    shop.apply_notice(first)
    shop.apply_notice(_event(UPDATED, _on(PRICES["growth"], made)))
    shop.apply_notice(first)
    assert _shown(tenant)[0] == "professional"


def test_of_many_at_once_one_applies(shop: Shop, tenant: Caller) -> None:
    """An event that arrives twelve times at once is accepted each time, and applied once."""
    event = _event(CREATED, _subscription(tenant))
    with ThreadPoolExecutor(12) as threads:
        responses = list(threads.map(lambda _: shop.tell(event), range(12)))
    assert {each.status_code for each in responses} == {200}
    assert _shown(tenant) == STARTER
    records = tenant.get("/audit/records", operation="subscribe-starter")["records"]
    assert len(records) == 1


def test_what_has_ended_has_ended(shop: Shop, tenant: Caller) -> None:
    """An ended subscription stays ended, whatever events arrive."""
    made = _subscription(tenant)
    shop.apply_notice(_event(CREATED, made))
    shop.apply_notice(_event(DELETED, {**made, "status": "canceled"}, 5))
    assert _shown(tenant) == ENDED
    for after in (1, 5, 9):
        shop.apply_notice(_event(UPDATED, made, after))
        assert _shown(tenant) == ENDED


def test_an_end_that_comes_first(shop: Shop, tenant: Caller) -> None:
    """If the end arrives before the beginning, the subscription never runs."""
    made = _subscription(tenant)
    shop.apply_notice(_event(DELETED, {**made, "status": "canceled"}, 5))
    shop.apply_notice(_event(CREATED, made))
    assert _shown(tenant) == FREE


def test_older_news_come_late(shop: Shop, tenant: Caller) -> None:
    """An event older than the last applied one changes nothing."""
    made = _subscription(tenant)
    shop.apply_notice(_event(CREATED, made))
    shop.apply_notice(_event(UPDATED, _on(PRICES["professional"], made), 5))
    shop.apply_notice(_event(UPDATED, _on(PRICES["growth"], made), 3))
    assert tenant.get("/billing/subscription")["tier"] == "professional"


def test_a_new_subscription_after_an_old_one(shop: Shop, tenant: Caller) -> None:
    """A late event about the end of an earlier subscription does not change the present one."""
    old = _subscription(tenant)
    new = _on(PRICES["growth"], _subscription(tenant)) | {"created": old["created"] + 9}
    shop.apply_notice(_event(CREATED, old))
    shop.apply_notice(_event(CREATED, new))
    shop.apply_notice(_event(DELETED, {**old, "status": "canceled"}, 20))
    assert tenant.get("/billing/subscription")["tier"] == "growth"


def test_another_tenant_s_subscription(shop: Shop, tenant: Caller) -> None:
    """An event with one tenant's subscription and another tenant's name changes no tenant."""
    other = shop.installation.new_tenant("free")
    made = _subscription(tenant)
    shop.apply_notice(_event(CREATED, made))
    stolen = _on(PRICES["professional"], {**made, "metadata": {"pqkeep_tenant": other.tenant_id}})
    shop.apply_notice(_event(UPDATED, stolen, 1))
    assert (_shown(tenant), _shown(other)) == (STARTER, FREE)


def _paid(made: dict[str, Any], name: str, cents: int, *prices: str) -> dict[str, Any]:
    period = {"start": made["created"], "end": made["created"] + MONTH}
    return {
        "id": name,
        "object": "invoice",
        "amount_paid": cents,
        "currency": "eur",
        "created": made["created"],
        "lines": {
            "data": [
                {"period": period, "pricing": {"price_details": {"price": each}}} for each in prices
            ]
        },
        "parent": {
            "type": "subscription_details",
            "subscription_details": {"subscription": made["id"], "metadata": made["metadata"]},
        },
    }


def test_invoices(shop: Shop, tenant: Caller, owner: Caller) -> None:
    """Each paid invoice is one line for the tenant, also if it arrives first."""
    made = _subscription(tenant)
    name = f"in_{uuid.uuid4().hex}"
    paid = _event("invoice.paid", _paid(made, name, 9900, PRICES["starter"]))
    shop.apply_notice(paid)
    shop.apply_notice(_event(CREATED, made))
    shop.apply_notice(paid)
    shop.apply_notice(_event("invoice.paid", _paid(made, name, 9900, PRICES["starter"])))
    later = _paid(made, f"in_{uuid.uuid4().hex}", 20_000, PRICES["starter"], PRICES["growth"])
    shop.apply_notice(_event("invoice.paid", {**later, "created": made["created"] + 5}))
    lines = owner.get("/billing/invoices")["invoices"]
    assert [(each["tier"], each["amount_cents"], each["currency"]) for each in lines] == [
        ("growth", 20_000, "eur"),
        ("starter", 9900, "eur"),
    ]
    shop.apply_notice(_event("invoice.paid", {**later, "id": "in_x", "parent": None}))
    assert owner.get("/billing/invoices")["total"] == 2


def test_another_tier(shop: Shop, stripe: Stripe, tenant: Caller, owner: Caller, ask: Ask) -> None:
    """An upgrade changes the price at Stripe. The plan changes when Stripe's event arrives."""
    made = _subscription(tenant)
    stripe.subscriptions[made["id"]] = made
    shop.apply_notice(_event(CREATED, json.loads(json.dumps(made))))
    data = ask(owner, CHECKOUT, {"tier": "growth"}).json()["data"]
    assert (data["pending"], data["checkout_url"]) == (True, None)
    assert data["subscription"]["tier"] == "starter"
    assert [request for request, _, _ in stripe.asked] == [
        f"GET /v1/subscriptions/{made['id']}",
        f"POST /v1/subscriptions/{made['id']}",
    ]
    assert stripe.asked[1][1]["items[0][id]"] == "si_1"
    assert _shown(tenant) == STARTER
    shop.apply_notice(_event(UPDATED, made, 1))
    assert tenant.get("/billing/subscription")["tier"] == "growth"
    assert ask(owner, CHECKOUT, {"tier": "growth"}).status_code == 409


def test_a_cancellation(
    shop: Shop, stripe: Stripe, tenant: Caller, owner: Caller, ask: Ask
) -> None:
    """Stripe announces the cancellation at once, and the end when the paid period ends."""
    made = _subscription(tenant)
    stripe.subscriptions[made["id"]] = made
    assert ask(owner, CANCEL).status_code == 409
    shop.apply_notice(_event(CREATED, json.loads(json.dumps(made))))
    assert ask(owner, CANCEL, key="1").json()["data"]["pending"] is True
    assert ask(owner, CANCEL, key="1").json()["data"]["pending"] is True
    assert len(stripe.asked) == 1
    assert stripe.asked[0][1] == {"cancel_at_period_end": "true"}
    assert _shown(tenant) == STARTER
    shop.apply_notice(_event(UPDATED, made, 1))
    assert _shown(tenant) == ("starter", "active", True)
    ask(owner, CHECKOUT, {"tier": "starter"})
    assert stripe.asked[-1][1]["cancel_at_period_end"] == "false"
    shop.apply_notice(_event(DELETED, {**made, "status": "canceled"}, 9))
    assert _shown(tenant) == ENDED
    assert ask(owner, CHECKOUT, {"tier": "starter"}).json()["data"]["checkout_url"]


def test_the_operator_s_word_holds(shop: Shop, tenant: Caller) -> None:
    """After the operator has set a plan, events of that subscription change nothing."""
    made = _subscription(tenant)
    shop.apply_notice(_event(CREATED, made))
    path = f"/tenants/{tenant.tenant_id}"
    shop.installation.operator().ask("PATCH", path, {"plan": "enterprise"})
    shop.apply_notice(_event(UPDATED, _on(PRICES["growth"], made), 5))
    shop.apply_notice(_event(DELETED, {**made, "status": "canceled"}, 9))
    assert _shown(tenant) == ("enterprise", "active", False)


@pytest.mark.parametrize(
    ("ails", "refusal"),
    [
        ("down", (503, "ERR_SERVICE_001", None)),
        ("too many", (503, "ERR_SERVICE_001", None)),
        ("500", (502, "ERR_BAD_GATEWAY_001", None)),
        ("402", (502, "ERR_BAD_GATEWAY_001", None)),
        ("401", (502, "ERR_BAD_GATEWAY_001", None)),
        ("404", (502, "ERR_BAD_GATEWAY_001", None)),
        ("nonsense", (502, "ERR_BAD_GATEWAY_001", None)),
        ("another form", (502, "ERR_BAD_GATEWAY_001", None)),
        ("a list", (502, "ERR_BAD_GATEWAY_001", None)),
        ("a text", (502, "ERR_BAD_GATEWAY_001", None)),
        ("slow", (504, "ERR_TIMEOUT_001", None)),
    ],
)
def test_when_stripe_ails(
    shop: Shop,
    stripe: Stripe,
    tenant: Caller,
    owner: Caller,
    ask: Ask,
    refused: Refused,
    ails: str,
    refusal: tuple[int, str, str | None],
) -> None:
    """Each failure of Stripe has a response and changes nothing; other requests continue."""
    made = _subscription(tenant)
    stripe.subscriptions[made["id"]] = made
    stripe.ails = ails
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask, owner, CHECKOUT, {"tier": "starter"}, "1")
        if ails == "slow":
            time.sleep(1)
            tenant.get("/kms/keys")
            assert not asked.done()
        assert refused(asked.result()) == refusal
    assert "everybody" not in asked.result().text
    assert _shown(tenant) == FREE
    stripe.ails = ""
    assert ask(owner, CHECKOUT, {"tier": "starter"}, "1").status_code == 200
    shop.apply_notice(_event(CREATED, json.loads(json.dumps(made))))
    stripe.ails = ails
    if ails != "slow":
        assert refused(ask(owner, CANCEL)) == refusal
    assert _shown(tenant) == STARTER


def test_no_secret_is_said(shop: Shop) -> None:
    """The processes' output has none of the two secrets and no text from Stripe."""
    assert API_SECRET not in shop.installation.output
    assert WEBHOOK_SECRET not in shop.installation.output
    assert "not for everybody" not in shop.installation.output


def test_the_description_has_the_webhook(shop: Shop) -> None:
    """With Stripe, the documents describe its webhook, and are valid."""
    from openapi_spec_validator import validate  # noqa: PLC0415 - slow

    with httpx2.Client(
        base_url=shop.installation.base_url, trust_env=False, timeout=PATIENCE
    ) as client:
        document = client.get("/api/v1/openapi/billing.json").json()
    validate(document)
    described = document["paths"][f"/api/v1{WEBHOOK}"]["post"]
    assert "Stripe-Signature" in {each.get("name") for each in described["parameters"]}
