"""/api/v1/auth: signing in and out, one's sessions, one's password, and oneself."""

import uuid
from collections.abc import Mapping

from msgspec import structs

from pqkeep_gateway.access.principals import SessionId, SessionPrincipal
from pqkeep_gateway.access.roles import Permission
from pqkeep_gateway.api.mail import require_mail
from pqkeep_gateway.api.person_data import (
    EMAIL,
    MAX_TOKEN,
    NEW_PASSWORD,
    OTHER_PASSWORD,
    PASSWORD,
    SESSION,
    SIGNED_IN,
    SIGNED_OUT,
    USER,
    SessionData,
    SessionsData,
    SignedOutData,
    UserData,
    invalid_field,
    text_in,
    token_parameter,
    user_data,
)
from pqkeep_gateway.http.about import About, Caller, Parameter
from pqkeep_gateway.http.cookies import REFRESH, Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, WithCookies, person_of
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.http.text import timestamp
from pqkeep_gateway.mail.addresses import MAX_EMAIL
from pqkeep_gateway.people.email_codes import EmailCodes
from pqkeep_gateway.people.passwords import MAX_LENGTH, InvalidPasswordError
from pqkeep_gateway.people.second_factors import SecondFactorRequiredError
from pqkeep_gateway.people.sessions import NoSessionError, Session, Sessions
from pqkeep_gateway.people.sign_in import InvalidInvitationTokenError, SignIn, WrongPasswordError
from pqkeep_gateway.people.users import EmailTakenError, UserStore
from pqkeep_protocol.audit_events import AuditEvent

TRIED = frozenset({Code.AUTH_001, Code.RATE_LIMIT_001, Code.FORBIDDEN_001})
"""What whoever shows a password or a token can hear."""

_TOKEN = token_parameter("The invitation's token.", "pqi_")
_EMAIL_CODES = Parameter(
    "email_codes",
    "Whether a code is sent at each sign-in, without an app.",
    {"type": "boolean"},
    example=True,
    codes=(Code.UNPROCESSABLE,),
)
_ID = Parameter(
    "id",
    "The session's identifier.",
    {"type": "string", "format": "uuid"},
    SESSION.id,
    codes=(Code.NOT_FOUND_001,),
)


