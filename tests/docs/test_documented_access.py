"""What docs/api.md prints under "Access" is the access table, and every endpoint is in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.contract.rows import api_rows

from pqkeep_gateway.access.callers import CALLERS, GRANTS, Permission
from pqkeep_gateway.api import billing, health

DOCUMENT = (Path(__file__).parents[2] / "docs" / "api.md").read_text()


def tables() -> list[list[list[str]]]:
    """Return the cells of the tables under "Access": callers, then operations."""
    section = DOCUMENT.split("\n## Access\n")[1].split("\n## ")[0]
    found = re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE)
    return [
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        for table in found
    ]


def test_the_table_of_callers_is_the_access_table() -> None:
    """Each permission is documented with the callers that have it, and no other."""
    header, _, *rows = tables()[0]
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
    nothing: Any = None
    endpoints = (
        *api_rows(open_signup=True),
        *api_rows(open_signup=False),
        *billing.notices(nothing),
        health.endpoint(nothing),
    )
    _, _, *rows = tables()[1]
    documented = {
        (row[0].strip("`"), operation)
        for row in rows
        for operation in re.findall(r"`([A-Z]+ /[^`]*)`", row[1])
    }
    assert [row[0].strip("`") for row in rows] == list(Permission)
    assert documented == {(each.permission, f"{each.method} {each.path}") for each in endpoints}
