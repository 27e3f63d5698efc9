"""The part of the OpenAPI description that the TypeScript client's types depend on.

It leaves out texts, examples, refusals, and operations that need a person's session. So a change of
the documentation's words does not change the types.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.contract.rows import api_rows

from pqkeep_gateway.api import installation
from pqkeep_gateway.http.road import API
from pqkeep_gateway.reference.openapi import document

CLIENT = Path(__file__).parents[2] / "clients" / "typescript"
TYPES = CLIENT / "src" / "generated" / "types.ts"
OPERATIONS = CLIENT / "src" / "generated" / "operations.ts"
WITHOUT_CREDENTIAL = frozenset({"check_health", "exchange_token"})
_NOTHING: Any = None
_TEXTS = frozenset({"description", "summary", "examples", "example", "title", "default", "headers"})
_LIMITS = frozenset(
    {"pattern", "minimum", "maximum", "minLength", "maxLength", "minItems", "maxItems"}
)
_REFERENCE = "#/components/schemas/"


def description() -> dict[str, Any]:
    """Return the description."""
    whole = document(api_rows(), [installation.health_endpoint(_NOTHING)], API)
    paths: dict[str, Any] = {}
    for path, methods in whole["paths"].items():
        for method, operation in methods.items():
            if {"ApiKey": []} in operation["security"] or (
                operation["operationId"] in WITHOUT_CREDENTIAL
            ):
                paths.setdefault(path, {})[method] = _operation(operation)
    schemas = {name: _bare(schema) for name, schema in whole["components"]["schemas"].items()}
    return {
        "openapi": whole["openapi"],
        "info": {"title": whole["info"]["title"], "version": whole["info"]["version"]},
        "paths": paths,
        "components": {"schemas": _used(paths, schemas)},
    }


def encoded() -> bytes:
    """Return the description as JSON."""
    return json.dumps(description(), indent=1, sort_keys=True).encode()


def digest() -> str:
    """Return SHA-256 of the description, in hexadecimal."""
    return hashlib.sha256(encoded()).hexdigest()


def _operation(operation: dict[str, Any]) -> dict[str, Any]:
    """Return an operation. Beside 200 or 201, 202 is for people: a second person must approve."""
    successes = {status for status in operation["responses"] if status.startswith("2")}
    headers = {
        parameter["$ref"].rpartition("/")[2]
        for parameter in operation["parameters"]
        if "$ref" in parameter
    }
    return {
        "operationId": operation["operationId"],
        "parameters": [_bare(each) for each in operation["parameters"] if "$ref" not in each],
        **({"requestBody": _bare(body)} if (body := operation.get("requestBody")) else {}),
        "responses": {
            status: {"description": "", **_bare(response)}
            for status, response in operation["responses"].items()
            if status in (successes - {"202"} or successes)
        },
        "x-idempotent": "IdempotencyKey" in headers,
    }


def _bare(value: Any) -> Any:
    """Return a JSON value without texts and limits. The names of properties stay."""
    if isinstance(value, list):
        return [_bare(member) for member in value]
    if not isinstance(value, dict):
        return value
    return {
        name: {field: _bare(schema) for field, schema in member.items()}
        if name == "properties"
        else _bare(member)
        for name, member in value.items()
        if name not in _TEXTS | _LIMITS
        and not name.startswith("x-")
        and not (name == "anyOf" and "properties" in value)  # which fields are needed
    }


def _used(paths: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """Return the schemas that the paths refer to, directly or by others."""
    used: dict[str, Any] = {}
    waiting = [paths]
    while waiting:
        for name in _references(waiting.pop()):
            if name not in used:
                used[name] = schemas[name]
                waiting.append(schemas[name])
    return used


def _references(value: Any) -> list[str]:
    if isinstance(value, list):
        return [name for member in value for name in _references(member)]
    if not isinstance(value, dict):
        return []
    own = value.get("$ref")
    found = [own.removeprefix(_REFERENCE)] if isinstance(own, str) else []
    return found + [name for member in value.values() for name in _references(member)]
