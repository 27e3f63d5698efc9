"""Single sign-on by OpenID Connect: the authorization code flow with PKCE.

A started flow is stored in a cookie of its browser, not in the database. State, nonce and PKCE
verifier are derived from the cookie under the pepper. The returned state therefore authenticates the
cookie, and binds it to this browser and this provider. The transaction that signs the person in also
uses up the state.
"""

import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from msgspec import Struct

from pqkeep_gateway.access.clock import Clock, date_of
from pqkeep_gateway.access.credentials import CredentialKind, Pepper, Purpose, new_credential
from pqkeep_gateway.access.principals import (
    OperatorPerson,
    OperatorPrincipal,
    SessionId,
    SessionPrincipal,
)
from pqkeep_gateway.access.rate_limit import MINUTE, Limit
from pqkeep_gateway.access.source_budget import SourceBudget
from pqkeep_gateway.audit_delivery import AuditDelivery
from pqkeep_gateway.audit_events import event
from pqkeep_gateway.people.identity_providers import (
    LIFETIME,
    SKEW_SECONDS,
    Claims,
    InvalidProviderResponseError,
    Metadata,
    verified,
)
from pqkeep_gateway.people.sessions import Sessions, Tokens
from pqkeep_gateway.people.step_up import reauthentication_digest
from pqkeep_gateway.signed_tokens import base64url
from pqkeep_gateway.storage.identities import (
    Arrival,
    Provider,
    Refusal,
    RefusedError,
    SqlIdentities,
    VerifiedPerson,
)
from pqkeep_gateway.storage.operators import UsedState
from pqkeep_gateway.storage.users import Account, AccountChangedError
from pqkeep_gateway.tenancy.operators import OperatorSessions
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit_events import OPERATOR, AuditEvent
from pqkeep_protocol.documents import decode_json
from pqkeep_protocol.keys import INSTALLATION
from pqkeep_protocol.messages import Attribution, RedactedRepr
from pqkeep_protocol.startup.logs import logger

_LOG = logger(__name__)

BEGINNINGS = Limit(120, MINUTE)
"""Flows begun or finished from one address, on each gateway."""
REAUTHENTICATION_LIFETIME = timedelta(minutes=5)
"""The time for one step-up after the provider's callback."""
MAX_COOKIE = 2048
_SECRET_SIZE = 32
_UNRECORDED = frozenset({Refusal.EXPIRED, Refusal.UNAVAILABLE})
"""Refusals before the provider named a person. Recording them would let strangers fill the log."""


class ProviderRequests(NamedTuple):
    """Requests to a provider. Both raise UnavailableError and InvalidProviderResponseError."""

    metadata: Callable[[], Awaitable[Metadata]]
    """Returns the provider's metadata."""
    exchange: Callable[[str, str, str], Awaitable[Claims]]
    """Returns unchecked claims for an authorization code, a verifier and the redirect URI."""


class Beginning(RedactedRepr, Struct, frozen=True):
    """The provider's URL for the browser, and the cookie of the flow."""

    url: str
    cookie: str


class CallbackQuery(RedactedRepr, Struct, frozen=True):
    """The query of the provider's callback. A missing parameter is empty."""

    state: str = ""
    code: str = ""
    error: str = ""
    issuer: str = ""
    """The provider's identifier (RFC 9207)."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """The result of a callback: a new session, or a step-up of an existing one."""

    next: str
    tokens: Tokens | None
    """The new session's tokens; None for a step-up."""
    reauthentication: str = field(default="", repr=False)
    """The token for one step-up, for a cookie; empty for a sign-in."""


@dataclass(frozen=True, slots=True)
class OperatorArrived:
    """The result of an operator's callback: a new session, or a step-up of an existing one."""

    next: str
    token: str | None = field(repr=False)
    """The new session's token; None for a step-up."""
    reauthentication: str = field(default="", repr=False)
    """The token for changes, for a cookie; empty for a sign-in."""


class Started(RedactedRepr, Struct, frozen=True, array_like=True):
    """The content of the cookie."""

    provider: str
    at: int
    """Seconds since 1970, UTC."""
    next: str
    session: str
    """The session that steps up; empty for a sign-in."""
    secret: str


