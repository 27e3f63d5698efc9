"""/api/v1/operators and /auth/operator: operators and their browser sessions."""

from typing import Annotated
from uuid import UUID

from msgspec import Meta

from pqkeep_gateway.access.admission import UnknownCredentialError
from pqkeep_gateway.access.callers import OperatorRole, Permission
from pqkeep_gateway.access.credential_lookups import TooManyUnknownCredentialsError
from pqkeep_gateway.access.principals import OperatorPrincipal
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS, UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.people_fields import (
    EXAMPLE_TIME,
    MAX_TOKEN,
    SIGNED_OUT,
    Identifier,
    SignedOutData,
)
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, WithCookies
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import forbidden
from pqkeep_gateway.http.field import text_field, uuid_field
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.storage.operators import SESSION_LIFETIME, Operator, OperatorSession
from pqkeep_gateway.storage.sessions import SessionNotFoundError
from pqkeep_gateway.tenancy.operators import Operators, OperatorSessions


class OperatorSignedInData(Data, frozen=True, kw_only=True):
    """A new operator session. Its token is in a cookie."""

    name: Annotated[
        str | None,
        Meta(
            description="The operator's name; null: the operator without a name, from the settings."
        ),
    ]
    role: OperatorRole
    expires_in: Annotated[int, Meta(ge=1, description="The session's longest duration in seconds.")]


class OwnOperatorData(Data, frozen=True, kw_only=True):
    """The calling operator."""

    name: Annotated[
        str | None,
        Meta(description="null: a person, or the operator without a name, from the settings."),
    ]
    role: OperatorRole
    principal: Annotated[str, Meta(description="The operator in the audit log.")]
    provider: Annotated[
        str | None,
        Meta(description="The provider at which the person has signed in; null for a credential."),
    ]
    email: Annotated[str | None, Meta(description="The address that the provider vouches for.")]


class OperatorSessionData(Data, frozen=True, kw_only=True):
    """One browser session of an operator."""

    id: Identifier
    principal: Annotated[str, Meta(description="The operator in the audit log.")]
    role: OperatorRole
    email: Annotated[str | None, Meta(description="The address that the provider vouches for.")]
    created_at: Timestamp
    last_seen_at: Annotated[
        Timestamp, Meta(description="The last request. Updated within a minute.")
    ]
    expires_at: Annotated[
        Timestamp, Meta(description="The latest end of the session, however much it is used.")
    ]
    source_address: Annotated[str, Meta(description="The source address of the sign-in.")]
    current: Annotated[bool, Meta(description="Whether it is the calling session.")]


