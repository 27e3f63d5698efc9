"""Single sign-on: the browser redirects of /portal/sso/…, and two endpoints."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated
from urllib.parse import parse_qs, unquote, urlencode

from msgspec import Meta
from starlette.types import ASGIApp, Receive, Scope, Send

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.credential_lookups import TooManyUnknownCredentialsError
from pqkeep_gateway.access.principals import OperatorPrincipal
from pqkeep_gateway.access.trusted_proxies import TrustedProxies
from pqkeep_gateway.api.errors import UNPROCESSABLE_FIELDS
from pqkeep_gateway.http.cookies import ACCESS, Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import method_not_allowed
from pqkeep_gateway.http.responses import request_id_of, send_error, send_redirect
from pqkeep_gateway.people.identity_providers import LIFETIME
from pqkeep_gateway.people.sessions import Sessions
from pqkeep_gateway.people.single_sign_on import CallbackQuery, OperatorSignOn, SingleSignOn
from pqkeep_gateway.people.step_up import StepUpMethod, StepUpMethods
from pqkeep_gateway.storage.identities import Provider, Refusal, RefusedError
from pqkeep_gateway.storage.operators import PERSON_LIFETIME
from pqkeep_gateway.tenancy.operators import OperatorSessions
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.messages import Attribution
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

PORTAL = "/portal"
SIGN_IN = f"{PORTAL}/sign-in"
SSO = f"{PORTAL}/sso"
OPERATOR_SIGN_IN = f"{PORTAL}/operator/sign-in"
OPERATOR_SIGNED_IN = f"{PORTAL}/operator/signed-in"
"""The page after an operator's callback. It opens the next page itself: browsers do not send a new
``SameSite=Strict`` cookie in a redirect that began at another site."""
MAX_NEXT = 512
_PORTAL_PATH = re.compile(r"/portal(/[A-Za-z0-9._~%@:+,=-]+)*/?(\?[A-Za-z0-9._~%@:+,=&/-]*)?")


class ProviderData(Data, frozen=True, kw_only=True):
    """A sign-in provider, at /portal/sso/ and its name."""

    name: str
    label: Annotated[str, Meta(description="The provider's name for people.")]
    for_operators: Annotated[
        bool, Meta(description="Whether it signs in operators instead of a tenant's people.")
    ] = False


class ProvidersData(Data, frozen=True, kw_only=True):
    """The publicly listed providers."""

    providers: tuple[ProviderData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of providers.")]


class StepUpMethodsData(Data, frozen=True, kw_only=True):
    """The person's step-up methods."""

    methods: Annotated[tuple[StepUpMethod, ...], Meta(description="Any one of them is enough.")]
    provider: Annotated[
        str | None, Meta(description="The provider's name, if single-sign-on is a method.")
    ] = None


_PROVIDER = ProviderData(name="example", label="Example Corporation")


def endpoints(providers: Iterable[Provider], methods: StepUpMethods) -> tuple[Endpoint, ...]:
    """Return the endpoints of single sign-on."""
    shown = tuple(
        ProviderData(
            name=provider.name,
            label=provider.label,
            for_operators=bool(provider.operator_roles),
        )
        for provider in providers
        if provider.label
    )
    handlers = _Handlers(ProvidersData(providers=shown, total=len(shown)), methods)
    return (
        Endpoint(
            method="GET",
            path="/auth/providers",
            name="list_providers",
            handler=handlers.list_providers,
            permission=Permission.PUBLIC,
            field_codes=UNPROCESSABLE_FIELDS,
            example=ProvidersData(providers=(_PROVIDER,), total=1),
        ),
        Endpoint(
            method="GET",
            path="/auth/step-up-methods",
            name="list_step_up_methods",
            handler=handlers.list_step_up_methods,
            permission=Permission.OWN_ACCOUNT,
            during_enrollment=True,
            field_codes=UNPROCESSABLE_FIELDS,
            example=StepUpMethodsData(
                methods=(StepUpMethod.SINGLE_SIGN_ON,), provider=_PROVIDER.name
            ),
        ),
    )


class _Handlers:
    """The handlers."""

    def __init__(self, providers: ProvidersData, methods: StepUpMethods) -> None:
        self._providers = providers
        self._methods = methods

    async def list_providers(self, call: ApiCall) -> ProvidersData:
        """List the single sign-on providers for the sign-in page."""
        return self._providers

    async def list_step_up_methods(self, call: ApiCall) -> StepUpMethodsData:
        """List the person's step-up methods.

        A person with an authenticator app has only that method. For single-sign-on, send the
        browser to /portal/sso/ and the provider's name, with step_up=1 in the query. It returns
        with a session that gets one step-up token without a password.
        """
        methods, provider = await self._methods.of(call.person)
        return StepUpMethodsData(methods=methods, provider=provider)


