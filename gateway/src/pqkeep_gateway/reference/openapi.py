"""The OpenAPI 3.1 description of the API, generated from the rows that serve it."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any

import msgspec

from pqkeep_gateway.access.callers import (
    CALLERS,
    GRANTS,
    WITHOUT_SCOPE,
    Caller,
    Credential,
    Permission,
    Role,
)
from pqkeep_gateway.access.idempotency import MAX_LENGTH as MAX_IDEMPOTENCY_KEY
from pqkeep_gateway.api.approvals import EXAMPLE as APPROVAL
from pqkeep_gateway.api.approvals import GATE_ERRORS
from pqkeep_gateway.api.errors import code_of, codes_of_fields
from pqkeep_gateway.http.cookies import ACCESS, SAFE_METHODS, Cookies
from pqkeep_gateway.http.endpoint import (
    JSON,
    JSON_LINES,
    JWK_SET,
    MAX_BODY,
    MAX_TEXT_BODY,
    MIN_BINARY_BODY,
    TEXT,
    Endpoint,
)
from pqkeep_gateway.http.envelope import Failure, Fault
from pqkeep_gateway.http.errors import Code
from pqkeep_gateway.http.field import Field, object_schema
from pqkeep_gateway.http.responses import MAX_REQUEST_ID
from pqkeep_gateway.http.text import Timestamp
from pqkeep_gateway.reference.guidance import GUIDANCE
from pqkeep_protocol.algorithms import ALIASES, Algorithm

Json = dict[str, Any]

VERSION = "1.0.0"
"""The version of the described interface. Its major number is the one in the paths."""

TITLE = "pqkeep"
OVERVIEW = (
    "Post-quantum cryptography as a service. Binary values are standard base64 with padding, times"
    " UTC with milliseconds. A success has its fields under `data`, an error its code under"
    " `error`; both have `request_id` and `timestamp`. A null field counts as left out; an"
    f" unknown field or query parameter is 400. A body has at most"
    f" {MAX_TEXT_BODY:,} bytes, with binary fields at least"
    f" {MIN_BINARY_BODY:,} and at most {MAX_BODY:,}. An unknown path is 404; an unsupported method is"
    " 405, with `Allow`."
)
PARTS: Mapping[str, str] = {
    "kem": "Encryption, shared secrets and key wrapping.",
    "signature": "Signatures over messages and over digests.",
    "mac": "Message authentication codes.",
    "tools": "Hashes and random bytes, without a key.",
    "kms": "The lifecycle of keys. Private keys are never shown.",
    "rules": "The algorithms that end for new data and new keys, by a date.",
    "campaigns": "Plans to move data from old keys to a new one, and what is known of them.",
    "webhooks": "Signed messages about notices, to addresses of the tenant.",
    "inventory": "The inventory of all keys, and of keys elsewhere.",
    "tenants": "The organisations that own keys, and their API keys.",
    "operators": "The operators of the installation.",
    "auth": "People: signing in, and their own accounts.",
    "team": "The members of a tenant, and invitations.",
    "approvals": "Requests that a second person approves.",
    "billing": "Plans, subscriptions and invoices.",
    "installation": "The state of the installation, for operators.",
    "search": "Finding things by a part of their name, for people and operators.",
    "usage": "Key operations over time, and the limits.",
    "notices": "Problems that need attention, who has seen them, and which kinds a tenant wants.",
    "audit": "The audit log, and the proofs that it is unchanged.",
    "service": "The service itself.",
}
"""Parts by the first word of their paths after the prefix; paths outside the prefix are
``service``."""

EVERYWHERE = frozenset(
    {
        Code.INVALID_001,
        Code.AUTH_001,
        Code.FORBIDDEN_001,
        Code.RATE_LIMIT_001,
        Code.INTERNAL_001,
        Code.SERVICE_001,
    }
)
"""The errors of every request. A credential is checked even if none is needed."""
SENT_WITH: Mapping[Code, tuple[str, ...]] = {
    Code.RATE_LIMIT_001: (
        "Retry-After",
        "RateLimit-Limit",
        "RateLimit-Remaining",
        "RateLimit-Reset",
    ),
    Code.SERVICE_001: ("Retry-After",),
}
"""Headers of some errors. No other error has the same status."""

_REQUEST_ID = "6f5a1c9e-0d3b-4a53-9a55-2c1f9b1d7e10"
_TIMESTAMP = "2026-01-31T12:00:00.000Z"
_SHORTENED = "Shortened: send the complete value that the other operation returned."


def document(
    api: Iterable[Endpoint], outside: Iterable[Endpoint], prefix: str, part: str | None = None
) -> Json:
    """Return the description of the whole API, or of one part."""
    rows = sorted(
        (
            (where, prefix + row.path, row)
            for row in api
            if part in (None, where := row.path.split("/")[1])
        ),
        key=lambda found: list(PARTS).index(found[0]),
    )
    if part is None:
        rows += [("service", row.path, row) for row in outside]
    paths: dict[str, Json] = {}
    for where, path, row in rows:
        paths.setdefault(path, {})[row.method.lower()] = _operation(where, row)
    types = {type(row.example) for _, _, row in rows if row.example is not None}
    if any(row.subject_of is not None for _, _, row in rows):
        types.add(type(APPROVAL))
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": TITLE if part is None else f"{TITLE}: {part}",
            "version": VERSION,
            "description": OVERVIEW if part is None else PARTS[part],
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"ApiKey": []}, {"Session": []}, {"OperatorSession": []}],
        "tags": [
            {"name": name, "description": text}
            for name, text in PARTS.items()
            if part in (None, name)
        ],
        "paths": paths,
        "components": {
            "schemas": _schemas(types),
            "responses": _failures(row for _, _, row in rows),
            "headers": _HEADERS,
            "parameters": _PARAMETERS,
            "securitySchemes": {
                "ApiKey": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-API-Key",
                    "description": "A tenant's API key, or an operator's credential.",
                },
                "Session": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": ACCESS,
                    "description": "From login: the session of a signed-in person."
                    f" Over HTTPS it is valid only with the cookie {Cookies().binding}.",
                },
                "OperatorSession": {
                    "type": "apiKey",
                    "in": "cookie",
                    "name": Cookies().operator,
                    "description": (
                        "From operator_login: an operator's session, which can only read."
                    ),
                },
            },
        },
    }


def codes(row: Endpoint) -> frozenset[Code]:
    """Return all error codes of an endpoint."""
    found = EVERYWHERE | row.codes | codes_of_fields(row) | {code_of(error) for error in row.errors}
    callers = GRANTS[row.permission]
    if row.denial is not None:
        found |= {row.denial().code}
    if row.idempotent:
        found |= {Code.CONFLICT_001}
    if row.subject_of is not None:
        found |= {code_of(error) for error in GATE_ERRORS} | {Code.POLICY_001}
    if _has_scopes(row):
        found |= {Code.POLICY_001}
    is_by_session = bool(callers & frozenset(Role)) and Credential.NONE not in callers
    if is_by_session and not row.during_enrollment:
        found |= {Code.AUTH_MFA_001}
    is_for_operators = Credential.OPERATOR in callers and row.permission is not Permission.PUBLIC
    may_need_step_up = row.needs_step_up or row.step_up_for is not None
    if may_need_step_up or (is_for_operators and row.method not in SAFE_METHODS):
        found |= {Code.MFA_013}
    return found


def _has_scopes(row: Endpoint) -> bool:
    """Return whether an API key's scopes limit an endpoint."""
    return Credential.API_KEY in GRANTS[row.permission] and row.permission not in WITHOUT_SCOPE


