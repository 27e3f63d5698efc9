"""Example requests for a shell and for the Python client.

Both read the service's address and the credential from ``PQKEEP_URL`` and ``PQKEEP_API_KEY``. So a
snippet contains no secret except those in its values.
"""

import json
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote, urlencode

import msgspec

from pqkeep_gateway.access.callers import CALLERS, GRANTS, Credential, Role
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.field import Field, InvalidValueError, decode_base64
from pqkeep_gateway.http.road import API
from pqkeep_gateway.reference.client_calls import CALLS, ClientCall

Values = Mapping[str, object]
"""JSON values by field."""

STEP_UP_TOKEN = "X-Step-Up-Token"  # noqa: S105 - a header
BATCH = "_batch"
"""The end of batch operations' names."""
REFERENCE = "reference"
_BY_NAME = {"hash": "digest"}
"""The client's names of positional arguments, if they differ from the fields' names."""
_WIDTH = 88
"""Characters up to which a line is not broken."""


@dataclass(frozen=True, slots=True)
class Snippets:
    """The same request in each language."""

    curl: str
    python: str | None
    """None if the client has no call for it."""


def example(row: Endpoint, *, prefix: str = API) -> Snippets:
    """Return an operation's example."""
    values = example_values(row)
    return Snippets(curl(row, values, prefix=prefix), python(row, values))


def example_values(row: Endpoint) -> Values:
    """Return the example's values: the required fields, or one if the request needs any."""
    required = [field for field in row.fields if field.required]
    others = row.other_fields
    needs_one = row.one_required or (row.takes_body and not row.body_optional)
    if needs_one and not any(field.required for field in others):
        required += others[:1]
    return {field.name: field.example for field in required}


def curl(row: Endpoint, values: Values, *, prefix: str = API) -> str:
    """Return a command for a POSIX shell.

    A missing required value is taken from the row's example. Raises ValueError for an unknown
    field.
    """
    given = _given(row, values)
    path = prefix + row.path
    for field in row.path_fields:
        path = path.replace(f"{{{field.name}}}", quote(_text(given.pop(field.name)), safe=""))
    if given and not row.takes_body:
        path += "?" + urlencode({name: _text(value) for name, value in given.items()})
        given = {}
    method = "" if row.method == "GET" or (row.method == "POST" and given) else f" -X {row.method}"
    lines = [f'curl{method} "$PQKEEP_URL{path}"', *_credentials(row)]
    if given:
        lines += ['-H "Content-Type: application/json"', f"-d {shlex.quote(_json(given))}"]
    return " \\\n  ".join(lines)


def python(row: Endpoint, values: Values) -> str | None:
    """Return a program with the Python client; None if the client has no such call.

    A missing required value is taken from the row's example. Raises ValueError for an unknown
    field.
    """
    given = _given(row, values)
    if row.items is not None:
        return _batch(row.items, CALLS.get(row.name.removesuffix(BATCH)), given)
    call = CALLS.get(row.name)
    if call is None or not given.keys() <= {*call.positional, *call.keywords}:
        return None
    fields = {field.name: field for field in row.fields}
    arguments = [
        *map(_literal, call.constants),
        *(_argument(fields[name], given.pop(name)) for name in call.positional),
        *(f"{call.keywords[name]}={_argument(fields[name], given[name])}" for name in given),
    ]
    statement = call.statement.format(_call(f"client.{call.method}", arguments))
    lines = f"with Client() as client:\n{textwrap.indent(statement, '    ')}\n"
    return "\n".join((*_imports(lines), "from pqkeep import Client", "", lines))