class Flow:
    """The authorization code flow at one provider, up to a verified person.

    Tenants' people and operators sign in by it. All methods raise RefusedError.
    """

    def __init__(
        self,
        provider: Provider,
        requests: ProviderRequests,
        budget: SourceBudget,
        pepper: Pepper,
        clock: Clock,
    ) -> None:
        """Take the budget; all providers share it."""
        self.provider = provider
        self._requests = requests
        self._budget = budget
        self._pepper = pepper
        self._clock = clock

    async def begin(
        self, next_path: str, redirect_uri: str, source_address: str, session: str = ""
    ) -> Beginning:
        """Begin a sign-in, or the step-up of a session."""
        self._count(source_address)
        metadata = await self._metadata()
        started = Started(
            self.provider.name,
            int(self._clock()),
            next_path,
            session,
            _text(secrets.token_bytes(_SECRET_SIZE)),
        )
        cookie = _text(msgspec.json.encode(started))
        parameters = {
            "response_type": "code",
            "client_id": self.provider.client_id,
            "redirect_uri": redirect_uri,
            "scope": " ".join(self.provider.scopes),
            "state": self._derived("state", cookie),
            "nonce": self._derived("nonce", cookie),
            "code_challenge": _text(sha256(self._derived("verifier", cookie).encode()).digest()),
            "code_challenge_method": "S256",
        }
        if session:
            parameters |= {"prompt": "login", "max_age": "0"}
        return Beginning(_with(metadata.authorization_endpoint, parameters), cookie)

    async def returned(
        self, cookie: str, query: CallbackQuery, redirect_uri: str, source_address: str
    ) -> tuple[Started, Claims]:
        """Return the flow that this browser began, and the provider's unchecked claims.

        A refusal is not recorded: strangers could fill the log.
        """
        self._count(source_address)
        return self._started(cookie, query.state), await self._claims(cookie, query, redirect_uri)

    def person(self, started: Started, cookie: str, claims: Claims) -> VerifiedPerson:
        """Return the person in the claims. After a step-up, the provider must have asked again."""
        person = self._verified(claims, self._derived("nonce", cookie), self._clock())
        if started.session and person.authenticated_at < started.at - SKEW_SECONDS:
            raise RefusedError(Refusal.NOT_AGAIN)
        if self.provider.email_domains and person.email is None:
            raise RefusedError(Refusal.EMAIL)
        return person

    def state_digest(self, cookie: str) -> bytes:
        """Return the digest (32 bytes) under which the state is used up."""
        return self._pepper.derive(Purpose.SINGLE_SIGN_ON, b"used", cookie.encode())

    def policy(self, *reason: str) -> str:
        """Return the provider's policy in the audit log, with the reason of a refusal."""
        return "-".join(("provider", self.provider.name, *reason))

    def _started(self, cookie: str, state: str) -> Started:
        """Return the flow that this browser began with this state. Raises RefusedError."""
        is_ours = 0 < len(cookie) <= MAX_COOKIE and hmac.compare_digest(
            self._derived("state", cookie).encode(), state.encode("utf-8", "surrogatepass")
        )
        if not is_ours:
            raise RefusedError(Refusal.EXPIRED)
        started = decode_json(base64url(cookie), Started)
        age = self._clock() - started.at
        if started.provider != self.provider.name or not 0 <= age < LIFETIME.total_seconds():
            raise RefusedError(Refusal.EXPIRED)
        return started

    async def _claims(self, cookie: str, query: CallbackQuery, redirect_uri: str) -> Claims:
        """Return the provider's claims about a person. Raises RefusedError."""
        metadata = await self._metadata()
        names_issuer = query.issuer or metadata.authorization_response_iss_parameter_supported
        if names_issuer and query.issuer != self.provider.issuer:
            raise RefusedError(Refusal.PROVIDER)
        if query.error or not query.code:
            raise RefusedError(Refusal.CANCELLED)
        verifier = self._derived("verifier", cookie)
        try:
            return await self._requests.exchange(query.code, verifier, redirect_uri)
        except InvalidProviderResponseError as error:
            raise self._invalid(error) from None
        except UnavailableError:
            raise RefusedError(Refusal.UNAVAILABLE) from None

    async def _metadata(self) -> Metadata:
        try:
            return await self._requests.metadata()
        except InvalidProviderResponseError as error:
            raise self._invalid(error) from None
        except UnavailableError:
            raise RefusedError(Refusal.UNAVAILABLE) from None

    def _verified(self, claims: Claims, nonce: str, now: float) -> VerifiedPerson:
        try:
            return verified(claims, self.provider, nonce, now)
        except InvalidProviderResponseError as error:
            raise self._invalid(error) from None

    def _invalid(self, error: InvalidProviderResponseError) -> RefusedError:
        _LOG.warning(
            "a provider of single sign-on gave an invalid answer",
            provider=self.provider.name,
            part=str(error),
        )
        return RefusedError(Refusal.PROVIDER)

    def _count(self, source_address: str) -> None:
        if self._budget.spend(source_address) is not None:
            raise RefusedError(Refusal.TOO_MANY)

    def _derived(self, name: str, cookie: str) -> str:
        """Return 43 characters derived from the pepper, the name and the cookie."""
        text = cookie.encode("utf-8", "surrogatepass")
        return _text(self._pepper.derive(Purpose.SINGLE_SIGN_ON, name.encode(), text))