def callers_of(row: Endpoint) -> tuple[Caller, ...]:
    """Return the callers of an endpoint, in the order of the table's columns."""
    return tuple(caller for caller in CALLERS if caller in GRANTS[row.permission])


def _callers_in_words(row: Endpoint) -> str:
    callers = callers_of(row)
    if callers == CALLERS:
        return "Called without a credential."
    return f"Called by: {', '.join(callers)}."


def _operation(part: str, row: Endpoint) -> Json:
    summary, _, description = inspect.cleandoc(row.handler.__doc__ or "").partition("\n\n")
    headers = [
        "RequestId",
        *(["IdempotencyKey"] if row.idempotent else []),
        *(["StepUpToken"] if row.needs_step_up or row.step_up_for else []),
    ]
    others = row.other_fields
    operation: Json = {
        "operationId": row.name,
        "tags": [part],
        "summary": summary,
        "description": f"{description} {_callers_in_words(row)}".strip(),
        "parameters": [
            *(_parameter(field, "path") for field in row.path_fields),
            *(_parameter(field, "query") for field in others if not row.takes_body),
            *({"$ref": f"#/components/parameters/{name}"} for name in headers),
            *([_signature(row.signature_header)] if row.signature_header else []),
        ],
    }
    if row.signature_header:
        operation["requestBody"] = _SIGNED_BODY
    elif row.takes_body and others:
        operation["requestBody"] = _request_body(others, required=not row.body_optional)
    success = _success(row) if row.content_type == JSON else _document(row)
    existing = {"200": success | {"description": "The existing object"}} if row.may_exist else {}
    failures = {
        str(status): {"$ref": f"#/components/responses/{_failure_name(errors)}"}
        for status, errors in _by_status(codes(row)).items()
    }
    filed = (
        {}
        if row.subject_of is None
        else {"202": _success(replace(row, example=APPROVAL, status=202))}
    )
    operation["responses"] = {str(row.status): success} | existing | filed | failures
    operation["security"] = _security(row)
    operation["x-permission"] = row.permission
    operation["x-callers"] = list(callers_of(row))
    if _has_scopes(row):
        operation["x-scope-operation"] = row.audit_operation
    return operation