def _batch(items: Field[Any], call: ClientCall | None, given: Values) -> str | None:
    """Return a program with many calls, if all values are in the items.

    The client returns results in order, so items need no reference.
    """
    if call is None or given.keys() != {items.name}:
        return None
    properties: Mapping[str, Any] = cast("Any", items.schema["items"])["properties"]
    names = {name: _BY_NAME.get(name, name) for name in call.positional} | dict(call.keywords)
    made: list[str] = []
    for item in cast("list[dict[str, object]]", given[items.name]):
        sent = {name: value for name, value in item.items() if name != REFERENCE}
        if not sent.keys() <= names.keys():
            return None
        arguments = [
            f'"{names[name]}": {_value(properties[name], value)}' for name, value in sent.items()
        ]
        made.append(_dictionary(arguments))
    name, *_ = call.statement.split(" = ")
    lines = "\n".join(
        (
            "items = [",
            *(textwrap.indent(f"{argument},", "    ") for argument in made),
            "]",
            "with Client() as client:",
            f"    for result in client.{call.method}_many(items):",
            "        if isinstance(result, PqkeepError):",
            "            raise result",
            "        print(result)" if "print(" in call.statement else f"        {name} = result",
            "",
        )
    )
    return "\n".join((*_imports(lines), "from pqkeep import Client, PqkeepError", "", lines))


def takes_api_key(row: Endpoint) -> bool:
    """Return whether a program sends the request, with an API key or an operator's credential.

    For operations on a tenant's people, the snippet shows a person's request.
    """
    callers = GRANTS[row.permission]
    if callers == frozenset(CALLERS):
        return False
    return Credential.API_KEY in callers or callers.isdisjoint(Role)


def _given(row: Endpoint, values: Values) -> dict[str, Any]:
    """Return the values to send, as plain JSON values in the order of the row's fields."""
    names = [field.name for field in row.fields]
    if unknown := sorted(values.keys() - set(names)):
        raise ValueError(f"{row.name} has no field {', '.join(unknown)}")
    examples = {field.name: field.example for field in row.fields if field.required}
    found = examples | {name: value for name, value in values.items() if value is not None}
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {name: plain[name] for name in names if name in plain}


def _credentials(row: Endpoint) -> Iterator[str]:
    if takes_api_key(row):
        yield '-H "X-API-Key: $PQKEEP_API_KEY"'
    elif GRANTS[row.permission] != frozenset(CALLERS):
        yield '-b "$COOKIES"'
        if row.needs_step_up:
            yield f'-H "{STEP_UP_TOKEN}: $STEP_UP_TOKEN"'


def _text(value: object) -> str:
    """Return a value in the form of a path or a query."""
    return value if isinstance(value, str) else json.dumps(value)


def _json(body: Mapping[str, Any]) -> str:
    """Return printable JSON, with line breaks if it is long."""
    line = json.dumps(body, ensure_ascii=False)
    indent = None if len(line) <= _WIDTH - len("  -d ''") else 2
    return json.dumps(body, indent=indent, ensure_ascii=not line.isprintable())


def _call(name: str, arguments: list[str]) -> str:
    line = f"{name}({', '.join(arguments)})"
    if len(line) <= _WIDTH - len("        "):
        return line
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + ")"


def _dictionary(entries: list[str]) -> str:
    line = f"{{{', '.join(entries)}}}"
    if len(line) <= _WIDTH - len("    ,"):
        return line
    return "{\n" + "".join(f"    {entry},\n" for entry in entries) + "}"


def _argument(field: Field[Any], value: object) -> str:
    return _value(field.schema, value)


def _value(schema: Mapping[str, Any], value: object) -> str:
    if schema.get("contentEncoding") == "base64" and isinstance(value, str):
        return _bytes(value)
    if schema.get("format") == "date-time":
        return f"datetime.fromisoformat({_literal(value)})"
    return _literal(value)


def _bytes(value: str) -> str:
    """Return base64 as the client's argument: a bytes literal, readable if it is text."""
    try:
        data = decode_base64(value)
    except InvalidValueError:
        data = b"\0"
    if data.isascii() and data.decode().isprintable():
        return "b" + _literal(data.decode())
    return f"b64decode({_literal(value)})"


def _literal(value: object) -> str:
    """Return a Python literal, with double quotes unless these need an escape."""
    text = repr(value)
    return f'"{text[1:-1]}"' if text.startswith("'") and '"' not in text else text


def _imports(lines: str) -> Iterator[str]:
    if "b64decode(" in lines:
        yield "from base64 import b64decode"
    if "datetime.fromisoformat(" in lines:
        yield "from datetime import datetime"
    if "b64decode(" in lines or "datetime.fromisoformat(" in lines:
        yield ""
