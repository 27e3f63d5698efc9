"""/api/v1/auth: signing in and out, sessions, passwords, and the own account."""

from typing import cast

from msgspec import structs

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.credential_lookups import TooManyUnknownCredentialsError
from pqkeep_gateway.access.principals import SessionId, SessionPrincipal
from pqkeep_gateway.access.rate_limit import TooManyAttemptsError
from pqkeep_gateway.api.errors import UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.people_fields import (
    AFTER,
    NEW_PASSWORD,
    OTHER_PASSWORD,
    PASSWORD,
    SESSION,
    SIGN_IN_EMAIL,
    SIGNED_IN,
    SIGNED_OUT,
    USER,
    FirstDayData,
    SessionData,
    SessionsData,
    SignedOutData,
    UserData,
    next_of,
    part_of,
    token_field,
    user_data,
)
from pqkeep_gateway.delivery.mail_delivery import MailDisabledError
from pqkeep_gateway.http.cookies import REFRESH, Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, WithCookies
from pqkeep_gateway.http.field import DETAILS, LIST_LIMIT, Field, boolean_field, uuid_field
from pqkeep_gateway.http.text import timestamp
from pqkeep_gateway.people.challenges import EmailCodes, SecondFactorRequiredError
from pqkeep_gateway.people.invitations import Invitations
from pqkeep_gateway.people.passwords import (
    InvalidPasswordError,
    PasswordChange,
    PasswordsDisabledError,
)
from pqkeep_gateway.people.sessions import Sessions, client_name
from pqkeep_gateway.people.sign_in import SignIn, WrongPasswordError
from pqkeep_gateway.storage.invitations import InvalidInvitationTokenError
from pqkeep_gateway.storage.pages import PositionNotFoundError
from pqkeep_gateway.storage.sessions import InvalidRefreshTokenError, Session, SessionNotFoundError
from pqkeep_gateway.storage.users import Account, EmailTakenError, SqlUsers
from pqkeep_protocol.audit_events import AuditEvent

_TOKEN = token_field("The invitation's token.", "pqi_")
_EMAIL_CODES = boolean_field(
    "email_codes", "Whether each sign-in without an app sends a code by e-mail.", example=True
)
_DISMISSED = boolean_field(
    "dismissed", "Whether the overview leaves out the list of the first day.", example=True
).optional()
_CHECKPOINT_KEPT = boolean_field(
    "checkpoint_kept", "Whether a checkpoint of the audit log is kept elsewhere.", example=True
).optional()
_FIRST_DAY = FirstDayData(dismissed=True, checkpoint_kept=True)
_DETAILS = DETAILS.described("Whether to include the client that began each session.")
_ID = cast(
    "Field[SessionId]",
    uuid_field("id", "The session's identifier.", SESSION.id, not_found="no such session"),
)


