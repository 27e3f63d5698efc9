"""Every page while a part of the service fails, and without content.

Pages are rendered in this process, from the examples of the API's rows.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, cast
from uuid import uuid4

import pytest
from msgspec import UNSET, structs
from tests.contract.rows import api_rows
from tests.portal.visitors import assert_headings_in_order, operations_on

from pqkeep_gateway.access.callers import Role
from pqkeep_gateway.access.entitlements import Entitlements, Subscription, Tier
from pqkeep_gateway.access.principals import (
    OperatorPrincipal,
    Principal,
    SessionId,
    SessionPrincipal,
    UserId,
)
from pqkeep_gateway.access.trusted_proxies import TrustedProxies
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.errors import ApiError, unavailable
from pqkeep_gateway.portal.app import PAGES, PageResource, portal
from pqkeep_gateway.portal.lists import ROWS
from pqkeep_gateway.portal.pages import ROOT, Download, Page
from pqkeep_gateway.portal.rendering import Templates
from pqkeep_gateway.portal.views import migration
from pqkeep_gateway.portal.views.entering import DEMO
from pqkeep_protocol.keys import TenantId

MESSAGE = "this part is taking a rest"
FRAME = {"me", "operator_me", "list_step_up_methods", "get_tenant"}
"""The frame of a signed-in visitor's pages, without which there is no page."""
NAMES_ONLY = {
    (path, "list_members")
    for path in (
        "/approvals",
        "/audit",
        "/audit/{id}",
        "/keys",
        "/keys/{algorithm}/{version}",
        "/migration",
        "/webhooks/{webhook}",
    )
} | {("/migration", "list_api_keys")}
"""Reads of names for identifiers, which are otherwise shown alone."""
NOT_SAID = {
    ("/keys", "list_keys"),
    ("/keys", "get_subscription"),
    ("/keys", "list_plans"),
    ("/keys/import", "get_subscription"),
    ("/keys/import", "list_plans"),
    ("", "list_members"),
    ("/audit", "list_audit_checkpoints"),
    ("/security", "me"),
    ("/team", "get_organization"),
    ("/team", "list_invitations"),
    ("/api-keys", "get_usage"),
    ("/operator/tenants/{id}", "list_invitations"),
    ("/sign-in", "list_providers"),
    ("/operator/sign-in", "list_providers"),
    ("/keys/{algorithm}/{version}", "list_key_usage"),
    ("/keyrings/{name}", "list_inventory"),
}
"""Pages with a read that may fail. The failure removes a part of the page, without a message."""
EMPTY: Mapping[str, tuple[str, ...]] = {
    "/search": ("Nothing found",),
    "/operator": ("No named operators", "No sessions"),
    "/operator/tenants": ("No tenants yet",),
    "/operator/tenants/{id}": ("No members",),
    "": ("Nothing yet", "No active key"),
    "/notices": ("Nothing needs attention",),
    "/keys": ("No keys yet",),
    "/keyrings": ("No keyrings here",),
    "/api-keys": ("No API keys yet",),
    "/try": ("You need a key first",),
    "/audit": ("No records yet",),
    "/migration": ("No keys to count", "No rules yet", "No campaigns yet"),
    "/webhooks": ("No webhooks yet",),
    "/workloads": ("No issuers yet", "No roles yet"),
    "/webhooks/{webhook}": ("There is no such webhook",),
    "/team": ("No member matches",),
    "/team/invitations": ("No open invitations",),
    "/approvals": ("No request waits", "Nothing has ended yet"),
    "/billing": ("No invoices yet",),
    "/keys/{algorithm}/{version}": ("There is no such key",),
    "/keyrings/{name}": ("There is no such keyring",),
    "/api-keys/{version}": ("There is no such API key",),
    "/audit/{id}": ("There is no such record",),
}
"""The text of each page with a list when it is empty."""
NOTHING_TO_LIST = {
    "/keys/import",
    "/security",
    "/security/enroll",
    "/security/passkey",
    "/operator/sign-in",
    DEMO.path,
} | {each.path for each in PAGES if each.is_public}
"""Pages without a list that can be empty: one has at least the present session."""
QUERIES = {"/search": b"q=checkout"}
"""Queries for pages that read nothing without one."""
ALL = (*PAGES, DEMO)
SIGN_INS = {"/sign-in": {"login"}, "/operator/sign-in": {"operator_login"}}
"""Operations of forms that are no ``ui.form``."""
(KEY,) = next(cast("Any", each.example).keys for each in api_rows() if each.name == "list_keys")
(KEYRING,) = next(
    cast("Any", each.example).keyrings for each in api_rows() if each.name == "list_keyrings"
)
VALUES = {
    "algorithm": KEY.algorithm.value,
    "version": str(KEY.key_version),
    "id": "1",
    "name": KEYRING.name,
    "webhook": "0b5e0f9c-53a5-4b8e-9a63-7b5a2e1d0c44",
}
OPERATOR = OperatorPrincipal(is_read_only=True)
OWNER = SessionPrincipal(
    tenant=TenantId(uuid4()),
    entitlements=Entitlements(Tier.ENTERPRISE_PLUS, Subscription.ACTIVE),
    user=UserId(uuid4()),
    role=Role.OWNER,
    session=SessionId(uuid4()),
    suspended=False,
)