def _security(row: Endpoint) -> list[Json]:
    """Return the accepted credentials; an empty list if none is needed."""
    callers = GRANTS[row.permission]
    if callers == frozenset(CALLERS):
        return []
    credentials: list[Json] = []
    if callers & {Credential.API_KEY, Credential.OPERATOR} or row.denial is not None:
        credentials.append({"ApiKey": []})
    if callers & frozenset(Role):
        credentials.append({"Session": []})
    if Credential.OPERATOR in callers and row.method in SAFE_METHODS:
        credentials.append({"OperatorSession": []})
    if Credential.NONE in callers:
        credentials.append({})
    return credentials


def _parameter(parameter: Field[Any], place: str) -> Json:
    return {
        "name": parameter.name,
        "in": place,
        "required": parameter.required,
        "description": parameter.description,
        "schema": dict(parameter.schema),
        "example": parameter.example,
    }


def _signature(header: str) -> Json:
    return {
        "name": header,
        "in": "header",
        "required": True,
        "description": "The signature of the body's bytes.",
        "schema": {"type": "string"},
    }


def _request_body(fields: tuple[Field[Any], ...], *, required: bool) -> Json:
    shown = [field for field in fields if field.required] or fields[:1]
    example: Json = {"value": {field.name: field.example for field in shown}}
    cut = [field for field in shown if field.made_by]
    if cut:
        example["summary"] = _SHORTENED
    return {
        "required": required,
        "content": {
            "application/json": {
                "schema": object_schema(fields),
                "examples": {"form" if cut else "request": example},
            }
        },
    }


def _success(row: Endpoint) -> Json:
    data = row.example
    return {
        "description": HTTPStatus(row.status).phrase,
        "headers": _sent(),
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["data", "request_id", "timestamp"],
                    "properties": {
                        "data": {"$ref": _reference(type(data).__name__)},
                        **_ALWAYS_THERE,
                    },
                },
                "examples": {
                    "answer": {
                        "value": {
                            "data": msgspec.to_builtins(data),
                            "request_id": _REQUEST_ID,
                            "timestamp": _TIMESTAMP,
                        }
                    }
                },
            }
        },
    }


def _document(row: Endpoint) -> Json:
    """Return the description of a response without the envelope."""
    content: Json = {"schema": {"type": "string"}}
    if row.example is not None:
        content = {
            "schema": {"$ref": _reference(type(row.example).__name__)},
            "examples": {"answer": {"value": msgspec.to_builtins(row.example)}},
        }
    return {
        "description": _DOCUMENTS[row.content_type],
        "headers": _sent(),
        "content": {row.content_type: content},
    }


def _by_status(found: frozenset[Code]) -> Mapping[int, tuple[Code, ...]]:
    ordered = [code for code in Code if code in found]
    statuses = sorted({code.status for code in ordered})
    return {status: tuple(code for code in ordered if code.status == status) for status in statuses}


def _failures(rows: Iterable[Endpoint]) -> Json:
    """Return the error responses of all operations, each once."""
    found = {group for row in rows for group in _by_status(codes(row)).values()}
    return dict(sorted((_failure_name(failure), _failure(failure)) for failure in found))


def _failure_name(found: tuple[Code, ...]) -> str:
    return "-".join((str(found[0].status), *(code.name for code in found)))


