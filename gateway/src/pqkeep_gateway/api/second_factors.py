"""/api/v1/auth/mfa, /auth/step-up and /auth/organization: second factors, and proving again."""

from collections.abc import Mapping
from typing import Annotated

import segno
from msgspec import Meta

from pqkeep_gateway.access.entitlements import WITH_REQUIRED_MFA
from pqkeep_gateway.access.principals import SessionPrincipal
from pqkeep_gateway.access.roles import Permission
from pqkeep_gateway.api.mail import mail_guard
from pqkeep_gateway.api.person_data import (
    ACCEPTED,
    MAX_TOKEN,
    PASSWORD,
    SIGNED_IN,
    AcceptedData,
    invalid_field,
    text_in,
)
from pqkeep_gateway.http.about import About, Caller, Parameter
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, WithCookies, person_of
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.people.email_codes import (
    AuthenticatorRequiredError,
    EmailCodes,
    InvalidChallengeError,
)
from pqkeep_gateway.people.passwords import MAX_LENGTH
from pqkeep_gateway.people.second_factors import (
    AlreadyEnrolledError,
    NotEnrolledError,
    SecondFactors,
    WrongCodeError,
)
from pqkeep_gateway.people.sign_in import SignIn, WrongPasswordError
from pqkeep_gateway.people.step_up import LIFE, StepUp
from pqkeep_gateway.tenancy.tenants import Tenants

MAX_CODE = 32
TRIED = frozenset({Code.MFA_001, Code.RATE_LIMIT_001})


class EnrollmentData(Data, frozen=True, kw_only=True):
    """What an authenticator app needs, as text and as a picture."""

    secret: Annotated[str, Meta(description="In base32, for typing.")]
    otpauth_uri: str
    qr_svg: Annotated[str, Meta(description="The URI as a QR code: a data: URI of an SVG.")]


class RecoveryCodesData(Data, frozen=True, kw_only=True):
    """Recovery codes, shown this once. Each is good once, instead of a code."""

    recovery_codes: tuple[str, ...]


class MfaData(Data, frozen=True, kw_only=True):
    """Whether there is a second factor."""

    mfa_enabled: bool


class StepUpData(Data, frozen=True, kw_only=True):
    """A token for one sensitive action."""

    step_up_token: Annotated[str, Meta(description="Good once, for whoever asked for it.")]
    expires_in: Annotated[int, Meta(ge=1, description="Seconds.")]


class OrganizationData(Data, frozen=True, kw_only=True):
    """What holds for everybody in a tenant."""

    require_mfa: bool


_CODE = Parameter(
    "totp_code",
    "The code that the authenticator app shows.",
    {"type": "string", "maxLength": MAX_CODE},
    "123456",
    codes=(Code.UNPROCESSABLE,),
)
_RECOVERY = Parameter(
    "recovery_code",
    "A recovery code, instead of a code.",
    {"type": "string", "maxLength": MAX_CODE},
    "abcd-efgh-ijkl-mnop",
    required=False,
    codes=(Code.UNPROCESSABLE,),
)
_EMAIL_CODE = Parameter(
    "email_code",
    "The code that /auth/mfa/email had sent, instead of a code of an app.",
    {"type": "string", "maxLength": MAX_CODE},
    "123456",
    required=False,
    codes=(Code.UNPROCESSABLE,),
)
_CHALLENGE = Parameter(
    "challenge_token",
    "What login answered, under error.",
    {"type": "string", "maxLength": MAX_TOKEN},
    "pqc_" + "0" * 43 + "3aXb2c",
    codes=(Code.UNPROCESSABLE,),
)
_REQUIRE = Parameter(
    "require_mfa",
    "Whether everybody needs a second factor.",
    {"type": "boolean"},
    example=False,
    codes=(Code.UNPROCESSABLE,),
)
_URI = "otpauth://totp/pqkeep:ada%40example.com?secret=JBSWY3DPEHPK3PXP&issuer=pqkeep"