async def _save_language(_: UserId, language: str) -> None:
    """Keep no language: the pages of this file have no database."""


@dataclass
class Service:
    """The API's rows with their examples as responses. Some fail, and requests are noted."""

    change: Callable[[Any], Any] = lambda data: data
    failing: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    principal: Principal = OPERATOR
    rows: tuple[Endpoint, ...] = ()
    apps: Mapping[str, Any] = field(default_factory=dict)
    trusted_proxies: TrustedProxies = field(default_factory=lambda: TrustedProxies(()))
    cookies: Cookies = field(default_factory=Cookies)

    def __post_init__(self) -> None:
        """Make the pages, which takes the longest."""
        self.rows = tuple(
            replace(each, handler=self._handler(each)) if each.method == "GET" else each
            for each in api_rows()
        )
        self.apps = portal(self.rows, cast("Any", self), _save_language, development=True)

    def _handler(self, row: Endpoint) -> Callable[[ApiCall], Any]:
        async def respond(_: ApiCall) -> Any:
            self.asked.add(row.name)
            if row.name in self.failing:
                raise unavailable(MESSAGE)
            example = IN_FULL.get(row.name, lambda data: data)(row.example)
            return example if row.name in FRAME else self.change(example)

        respond.__doc__ = row.handler.__doc__
        return respond

    async def admit(self, *_: object) -> tuple[Principal, None]:
        """Let the visitor in, like the pipeline."""
        return self.principal, None

    def check_access(self, *_: object) -> None:
        """Allow everything."""

    async def error_for(self, raised: Exception, *_: object) -> ApiError:
        """Return an error unchanged."""
        if isinstance(raised, ApiError):
            return raised
        raise raised

    def get(
        self, page: Page, failing: str = "", change: Callable[[Any], Any] = lambda data: data
    ) -> tuple[int, str]:
        """Return the status and the text of a page."""
        self.principal = OPERATOR if page.path.startswith("/operator") else OWNER
        self.failing, self.change, self.asked = {failing}, change, set()
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": "GET",
            "path": ROOT + page.path,
            "query_string": QUERIES.get(page.path, b""),
            "headers": [(b"host", b"keep.example.org")],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "path_params": VALUES,
        }

        async def receive() -> Any:
            raise AssertionError

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self.apps[ROOT + page.path](scope, receive, send))
        return sent[0]["status"], sent[1]["body"].decode()