def pages(
    sign_ons: Iterable[SingleSignOn | OperatorSignOn],
    sessions: Sessions,
    operator_sessions: OperatorSessions,
    cookies: Cookies,
    proxies: TrustedProxies,
    base_url: str,
) -> Mapping[str, ASGIApp]:
    """Return the pages /portal/sso/NAME and /portal/sso/NAME/callback of each provider.

    ``base_url``: the address at which browsers reach the gateway.
    """
    found: dict[str, ASGIApp] = {}
    for sign_on in sign_ons:
        path = f"{SSO}/{sign_on.provider.name}"
        redirect_uri = f"{base_url.rstrip('/')}{path}/callback"
        browser: _Browser | _OperatorBrowser
        if isinstance(sign_on, OperatorSignOn):
            browser = _OperatorBrowser(sign_on, operator_sessions, cookies, redirect_uri)
        else:
            browser = _Browser(sign_on, sessions, cookies, redirect_uri)
        found[path] = _Page(browser.begin, browser.sign_in, cookies, proxies)
        found[f"{path}/callback"] = _Page(browser.finish, browser.sign_in, cookies, proxies)
    return found


class _Visit:
    """A browser's request."""

    def __init__(self, scope: Scope, proxies: TrustedProxies, cookies: Cookies) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        peer = scope["client"][0] if scope["client"] else ""
        self.request_id = request_id_of(headers)
        self.source_address = proxies.client_of(peer, scope["headers"]).address
        self.sent_cookies = cookies.read(scope["headers"])
        self.deletions = cookies.deletions(
            self.sent_cookies, headers.get(b"host", b""), scope["path"]
        )
        self.user_agent = headers.get(b"user-agent", b"")
        self.is_cross_site = cookies.is_cross_site("POST", headers)
        self._query: dict[str, list[str]] = parse_qs(
            scope["query_string"].decode("latin-1"), keep_blank_values=True
        )

    def require_cookies_once(self) -> None:
        """Raise RefusedError if one of our cookies occurs twice and cannot be ignored."""
        if self.sent_cookies.refused:
            raise RefusedError(Refusal.COOKIES)

    def __getitem__(self, name: str) -> str:
        """Return a query parameter; empty if missing. Raises RefusedError if it occurs twice."""
        values = self._query.get(name, [""])
        if len(values) > 1:
            raise RefusedError(Refusal.PROVIDER)
        return values[0]


Destination = tuple[str, tuple[str, ...]]
"""The browser's next location, and its cookies."""


class _Page:
    """An ASGI application that always redirects the browser, even after a fault."""

    def __init__(
        self,
        visit: Callable[[_Visit], Awaitable[Destination]],
        sign_in: str,
        cookies: Cookies,
        proxies: TrustedProxies,
    ) -> None:
        self._visit = visit
        self._sign_in = sign_in
        self._cookies = cookies
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        visit = _Visit(scope, self._proxies, self._cookies)
        if scope["method"] != "GET":
            await send_error(send, method_not_allowed("GET"), visit.request_id)
            return
        try:
            visit.require_cookies_once()
            location, cookies = await self._visit(visit)
        except Exception as raised:  # noqa: BLE001 - after a fault the browser is redirected too
            reason = _reason_of(raised)
            if reason is None:
                _LOG.error("request failed", request_id=visit.request_id, exc_info=raised)
            location = f"{self._sign_in}?error={reason or Refusal.UNAVAILABLE}"
            cookies = (*visit.deletions, self._cookies.back_from_provider())
        await send_redirect(send, location, cookies, visit.request_id)


