"""/api/v1/auth/mfa, /auth/step-up and /auth/organization: second factors, and step-up."""

from typing import Annotated

import segno
from msgspec import Meta

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.credential_lookups import TooManyUnknownCredentialsError
from pqkeep_gateway.access.entitlements import WITH_REQUIRED_MFA, MfaNotInPlanError
from pqkeep_gateway.access.rate_limit import TooManyAttemptsError
from pqkeep_gateway.api.errors import NO_MAIL, UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.people_fields import (
    ACCEPTED,
    MAX_TOKEN,
    PASSWORD,
    SIGNED_IN,
    USER,
    AcceptedData,
    AssertionFields,
    Identifier,
)
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, Subject, WithCookies
from pqkeep_gateway.http.envelope import Data
from pqkeep_gateway.http.field import Field, FieldError, Problem, boolean_field, text_field
from pqkeep_gateway.people.challenges import (
    AuthenticatorRequiredError,
    EmailCodes,
    InvalidChallengeError,
)
from pqkeep_gateway.people.passkeys import Assertion, WrongPasskeyError
from pqkeep_gateway.people.second_factors import (
    NotEnrolledError,
    SecondFactors,
    WrongCodeError,
    WrongPresentPasswordError,
)
from pqkeep_gateway.people.sign_in import SignIn
from pqkeep_gateway.people.step_up import LIFETIME, SteppedUp, StepUp
from pqkeep_gateway.storage.second_factors import AlreadyEnrolledError
from pqkeep_gateway.storage.team import TooFewOwnersError
from pqkeep_gateway.storage.tenants import SqlTenants
from pqkeep_gateway.storage.users import LastFactorError
from pqkeep_gateway.tenancy.approvals import Approvals
from pqkeep_gateway.tenancy.tenants import Tenants

MAX_CODE = 32


class EnrollmentData(Data, frozen=True, kw_only=True):
    """The secret for an authenticator app, as text and as a QR code."""

    secret: Annotated[str, Meta(description="The secret in base32, for manual entry.")]
    otpauth_uri: str
    qr_svg: Annotated[str, Meta(description="The URI as a QR code: a data: URI of an SVG.")]


class RecoveryCodesData(Data, frozen=True, kw_only=True):
    """Recovery codes, shown only once. Each replaces a TOTP code once."""

    recovery_codes: tuple[str, ...]


class MfaData(Data, frozen=True, kw_only=True):
    """Whether the person has a second factor."""

    mfa_enabled: bool


class StepUpData(Data, frozen=True, kw_only=True):
    """A token for one sensitive action."""

    step_up_token: Annotated[
        str,
        Meta(description="The step-up token. It is valid once, for the person who requested it."),
    ]
    expires_in: Annotated[int, Meta(ge=1, description="The lifetime in seconds.")]


class OrganizationData(Data, frozen=True, kw_only=True):
    """Rules for everybody in a tenant."""

    require_mfa: bool
    require_approval: Annotated[
        bool,
        Meta(
            description="Whether a second person approves requests that destroy keys, change owners"
            " or change rules."
        ),
    ] = False


class OwnOrganizationData(OrganizationData, frozen=True, kw_only=True):
    """The person's own tenant."""

    tenant_id: Identifier
    name: Annotated[str, Meta(description="The tenant's name, which is unique.")]