class SingleSignOn:
    """Sign-ins and step-ups of a tenant's people at one provider."""

    def __init__(
        self,
        provider: Provider,
        requests: ProviderRequests,
        store: SqlIdentities,
        sessions: Sessions,
        budget: SourceBudget,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Take the budget; all providers share it."""
        self.provider = provider
        self._flow = Flow(provider, requests, budget, pepper, clock)
        self._store = store
        self._sessions = sessions
        self._pepper = pepper
        self._audit_delivery = audit_delivery
        self._clock = clock

    async def begin(
        self,
        next_path: str,
        redirect_uri: str,
        source_address: str,
        *,
        step_up: SessionPrincipal | None = None,
    ) -> Beginning:
        """Begin a sign-in, or a session's step-up. Raises RefusedError."""
        session = "" if step_up is None else str(step_up.session)
        return await self._flow.begin(next_path, redirect_uri, source_address, session)

    async def finish(
        self,
        cookie: str,
        query: CallbackQuery,
        redirect_uri: str,
        attribution: Attribution,
        user_agent: bytes = b"",
    ) -> Arrived:
        """Sign in the person whom the provider names, or let a session step up once.

        Raises RefusedError. If the provider had named a person, the refusal is recorded first.
        """
        started, claims = await self._flow.returned(
            cookie, query, redirect_uri, attribution.source_address
        )
        try:
            return await self._arrive(started, cookie, claims, attribution, user_agent)
        except RefusedError as refused:
            if refused.reason not in _UNRECORDED:
                await self._record(refused, attribution)
            raise

    async def _arrive(
        self,
        started: Started,
        cookie: str,
        claims: Claims,
        attribution: Attribution,
        user_agent: bytes,
    ) -> Arrived:
        person = self._flow.person(started, cookie, claims)
        arrival = Arrival(
            person,
            self.provider.role_of(person.groups),
            self.provider.creates_members and not started.session,
            self._flow.state_digest(cookie),
            date_of(started.at) + LIFETIME,
            date_of(self._clock()),
            attribution,
        )
        try:
            account = await self._store.admit(arrival, self.provider)
            await self._audit_delivery.deliver()
            if not started.session:
                tokens = await self._session_of(account, attribution, user_agent)
                return Arrived(started.next, tokens)
            token = await self._reauthenticate(
                SessionId(UUID(started.session)), account, attribution
            )
        except AccountChangedError:
            raise RefusedError(Refusal.EXPIRED) from None
        except UnavailableError:
            raise RefusedError(Refusal.UNAVAILABLE) from None
        return Arrived(started.next, None, token)

    async def _session_of(
        self, account: Account, attribution: Attribution, user_agent: bytes
    ) -> Tokens:
        """Begin a session. The provider is responsible for a second factor."""
        return await self._sessions.begin(
            account,
            attribution,
            used_second_factor=True,
            user_agent=user_agent,
            signed_in=(AuditEvent.SINGLE_SIGN_ON, self._flow.policy()),
        )

    async def _reauthenticate(
        self, session: SessionId, account: Account, attribution: Attribution
    ) -> str:
        user = account.user
        token = new_credential(CredentialKind.REAUTHENTICATION)
        until = date_of(self._clock()) + REAUTHENTICATION_LIFETIME
        digest = reauthentication_digest(self._pepper, session, user.id, until, token)
        again = event(
            attribution.by(str(user)),
            user.tenant,
            AuditEvent.REAUTHENTICATE,
            policy=self._flow.policy(),
        )
        if not await self._store.save_reauthentication(session, user.id, digest, until, again):
            raise RefusedError(Refusal.OTHER_PERSON, user.id)
        await self._audit_delivery.deliver()
        return token

    async def _record(self, refused: RefusedError, attribution: Attribution) -> None:
        who = attribution if refused.user is None else attribution.by(f"user:{refused.user}")
        failed = event(
            who,
            self.provider.tenant,
            AuditEvent.SINGLE_SIGN_ON,
            outcome="ERR_FORBIDDEN_001",
            policy=self._flow.policy(refused.reason),
        )
        try:
            await self._audit_delivery.record(failed)
        except UnavailableError:
            raise RefusedError(Refusal.UNAVAILABLE) from None


class OperatorSignOn:
    """Sign-ins and step-ups of operators at one provider."""

    def __init__(
        self,
        provider: Provider,
        requests: ProviderRequests,
        sessions: OperatorSessions,
        budget: SourceBudget,
        pepper: Pepper,
        audit_delivery: AuditDelivery,
        clock: Clock,
    ) -> None:
        """Take the budget; all providers share it."""
        self.provider = provider
        self._flow = Flow(provider, requests, budget, pepper, clock)
        self._sessions = sessions
        self._audit_delivery = audit_delivery

    async def begin(
        self,
        next_path: str,
        redirect_uri: str,
        source_address: str,
        *,
        step_up: OperatorPrincipal | None = None,
    ) -> Beginning:
        """Begin a sign-in, or a session's step-up. Raises RefusedError."""
        session = "" if step_up is None else step_up.session.hex()
        return await self._flow.begin(next_path, redirect_uri, source_address, session)

    async def finish(
        self, cookie: str, query: CallbackQuery, redirect_uri: str, attribution: Attribution
    ) -> OperatorArrived:
        """Sign in the person whom the provider names, or let their session make changes.

        Raises RefusedError. If the provider had named a person, the refusal is recorded first.
        """
        started, claims = await self._flow.returned(
            cookie, query, redirect_uri, attribution.source_address
        )
        named: list[OperatorPerson] = []
        try:
            return await self._arrive(started, cookie, claims, attribution, named)
        except UnavailableError:
            raise RefusedError(Refusal.UNAVAILABLE) from None
        except RefusedError as refused:
            if refused.reason not in _UNRECORDED:
                await self._record(refused, named, attribution)
            raise

    async def _arrive(
        self,
        started: Started,
        cookie: str,
        claims: Claims,
        attribution: Attribution,
        named: list[OperatorPerson],
    ) -> OperatorArrived:
        verified_person = self._flow.person(started, cookie, claims)
        person = OperatorPerson(
            self.provider.name, verified_person.identity.subject, verified_person.email
        )
        named.append(person)
        role = self.provider.operator_role_of(verified_person.groups)
        if role is None:
            await self._sessions.end_of_person(person)
            raise RefusedError(Refusal.NO_ROLE if verified_person.groups else Refusal.NO_GROUPS)
        state = UsedState(self._flow.state_digest(cookie), date_of(started.at) + LIFETIME)
        principal = OperatorPrincipal(None, is_read_only=True, role=role, person=person)
        if not started.session:
            token = await self._sessions.begin_of_person(
                principal, self.provider, state, attribution
            )
            return OperatorArrived(started.next, token)
        session = bytes.fromhex(started.session)
        again = event(
            attribution.by(str(principal)),
            INSTALLATION,
            AuditEvent.REAUTHENTICATE,
            policy=self._flow.policy(),
        )
        proof = await self._sessions.reauthenticate(session, principal, state, again)
        if proof is None:
            raise RefusedError(Refusal.OTHER_PERSON)
        return OperatorArrived(started.next, None, proof)

    async def _record(
        self, refused: RefusedError, named: list[OperatorPerson], attribution: Attribution
    ) -> None:
        who = attribution.by(f"{OPERATOR}{named[0]}") if named else attribution
        failed = event(
            who,
            INSTALLATION,
            AuditEvent.OPERATOR_SIGN_IN,
            outcome="ERR_FORBIDDEN_001",
            policy=self._flow.policy(refused.reason),
        )
        try:
            await self._audit_delivery.record(failed)
        except UnavailableError:
            raise RefusedError(Refusal.UNAVAILABLE) from None


def _with(url: str, parameters: Mapping[str, str]) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode(parameters)}"


def _text(value: bytes) -> str:
    return urlsafe_b64encode(value).decode().rstrip("=")
