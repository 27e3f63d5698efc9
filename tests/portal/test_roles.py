"""Every page with every role: access, its forms' operations, and the API's responses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus

import httpx2
import pytest
from tests.contract.rows import api_rows
from tests.fixtures import caller as fixtures_caller
from tests.fixtures.installation import Installation
from tests.patience import PATIENCE
from tests.portal.example import trust

from pqkeep_gateway.access.callers import CALLERS, Caller, Credential, Role, may
from pqkeep_gateway.portal.app import PAGES, navigation
from pqkeep_gateway.portal.pages import OPERATOR_HOME, ROOT, Page

ROWS = {row.name: row for row in api_rows(open_signup=True)}
VISITORS: tuple[Caller, ...] = (*Role, Credential.OPERATOR, Credential.NONE)
_FORM = re.compile(r'data-operation="([a-z_]+)" data-method="([A-Z]+)" data-path="([^"]+)"')


@pytest.fixture(scope="module")
def tenant_id(installation: Installation) -> str:
    """A tenant with a key, an API key and a member of each role."""
    tenant = installation.new_tenant()
    tenant.post("/kms/keys/generate", {"algorithm": "Kyber768"}, status=201)
    return tenant.tenant_id


@pytest.fixture(scope="module")
def webhook(installation: Installation, tenant_id: str) -> str:
    """A webhook's id, in a tenant that also has an issuer and a role."""
    hook = {"name": "on-call", "url": "https://hooks.example.com/"}
    owner = installation.person(tenant_id)
    trust(owner)
    made = owner.post_proven("/webhooks", hook, status=201)
    identifier: str = made["id"]
    return identifier


@pytest.fixture(scope="module")
def cookies(installation: Installation, tenant_id: str) -> Mapping[Caller, dict[str, str]]:
    """The cookies of each visitor's browser."""
    operator = installation.caller(None)
    operator.post("/auth/operator", {"operator_key": installation.ready["operator_key"]})
    callers: dict[Caller, fixtures_caller.Caller] = {Credential.OPERATOR: operator}
    callers |= {role: installation.person(tenant_id, role) for role in Role}
    sent: dict[Caller, dict[str, str]] = {Credential.NONE: {}}
    for who, caller in callers.items():
        sent[who] = {each.name: each.value or "" for each in caller.client.cookies.jar}
    return sent


def _url(page: Page, tenant_id: str, webhook: str) -> str:
    """Return the address of a page with an existing object."""
    values = {"algorithm": "Kyber768", "version": "1", "name": "default", "webhook": webhook}
    is_tenant = page.path.startswith(OPERATOR_HOME)
    path = page.path.replace("{id}", tenant_id if is_tenant else "1")
    return ROOT + re.sub(r"{(\w+)}", lambda found: values[found[1]], path)


@pytest.mark.parametrize("who", VISITORS)
def test_each_page_is_for_whom_the_access_table_says(
    installation: Installation,
    tenant_id: str,
    webhook: str,
    cookies: Mapping[Caller, dict[str, str]],
    who: Caller,
) -> None:
    """Permitted visitors get the page with their forms; others are refused or sent to sign in."""
    with httpx2.Client(
        base_url=installation.base_url, cookies=cookies[who], timeout=PATIENCE
    ) as browser:
        for page in PAGES:
            response = browser.get(_url(page, tenant_id, webhook))
            said = f"{who}: {page.path}: {response.status_code}"
            if who is Credential.NONE and not page.is_public:
                area = (
                    OPERATOR_HOME + "/sign-in" if page.path.startswith(OPERATOR_HOME) else "/resume"
                )
                assert response.status_code == HTTPStatus.SEE_OTHER, said
                assert response.headers["Location"].startswith(f"{ROOT}{area}?next="), said
            elif who is Credential.OPERATOR and not page.path:
                assert response.headers["Location"] == ROOT + OPERATOR_HOME
            elif not page.admits(who):
                assert response.status_code == HTTPStatus.FORBIDDEN, said
            elif page.path != "/audit/{id}":  # a record of their own tenant has another number
                assert response.status_code == HTTPStatus.OK, said
            if page.path == "/components":
                continue  # it shows what a form looks like
            asked = {found[0] for found in _FORM.findall(response.text)}
            assert all(may(who, ROWS[each].permission) for each in asked), (said, asked)


def test_the_pages_of_a_tenant_are_not_the_operators() -> None:
    """The operator's navigation has search, the installation, tenants and the audit log."""
    listed = [each.title for each in navigation(Credential.OPERATOR, PAGES)]
    assert listed == ["Search", "Installation", "Tenants", "Audit log"]
    for page in PAGES:
        for caller in CALLERS:
            assert not page.admits(caller) or may(caller, page.permission)


@pytest.mark.parametrize("role", Role)
def test_what_a_page_does_not_offer_is_refused_when_asked(
    installation: Installation,
    tenant_id: str,
    webhook: str,
    cookies: Mapping[Caller, dict[str, str]],
    role: Role,
) -> None:
    """The API refuses a role's request for each form that only owners or operators have."""
    forms = set()
    for who in (Role.OWNER, Credential.OPERATOR):
        with httpx2.Client(
            base_url=installation.base_url, cookies=cookies[who], timeout=PATIENCE
        ) as browser:
            for page in PAGES:
                if page.admits(who) and page.path:
                    forms.update(_FORM.findall(browser.get(_url(page, tenant_id, webhook)).text))
    refused = [
        each
        for each in sorted(forms)
        if not any(may(who, ROWS[each[0]].permission) for who in (role, Credential.NONE))
    ]
    assert refused
    with httpx2.Client(
        base_url=installation.base_url, cookies=cookies[role], timeout=PATIENCE
    ) as browser:
        for operation, method, path in refused:
            response = browser.request(
                method, path, json={} if ROWS[operation].takes_body else None
            )
            assert response.status_code == HTTPStatus.FORBIDDEN, (role, operation, response.text)