def _in_full(tenants: Any) -> Any:
    """Return the list of tenants in the operator's form."""
    details = {"tier": Tier.STARTER, "subscription": Subscription.ACTIVE}
    (first,) = tenants.tenants
    shown = structs.replace(first, **details, requests_per_minute=None)
    return structs.replace(tenants, tenants=(shown,))


def _with_details(api_keys: Any) -> Any:
    """Return the list of API keys in the pages' form."""
    return structs.replace(api_keys, max_overlap_seconds=3600)


def _closed(notices: Any) -> Any:
    """Return the list of notices, each of them closed, as ``state=closed`` returns it."""
    closed = (structs.replace(each, closed_at=each.raised_at) for each in notices.notices)
    return structs.replace(notices, notices=tuple(closed))


def _by_hour(counted: Any) -> Any:
    """Return counts as ``by=hour`` returns them."""
    (first,) = counted.counts
    hour = structs.replace(first, value="2026-01-31T12:00:00.000Z")
    return structs.replace(counted, counts=(hour,))


IN_FULL: Mapping[str, Callable[[Any], Any]] = {
    "list_tenants": _in_full,
    "list_api_keys": _with_details,
    "count_audit_records": _by_hour,
    "list_notices": _closed,
}
"""Responses for pages if the example of a row is not enough."""


@pytest.fixture(scope="module")
def service() -> Service:
    """One service for all pages. It reads its templates once."""
    return Service()


def _emptied(data: Any) -> Any:
    """Return a response with empty lists."""
    changes: dict[str, Any] = {
        name: () for name in data.__struct_fields__ if isinstance(getattr(data, name), tuple)
    }
    if changes and getattr(data, "total", UNSET) is not UNSET:
        changes["total"] = 0
    return structs.replace(data, **changes)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.path or "/")
def test_whatever_fails_is_said(service: Service, page: Page) -> None:
    """If any read of a page fails, the rest of the page is shown, or an error page."""
    service.get(page)
    for name in service.asked:
        status, text = service.get(page, failing=name)
        said = f"{page.path}: {name}"
        assert status in {HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE}, said
        assert name not in FRAME - {"get_tenant"} or status != HTTPStatus.OK, said
        if (page.path, name) not in NAMES_ONLY | NOT_SAID:
            assert MESSAGE in text, said
        assert_headings_in_order(text)


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.path or "/")
def test_every_form_says_what_a_program_does_instead(service: Service, page: Page) -> None:
    """Each form's page links to the reference of its operation."""
    status, text = service.get(page)
    assert status == HTTPStatus.OK, text
    linked = set(re.findall(r'href="/docs/([a-z_]+)"', text))
    assert operations_on(text) | SIGN_INS.get(page.path, set()) <= linked


def test_a_new_tenant_is_put_into_a_shard_where_there_are_several(service: Service) -> None:
    """The form offers each shard that accepts tenants, after the service's own choice."""
    (tenants,) = (each for each in PAGES if each.path == "/operator/tenants")

    def with_shards(data: Any) -> Any:
        if "shards" not in data.__struct_fields__:
            return data
        (first,) = data.shards
        others = (
            structs.replace(first, name=name, draining=name == "full") for name in ("b", "full")
        )
        return structs.replace(data, shards=(first, *others))

    assert 'name="shard"' not in service.get(tenants)[1]
    _, text = service.get(tenants, change=with_shards)
    (offered,) = re.findall(r'<select id="create-shard".*?</select>', text, re.DOTALL)
    assert re.findall(r'value="(\w*)"', offered) == ["", "default", "b"]


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.path or "/")
def test_where_there_is_nothing_a_page_says_so(service: Service, page: Page) -> None:
    """Each page with a list has its own text for an empty list. Pages without a list are named too."""
    status, text = service.get(page, change=_emptied)
    assert status in {HTTPStatus.OK, HTTPStatus.NOT_FOUND}, text
    assert (page.path in EMPTY) is not (page.path in NOTHING_TO_LIST)
    for words in EMPTY.get(page.path, ()):
        assert words in text
    status, filled = service.get(page)
    assert status == HTTPStatus.OK, filled
    assert not any(words in filled for words in EMPTY.get(page.path, ()) if page.path != "")
    assert_headings_in_order(text)