def endpoints(
    sign_in: SignIn,
    factors: SecondFactors,
    codes: EmailCodes,
    step_up: StepUp,
    tenants: Tenants,
    cookies: Cookies,
    *,
    sends_mail: bool,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of second factors."""
    mfa = _Mfa(sign_in, factors, codes, step_up, tenants, cookies)

    return (
        Endpoint(
            "POST",
            "/auth/mfa/enroll",
            mfa.enroll,
            permission=Permission.OWN_ACCOUNT,
            is_for_enrolling=True,
            about=About(
                name="enroll_mfa",
                caller=Caller.PERSON,
                example=EnrollmentData(
                    secret="JBSWY3DPEHPK3PXP",  # noqa: S106 - nobody's
                    otpauth_uri=_URI,
                    qr_svg="data:image/svg+xml;charset=utf-8,%3Csvg",
                ),
                codes=frozenset({Code.CONFLICT_001}),
            ),
        ),
        Endpoint(
            "POST",
            "/auth/mfa/confirm",
            mfa.confirm,
            takes_body=True,
            permission=Permission.OWN_ACCOUNT,
            is_for_enrolling=True,
            about=About(
                name="confirm_mfa",
                caller=Caller.PERSON,
                parameters=(_CODE,),
                example=RecoveryCodesData(recovery_codes=(str(_RECOVERY.example),)),
                codes=TRIED | {Code.CONFLICT_001},
            ),
        ),
        Endpoint(
            "POST",
            "/auth/mfa/disable",
            mfa.disable,
            takes_body=True,
            permission=Permission.OWN_ACCOUNT,
            about=About(
                name="disable_mfa",
                caller=Caller.PERSON,
                parameters=(_CODE.optional(), _RECOVERY),
                example=MfaData(mfa_enabled=False),
                codes=TRIED | {Code.CONFLICT_001},
            ),
        ),
        Endpoint(
            "POST",
            "/auth/mfa/email",
            mfa.send_code,
            202,
            takes_body=True,
            open_to_anyone=True,
            guard=mail_guard(sends_mail=sends_mail),
            about=About(
                name="send_email_code",
                caller=Caller.ANYONE,
                parameters=(_CHALLENGE,),
                example=ACCEPTED,
                codes=frozenset(
                    {
                        Code.AUTH_001,
                        Code.FORBIDDEN_001,
                        Code.CONFLICT_001,
                        Code.RATE_LIMIT_001,
                    }
                ),
            ),
        ),
        Endpoint(
            "POST",
            "/auth/mfa/verify",
            mfa.verify,
            takes_body=True,
            open_to_anyone=True,
            about=About(
                name="verify_mfa",
                caller=Caller.ANYONE,
                parameters=(_CHALLENGE, _CODE.optional(), _RECOVERY, _EMAIL_CODE),
                example=SIGNED_IN,
                codes=TRIED | {Code.AUTH_001, Code.FORBIDDEN_001},
            ),
        ),
        Endpoint(
            "POST",
            "/auth/step-up",
            mfa.step_up,
            takes_body=True,
            permission=Permission.OWN_ACCOUNT,
            about=About(
                name="step_up",
                caller=Caller.PERSON,
                parameters=(_CODE.optional(), PASSWORD.optional()),
                example=StepUpData(
                    step_up_token="pqu_" + "0" * 43 + "3aXb2c",
                    expires_in=int(LIFE.total_seconds()),
                ),
                codes=TRIED,
            ),
        ),
        Endpoint(
            "PATCH",
            "/auth/organization",
            mfa.change_organization,
            takes_body=True,
            permission=Permission.OWNERS,
            about=About(
                name="change_organization",
                caller=Caller.PERSON,
                parameters=(_REQUIRE,),
                example=OrganizationData(require_mfa=False),
                codes=frozenset({Code.MFA_011}),
            ),
        ),
    )


class _Mfa:
    """What the endpoints do."""

    def __init__(
        self,
        sign_in: SignIn,
        factors: SecondFactors,
        codes: EmailCodes,
        step_up: StepUp,
        tenants: Tenants,
        cookies: Cookies,
    ) -> None:
        self._entry = sign_in
        self._factors = factors
        self._codes = codes
        self._step_up = step_up
        self._tenants = tenants
        self._cookies = cookies

    async def enroll(self, call: ApiCall) -> EnrollmentData:
        """Begin with a second factor. It holds when a code confirms it."""
        try:
            made = await self._factors.enroll(person_of(call))
        except AlreadyEnrolledError:
            raise ApiError(Code.CONFLICT_001, "there is a second factor already") from None
        picture = segno.make(made.uri, error="m").svg_data_uri(scale=4)
        return EnrollmentData(secret=made.secret, otpauth_uri=made.uri, qr_svg=picture)

    async def confirm(self, call: ApiCall) -> RecoveryCodesData:
        """Let the second factor hold from now on. The recovery codes are shown this once."""
        person, code = person_of(call), text_in(call.body, "totp_code", MAX_CODE)
        try:
            codes = await self._factors.confirm(person, code, call.attribution)
        except NotEnrolledError:
            raise _nothing_there("there is nothing to confirm") from None
        except WrongCodeError:
            raise _wrong_code("totp_code") from None
        return RecoveryCodesData(recovery_codes=codes)

    async def disable(self, call: ApiCall) -> MfaData:
        """Do without a second factor, by a last code."""
        person, (name, code) = person_of(call), _code_in(call.body, _RECOVERY.name)
        try:
            await self._factors.disable(person, code, call.attribution)
        except NotEnrolledError:
            raise _nothing_there("there is no second factor") from None
        except WrongCodeError:
            raise _wrong_code(name) from None
        return MfaData(mfa_enabled=False)

    async def send_code(self, call: ApiCall) -> AcceptedData:
        """Have a code sent by e-mail to somebody who owes one: six digits, good for ten minutes.

        An earlier one is over then. Whoever has an authenticator app needs that: 409.
        """
        token = text_in(call.body, "challenge_token", MAX_TOKEN)
        try:
            await self._codes.send(token, call.attribution)
        except InvalidChallengeError:
            raise _no_challenge() from None
        except AuthenticatorRequiredError:
            raise ApiError(
                Code.CONFLICT_001, "there is an authenticator app: its code is needed"
            ) from None
        return ACCEPTED

    async def verify(self, call: ApiCall) -> WithCookies:
        """Finish signing in, by a code of any kind. The tokens come as cookies."""
        token = text_in(call.body, "challenge_token", MAX_TOKEN)
        name, code = _code_in(call.body, _EMAIL_CODE.name, _RECOVERY.name)
        answer = self._codes.answer if name == _EMAIL_CODE.name else self._entry.answer
        try:
            tokens = await answer(token, code, call.attribution)
        except (InvalidChallengeError, WrongPasswordError, NotEnrolledError):
            raise _no_challenge() from None
        except WrongCodeError:
            raise _wrong_code(name) from None
        return WithCookies(SIGNED_IN, self._cookies.of(tokens))

    async def step_up(self, call: ApiCall) -> StepUpData:
        """Prove again who one is, for one sensitive action in the next five minutes.

        By a code; whoever has no second factor, by their password.
        """
        person = person_of(call)
        name, proof = await self._proof_in(person, call.body)
        try:
            token = await self._step_up.issue(person, proof, call.attribution)
        except WrongCodeError:
            raise _wrong_code(name) from None
        return StepUpData(step_up_token=token, expires_in=int(LIFE.total_seconds()))

    async def change_organization(self, call: ApiCall) -> OrganizationData:
        """Require a second factor of everybody in the tenant, or no longer.

        Whoever has none can then do nothing but enroll one. Plans from professional up.
        """
        person, required = person_of(call), call.body.get("require_mfa")
        if not isinstance(required, bool):
            raise invalid_field("require_mfa", "must be true or false")
        if required and person.entitlements.plan not in WITH_REQUIRED_MFA:
            raise ApiError(Code.MFA_011, "the plan does not let you require a second factor")
        await self._tenants.require_mfa(person.tenant, call.attribution, required=required)
        return OrganizationData(require_mfa=required)

    async def _proof_in(
        self, person: SessionPrincipal, body: Mapping[str, object]
    ) -> tuple[str, str]:
        if await self._step_up.needs_code(person):
            return "totp_code", text_in(body, "totp_code", MAX_CODE)
        return "password", text_in(body, "password", MAX_LENGTH)


def _code_in(body: Mapping[str, object], *others: str) -> tuple[str, str]:
    """Return which kind of code there is, and the code: the app's, if it is none of the others."""
    name = next((each for each in others if body.get(each) is not None), _CODE.name)
    return name, text_in(body, name, MAX_CODE)


def _no_challenge() -> ApiError:
    return ApiError(Code.AUTH_001, "no such challenge, or it is over", "challenge_token")


def _wrong_code(name: str) -> ApiError:
    return ApiError(Code.MFA_001, f"{name} is wrong, or was used already", name)


def _nothing_there(message: str) -> ApiError:
    return ApiError(Code.CONFLICT_001, message)