_CODE = text_field(
    "totp_code",
    "The code that the authenticator app shows.",
    "123456",
    at_most=MAX_CODE,
    is_valid=None,
)
_RECOVERY_CODE = text_field(
    "recovery_code",
    "A recovery code, instead of totp_code.",
    "abcd-efgh-ijkl-mnop",
    at_most=MAX_CODE,
    is_valid=None,
)
_EMAIL_CODE = text_field(
    "email_code",
    "The code that /auth/mfa/email sent, instead of totp_code.",
    "123456",
    at_most=MAX_CODE,
    is_valid=None,
)
_OPTIONAL_CODE = _CODE.optional()
_OPTIONAL_RECOVERY_CODE = _RECOVERY_CODE.optional()
_OPTIONAL_EMAIL_CODE = _EMAIL_CODE.optional()
_OPTIONAL_PASSWORD = PASSWORD.optional()
_CHALLENGE = text_field(
    "challenge_token",
    "The challenge token in login's error.",
    "pqc_" + "0" * 43 + "3aXb2c",
    at_most=MAX_TOKEN,
)
_FOR_SESSION = boolean_field(
    "for_session",
    "Whether to set a cookie that covers further actions in this session for five minutes, "
    "except actions that destroy keys or change credentials and factors.",
    example=True,
).or_default(default=False)
_ASSERTION = AssertionFields()
_REQUIRE = boolean_field(
    "require_mfa", "Whether everybody needs a second factor.", example=False
).optional()
_REQUIRE_APPROVAL = boolean_field(
    "require_approval",
    "Whether a second person must approve requests that destroy keys, change owners or change"
    " rules.",
    example=True,
).optional()
_URI = "otpauth://totp/pqkeep:ada%40example.com?secret=JBSWY3DPEHPK3PXP&issuer=pqkeep"