def test_the_page_of_migration_stays_bounded(service: Service) -> None:
    """Of many key versions, rules, campaigns and principals the page reads and shows the first."""

    def many(data: Any) -> Any:
        names = [f"name-{number}" for number in range(50)]
        changes: dict[str, Any] = {}
        for part in {"rules", "campaigns", "refused"} & set(data.__struct_fields__):
            (first,) = getattr(data, part)
            field = "principal" if part == "refused" else "name"
            changes[part] = tuple(structs.replace(first, **{field: name}) for name in names)
        if "not_seen" in data.__struct_fields__:
            changes |= {"next": "default/Kyber768:1", "total": 5000}
        return structs.replace(data, **changes)

    (page,) = migration.PAGES
    status, text = service.get(page, change=many)
    assert status == HTTPStatus.OK
    assert f"the first {migration.MOST_READ} of 5,000 key versions" in text
    assert (
        text.count('aria-labelledby="rule-name-') == migration.SHOWN * 2
    )  # the cards and their tables
    assert text.count('aria-labelledby="campaign-name-') == migration.SHOWN * 2
    assert f'href="?rules={migration.SHOWN}"' in text
    assert f'href="?campaigns={migration.SHOWN}"' in text
    assert "And 40 other principals" in text


MAX_LIST_PAGE = 60_000
"""Bytes of a page with a full list."""


def test_a_page_of_keys_with_long_names_stays_small(service: Service) -> None:
    """A full page of 10,000 keys with names of 64 characters has less than 60 KB."""
    page = next(each for each in PAGES if each.path == "/keys")

    def full(data: Any) -> Any:
        if not hasattr(data, "merged_principals"):
            return data
        key = structs.replace(data.keys[0], keyring="n" * 64)
        return structs.replace(data, keys=(key,) * ROWS, total=10_000)

    status, text = service.get(page, change=full)
    assert status == HTTPStatus.OK
    assert "1 to 50 of 10,000 key versions" in text
    assert len(text.encode()) < MAX_LIST_PAGE


def test_downloads_at_once_are_limited(service: Service) -> None:
    """Of ten downloads of a tenant one runs. A cut one, and a HEAD, leave no trace."""
    released = asyncio.Event()

    async def chunks() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await released.wait()
        if service.failing:
            raise ConnectionError
        yield b"last"

    (row,) = migration.PAGES
    page = replace(row, download=lambda _: Download("x.zip", "application/zip", chunks()))
    endpoints = {endpoint.name: endpoint for endpoint in service.rows}
    pipeline = cast("Any", service)
    resource = PageResource(page, endpoints, pipeline, Templates(), _save_language, None)

    async def ask(method: str = "GET") -> tuple[int, bytes]:
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": method,
            "path": ROOT + page.path,
            "query_string": b"format=zip&since=2026-01-01",
            "headers": [(b"host", b"keep.example.org")],
            "client": ("127.0.0.1", 1),
            "scheme": "http",
        }

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await resource(scope, receive, send)
        return sent[0]["status"], b"".join(message["body"] for message in sent[1:])

    async def many() -> None:
        service.principal, service.failing = OWNER, set()
        running = {asyncio.create_task(ask()) for _ in range(10)}
        while len(running) > 1:
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            assert {task.result()[0] for task in done} == {HTTPStatus.SERVICE_UNAVAILABLE}
        released.set()
        assert await running.pop() == (HTTPStatus.OK, b"firstlast")
        assert await ask("HEAD") == (HTTPStatus.OK, b"")
        service.failing = {"the log"}
        with pytest.raises(ConnectionError):
            await ask()
        service.failing = set()
        assert await ask() == (HTTPStatus.OK, b"firstlast")

    asyncio.run(many())
