"""Serves the portal's pages: access, redirects, errors, and headers for browsers."""

import asyncio
import gzip
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from pqkeep_gateway.access.admission import SuspendedError, UnknownCredentialError
from pqkeep_gateway.access.callers import OPERATORS, Caller, Permission
from pqkeep_gateway.access.principals import (
    AnonymousPrincipal,
    Principal,
    SessionPrincipal,
    UserId,
)
from pqkeep_gateway.access.rate_limit import ConcurrencyLimit, Usage
from pqkeep_gateway.access.trusted_proxies import Client
from pqkeep_gateway.api.search import FoundKind
from pqkeep_gateway.http.cookies import SentCookies
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.errors import (
    ApiError,
    forbidden,
    internal,
    method_not_allowed,
    not_found,
    unavailable,
)
from pqkeep_gateway.http.pipeline import Headers, Pipeline
from pqkeep_gateway.http.responses import (
    LEVEL,
    accepts,
    accepts_gzip,
    request_id_of,
    send_chunks,
    send_error,
    send_not_found,
)
from pqkeep_gateway.http.static_document import METHODS
from pqkeep_gateway.languages import LANGUAGES, current, said, speaking
from pqkeep_gateway.portal import assets
from pqkeep_gateway.portal.lists import FORMS
from pqkeep_gateway.portal.pages import OPERATOR_HOME, ROOT, SIGN_IN, Download, Page, Visit
from pqkeep_gateway.portal.reading import Reader, Section
from pqkeep_gateway.portal.rendering import Templates
from pqkeep_gateway.portal.views import (
    api_keys,
    audit,
    billing,
    entering,
    keyrings,
    keys,
    migration,
    notices,
    operator,
    overview,
    people,
    search,
    try_it,
    webhooks,
)
from pqkeep_gateway.portal.views.entering import DEMO, NEEDS_JAVASCRIPT
from pqkeep_gateway.reference.snippets import curl, python
from pqkeep_gateway.unavailable import OverloadedError
from pqkeep_protocol.keys import INSTALLATION, TenantId
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.logs import logger

