"""The reference's documents: ``/docs``, and OpenAPI documents for the whole API and for each part.

All are generated together in a thread at the first request, because that takes longer than the rest
of a gateway's start.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from importlib.resources import files
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup
from starlette.types import ASGIApp, Receive, Scope, Send

from pqkeep_gateway.access.callers import CALLERS
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.road import API
from pqkeep_gateway.http.static_document import StaticDocument
from pqkeep_gateway.reference import operations
from pqkeep_gateway.reference.openapi import PARTS, document
from pqkeep_gateway.reference.operations import Failure, Operation, Part
from pqkeep_gateway.reference.snippets import Snippets, example

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


CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
ROOT = "/docs"
PAGES = (ROOT, f"{ROOT}/access", f"{ROOT}/errors", f"{ROOT}/search.json")
"""The pages besides those of operations."""
STATIC: Mapping[str, str] = {
    "tokens.css": "text/css; charset=utf-8",
    "style.css": "text/css; charset=utf-8",
    "search.js": "text/javascript; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
"""Files of the pages, with their types."""
SHARED = frozenset({"tokens.css", "icon.svg"})
"""Files that the portal owns, with its colours, type and spacing."""


class Found(msgspec.Struct, frozen=True):
    """One search result."""

    title: str
    kind: str
    about: str
    href: str
    words: str
    """Further words by which the search finds it."""


def pages(document: Mapping[str, Any], snippets: Mapping[str, Snippets]) -> Mapping[str, bytes]:
    """Return every page by its path; ``snippets`` are the operations' examples."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["code"] = _with_code
    parts = tuple(operations.parts(document, snippets))
    environment.globals.update(info=document["info"], parts=parts)

    contents = environment.get_template("contents.html").render()

    def rendered(path: str, template: str, **values: object) -> tuple[str, bytes]:
        here = f'href="{path}"'
        marked = Markup(contents.replace(here, f'{here} aria-current="page"'))  # noqa: S704 - ours
        return path, environment.get_template(template).render(contents=marked, **values).encode()

    scheme = document["components"]["securitySchemes"]["ApiKey"]
    access = operations.access(document)
    errors = operations.every_failure(parts)
    return dict(
        (
            rendered(ROOT, "index.html", headers=operations.headers(document), scheme=scheme),
            rendered(f"{ROOT}/access", "access.html", access=access, callers=CALLERS),
            rendered(f"{ROOT}/errors", "errors.html", errors=errors),
            *(
                rendered(f"{ROOT}/{operation.name}", "operation.html", operation=operation)
                for part in parts
                for operation in part.operations
            ),
            (f"{ROOT}/search.json", msgspec.json.encode(tuple(_index(parts)))),
        )
    )


def static(name: str) -> bytes:
    """Return a file of the pages."""
    owner = "pqkeep_gateway.portal" if name in SHARED else __package__
    return files(owner).joinpath("static", name).read_bytes()


def _index(parts: tuple[Part, ...]) -> Iterator[Found]:
    yield Found("Every request", "", "Address, credential, headers.", f"{ROOT}#every-request", "")
    yield Found(
        "Access", "", "The permissions of each caller.", f"{ROOT}/access", "permission role caller"
    )
    yield Found("Errors", "", "Each code and the remedy.", f"{ROOT}/errors", "status code")
    for part in parts:
        yield from (_found_operation(operation) for operation in part.operations)
    for failure in operations.every_failure(parts):
        yield _found_failure(failure)


def _found_operation(operation: Operation) -> Found:
    fields = (field.name for field in (*operation.takes, *operation.gives))
    return Found(
        operation.name,
        f"{operation.method} {operation.path}",
        operation.summary,
        f"{ROOT}/{operation.name}",
        " ".join(dict.fromkeys((operation.part, *fields))),
    )


def _found_failure(failure: Failure) -> Found:
    return Found(
        failure.code,
        str(failure.status),
        failure.when,
        f"{ROOT}/errors#error-{failure.status}-{failure.code}",
        "error",
    )


def _with_code(text: str) -> Markup:
    """Return text as HTML, with code between backticks."""
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if index % 2 else part
        for index, part in enumerate(text.split("`"))
    )
