"""The reference's documents: ``/docs``, and OpenAPI documents for the whole API and for each part.

All are generated together in a thread at the first request, because that takes longer than the rest
of a gateway's start.
"""

import asyncio
from collections.abc import Iterable, Mapping
from functools import partial

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.road import API
from pqkeep_gateway.http.static_document import StaticDocument
from pqkeep_gateway.reference.openapi import PARTS, document
from pqkeep_gateway.reference.pages import HEADERS, PAGES, ROOT, STATIC, pages, static
from pqkeep_gateway.reference.snippets import example

_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_WHOLE = f"{API}/openapi.json"
_PARTS = {f"{API}/openapi/{part}.json": part for part in PARTS if part != "service"}


def documents(api: Iterable[Endpoint], outside: Iterable[Endpoint]) -> Mapping[str, ASGIApp]:
    """Return every document by its path. They have no envelope, as tools expect."""
    generated = _Generated(tuple(api), tuple(outside))
    return {
        **{path: partial(generated.serve, path) for path in generated.paths()},
        **{
            f"{ROOT}/{name}": StaticDocument(static(name), kind, HEADERS)
            for name, kind in STATIC.items()
        },
    }


class _Generated:
    """The documents that are generated from the rows."""

    def __init__(self, rows: tuple[Endpoint, ...], others: tuple[Endpoint, ...]) -> None:
        self._rows = rows
        self._others = others
        self._made: Mapping[str, StaticDocument] | None = None
        self._making = asyncio.Lock()

    def paths(self) -> Iterable[str]:
        """Return the paths of all documents."""
        names = (row.name for row in (*self._rows, *self._others))
        return (_WHOLE, *_PARTS, *PAGES, *(f"{ROOT}/{name}" for name in names))

    async def serve(self, path: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one document. All are generated once, even for simultaneous requests."""
        if self._made is None:
            async with self._making:
                if self._made is None:
                    self._made = await asyncio.to_thread(self._make)
        await self._made[path](scope, receive, send)

    def _make(self) -> Mapping[str, StaticDocument]:
        whole = document(self._rows, self._others, API)
        described = {
            _WHOLE: whole,
            **{path: document(self._rows, (), API, part) for path, part in _PARTS.items()},
        }
        snippets = {
            **{row.name: example(row) for row in self._rows},
            **{row.name: example(row, prefix="") for row in self._others},
        }
        return {
            **{
                path: StaticDocument(msgspec.json.encode(description), _JSON, {})
                for path, description in described.items()
            },
            **{
                path: StaticDocument(body, _JSON if path.endswith(".json") else _HTML, HEADERS)
                for path, body in pages(whole, snippets).items()
            },
        }
