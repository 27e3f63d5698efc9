"""Tables of the HTTP interface, from the endpoint rows."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from msgspec.structs import fields
from tests.contract.rows import api_rows
from tests.docs.markdown import cell, code, codes, table

from pqkeep_gateway.access.callers import (
    CALLERS,
    COVERED_BY_PROOF,
    GRANTS,
    WITHOUT_SCOPE,
    Credential,
    Permission,
)
from pqkeep_gateway.access.scopes import GROUPS, Group
from pqkeep_gateway.api import billing, installation
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.errors import Code
from pqkeep_gateway.reference.guidance import GUIDANCE
from pqkeep_gateway.reference.openapi import PARTS

SERVICE = "service"


@cache
def rows() -> tuple[Endpoint, ...]:
    """Return every possible endpoint. One endpoint can have two rows with different permissions."""
    nothing: Any = None
    served = [
        *api_rows(open_signup=True),
        *billing.notices(nothing),
        installation.health_endpoint(nothing),
    ]
    others = [
        row for row in api_rows(open_signup=False) if _key(row) not in {_key(x) for x in served}
    ]
    return (*served, *others)


def _key(row: Endpoint) -> tuple[str, str]:
    return request_of(row), row.permission


def request_of(row: Endpoint) -> str:
    """Return the method and the path."""
    return f"{row.method} {row.path}"


def endpoints() -> str:
    """Return the page of all endpoints, with their requests and responses."""
    parts: dict[str, list[Endpoint]] = {name: [] for name in PARTS}
    for row in rows():
        if request_of(row) not in map(request_of, parts[_part(row)]):
            parts[_part(row)].append(row)
    sections = [
        "# Endpoints",
        (
            "Paths stand under `/api/v1`, except `/healthz`. Optional fields are in brackets. Operations"
            " marked † need a [step-up](../api.md#step-up) by a person; those marked ‡ need it when the"
            " field `archive_after_days` is set. The running service has each operation with examples"
            " under `/docs`."
        ),
    ]
    header = ("endpoint", "what it does", "request", "response", "permission")
    for name, found in parts.items():
        sections.append(f"## {name}\n\n{PARTS[name]}")
        lines = (
            (
                code(request_of(row)) + " †" * row.needs_step_up + " ‡" * bool(row.step_up_for),
                _summary(row),
                _request(row),
                _response(row),
                code(row.permission),
            )
            for row in found
        )
        sections.append(table(header, lines))
    return "\n\n".join(sections)


def _part(row: Endpoint) -> str:
    first = row.path.split("/")[1]
    return first if first in PARTS else SERVICE


def _summary(row: Endpoint) -> str:
    return cell(inspect.cleandoc(row.handler.__doc__ or "").partition("\n\n")[0])


def _request(row: Endpoint) -> str:
    shown = [
        code(field.name) if field.required else f"[{code(field.name)}]"
        for field in row.other_fields
    ]
    return " ".join(shown)


def _response(row: Endpoint) -> str:
    status = "" if row.status == 200 else f"{row.status}: "
    if row.example is None:
        return status + code(row.content_type)
    return status + codes(field.encode_name for field in fields(type(row.example)))


def access() -> str:
    """Return the access table, and the operations of each permission."""
    grants = table(
        ("permission", *CALLERS),
        (
            (
                code(permission),
                *("yes" if caller in GRANTS[permission] else "" for caller in CALLERS),
            )
            for permission in Permission
        ),
    )
    requests: dict[str, list[str]] = {permission: [] for permission in Permission}
    for row in rows():
        requests[row.permission].append(request_of(row))
    operations = table(
        ("permission", "operations"),
        ((code(permission), codes(requests[permission], ", ")) for permission in Permission),
    )
    return f"{grants}\n\n{operations}"


def covered_by_proof() -> str:
    """Return the operations that a session's proof covers."""
    return table(
        ("operation", "what it does"),
        (
            (code(request_of(row)), _summary(row))
            for row in _once(rows())
            if row.name in COVERED_BY_PROOF
        ),
    )


def _once(found: Iterable[Endpoint]) -> Iterator[Endpoint]:
    seen: set[str] = set()
    for row in found:
        if request_of(row) not in seen:
            seen.add(request_of(row))
            yield row


def scopes() -> str:
    """Return the operations in the vocabulary of scopes, with their requests and groups."""
    requests: dict[str, list[str]] = {}
    for row in _once(rows()):
        if Credential.API_KEY in GRANTS[row.permission] and row.permission not in WITHOUT_SCOPE:
            requests.setdefault(row.audit_operation.value, []).append(request_of(row))
    return table(
        ("operation", "requests", *map(code, Group)),
        (
            (
                code(name),
                codes(requests[name], ", "),
                *("yes" if name in set(GROUPS[group]) else "" for group in Group),
            )
            for name in sorted(requests)
        ),
    )


def errors() -> str:
    """Return every error code with its status, its meaning, and the next step."""
    return table(
        ("code", "status", "when", "what to do"),
        (
            (code(error.code), str(error.status), GUIDANCE[error].when, GUIDANCE[error].what_to_do)
            for error in sorted(Code, key=lambda error: (error.status, error.code))
        ),
    )