def endpoints(
    sign_in: SignIn,
    invitations: Invitations,
    password_change: PasswordChange,
    sessions: Sessions,
    users: SqlUsers,
    codes: EmailCodes,
    cookies: Cookies,
    *,
    sends_mail: bool,
) -> tuple[Endpoint, ...]:
    """Return the endpoints for people's own accounts."""
    handlers = _SignIn(
        sign_in,
        invitations,
        password_change,
        sessions,
        users,
        codes,
        cookies,
        sends_mail=sends_mail,
    )
    return (
        Endpoint(
            method="POST",
            path="/auth/login",
            name="login",
            handler=handlers.login,
            permission=Permission.PUBLIC,
            fields=(SIGN_IN_EMAIL, PASSWORD),
            field_codes=UNPROCESSABLE_FIELDS,
            example=SIGNED_IN,
            errors=(WrongPasswordError, SecondFactorRequiredError, TooManyAttemptsError),
        ),
        Endpoint(
            method="POST",
            path="/auth/accept-invitation",
            name="accept_invitation",
            handler=handlers.accept,
            permission=Permission.PUBLIC,
            fields=(_TOKEN, NEW_PASSWORD),
            field_codes=UNPROCESSABLE_FIELDS,
            example=USER,
            status=201,
            errors=(
                InvalidInvitationTokenError,
                TooManyUnknownCredentialsError,
                InvalidPasswordError,
                EmailTakenError,
                PasswordsDisabledError,
            ),
        ),
        Endpoint(
            method="POST",
            path="/auth/refresh",
            name="refresh",
            handler=handlers.refresh,
            permission=Permission.PUBLIC,
            field_codes=UNPROCESSABLE_FIELDS,
            example=SIGNED_IN,
            errors=(
                InvalidRefreshTokenError,
                TooManyAttemptsError,
                TooManyUnknownCredentialsError,
            ),
        ),
        Endpoint(
            method="POST",
            path="/auth/logout",
            name="logout",
            handler=handlers.logout,
            permission=Permission.OWN_ACCOUNT,
            during_enrollment=True,
            field_codes=UNPROCESSABLE_FIELDS,
            example=SIGNED_OUT,
        ),
        Endpoint(
            method="GET",
            path="/auth/me",
            name="me",
            handler=handlers.me,
            permission=Permission.OWN_ACCOUNT,
            during_enrollment=True,
            field_codes=UNPROCESSABLE_FIELDS,
            example=structs.replace(USER, first_day=_FIRST_DAY),
        ),
        Endpoint(
            method="PATCH",
            path="/auth/me",
            name="change_me",
            handler=handlers.change_me,
            permission=Permission.OWN_ACCOUNT,
            needs_step_up=True,
            fields=(_EMAIL_CODES,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=structs.replace(USER, email_codes=True),
            errors=(MailDisabledError,),
        ),
        Endpoint(
            method="PATCH",
            path="/auth/me/first-day",
            name="change_first_day",
            handler=handlers.change_first_day,
            permission=Permission.OWN_ACCOUNT,
            fields=(_DISMISSED, _CHECKPOINT_KEPT),
            field_codes=UNPROCESSABLE_FIELDS,
            example=_FIRST_DAY,
        ),
        Endpoint(
            method="GET",
            path="/auth/sessions",
            name="list_sessions",
            handler=handlers.list_sessions,
            permission=Permission.OWN_ACCOUNT,
            fields=(_DETAILS, LIST_LIMIT, AFTER),
            field_codes=UNPROCESSABLE_FIELDS,
            example=SessionsData(sessions=(SESSION,), total=1),
            errors=(PositionNotFoundError,),
        ),
        Endpoint(
            method="DELETE",
            path="/auth/sessions/{id}",
            name="end_session",
            handler=handlers.end_session,
            permission=Permission.OWN_ACCOUNT,
            fields=(_ID,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=SIGNED_OUT,
            errors=(SessionNotFoundError,),
        ),
        Endpoint(
            method="POST",
            path="/auth/change-password",
            name="change_password",
            handler=handlers.change_password,
            permission=Permission.OWN_ACCOUNT,
            needs_step_up=True,
            fields=(OTHER_PASSWORD,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=SIGNED_OUT,
            errors=(InvalidPasswordError, PasswordsDisabledError),
        ),
    )


class _SignIn:
    """The handlers."""

    def __init__(
        self,
        sign_in: SignIn,
        invitations: Invitations,
        password_change: PasswordChange,
        sessions: Sessions,
        users: SqlUsers,
        codes: EmailCodes,
        cookies: Cookies,
        *,
        sends_mail: bool,
    ) -> None:
        self._sign_in = sign_in
        self._invitations = invitations
        self._password_change = password_change
        self._sessions = sessions
        self._users = users
        self._codes = codes
        self._sends_mail = sends_mail
        self._cookies = cookies

    async def login(self, call: ApiCall) -> WithCookies:
        """Sign in. The session's tokens are in cookies.

        If a second factor is required, the response is 401 ERR_AUTH_MFA_001 with
        error.challenge_token. error.second_factor names the factor: the app, or a code by e-mail
        from /auth/mfa/email. An unknown address and a wrong password get the same 401.
        """
        tokens = await self._sign_in.with_password(
            call[SIGN_IN_EMAIL], call[PASSWORD], call.attribution, call.user_agent
        )
        return WithCookies(SIGNED_IN, self._cookies.of(tokens))

    async def accept(self, call: ApiCall) -> WithCookies:
        """Accept an invitation with a new password, and sign in."""
        user, tokens = await self._invitations.accept(
            call[_TOKEN], call[NEW_PASSWORD], call.attribution, call.user_agent
        )
        return WithCookies(user_data(user), self._cookies.of(tokens))

    async def refresh(self, call: ApiCall) -> WithCookies:
        """Exchange the refresh token in its cookie for new tokens, once.

        Within ten seconds the same client gets the same response again. Any other second use means
        that the token was copied, and ends the session.
        """
        tokens = await self._sessions.refresh(
            call.cookies.get(REFRESH, ""), call.user_agent, call.attribution
        )
        return WithCookies(SIGNED_IN, self._cookies.of(tokens))

    async def logout(self, call: ApiCall) -> WithCookies:
        """End the current session."""
        person = call.person
        await self._sessions.end(person, person.session, call.attribution, AuditEvent.SIGN_OUT)
        return WithCookies(SIGNED_OUT, self._cookies.gone())

    async def me(self, call: ApiCall) -> UserData:
        """Return the signed-in person."""
        return await self._me(call.person)

    async def change_me(self, call: ApiCall) -> UserData:
        """Turn e-mail codes at sign-in on or off.

        A person with an authenticator app is asked for its code instead.
        """
        wanted = call[_EMAIL_CODES]
        if wanted and not self._sends_mail:
            raise MailDisabledError
        await self._codes.choose(call.person, call.attribution, wanted=wanted)
        return await self._me(call.person)

    async def change_first_day(self, call: ApiCall) -> FirstDayData:
        """Dismiss the list of the first day, or tick its checkpoint, for the signed-in person.

        A field that is left out keeps its value.
        """
        user = call.person.user
        await self._users.save_first_day(
            user, dismissed=call[_DISMISSED], checkpoint_kept=call[_CHECKPOINT_KEPT]
        )
        return _first_day(await self._users.get(user))

    async def list_sessions(self, call: ApiCall) -> SessionsData:
        """List the person's own sessions, the newest first."""
        person = call.person
        page = await self._sessions.list(person.user, part_of(call))
        shown = tuple(_session(entry, person.session) for entry in page.entries)
        if call[_DETAILS]:
            shown = tuple(
                structs.replace(data, client=client_name(entry.user_agent))
                for data, entry in zip(shown, page.entries, strict=True)
            )
        return SessionsData(sessions=shown, total=page.total, next=next_of(page, shown))

    async def end_session(self, call: ApiCall) -> SignedOutData:
        """End one of the caller's own sessions immediately."""
        session = call[_ID]
        await self._sessions.end(call.person, session, call.attribution, AuditEvent.END_SESSION)
        return SIGNED_OUT

    async def change_password(self, call: ApiCall) -> WithCookies:
        """Choose a new password. All sessions end, including the current one."""
        await self._password_change.change(call.person, call[OTHER_PASSWORD], call.attribution)
        return WithCookies(SIGNED_OUT, self._cookies.gone())

    async def _me(self, person: SessionPrincipal) -> UserData:
        account = await self._users.get(person.user)
        return structs.replace(
            user_data(account.user),
            mfa_enabled=account.has_mfa,
            email_codes=account.email_codes,
            passkeys=account.passkeys,
            first_day=_first_day(account),
        )


def _first_day(account: Account) -> FirstDayData:
    return FirstDayData(
        dismissed=account.first_day_dismissed, checkpoint_kept=account.checkpoint_kept
    )


def _session(session: Session, current: SessionId) -> SessionData:
    return SessionData(
        id=str(session.id),
        created_at=timestamp(session.created_at),
        refreshed_at=timestamp(session.refreshed_at),
        source_address=session.source_address,
        current=session.id == current,
    )
