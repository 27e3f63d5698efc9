"""What the reference serves: ``/docs``, and an OpenAPI document of everything and of each part."""

from collections.abc import Iterable, Mapping

import msgspec

from pqkeep_gateway.http.app import API
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.static_document import StaticDocument
from pqkeep_gateway.reference import page
from pqkeep_gateway.reference.openapi import PARTS, document


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
    html, css = "text/html; charset=utf-8", "text/css; charset=utf-8"
    return {
        **{
            path: StaticDocument(msgspec.json.encode(each), "application/json", {})
            for path, each in described.items()
        },
        "/docs": StaticDocument(page.page(whole), html, page.HEADERS),
        page.STYLE_PATH: StaticDocument(page.style(), css, page.HEADERS),
    }
