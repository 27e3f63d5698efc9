"""Lists with a filter in the browser."""

from __future__ import annotations

from http import HTTPStatus

from playwright.sync_api import expect
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.portal.conftest import SignedIn
from tests.portal.visitors import MARKUP, get_page

FEWEST = 8
"""The number of rows from which a list has a filter."""


def _invite(operator: Caller, tenant_id: str, number: int) -> None:
    fields = {"email": f"narrow-{number}-{tenant_id}@example.com", "role": "viewer"}
    operator.post(f"/tenants/{tenant_id}/invitations", fields, status=HTTPStatus.CREATED)


def test_a_long_list_shows_only_the_rows_with_a_text(
    installation: Installation, visit_as: SignedIn
) -> None:
    """From eight rows on the filter works, ignores case, treats input as text, and sends no request."""
    owner = installation.person(installation.new_tenant().tenant_id)
    for number in range(FEWEST - 1):
        _invite(installation.operator(), owner.tenant_id, number)
    assert "Filter invitations" not in get_page(owner, "/portal/team").text
    _invite(installation.operator(), owner.tenant_id, FEWEST - 1)
    page = visit_as(owner, phone=True).open("/portal/team")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.resource_type))
    rows, field = page.locator("#invited-people tbody tr:visible"), page.get_by_role("searchbox")
    said = page.locator(".narrow [role=status]")
    expect(rows).to_have_count(FEWEST)
    field.fill(" NARROW-3-")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("narrow-3-")
    expect(said).to_have_text(f"1 of {FEWEST}")
    for markup in MARKUP:
        field.fill(markup)
        expect(rows).to_have_count(0)
        expect(said).to_have_text(f"none of {FEWEST}")
    field.fill("")
    expect(rows).to_have_count(FEWEST)
    expect(said).to_be_empty()
    assert not {"fetch", "xhr", "document"} & set(asked)