def _failure(found: tuple[Code, ...]) -> Json:
    return {
        "description": " ".join(dict.fromkeys(GUIDANCE[code].when for code in found)),
        "headers": _sent(*(name for code in found for name in SENT_WITH.get(code, ()))),
        "content": {
            "application/json": {
                "schema": {
                    "allOf": [
                        {"$ref": _reference(Failure.__name__)},
                        {
                            "properties": {
                                "error": {
                                    "properties": {
                                        "error_code": {"enum": [code.code for code in found]}
                                    }
                                }
                            }
                        },
                    ]
                },
                "examples": {code.code: _failure_example(code) for code in found},
            }
        },
    }


def _failure_example(code: Code) -> Json:
    guidance = GUIDANCE[code]
    shown = {"error_code": code.code, "message": guidance.when}
    if guidance.field is not None:
        shown["field"] = guidance.field
    return {
        "summary": guidance.what_to_do,
        "value": {"error": shown, "request_id": _REQUEST_ID, "timestamp": _TIMESTAMP},
    }


_ALGORITHM_NAMES = (
    "The wire values of the interface specification. Two also have the standard's names; a "
    "response has the name that the request uses."
)


def _schemas(types: set[type]) -> Json:
    ordered = sorted(types, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(
        [*ordered, Failure, Fault], ref_template="#/components/schemas/{name}"
    )
    schemas[Failure.__name__]["properties"].update(_ALWAYS_THERE)
    if Algorithm.__name__ in schemas:  # responses use the request's name for it
        schemas[Algorithm.__name__]["enum"] = sorted([*Algorithm, *ALIASES])
        schemas[Algorithm.__name__]["description"] = _ALGORITHM_NAMES
    return dict(sorted(schemas.items()))


def _reference(name: str) -> str:
    return f"#/components/schemas/{name}"


def _sent(*names: str) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in ("X-Request-ID", *names)}


_SIGNED_BODY: Json = {
    "required": True,
    "content": {
        "application/json": {
            "schema": {"type": "object", "properties": {}},
            "examples": {"request": {"value": {}}},
        }
    },
}
_DOCUMENTS: Mapping[str, str] = {
    JSON_LINES: "JSON lines, one object each, as docs/audit.md describes them.",
    JWK_SET: "A JWK Set (RFC 7517), without the envelope.",
    TEXT: "Text, without the envelope.",
}
"""Responses without the envelope, by content type."""
_REQUEST_ID_FORM: Json = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_REQUEST_ID,
    "pattern": "^[ -~]*$",
}
_ALWAYS_THERE: Json = {
    "request_id": {**_REQUEST_ID_FORM, "description": "The request's X-Request-ID, or a new UUID."},
    "timestamp": {**msgspec.json.schema(Timestamp), "description": "The time of the response."},
}
_HEADERS: Json = {
    "X-Request-ID": {
        "description": "The same as request_id.",
        "required": True,
        "schema": _REQUEST_ID_FORM,
    },
    "Retry-After": {
        "description": "Seconds until the next attempt.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "RateLimit-Limit": {
        "description": "The number of requests that the limit allows.",
        "required": True,
        "schema": {"type": "integer", "minimum": 1},
    },
    "RateLimit-Remaining": {
        "description": "The number of further requests that are allowed now.",
        "required": True,
        "schema": {"type": "integer", "minimum": 0},
    },
    "RateLimit-Reset": {
        "description": "Seconds until another request is allowed.",
        "required": True,
        "schema": {"type": "integer", "minimum": 0},
    },
}
_PARAMETERS: Json = {
    "RequestId": {
        "name": "X-Request-ID",
        "in": "header",
        "required": False,
        "description": "Your identifier for the request. It is in the response and in the "
        "audit log. Printable ASCII; anything else is replaced by a new UUID.",
        "schema": _REQUEST_ID_FORM,
        "example": "order-4711",
    },
    "StepUpToken": {
        "name": "X-Step-Up-Token",
        "in": "header",
        "required": False,
        "description": "For signed-in people: the token of step_up. An API key needs none.",
        "schema": {"type": "string"},
        "example": "pqu_" + "0" * 43 + "3aXb2c",
    },
    "IdempotencyKey": {
        "name": "Idempotency-Key",
        "in": "header",
        "required": False,
        "description": "Makes a request safe to repeat: for 24 hours the same key with the "
        "same request gets the first response. With another request it gets "
        "409.",
        "schema": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_IDEMPOTENCY_KEY,
            "pattern": "^[ -~]*$",
        },
        "example": "8d6c1d0e-rotate",
    },
}