class OperatorSessionsData(Data, frozen=True, kw_only=True):
    """The browser sessions of all operators, the newest first."""

    sessions: tuple[OperatorSessionData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of sessions.")]


class OperatorData(Data, frozen=True, kw_only=True):
    """One operator."""

    name: str
    role: OperatorRole
    created_at: Timestamp
    last_used_at: Annotated[
        Timestamp | None,
        Meta(description="The last use of the credential. Updated within 30 seconds."),
    ]
    last_used_from: Annotated[str | None, Meta(description="The source address of the last use.")]


class OperatorsData(Data, frozen=True, kw_only=True):
    """The named operators, by name."""

    operators: tuple[OperatorData, ...]
    total: Annotated[int, Meta(ge=0, description="The number of operators.")]


_OPERATOR_KEY = text_field(
    "operator_key",
    "The operator's credential.",
    "pqo_" + "0" * 43 + "3aXb2c",
    at_most=MAX_TOKEN,
    is_valid=None,
)
_EXAMPLE = OperatorData(
    name="ada",
    role=OperatorRole.ADMIN,
    created_at=EXAMPLE_TIME,
    last_used_at=EXAMPLE_TIME,
    last_used_from="192.0.2.7",
)
_SESSION = OperatorSessionData(
    id="c1f1cbd4-7a39-4f9e-8f7e-5b0c3f6a9d21",
    principal="operator:corp:00u1a2b3/tenant-admin",
    role=OperatorRole.TENANT_ADMIN,
    email="ada@example.com",
    created_at=EXAMPLE_TIME,
    last_seen_at=EXAMPLE_TIME,
    expires_at=EXAMPLE_TIME,
    source_address="192.0.2.7",
    current=False,
)
_SESSION_ID = uuid_field(
    "session", "The session's identifier.", _SESSION.id, not_found="no such session"
)
_LIFETIME_SECONDS = int(SESSION_LIFETIME.total_seconds())


def endpoints(
    operators: Operators, sessions: OperatorSessions, cookies: Cookies
) -> tuple[Endpoint, ...]:
    """Return the endpoints of operators."""
    handlers = _Operators(operators, sessions, cookies)
    return (
        Endpoint(
            method="POST",
            path="/auth/operator",
            name="operator_login",
            handler=handlers.login,
            permission=Permission.PUBLIC,
            fields=(_OPERATOR_KEY,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=OperatorSignedInData(
                name="ada", role=OperatorRole.ADMIN, expires_in=_LIFETIME_SECONDS
            ),
            errors=(UnknownCredentialError, TooManyUnknownCredentialsError),
        ),
        Endpoint(
            method="POST",
            path="/auth/operator/logout",
            name="operator_logout",
            handler=handlers.logout,
            permission=Permission.PUBLIC,
            field_codes=UNPROCESSABLE_FIELDS,
            example=SIGNED_OUT,
            errors=(TooManyUnknownCredentialsError,),
        ),
        Endpoint(
            method="GET",
            path="/auth/operator",
            name="operator_me",
            handler=handlers.me,
            permission=Permission.OWN_OPERATOR,
            field_codes=UNPROCESSABLE_FIELDS,
            example=OwnOperatorData(
                name=None,
                role=OperatorRole.TENANT_ADMIN,
                principal="operator:corp:00u1a2b3/tenant-admin",
                provider="corp",
                email="ada@example.com",
            ),
        ),
        Endpoint(
            method="GET",
            path="/operators",
            name="list_operators",
            handler=handlers.list_operators,
            permission=Permission.VIEW_INSTALLATION,
            field_codes=BAD_REQUEST_FIELDS,
            example=OperatorsData(operators=(_EXAMPLE,), total=1),
        ),
        Endpoint(
            method="GET",
            path="/operators/sessions",
            name="list_operator_sessions",
            handler=handlers.list_sessions,
            permission=Permission.VIEW_INSTALLATION,
            field_codes=BAD_REQUEST_FIELDS,
            example=OperatorSessionsData(sessions=(_SESSION,), total=1),
        ),
        Endpoint(
            method="DELETE",
            path="/operators/sessions/{session}",
            name="end_operator_session",
            handler=handlers.end_session,
            permission=Permission.MANAGE_OPERATORS,
            fields=(_SESSION_ID,),
            field_codes=BAD_REQUEST_FIELDS,
            example=SIGNED_OUT,
            errors=(SessionNotFoundError,),
        ),
    )


class _Operators:
    """The handlers."""

    def __init__(self, operators: Operators, sessions: OperatorSessions, cookies: Cookies) -> None:
        self._operators = operators
        self._sessions = sessions
        self._cookies = cookies

    async def login(self, call: ApiCall) -> WithCookies:
        """Begin an operator's browser session, so that the browser need not keep the credential.

        The session can only read. A request that changes something gets 401 ERR_MFA_013 and needs
        the credential in X-API-Key. People of a provider sign in at /portal/sso/ and its name
        instead. Their changes need a new sign-in there. The session ends after eight hours, after half an hour without
        a request, and with the credential. A person's session in the same browser ends.
        """
        principal, token = await self._sessions.begin(call[_OPERATOR_KEY], call.attribution)
        data = OperatorSignedInData(
            name=principal.name, role=principal.role, expires_in=_LIFETIME_SECONDS
        )
        return WithCookies(data, self._cookies.of_operator(token))

    async def logout(self, call: ApiCall) -> WithCookies:
        """End the operator session in the cookie. The request may be repeated."""
        await self._sessions.end(call.cookies.get(self._cookies.operator, ""), call.attribution)
        return WithCookies(SIGNED_OUT, self._cookies.operator_gone())

    async def me(self, call: ApiCall) -> OwnOperatorData:
        """Return the calling operator: the name, the role, and where the person signed in."""
        principal = call.principal
        if not isinstance(principal, OperatorPrincipal):
            raise forbidden("only operators may do this")
        person = principal.person
        return OwnOperatorData(
            name=principal.name,
            role=principal.role,
            principal=str(principal),
            provider=None if person is None else person.provider,
            email=None if person is None else person.email,
        )

    async def list_operators(self, call: ApiCall) -> OperatorsData:
        """List the named operators. pqkeepd operator adds and removes them."""
        listed = await self._operators.list()
        return OperatorsData(
            operators=tuple(_operator(operator) for operator in listed), total=len(listed)
        )

    async def list_sessions(self, call: ApiCall) -> OperatorSessionsData:
        """List the browser sessions of all operators, the newest first."""
        principal = call.principal
        own = principal.session if isinstance(principal, OperatorPrincipal) else b""
        sessions = tuple(
            _session(identifier, session, is_current=session.digest == own)
            for identifier, session in await self._sessions.list()
        )
        return OperatorSessionsData(sessions=sessions, total=len(sessions))

    async def end_session(self, call: ApiCall) -> SignedOutData:
        """End a browser session of an operator. It is refused from its next request on."""
        await self._sessions.end_listed(call[_SESSION_ID], call.attribution)
        return SIGNED_OUT


def _session(
    identifier: UUID, session: OperatorSession, *, is_current: bool
) -> OperatorSessionData:
    operator = session.operator or OperatorPrincipal()
    return OperatorSessionData(
        id=str(identifier),
        principal=str(operator),
        role=operator.role,
        email=None if operator.person is None else operator.person.email,
        created_at=timestamp(session.created_at),
        last_seen_at=timestamp(session.last_seen_at),
        expires_at=timestamp(session.created_at + session.lifetime),
        source_address=session.source_address,
        current=is_current,
    )


def _operator(operator: Operator) -> OperatorData:
    used = operator.last_used_at
    return OperatorData(
        name=operator.name,
        role=operator.role,
        created_at=timestamp(operator.added_at),
        last_used_at=None if used is None else timestamp(used),
        last_used_from=operator.last_used_from,
    )
