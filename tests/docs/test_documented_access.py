"""What docs/api.md prints of access is the access table, and every endpoint is in its tables.

The document is the independent statement of who may do what: it is written by hand, and the
isolation matrix and the tests of roles take what they expect from the table that is compared here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.contract.rows import api_rows

from pqkeep_gateway.access.callers import CALLERS, COVERED_BY_PROOF, GRANTS, Credential, Permission
from pqkeep_gateway.access.scopes import GROUPS, Group
from pqkeep_gateway.api import billing, health
from pqkeep_gateway.http.endpoint import Endpoint

DOCUMENT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def tables(heading: str) -> list[list[list[str]]]:
    """Return the cells of the tables under a heading."""
    section = DOCUMENT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        for table in found
    ]


def endpoints() -> Iterator[Endpoint]:
    """Yield every endpoint that an installation can have."""
    nothing: Any = None
    yield from api_rows(open_signup=True)
    yield from api_rows(open_signup=False)
    yield from billing.notices(nothing)
    yield health.endpoint(nothing)


def operation_of(endpoint: Endpoint) -> str:
    """Return an endpoint as the document names it."""
    return f"{endpoint.method} {endpoint.path}"


def test_the_table_of_callers_is_the_access_table() -> None:
    """Each permission is documented with the callers that have it, and no other."""
    header, _, *rows = tables("Access")[0]
    assert header == ["permission", *CALLERS]
    documented = {
        row[0].strip("`"): {caller for caller, cell in zip(CALLERS, row[1:], strict=True) if cell}
        for row in rows
    }
    assert len(rows) == len(documented)
    assert {cell for row in rows for cell in row[1:]} <= {"yes", ""}
    assert documented == {permission.value: GRANTS[permission] for permission in Permission}


def test_every_endpoint_is_listed_under_its_permission() -> None:
    """The operations of each permission are the endpoints that ask for it, and no other."""
    _, _, *rows = tables("Access")[1]
    documented = {
        (row[0].strip("`"), operation)
        for row in rows
        for operation in re.findall(r"`([A-Z]+ /[^`]*)`", row[1])
    }
    assert [row[0].strip("`") for row in rows] == list(Permission)
    assert documented == {(each.permission, operation_of(each)) for each in endpoints()}


def test_every_endpoint_is_described() -> None:
    """The table of endpoints has each one, and marks those that need a step-up, or may need it."""
    _, _, *rows = tables("Endpoints")[0]
    marked = {
        operation: ("†" in row[0], "‡" in row[0])
        for row in rows
        for operation in re.findall(r"`([A-Z]+ /[^`]*)`", row[0])
    }
    assert marked == {
        operation_of(each): (each.needs_step_up, each.step_up_for is not None)
        for each in endpoints()
    }


def test_what_a_proof_covers_is_documented() -> None:
    """The operations that a session's proof covers are those of the table, and no other."""
    section = DOCUMENT.split("\n### Step-up\n")[1].split("\n### ")[0]
    documented = set(
        re.findall(r"`([A-Z]+ /[^`]*)`", "".join(re.findall(r"^\| `.*", section, re.MULTILINE)))
    )
    assert documented == {
        operation_of(each) for each in endpoints() if each.name in COVERED_BY_PROOF
    }
    assert len({each.name for each in endpoints()} & COVERED_BY_PROOF) == len(COVERED_BY_PROOF)


def test_the_table_of_scopes_is_that_of_the_groups() -> None:
    """Each operation that scopes can name is documented with its groups and its requests.

    An endpoint that an API key may call, and that has no operation here, is not merged.
    """
    header, _, *rows = tables("API keys")[1]
    assert header == ["operation", "requests", *(f"`{each.value}`" for each in Group)]
    assert {cell for row in rows for cell in row[2:]} <= {"yes", ""}
    documented = {
        row[0].strip("`"): {group for group, cell in zip(Group, row[2:], strict=True) if cell}
        for row in rows
    }
    requests = {
        (row[0].strip("`"), request)
        for row in rows
        for request in re.findall(r"`([A-Z]+ /[^`]*)`", row[1])
    }
    served = {
        (each.audit_operation.value, operation_of(each))
        for each in endpoints()
        if Credential.API_KEY in GRANTS[each.permission]
        and each.permission is not Permission.PUBLIC
    }
    assert len(rows) == len(documented)
    assert requests == served
    assert documented == {
        name: {group for group in Group if name in {each.value for each in GROUPS[group]}}
        for name in {name for name, _ in served}
    }
    assert {each.value for group in GROUPS.values() for each in group} == documented.keys()