PAGES: tuple[Page, ...] = (
    *search.PAGES,
    *operator.PAGES,
    *overview.PAGES,
    *notices.PAGES,
    *keys.PAGES,
    *keyrings.PAGES,
    *api_keys.PAGES,
    *try_it.PAGES,
    *migration.PAGES,
    *audit.PAGES,
    *webhooks.PAGES,
    *people.PAGES,
    *billing.PAGES,
    *entering.PAGES,
    entering.NEEDS_JAVASCRIPT,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the navigation."""

    title: str
    path: str
    url: str
    icon: str


def navigation(caller: Caller, pages: Iterable[Page]) -> tuple[Entry, ...]:
    """Return the navigation entries for a caller."""
    return tuple(
        Entry(page.title, page.path, ROOT + page.path, page.icon)
        for page in pages
        if page.is_listed and page.admits(caller)
    )


_LOG = logger(__name__)
SaveLanguage = Callable[[UserId, str], Awaitable[None]]
_TENANTS = f"{OPERATOR_HOME}/tenants"

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none';"
    " require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS: Mapping[str, str] = {
    "Content-Type": "text/html; charset=utf-8",
    "Cache-Control": "no-store",
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
    "Referrer-Policy": "same-origin",
    "Vary": "Accept-Encoding, Accept-Language, Cookie, Sec-Fetch-Site",
    "X-Frame-Options": "DENY",
}
_HEADERS = tuple((name.lower().encode(), value.encode()) for name, value in HEADERS.items())
MAX_AT_ONCE, MAX_RUNNING = 1, 8
"""Downloads of a page that are made while they are sent, per tenant and in all, in one gateway."""
MAX_QUERY = 2048
"""The most bytes of a query. A longer query is cut."""


def portal(
    api: Iterable[Endpoint],
    pipeline: Pipeline,
    save_language: SaveLanguage,
    *,
    moved: tuple[str, str] | None = None,
    development: bool = False,
) -> Mapping[str, ASGIApp]:
    """Return the portal's pages and files by path. Development adds the demo page.

    ``save_language`` stores the language of a person's last page, for mails. ``moved``: requests to
    this host are redirected to this URL.
    """
    endpoints = {endpoint.name: endpoint for endpoint in api}
    templates = Templates()
    rows = (*PAGES, DEMO) if development else PAGES
    return {
        **{
            ROOT + page.path: PageResource(
                page, endpoints, pipeline, templates, save_language, moved
            )
            for page in rows
        },
        **assets.documents(),
        "/": lead_browsers,
        ROOT + "/language/{language}": LanguageChoice(pipeline),
        ROOT + "/{path:path}": PageResource(
            None, endpoints, pipeline, templates, save_language, moved
        ),
    }


async def lead_browsers(scope: Scope, receive: Receive, send: Send) -> None:
    """Redirect a browser from the bare address to the portal. Programs get 404."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    is_browser = accepts(headers.get(b"accept", b""), b"text/html")
    if scope["method"] not in METHODS or not is_browser:
        await send_not_found(scope, receive, send)
        return
    sent = [
        (b"location", ROOT.encode()),
        (b"content-length", b"0"),
        (b"cache-control", b"no-store"),
        (b"x-request-id", request_id_of(headers).encode()),
    ]
    await send({"type": "http.response.start", "status": HTTPStatus.SEE_OTHER, "headers": sent})
    await send({"type": "http.response.body", "body": b""})


class _Response(NamedTuple):
    """A page, or a redirect."""

    status: int
    body: bytes = b""
    location: str = ""
    file: tuple[str, str] | None = None
    """The name and the type of a download."""
    chunks: AsyncGenerator[bytes, None] | None = None
    """The content of a file that is made while it is sent, instead of the body."""


class LanguageChoice:
    """An ASGI application that keeps the chosen language in a cookie, and returns to the page.

    It is the target of forms without fields, and reads no body.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = request_id_of(headers)
        language = scope["path_params"]["language"]
        refusal: ApiError | None = None
        if language not in LANGUAGES:
            refusal = not_found("There is no such page.")
        elif scope["method"] != "POST":
            refusal = method_not_allowed("POST")
        elif self._pipeline.cookies.is_cross_site("POST", headers):
            refusal = forbidden("A page of another site sent this form.")
        if refusal is not None:
            await send_error(send, refusal, request_id)
            return
        location = _came_from(headers.get(b"referer", b"").decode("latin-1"))
        sent = [
            (b"location", location.encode("ascii")),
            (b"content-length", b"0"),
            (b"cache-control", b"no-store"),
            (b"set-cookie", self._pipeline.cookies.of_language(language).encode()),
            (b"x-request-id", request_id.encode()),
        ]
        await send({"type": "http.response.start", "status": HTTPStatus.SEE_OTHER, "headers": sent})
        await send({"type": "http.response.body", "body": b""})


class PageResource:
    """An ASGI application for one page. Without a page, it serves all unknown paths."""

    def __init__(
        self,
        page: Page | None,
        endpoints: Mapping[str, Endpoint],
        pipeline: Pipeline,
        templates: Templates,
        save_language: SaveLanguage,
        moved: tuple[str, str] | None,
    ) -> None:
        self._page = page
        self._endpoints = endpoints
        self._pipeline = pipeline
        self._templates = templates
        self._save_language = save_language
        self._moved = moved
        self._downloads = ConcurrencyLimit(MAX_AT_ONCE, MAX_RUNNING)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        began = perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        headers.pop(b"x-api-key", None)  # pages are for sessions only
        cookies = self._pipeline.cookies.read(scope["headers"])
        request_id = request_id_of(headers)
        takes_forms = self._page is not None and self._page.takes_forms
        methods = (*METHODS, "POST") if takes_forms else METHODS
        if scope["method"] not in methods:
            await send_error(send, method_not_allowed(", ".join(methods)), request_id)
            return
        peer = scope["client"][0] if scope["client"] else ""
        client = self._pipeline.trusted_proxies.client_of(peer, scope["headers"])
        attribution = Attribution(request_id, "", client.address)
        accepted = headers.get(b"accept-language", b"")
        try:
            with speaking(self._pipeline.cookies.language_of(cookies.values, accepted)):
                response = await self._respond(scope, headers, cookies, attribution)
        except Exception:  # noqa: BLE001 - the response to a fault is the same as the API's
            _LOG.exception("page failed", request_id=request_id)
            await send_error(send, internal(), request_id)
            return
        timing = f"render;dur={(perf_counter() - began) * 1000:.1f}".encode()
        status, body, location, file, chunks = response
        encoding: tuple[tuple[bytes, bytes], ...] = ()
        if body and file is None and _may_compress(headers):
            body, encoding = gzip.compress(body, LEVEL), ((b"content-encoding", b"gzip"),)
        sent = [
            *(_HEADERS if file is None else _download(*file)),
            *encoding,
            *(((b"content-length", b"%d" % len(body)),) if chunks is None else ()),
            (b"x-request-id", request_id.encode()),
            (b"server-timing", timing),
        ]
        deleted = self._pipeline.cookies.deletions(
            cookies, headers.get(b"host", b""), scope["path"]
        )
        sent += [(b"set-cookie", cookie.encode()) for cookie in deleted]
        if location:
            sent.append((b"location", location.encode("ascii")))
        start = {"type": "http.response.start", "status": status, "headers": sent}
        if chunks is not None:
            await send_chunks(receive, send, start, chunks)
            return
        await send(start)
        await send(
            {"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body}
        )

    async def _respond(
        self, scope: Scope, headers: Headers, cookies: SentCookies, attribution: Attribution
    ) -> _Response:
        """Return a page, or a redirect."""
        page = self._page
        if scope["method"] == "POST":
            return await self._take_form(headers)
        if self._moved and headers.get(b"host", b"").decode("latin-1").lower() == self._moved[0]:
            there = self._moved[1].rstrip("/") + _asked(scope)
            return _Response(HTTPStatus.TEMPORARY_REDIRECT, location=there)
        if page is None:
            return await self._unknown(headers, cookies, attribution)
        principal: Principal = AnonymousPrincipal()
        usage: Usage | None = None
        if not page.is_public:
            try:
                self._pipeline.cookies.require_once(
                    cookies, headers.get(b"host", b""), scope["path"], needs_session=False
                )
                principal, usage = await self._pipeline.admit(
                    page.permission, headers, cookies.values, Client(attribution.source_address)
                )
            except Exception as raised:  # noqa: BLE001 - the response to a fault is a page, too
                return await self._refuse(raised, page, scope, attribution)
        if isinstance(principal, SessionPrincipal) and principal.language != current():
            await self._save_language(principal.user, current())
        attribution = attribution.by(str(principal))
        reader = Reader(self._endpoints, self._pipeline, principal, attribution, headers, usage)
        return await self._show(page, reader, scope)

    async def _take_form(self, headers: Headers) -> _Response:
        """Redirect a form sent without JavaScript to a page that explains. Its body is never read.

        The browser loads that page by GET, so that it does not keep the typed values.
        """
        if self._pipeline.cookies.is_cross_site("POST", headers):
            return await self._failed(forbidden("A page of another site sent this form."))
        return _Response(HTTPStatus.SEE_OTHER, location=ROOT + NEEDS_JAVASCRIPT.path)

    async def _unknown(
        self, headers: Headers, cookies: SentCookies, attribution: Attribution
    ) -> _Response:
        """Return the error page for an unknown path, with the signed-in visitor's navigation."""
        frame: Mapping[str, Any] = {}
        try:
            principal, usage = await self._pipeline.admit(
                Permission.VIEW_TENANT,
                headers,
                cookies.values,
                Client(attribution.source_address),
            )
            attribution = attribution.by(str(principal))
            reader = Reader(self._endpoints, self._pipeline, principal, attribution, headers, usage)
            frame = await self._frame(reader, None)
        except Exception:  # noqa: BLE001 - there is no such page, whatever else is wrong
            _LOG.debug("unknown page without a frame", request_id=attribution.request_id)
        return await self._failed(not_found("There is no such page."), **frame)

    async def _show(self, page: Page, reader: Reader, scope: Scope) -> _Response:
        """Return the page for an admitted visitor."""
        elsewhere = _instead_of(page, reader.principal)
        if elsewhere:
            return _Response(HTTPStatus.SEE_OTHER, location=ROOT + elsewhere)
        query = scope["query_string"][:MAX_QUERY].decode("latin-1")
        origin = f"{scope['scheme']}://{reader.headers.get(b'host', b'').decode('latin-1')}"
        visit = Visit(reader, dict(parse_qsl(query)), scope.get("path_params", {}), origin)
        try:
            if not page.admits(reader.principal.caller):
                raise forbidden(_of_others(page, reader.principal.caller))
            file = await self._file(page, visit, scope["method"])
        except ApiError as error:
            return await self._in_frame(error, page, reader)
        if file is not None:
            return file
        frame, content = await asyncio.gather(
            self._frame(reader, page), page.read(visit), return_exceptions=True
        )
        if isinstance(frame, ApiError):
            return await self._failed(frame, page)
        if isinstance(frame, BaseException):
            raise frame
        if isinstance(content, ApiError):
            return await self._failed(content, page, **frame)
        if isinstance(content, BaseException):
            raise content
        shown = {**frame, **content, "visit": visit}
        return _Response(HTTPStatus.OK, await self._render(page.template, page, **shown))

    async def _in_frame(self, error: ApiError, page: Page, reader: Reader) -> _Response:
        """Return the error page with the visitor's navigation."""
        try:
            frame = await self._frame(reader, page)
        except ApiError as of_frame:
            return await self._failed(of_frame, page)
        return await self._failed(error, page, **frame)

    async def _file(self, page: Page, visit: Visit, method: str) -> _Response | None:
        """Return the file that the address asks for; None for a page. Raises ApiError."""
        reader, form = visit.reader, visit.query.get("format", "")
        if page.export is not None and form in FORMS:
            name, kind, body = (await page.export(visit)).file(form)
            return _Response(HTTPStatus.OK, body, file=(name, kind))
        if page.download is not None and form == "zip":
            download = page.download(visit)
            return await self._begun(download, reader.principal, reader.headers, method)
        return None

    async def _begun(
        self, download: Download, principal: Principal, headers: Headers, method: str
    ) -> _Response:
        """Return a file after its first bytes are there. Raises ApiError."""
        if self._pipeline.cookies.is_cross_site(method, headers):
            raise forbidden("A page of another site asked for this file.")
        name, kind, chunks = download
        counted = self._counted(chunks, principal.tenant or INSTALLATION)
        try:
            first = await anext(counted)
        except OverloadedError:
            raise unavailable("Other downloads are running. Try again after them.") from None
        if method == "HEAD":
            await counted.aclose()
            return _Response(HTTPStatus.OK, file=(name, kind))
        content = _beginning_with(first, counted)
        return _Response(HTTPStatus.OK, file=(name, kind), chunks=content)

    async def _counted(
        self, chunks: AsyncGenerator[bytes, None], tenant: TenantId
    ) -> AsyncGenerator[bytes, None]:
        with self._downloads.run(tenant):
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk

    async def _refuse(
        self, raised: Exception, page: Page, scope: Scope, attribution: Attribution
    ) -> _Response:
        """Return the redirect or error page for a refused visitor: most often, to sign in."""
        if isinstance(raised, UnknownCredentialError):
            where = OPERATOR_HOME + "/sign-in" if page.is_operators else "/resume"
            return _Response(HTTPStatus.SEE_OTHER, location=_to(ROOT + where, _asked(scope)))
        if isinstance(raised, SuspendedError):
            text = "Your organization is suspended. Ask the operator of this service."
            return await self._failed(forbidden(text))
        row = self._endpoints["me"]
        return await self._failed(
            await self._pipeline.error_for(raised, row, None, {}, attribution)
        )

    async def _failed(
        self, error: ApiError, page: Page | None = None, **frame: object
    ) -> _Response:
        body = await self._render("error.html", page, **frame, error=error)
        return _Response(error.code.status, body)

    async def _frame(self, reader: Reader, page: Page | None) -> dict[str, Any]:
        """Return the frame's values: the visitor, their organization, and the navigation.

        Raises ApiError.
        """
        caller = reader.principal.caller
        is_operator, is_person = caller in OPERATORS, reader.principal.user is not None
        sees_notices = not is_operator or reader.allows("get_installation")
        unseen, *needed = await asyncio.gather(
            _section(
                reader, sees_notices and not reader.principal.must_enroll, "list_notices", limit=1
            ),
            _section(reader, is_operator, "operator_me"),
            _section(reader, is_person, "me"),
            _section(reader, is_person, "list_step_up_methods"),
            _section(reader, is_person, "get_tenant", tenant_id=str(reader.principal.tenant)),
        )
        for section in needed:
            if section.error is not None:
                raise section.error
        operator_me, me, step_up, tenant = (section.data for section in needed)
        return {
            "me": me,
            "unseen": unseen,
            "step_up": step_up,
            "tenant": tenant,
            "is_operator": is_operator,
            "operator_me": operator_me,
            "navigation": navigation(caller, PAGES),
            "places": search.places(caller, PAGES, reader.allows),
            "may": reader.allows,
            "marked": (page.parent or page.path) if page else None,
        }

    def _snippets(
        self, operation: str, values: Mapping[str, object] | None = None
    ) -> tuple[tuple[str, str | None], ...]:
        """Return the code for an operation: a curl command, and Python."""
        row = self._endpoints[operation]
        return ("curl", curl(row, values or {})), ("Python", python(row, values or {}))

    async def _render(self, template: str, page: Page | None, **content: object) -> bytes:
        around = {
            "me": None,
            "unseen": Section(),
            "step_up": None,
            "tenant": None,
            "is_operator": False,
            "operator_me": None,
            "navigation": (),
            "places": (),
            "addresses": search.ADDRESSES,
            "search_words": {kind: said(search.WORDS.get(kind, kind)) for kind in FoundKind},
            "may": lambda _: False,
            "marked": None,
            "page": page,
            "root": ROOT,
            "sign_in": SIGN_IN,
            "form_action": ROOT + NEEDS_JAVASCRIPT.path,
            "operator_sign_in": f"{ROOT}{OPERATOR_HOME}/sign-in",
            "endpoints": self._endpoints,
            "snippets": self._snippets,
        }
        return await self._templates.render(template, around | content)


async def _section(reader: Reader, is_shown: bool, name: str, **values: object) -> Section:  # noqa: FBT001
    return await reader.section(name, **values) if is_shown else Section()


async def _beginning_with(
    first: bytes, rest: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk


def _download(name: str, kind: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers of a file. ``name`` needs no quoting."""
    own = {b"content-type": kind, b"content-disposition": f'attachment; filename="{name}"'}
    yield from ((header, own.pop(header, value.decode()).encode()) for header, value in _HEADERS)
    yield from ((header, value.encode()) for header, value in own.items())


def _may_compress(headers: Headers) -> bool:
    """Return whether a browser asks for a page by an address that no other site has chosen.

    Another site could put guesses into the address, and learn from the size whether they are in
    the page (BREACH).
    """
    is_own = headers.get(b"sec-fetch-site") in {b"same-origin", b"none"}
    return is_own and accepts_gzip(headers)


def _instead_of(page: Page, principal: Principal) -> str:
    """Return the path of the page to show in place of this one; empty: this one."""
    if principal.must_enroll and not page.during_enrollment:
        return "/security/enroll"
    if principal.caller not in OPERATORS:
        return ""
    if not page.path:
        return OPERATOR_HOME
    return _TENANTS if page.path == OPERATOR_HOME and not page.admits(principal.caller) else ""


def _of_others(page: Page, caller: Caller) -> str:
    """Return the message for a page that the caller may not see."""
    if caller in OPERATORS and page.is_operators:
        return "Your operator role does not include this page."
    if caller in OPERATORS:
        return "You are signed in as an operator. This page is for an organization's members."
    if page.is_operators:
        return "This page is for operators. They sign in with an operator credential."
    return "Your role does not include this page."


def _came_from(referer: str) -> str:
    """Return the path and query of the portal's page that sent a form, or the portal's root."""
    try:
        parts = urlsplit(referer)
    except ValueError:
        return ROOT
    if not (parts.path == ROOT or parts.path.startswith(f"{ROOT}/")) or len(referer) > MAX_QUERY:
        return ROOT
    query = f"?{quote(parts.query, safe='=&%+')}" if parts.query else ""
    return quote(parts.path, safe="/%") + query


def _asked(scope: Scope) -> str:
    """Return a request's path and query, without a query longer than MAX_QUERY."""
    path, query = quote(scope["path"], safe="/"), scope["query_string"]
    if not 0 < len(query) <= MAX_QUERY:
        return path
    return f"{path}?{quote(query.decode('latin-1'), safe='=&%+')}"


def _to(path: str, next_path: str) -> str:
    return f"{path}?{urlencode({'next': next_path}, quote_via=quote)}"
