"""Workloads: the issuers that a tenant trusts, and the roles of programs with their tokens."""

from typing import NamedTuple

import msgspec

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.api.workloads import WorkloadRoleData
from pqkeep_gateway.portal.pages import Content, Page, Visit
from pqkeep_gateway.portal.views.api_keys import CHOICES, sentences
from pqkeep_protocol.algorithms import GivenKeyAlgorithm


class Line(NamedTuple):
    """One role in the list."""

    role: WorkloadRoleData
    may: tuple[str, ...]
    """Its permissions, one phrase for each scope."""
    scopes: str
    """Its scopes as JSON."""


async def _read(visit: Visit) -> Content:
    tenant_id = str(visit.reader.principal.tenant)
    listed = await visit.reader.section("list_workloads", tenant_id=tenant_id)
    issuers = listed.data.issuers if listed.data else ()
    roles = [_line(role) for role in (listed.data.roles if listed.data else ())]
    issuer, role = visit.query.get("issuer"), visit.query.get("role")
    return {
        **CHOICES,
        "tenant_id": tenant_id,
        "listed": listed,
        "issuers": issuers,
        "roles": roles,
        "issuer": next((each for each in issuers if each.name == issuer), None),
        "line": next((each for each in roles if each.role.name == role), None),
        "signatures": [algorithm.value for algorithm in GivenKeyAlgorithm],
    }


def _line(role: WorkloadRoleData) -> Line:
    return Line(role, sentences(role.scopes), msgspec.json.encode(role.scopes).decode())


PAGES = (
    Page(
        path="/workloads",
        title="Workloads",
        template="workloads.html",
        permission=Permission.VIEW_TENANT,
        read=_read,
        icon="workload",
    ),
)
