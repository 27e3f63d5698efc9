"""/api/v1/operators and /auth/operator: operators and their browser sessions."""

from typing import Annotated

from msgspec import Meta

from pqkeep_gateway.access.admission import UnknownCredentialError
from pqkeep_gateway.access.callers import OperatorRole, Permission
from pqkeep_gateway.access.credential_lookups import TooManyUnknownCredentialsError
from pqkeep_gateway.access.principals import OperatorPrincipal
from pqkeep_gateway.api.errors import BAD_REQUEST_FIELDS, UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.people_fields import EXAMPLE_TIME, MAX_TOKEN, SIGNED_OUT
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, WithCookies
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import forbidden
from pqkeep_gateway.http.field import text_field
from pqkeep_gateway.http.text import Timestamp, timestamp
from pqkeep_gateway.storage.operators import SESSION_LIFETIME, Operator
from pqkeep_gateway.tenancy.operators import Operators, OperatorSessions


class OperatorSignedInData(Data, frozen=True, kw_only=True):
    """A new operator session. Its token is in a cookie."""

    name: Annotated[
        str | None,
        Meta(description="null: the operator without a name, from the settings."),
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


def _operator(operator: Operator) -> OperatorData:
    used = operator.last_used_at
    return OperatorData(
        name=operator.name,
        role=operator.role,
        created_at=timestamp(operator.added_at),
        last_used_at=None if used is None else timestamp(used),
        last_used_from=operator.last_used_from,
    )