class _Browser:
    """Sends browsers to one provider and receives them back."""

    sign_in = SIGN_IN

    def __init__(
        self, sign_on: SingleSignOn, sessions: Sessions, cookies: Cookies, redirect_uri: str
    ) -> None:
        self._sign_on = sign_on
        self._sessions = sessions
        self._cookies = cookies
        self._redirect_uri = redirect_uri

    async def begin(self, visit: _Visit) -> Destination:
        """Redirect the browser to the provider. Raises RefusedError."""
        stepping_up = None
        if visit["step_up"] == "1":
            access_token = visit.sent_cookies.values.get(ACCESS, "")
            stepping_up = await self._sessions.find(access_token, visit.source_address)
            if stepping_up is None or stepping_up.tenant != self._sign_on.provider.tenant:
                raise RefusedError(Refusal.SIGNED_OUT)
        begun = await self._sign_on.begin(
            portal_path(visit["next"]),
            self._redirect_uri,
            visit.source_address,
            step_up=stepping_up,
        )
        return begun.url, (self._cookies.at_provider(begun.cookie, LIFETIME),)

    async def finish(self, visit: _Visit) -> Destination:
        """Sign the person in, and redirect the browser to its destination. Raises RefusedError."""
        query = CallbackQuery(visit["state"], visit["code"], visit["error"], visit["iss"])
        arrived = await self._sign_on.finish(
            visit.sent_cookies.values.get(self._cookies.single_sign_on, ""),
            query,
            self._redirect_uri,
            Attribution(visit.request_id, "anonymous", visit.source_address),
            visit.user_agent,
        )
        given = (
            (self._cookies.of_reauthentication(arrived.reauthentication),)
            if arrived.tokens is None
            else self._cookies.of(arrived.tokens)
        )
        return arrived.next, (*given, self._cookies.back_from_provider())


class _OperatorBrowser:
    """Sends operators' browsers to one provider and receives them back."""

    sign_in = OPERATOR_SIGN_IN

    def __init__(
        self,
        sign_on: OperatorSignOn,
        sessions: OperatorSessions,
        cookies: Cookies,
        redirect_uri: str,
    ) -> None:
        self._sign_on = sign_on
        self._sessions = sessions
        self._cookies = cookies
        self._redirect_uri = redirect_uri

    async def begin(self, visit: _Visit) -> Destination:
        """Redirect the browser to the provider. Raises RefusedError.

        A page of another site cannot begin it: it would replace the session in this browser.
        """
        if visit.is_cross_site:
            raise RefusedError(Refusal.FROM_ELSEWHERE)
        stepping_up = None
        if visit["step_up"] == "1":
            token = visit.sent_cookies.values.get(self._cookies.operator, "")
            stepping_up = await self._sessions.find(token, visit.source_address)
            if not self._is_ours(stepping_up):
                raise RefusedError(Refusal.SIGNED_OUT)
        begun = await self._sign_on.begin(
            portal_path(visit["next"]),
            self._redirect_uri,
            visit.source_address,
            step_up=stepping_up,
        )
        return begun.url, (self._cookies.at_provider(begun.cookie, LIFETIME),)

    def _is_ours(self, principal: OperatorPrincipal | None) -> bool:
        person = None if principal is None else principal.person
        return person is not None and person.provider == self._sign_on.provider.name

    async def finish(self, visit: _Visit) -> Destination:
        """Sign the operator in, and redirect the browser to its destination. Raises RefusedError."""
        query = CallbackQuery(visit["state"], visit["code"], visit["error"], visit["iss"])
        arrived = await self._sign_on.finish(
            visit.sent_cookies.values.get(self._cookies.single_sign_on, ""),
            query,
            self._redirect_uri,
            Attribution(visit.request_id, "anonymous", visit.source_address),
        )
        back = self._cookies.back_from_provider()
        if arrived.token is None:
            return arrived.next, (self._cookies.of_reauthentication(arrived.reauthentication), back)
        cookies = self._cookies.of_operator(arrived.token, PERSON_LIFETIME)
        return f"{OPERATOR_SIGNED_IN}?{urlencode({'next': arrived.next})}", (*cookies, back)


def portal_path(text: str) -> str:
    """Return a path of the portal as a redirect target; the portal's start page for any other text.

    The path stays on this host, has no dot segments that leave the portal, and begins no sign-in.
    """
    is_path = len(text) <= MAX_NEXT and _PORTAL_PATH.fullmatch(text) is not None
    path = unquote(text.partition("?")[0])
    leaves = {".", ".."} & set(re.split(r"[/\\]", path))
    return text if is_path and not leaves and not f"{path}/".startswith(f"{SSO}/") else PORTAL


def _reason_of(raised: Exception) -> Refusal | None:
    """Return the reason for the sign-in page; None for a defect."""
    match raised:
        case RefusedError():
            return raised.reason
        case TooManyUnknownCredentialsError():
            return Refusal.TOO_MANY
        case UnavailableError():
            return Refusal.UNAVAILABLE
        case _:
            return None
