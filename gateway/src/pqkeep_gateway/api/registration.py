"""/api/v1/auth/register: sign-up, if the installation allows it for everybody."""

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.credential_lookups import TooManyUnknownCredentialsError
from pqkeep_gateway.access.rate_limit import SIGN_UPS, TooManyAttemptsError
from pqkeep_gateway.api.errors import NO_MAIL, UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.people_fields import (
    ACCEPTED,
    EMAIL,
    NEW_PASSWORD,
    USER,
    AcceptedData,
    token_field,
    user_data,
)
from pqkeep_gateway.api.tenants import NAME
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, WithCookies
from pqkeep_gateway.people.passwords import InvalidPasswordError
from pqkeep_gateway.people.registration import Registration
from pqkeep_gateway.storage.registrations import InvalidRegistrationTokenError
from pqkeep_gateway.storage.tenants import NameTakenError
from pqkeep_gateway.storage.users import EmailTakenError

_TOKEN = token_field("The token in the message.", "pqs_")
_CLOSED = "sign-up is closed; only an operator can create tenants"


def endpoints(
    registration: Registration, cookies: Cookies, *, open_signup: bool, sends_mail: bool
) -> tuple[Endpoint, ...]:
    """Return the endpoints of sign-up."""
    handlers = _Registration(registration, cookies)
    return (
        Endpoint(
            method="POST",
            path="/auth/register",
            name="register",
            handler=handlers.begin,
            permission=Permission.PUBLIC,
            disabled=_CLOSED if not open_signup else "" if sends_mail else NO_MAIL,
            address_limit=SIGN_UPS,
            fields=(EMAIL,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=ACCEPTED,
            status=202,
            errors=(TooManyAttemptsError,),
        ),
        Endpoint(
            method="POST",
            path="/auth/confirm-registration",
            name="confirm_registration",
            handler=handlers.complete,
            permission=Permission.PUBLIC,
            fields=(_TOKEN, NAME, NEW_PASSWORD),
            field_codes=UNPROCESSABLE_FIELDS,
            example=USER,
            status=201,
            errors=(
                InvalidRegistrationTokenError,
                TooManyUnknownCredentialsError,
                InvalidPasswordError,
                NameTakenError,
                EmailTakenError,
            ),
        ),
    )


class _Registration:
    """The handlers."""

    def __init__(self, registration: Registration, cookies: Cookies) -> None:
        self._registration = registration
        self._cookies = cookies

    async def begin(self, call: ApiCall) -> AcceptedData:
        """Sign up with an e-mail address, and send it a message, valid for an hour.

        Only the message says whether the address is already in use. If sign-up is closed, or e-mail
        is not configured, the response is 403.
        """
        language = self._cookies.language_of(call.cookies, call.accept_language)
        await self._registration.begin(call[EMAIL], call.attribution, language)
        return ACCEPTED

    async def complete(self, call: ApiCall) -> WithCookies:
        """Create a tenant on the free plan and sign its owner in.

        After a refusal the token remains valid: choose another name or password.
        """
        owner, tokens = await self._registration.complete(
            call[_TOKEN], call[NAME], call[NEW_PASSWORD], call.attribution, call.user_agent
        )
        return WithCookies(user_data(owner), self._cookies.of(tokens))