def endpoints(  # noqa: PLR0913 - each once, in wiring.py
    sign_in: SignIn,
    factors: SecondFactors,
    codes: EmailCodes,
    step_up: StepUp,
    tenants: Tenants,
    stored_tenants: SqlTenants,
    cookies: Cookies,
    approvals: Approvals,
    *,
    sends_mail: bool,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of second factors."""
    handlers = _SecondFactors(
        sign_in, factors, codes, step_up, tenants, stored_tenants, cookies, approvals
    )
    return (
        Endpoint(
            method="POST",
            path="/auth/mfa/enroll",
            name="enroll_mfa",
            handler=handlers.enroll,
            permission=Permission.OWN_ACCOUNT,
            needs_step_up=True,
            during_enrollment=True,
            field_codes=UNPROCESSABLE_FIELDS,
            example=EnrollmentData(
                secret="JBSWY3DPEHPK3PXP",  # noqa: S106 - a public example
                otpauth_uri=_URI,
                qr_svg="data:image/svg+xml;charset=utf-8,%3Csvg",
            ),
            errors=(AlreadyEnrolledError,),
        ),
        Endpoint(
            method="POST",
            path="/auth/mfa/confirm",
            name="confirm_mfa",
            handler=handlers.confirm,
            permission=Permission.OWN_ACCOUNT,
            during_enrollment=True,
            fields=(_CODE,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=RecoveryCodesData(recovery_codes=(str(_RECOVERY_CODE.example),)),
            errors=(NotEnrolledError, WrongCodeError, TooManyAttemptsError),
        ),
        Endpoint(
            method="POST",
            path="/auth/mfa/disable",
            name="disable_mfa",
            handler=handlers.disable,
            permission=Permission.OWN_ACCOUNT,
            fields=(_OPTIONAL_CODE, _OPTIONAL_RECOVERY_CODE),
            field_codes=UNPROCESSABLE_FIELDS,
            example=MfaData(mfa_enabled=False),
            errors=(NotEnrolledError, WrongCodeError, TooManyAttemptsError, LastFactorError),
        ),
        Endpoint(
            method="POST",
            path="/auth/mfa/email",
            name="send_email_code",
            handler=handlers.send_code,
            permission=Permission.PUBLIC,
            disabled="" if sends_mail else NO_MAIL,
            fields=(_CHALLENGE,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=ACCEPTED,
            status=202,
            errors=(
                InvalidChallengeError,
                TooManyUnknownCredentialsError,
                AuthenticatorRequiredError,
                TooManyAttemptsError,
            ),
        ),
        Endpoint(
            method="POST",
            path="/auth/mfa/verify",
            name="verify_mfa",
            handler=handlers.verify,
            permission=Permission.PUBLIC,
            fields=(_CHALLENGE, _OPTIONAL_CODE, _OPTIONAL_RECOVERY_CODE, _OPTIONAL_EMAIL_CODE),
            field_codes=UNPROCESSABLE_FIELDS,
            example=SIGNED_IN,
            errors=(
                InvalidChallengeError,
                TooManyUnknownCredentialsError,
                WrongCodeError,
                TooManyAttemptsError,
            ),
        ),
        Endpoint(
            method="POST",
            path="/auth/step-up",
            name="step_up",
            handler=handlers.step_up,
            permission=Permission.OWN_ACCOUNT,
            during_enrollment=True,
            fields=(_OPTIONAL_CODE, _OPTIONAL_PASSWORD, *_ASSERTION.optional, _FOR_SESSION),
            field_codes=UNPROCESSABLE_FIELDS,
            example=StepUpData(
                step_up_token="pqu_" + "0" * 43 + "3aXb2c",
                expires_in=int(LIFETIME.total_seconds()),
            ),
            errors=(
                WrongCodeError,
                WrongPasskeyError,
                WrongPresentPasswordError,
                TooManyAttemptsError,
            ),
        ),
        Endpoint(
            method="GET",
            path="/auth/organization",
            name="get_organization",
            handler=handlers.get_organization,
            permission=Permission.OWN_ACCOUNT,
            field_codes=UNPROCESSABLE_FIELDS,
            example=OwnOrganizationData(
                require_mfa=False, tenant_id=USER.tenant_id, name="Example Corporation"
            ),
        ),
        Endpoint(
            method="PATCH",
            path="/auth/organization",
            name="change_organization",
            handler=handlers.change_organization,
            permission=Permission.REQUIRE_MFA,
            needs_step_up=True,
            subject_of=handlers.subject_of_organization,
            fields=(_REQUIRE, _REQUIRE_APPROVAL),
            field_codes=UNPROCESSABLE_FIELDS,
            example=OrganizationData(require_mfa=False, require_approval=True),
            errors=(MfaNotInPlanError, TooFewOwnersError),
        ),
    )


class _SecondFactors:
    """The handlers."""

    def __init__(
        self,
        sign_in: SignIn,
        factors: SecondFactors,
        codes: EmailCodes,
        step_up: StepUp,
        tenants: Tenants,
        stored_tenants: SqlTenants,
        cookies: Cookies,
        approvals: Approvals,
    ) -> None:
        self._approvals = approvals
        self._sign_in = sign_in
        self._factors = factors
        self._codes = codes
        self._step_up = step_up
        self._tenants = tenants
        self._stored_tenants = stored_tenants
        self._cookies = cookies

    async def enroll(self, call: ApiCall) -> EnrollmentData:
        """Begin to enroll a second factor. It takes effect when it is confirmed by a code."""
        enrollment = await self._factors.enroll(call.person)
        picture = segno.make(enrollment.uri, error="m").svg_data_uri(scale=4)
        return EnrollmentData(secret=enrollment.secret, otpauth_uri=enrollment.uri, qr_svg=picture)

    async def confirm(self, call: ApiCall) -> RecoveryCodesData:
        """Confirm the second factor with a code. The recovery codes are shown only once."""
        codes = await self._factors.confirm(call.person, call[_CODE], call.attribution)
        return RecoveryCodesData(recovery_codes=codes)

    async def disable(self, call: ApiCall) -> MfaData:
        """Remove the second factor, with a last code."""
        code = _code_in(call, _OPTIONAL_RECOVERY_CODE)
        await self._factors.disable(call.person, code, call.attribution)
        return MfaData(mfa_enabled=False)

    async def send_code(self, call: ApiCall) -> AcceptedData:
        """Send a sign-in code by e-mail: six digits, valid for ten minutes.

        It replaces an earlier code. A person with an authenticator app gets 409 and must use the
        app's code.
        """
        await self._codes.send(call[_CHALLENGE], call.attribution)
        return ACCEPTED

    async def verify(self, call: ApiCall) -> WithCookies:
        """Finish signing in with a code of any kind. The tokens are in cookies."""
        challenge, email_code = call[_CHALLENGE], call[_OPTIONAL_EMAIL_CODE]
        if email_code is not None:
            tokens = await self._codes.check(
                challenge, email_code, call.attribution, call.user_agent
            )
        else:
            code = _code_in(call, _OPTIONAL_RECOVERY_CODE)
            tokens = await self._sign_in.answer_challenge(
                challenge, code, call.attribution, call.user_agent
            )
        return WithCookies(SIGNED_IN, self._cookies.of(tokens))

    async def step_up(self, call: ApiCall) -> StepUpData | WithCookies:
        """Prove the person's identity again, for one sensitive action in the next five minutes.

        The proof is a passkey, a code, or the password without a second factor. No proof is needed once,
        within five minutes after the identity provider confirmed the person in the same browser. An
        already used code gets 401 with Retry-After, and does not count as a failed attempt. With
        for_session, a cookie covers further actions of the session without another step-up.
        """
        person, for_session = call.person, call[_FOR_SESSION]
        given: SteppedUp | None = None
        reauthentication = call.cookies.get(self._cookies.reauthentication, "")
        has_text = call[_OPTIONAL_CODE] is not None or call[_OPTIONAL_PASSWORD] is not None
        if not has_text and call[_ASSERTION.present] is None:
            given = await self._step_up.issue_after_reauthentication(
                person, reauthentication, call.attribution, for_session=for_session
            )
        cookies = () if given is None else (self._cookies.reauthentication_gone(),)
        if given is None:
            given = await self._step_up.issue(
                person, await self._proof_in(call), call.attribution, for_session=for_session
            )
        if given.proof is not None:
            cookies = (*cookies, self._cookies.of_proof(given.proof))
        data = StepUpData(step_up_token=given.token, expires_in=int(LIFETIME.total_seconds()))
        return WithCookies(data, cookies) if cookies else data

    async def _proof_in(self, call: ApiCall) -> str | Assertion:
        """Return the proof that the person needs. Raises FieldError."""
        if call[_ASSERTION.present] is not None:
            return _ASSERTION.read(call)
        return call[_CODE] if await self._step_up.needs_code(call.person) else call[PASSWORD]

    async def get_organization(self, call: ApiCall) -> OwnOrganizationData:
        """Return the person's tenant, and whether it requires a second factor."""
        tenant = await self._stored_tenants.get(call.person.tenant)
        return OwnOrganizationData(
            require_mfa=tenant.requires_mfa,
            require_approval=tenant.requires_approval,
            tenant_id=str(tenant.id),
            name=tenant.name,
        )

    async def change_organization(self, call: ApiCall) -> OrganizationData:
        """Require a second factor for everybody in the tenant, or the approval of a second person.

        With require_mfa, a person without a second factor can only enroll one; it is available from
        the professional plan up. With require_approval, requests that destroy keys, change owners
        or change rules wait for a second person; it needs two owners. After that, switching either
        setting off needs an approval too.
        """
        person, required, approval = call.person, call[_REQUIRE], call[_REQUIRE_APPROVAL]
        if required is None and approval is None:
            message = f"send {_REQUIRE.name} or {_REQUIRE_APPROVAL.name}"
            raise FieldError(_REQUIRE.name, Problem.MISSING, message)
        if required and person.entitlements.plan not in WITH_REQUIRED_MFA:
            raise MfaNotInPlanError
        if approval is not None:
            await self._approvals.require(person.tenant, call.attribution, required=approval)
        if required is not None:
            await self._tenants.require_mfa(person.tenant, call.attribution, required=required)
        tenant = await self._stored_tenants.get(person.tenant)
        return OrganizationData(
            require_mfa=tenant.requires_mfa, require_approval=tenant.requires_approval
        )

    async def subject_of_organization(self, call: ApiCall) -> Subject | None:
        """Return the requirements to switch off; None if no approval is needed."""
        tenant = await self._stored_tenants.get(call.person.tenant)
        ended = (
            tenant.requires_mfa and call[_REQUIRE] is False,
            tenant.requires_approval and call[_REQUIRE_APPROVAL] is False,
        )
        if not any(ended):
            return None
        state = [tenant.requires_mfa, tenant.requires_approval]
        return Subject(_NO_LONGER[ended], state, Permission.REQUIRE_MFA)


_NO_LONGER = {
    (True, False): "No longer require a second factor for everybody",
    (False, True): "No longer require the approval of a second person",
    (True, True): (
        "No longer require a second factor for everybody and the approval of a second person"
    ),
}
"""Summaries of the requirements that a request ends."""


def _code_in(call: ApiCall, other: Field[str | None]) -> str:
    """Return the code of another kind if present, or the app's code. Raises FieldError."""
    return call[other] or call[_CODE]
