"""The operations of the reference pages, read from the OpenAPI document, with their examples."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.reference.snippets import Snippets

Json = Mapping[str, Any]

ON_EVERY_REQUEST = ("X-Request-ID",)
"""Headers that the pages explain once."""

_NULL = {"type": "null"}
"""The alternative value of every optional field. The page explains it once for all."""


@dataclass(frozen=True, slots=True)
class Field:
    """One line of a table of fields."""

    name: str
    place: str
    form: str
    choices: tuple[str, ...]
    default: str
    required: bool
    description: str


@dataclass(frozen=True, slots=True)
class Failure:
    """One line of a table of errors."""

    code: str
    status: int
    when: str
    what_to_do: str


@dataclass(frozen=True, slots=True)
class Access:
    """One line of the access table: a permission, its callers and its operations."""

    permission: str
    callers: frozenset[str]
    operations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """The data of one endpoint's page."""

    name: str
    part: str
    method: str
    path: str
    summary: str
    description: str
    takes: tuple[Field, ...]
    gives: tuple[Field, ...]
    status: str
    failures: tuple[Failure, ...]
    snippets: Snippets
    response: str
    note: str
    """A note about the example."""


@dataclass(frozen=True, slots=True)
class Part:
    """One group of endpoints."""

    name: str
    description: str
    operations: tuple[Operation, ...]


def parts(document: Json, snippets: Mapping[str, Snippets]) -> Iterator[Part]:
    """Yield the operations of a document by part; ``snippets`` are their examples."""
    for tag in document["tags"]:
        yield Part(
            tag["name"],
            tag["description"],
            tuple(
                _operation(document, path, method, operation, snippets[operation["operationId"]])
                for path, methods in document["paths"].items()
                for method, operation in methods.items()
                if tag["name"] in operation["tags"]
            ),
        )


def access(document: Json) -> tuple[Access, ...]:
    """Return the access table for the existing operations."""
    operations = [method for methods in document["paths"].values() for method in methods.values()]
    callers = {
        operation["x-permission"]: frozenset(operation["x-callers"]) for operation in operations
    }
    return tuple(
        Access(
            permission,
            callers[permission],
            tuple(
                operation["operationId"]
                for operation in operations
                if operation["x-permission"] == permission
            ),
        )
        for permission in Permission
        if permission in callers
    )


def headers(document: Json) -> tuple[Field, ...]:
    """Return the headers of any request."""
    found = document["components"]["parameters"].values()
    return tuple(
        _parameter(document, parameter)
        for parameter in found
        if parameter["name"] in ON_EVERY_REQUEST
    )


def every_failure(found: Iterable[Part]) -> tuple[Failure, ...]:
    """Return the errors of all operations, each once, by status and code."""
    failures = {
        (failure.status, failure.code): failure
        for part in found
        for operation in part.operations
        for failure in operation.failures
    }
    return tuple(failures[key] for key in sorted(failures))


def _operation(
    document: Json, path: str, method: str, operation: Json, snippets: Snippets
) -> Operation:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    body: Json = content["schema"] if content else {"properties": {}}
    example = next(iter(content["examples"].values())) if content else {}
    parameters = [_resolved(document, parameter) for parameter in operation["parameters"]]
    status, success = next(
        (row for row in operation["responses"].items() if row[0].startswith("2")),
        ("", None),
    )
    response = success["content"].get("application/json") if success else None
    data = response["schema"]["properties"]["data"] if response else None
    return Operation(
        name=operation["operationId"],
        part=operation["tags"][0],
        method=method.upper(),
        path=path,
        summary=operation["summary"],
        description=operation["description"],
        takes=(
            *(
                _parameter(document, parameter)
                for parameter in parameters
                if parameter["in"] != "header"
            ),
            *_fields(document, body, "body"),
            *(
                _parameter(document, parameter)
                for parameter in parameters
                if parameter["in"] == "header" and parameter["name"] not in ON_EVERY_REQUEST
            ),
        ),
        gives=tuple(_fields(document, _resolved(document, data), "")) if data else (),
        status=status,
        failures=tuple(_failures(document, operation)),
        snippets=snippets,
        response=_pretty(response["examples"]["answer"]["value"]) if response else "",
        note=example.get("summary", ""),
    )


def _parameter(document: Json, parameter: Json) -> Field:
    schema = parameter["schema"]
    return Field(
        parameter["name"],
        parameter["in"],
        _form(document, schema),
        _choices(document, schema),
        schema.get("default", ""),
        parameter["required"],
        parameter["description"],
    )


def _resolved(document: Json, thing: Json) -> Json:
    reference = thing.get("$ref")
    if reference is None:
        return thing
    _, _, kind, name = reference.split("/")
    found: Json = document["components"][kind][name]
    return found


def _fields(document: Json, schema: Json, place: str, within: str = "") -> Iterator[Field]:
    for name, value in schema["properties"].items():
        inner = _resolved(document, value)
        item = _resolved(document, inner["items"]) if "items" in inner else inner
        yield Field(
            within + name,
            place,
            _form(document, inner),
            _choices(document, inner),
            inner.get("default", "") if place else "",
            name in schema.get("required", ()),
            "" if "properties" in inner else value.get("description", inner.get("description", "")),
        )
        if "properties" in item:
            marker = "[]." if "items" in inner else "."
            yield from _fields(document, item, place, within + name + marker)


def _form(document: Json, schema: Json) -> str:
    """Describe the form of a value in a few words."""
    schema = _resolved(document, schema)
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices:
        return " or ".join(_form(document, choice) for choice in choices if choice != _NULL)
    if "const" in schema:
        return json.dumps(schema["const"])
    types = schema.get("type", "string")
    kinds = types if isinstance(types, str) else " or ".join(types)
    words = [schema.get("contentEncoding") or schema.get("format") or kinds]
    words += [
        f"{word} {schema[key]:,}"
        for key, word in (("minimum", "from"), ("maximum", "to"))
        if key in schema
    ]
    if "maxLength" in schema:
        words.append(f"of at most {schema['maxLength']:,} characters")
    return " ".join(words)


def _choices(document: Json, schema: Json) -> tuple[str, ...]:
    schema = _resolved(document, schema)
    first = schema.get("anyOf", (schema,))[0]
    return tuple(_resolved(document, first).get("enum", ()))


def _failures(document: Json, operation: Json) -> Iterator[Failure]:
    for status, response in operation["responses"].items():
        if not status.startswith("2"):
            content = _resolved(document, response)["content"]["application/json"]
            for code, example in content["examples"].items():
                message = example["value"]["error"]["message"]
                yield Failure(code, int(status), message, example["summary"])


def _pretty(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