def endpoints(
    sign_in: SignIn,
    sessions: Sessions,
    users: UserStore,
    codes: EmailCodes,
    cookies: Cookies,
    *,
    sends_mail: bool,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of people's own accounts."""
    auth = _Auth(sign_in, sessions, users, codes, cookies, sends_mail=sends_mail)
    return (
        Endpoint(
            "POST",
            "/auth/login",
            auth.login,
            takes_body=True,
            open_to_anyone=True,
            about=About(
                name="login",
                caller=Caller.ANYONE,
                parameters=(EMAIL, PASSWORD),
                example=SIGNED_IN,
                codes=TRIED | {Code.AUTH_MFA_001},
            ),
        ),
        Endpoint(
            "POST",
            "/auth/accept-invitation",
            auth.accept,
            201,
            takes_body=True,
            open_to_anyone=True,
            about=About(
                name="accept_invitation",
                caller=Caller.ANYONE,
                parameters=(_TOKEN, NEW_PASSWORD),
                example=USER,
                codes=TRIED | {Code.CONFLICT_001},
            ),
        ),
        Endpoint(
            "POST",
            "/auth/refresh",
            auth.refresh,
            open_to_anyone=True,
            about=About(name="refresh", caller=Caller.ANYONE, example=SIGNED_IN, codes=TRIED),
        ),
        Endpoint(
            "POST",
            "/auth/logout",
            auth.logout,
            is_for_enrolling=True,
            permission=Permission.OWN_ACCOUNT,
            about=About(name="logout", caller=Caller.PERSON, example=SIGNED_OUT),
        ),
        Endpoint(
            "GET",
            "/auth/me",
            auth.me,
            is_for_enrolling=True,
            permission=Permission.OWN_ACCOUNT,
            about=About(name="me", caller=Caller.PERSON, example=USER),
        ),
        Endpoint(
            "PATCH",
            "/auth/me",
            auth.change_me,
            takes_body=True,
            needs_step_up=True,
            permission=Permission.OWN_ACCOUNT,
            about=About(
                name="change_me",
                caller=Caller.PERSON,
                parameters=(_EMAIL_CODES,),
                example=structs.replace(USER, email_codes=True),
            ),
        ),
        Endpoint(
            "GET",
            "/auth/sessions",
            auth.list_sessions,
            permission=Permission.OWN_ACCOUNT,
            about=About(
                name="list_sessions",
                caller=Caller.PERSON,
                example=SessionsData(sessions=(SESSION,), total=1),
            ),
        ),
        Endpoint(
            "DELETE",
            "/auth/sessions/{id}",
            auth.end_session,
            permission=Permission.OWN_ACCOUNT,
            about=About(
                name="end_session", caller=Caller.PERSON, parameters=(_ID,), example=SIGNED_OUT
            ),
        ),
        Endpoint(
            "POST",
            "/auth/change-password",
            auth.change_password,
            takes_body=True,
            needs_step_up=True,
            permission=Permission.OWN_ACCOUNT,
            about=About(
                name="change_password",
                caller=Caller.PERSON,
                parameters=(OTHER_PASSWORD,),
                example=SIGNED_OUT,
            ),
        ),
    )


class _Auth:
    """What the endpoints do."""

    def __init__(
        self,
        sign_in: SignIn,
        sessions: Sessions,
        users: UserStore,
        codes: EmailCodes,
        cookies: Cookies,
        *,
        sends_mail: bool,
    ) -> None:
        self._entry = sign_in
        self._sessions = sessions
        self._users = users
        self._codes = codes
        self._sends_mail = sends_mail
        self._cookies = cookies

    async def login(self, call: ApiCall) -> WithCookies:
        """Sign in. The session's tokens come as cookies.

        Whoever owes a code too hears 401 ERR_AUTH_MFA_001 with error.challenge_token, and in
        error.second_factor whether it is the app's or comes by e-mail, when /auth/mfa/email asks.
        Whether there is nobody with the address, or the password is another: it is the same 401.
        """
        email = text_in(call.body, "email", MAX_EMAIL)
        password = text_in(call.body, "password", MAX_LENGTH)
        try:
            tokens = await self._entry.sign_in(email, password, call.attribution)
        except WrongPasswordError:
            raise ApiError(Code.AUTH_001, "wrong e-mail address or password") from None
        except SecondFactorRequiredError as challenge:
            raise ApiError(
                Code.AUTH_MFA_001,
                "a code is needed too",
                challenge=(challenge.token, challenge.factor),
            ) from None
        return WithCookies(SIGNED_IN, self._cookies.of(tokens))

    async def accept(self, call: ApiCall) -> WithCookies:
        """Accept an invitation with a password of one's own, and be signed in."""
        token = text_in(call.body, "token", MAX_TOKEN)
        password = text_in(call.body, "password", MAX_LENGTH)
        try:
            user, tokens = await self._entry.accept(token, password, call.attribution)
        except InvalidInvitationTokenError:
            raise ApiError(Code.AUTH_001, "no such invitation, or it is over", "token") from None
        except InvalidPasswordError as problem:
            raise invalid_field("password", str(problem)) from None
        except EmailTakenError:
            raise ApiError(Code.CONFLICT_001, "somebody has this e-mail address", "email") from None
        return WithCookies(user_data(user), self._cookies.of(tokens))

    async def refresh(self, call: ApiCall) -> WithCookies:
        """Exchange the refresh token, which is in its cookie, for new tokens: once.

        A token that comes a second time has been copied, and ends the session.
        """
        try:
            tokens = await self._sessions.refresh(call.cookies.get(REFRESH, ""), call.attribution)
        except NoSessionError:
            raise ApiError(Code.AUTH_001, "the session is over; sign in again") from None
        return WithCookies(SIGNED_IN, self._cookies.of(tokens))

    async def logout(self, call: ApiCall) -> WithCookies:
        """End the session that asks."""
        person = person_of(call)
        await self._end(call, person.session, AuditEvent.SIGN_OUT)
        return WithCookies(SIGNED_OUT, self._cookies.gone())

    async def me(self, call: ApiCall) -> UserData:
        """Tell who is signed in."""
        return await self._me(person_of(call))

    async def change_me(self, call: ApiCall) -> UserData:
        """Have a code sent at each sign-in, or no longer.

        An authenticator app goes before: whoever has one is asked for its code.
        """
        person, wanted = person_of(call), call.body.get("email_codes")
        if not isinstance(wanted, bool):
            raise invalid_field("email_codes", "must be true or false")
        if wanted:
            require_mail(sends_mail=self._sends_mail)
        await self._codes.choose(person, call.attribution, wanted=wanted)
        return await self._me(person)

    async def list_sessions(self, call: ApiCall) -> SessionsData:
        """List one's sessions, the newest first."""
        person = person_of(call)
        listed = await self._sessions.list(person.user)
        shown = tuple(_session(each, person.session) for each in listed)
        return SessionsData(sessions=shown, total=len(shown))

    async def end_session(self, call: ApiCall) -> SignedOutData:
        """End one of one's sessions, at once."""
        await self._end(call, _session_id(call.path), AuditEvent.END_SESSION)
        return SIGNED_OUT

    async def change_password(self, call: ApiCall) -> WithCookies:
        """Take another password. Every session is over then, the one that asks too."""
        person = person_of(call)
        new = text_in(call.body, "new_password", MAX_LENGTH)
        try:
            await self._entry.change_password(person, new, call.attribution)
        except InvalidPasswordError as problem:
            raise invalid_field("new_password", str(problem)) from None
        return WithCookies(SIGNED_OUT, self._cookies.gone())

    async def _me(self, person: SessionPrincipal) -> UserData:
        account = await self._users.get(person.user)
        return structs.replace(
            user_data(account.user),
            mfa_enabled=account.has_mfa,
            email_codes=account.email_codes,
        )

    async def _end(self, call: ApiCall, session: SessionId, operation: AuditEvent) -> None:
        try:
            await self._sessions.end(person_of(call), session, call.attribution, operation)
        except NoSessionError:
            raise _no_session() from None


def _session(session: Session, current: SessionId) -> SessionData:
    return SessionData(
        id=str(session.id),
        created_at=timestamp(session.created_at),
        refreshed_at=timestamp(session.refreshed_at),
        source_address=session.source_address,
        current=session.id == current,
    )


def _session_id(path: Mapping[str, str]) -> SessionId:
    try:
        return SessionId(uuid.UUID(path["id"]))
    except ValueError:
        raise _no_session() from None


def _no_session() -> ApiError:
    return ApiError(Code.NOT_FOUND_001, "no such session", "id")
