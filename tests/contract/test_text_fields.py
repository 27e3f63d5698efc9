"""Any text is handled as documented on both databases: PostgreSQL stores no NUL, SQLite does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.contract.rows import api_rows
from tests.fixtures.caller import Caller
from tests.fixtures.installation import Installation
from tests.sampling import sampled

from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.field import Field

TEXTS = ("\0", "a\0b@c.de", "\n", "\x7f", "\u2028", "\U0010ffff")


def _is_text(field: Field[object]) -> bool:
    """Return True if a field accepts free text, not a choice, an encoding or a format."""
    schema = field.schema
    return schema.get("type") == "string" and not schema.keys() & {
        "contentEncoding",
        "enum",
        "format",
    }


FIELDS = [
    pytest.param(row, field.name, id=f"{row.name} {field.name}")
    for row in api_rows()
    for field in row.fields
    if _is_text(field)
]


@dataclass(frozen=True)
class Callers:
    """Callers of each kind, and the tenant in their requests."""

    tenant_id: str
    owner: Caller
    others: tuple[Caller, ...]

    def ask(self, row: Endpoint, name: str, text: str) -> None:
        """Send a text as one field of an operation, from all callers, and check each response."""
        examples = {each.name: each.example for each in row.fields}
        path = row.path.format(**examples | {"tenant_id": self.tenant_id})
        values = {
            each.name: text if each.name == name else each.example
            for each in row.other_fields
            if each.required or each.name == name
        }
        options = {"json" if row.takes_body else "params": values}
        for caller in self.others:
            caller.ask(row.method, path, **options)
        ask = self.owner.ask_proven if row.needs_step_up else self.owner.ask
        ask(row.method, path, **options)


@pytest.fixture
def callers(
    installation: Installation,
    new_tenant: Callable[..., Caller],
    new_person: Callable[..., Caller],
    operator: Caller,
) -> Callers:
    """Callers of a new tenant without failed step-ups."""
    tenant = new_tenant()
    others = (installation.caller(None), operator, tenant)
    return Callers(tenant.tenant_id, new_person(tenant.tenant_id), others)


@pytest.mark.parametrize(("row", "name"), sampled(FIELDS, 12))
def test_no_text_is_an_outage(callers: Callers, row: Endpoint, name: str) -> None:
    """Control characters in a text field are refused or accepted, and never cause 5xx."""
    for text in TEXTS:
        callers.ask(row, name, text)
