"""What the reference serves: ``/docs``, and an OpenAPI document of everything and of each part."""

from collections.abc import Iterable, Mapping

import msgspec

from pqkeep_gateway.http.app import API
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.static_document import StaticDocument
from pqkeep_gateway.reference.openapi import PARTS, document
from pqkeep_gateway.reference.pages import HEADERS, ROOT, STATIC, pages, static
from pqkeep_gateway.reference.snippets import example

_HTML = "text/html; charset=utf-8"
_JSON = "application/json"


def documents(api: Iterable[Endpoint], outside: Iterable[Endpoint]) -> Mapping[str, StaticDocument]:
    """Return every document by its path. They are bare: tools expect no envelope."""
    rows, others = tuple(api), tuple(outside)
    whole = document(rows, others, API)
    described = {
        f"{API}/openapi.json": whole,
        **{
            f"{API}/openapi/{part}.json": document(rows, (), API, part)
            for part in PARTS
            if part != "service"
        },
    }
    snippets = {
        **{row.name: example(row) for row in rows},
        **{row.name: example(row, prefix="") for row in others},
    }
    return {
        **{
            path: StaticDocument(msgspec.json.encode(each), _JSON, {})
            for path, each in described.items()
        },
        **{
            path: StaticDocument(body, _JSON if path.endswith(".json") else _HTML, HEADERS)
            for path, body in pages(whole, snippets).items()
        },
        **{
            f"{ROOT}/{name}": StaticDocument(static(name), kind, HEADERS)
            for name, kind in STATIC.items()
        },
    }
