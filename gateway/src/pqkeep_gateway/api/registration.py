"""/api/v1/auth/register: signing up, where the installation is open to everybody."""

from dataclasses import replace

from pqkeep_gateway.access.principals import Principal
from pqkeep_gateway.access.rate_limit import RateLimiter
from pqkeep_gateway.api.mail import require_mail
from pqkeep_gateway.api.person_data import (
    ACCEPTED,
    EMAIL,
    MAX_TOKEN,
    NEW_PASSWORD,
    USER,
    AcceptedData,
    email_in,
    invalid_field,
    text_in,
    token_parameter,
    user_data,
)
from pqkeep_gateway.api.tenants import NAME, count_sign_up, name_in
from pqkeep_gateway.http.about import About, Caller
from pqkeep_gateway.http.cookies import Cookies
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint, WithCookies
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.people.passwords import MAX_LENGTH, InvalidPasswordError
from pqkeep_gateway.people.registration import InvalidRegistrationTokenError, Registration
from pqkeep_gateway.people.users import EmailTakenError
from pqkeep_gateway.tenancy.tenants import NameTakenError

_NAME = replace(NAME, codes=(Code.UNPROCESSABLE,))
_TOKEN = token_parameter("What the letter hands over.", "pqs_")


def endpoints(
    registration: Registration,
    cookies: Cookies,
    rate_limiter: RateLimiter,
    *,
    open_signup: bool,
    sends_mail: bool,
) -> tuple[Endpoint, ...]:
    """Return the endpoints of signing up."""

    async def require_open(principal: Principal, source_address: str) -> None:
        if not open_signup:
            raise ApiError(Code.FORBIDDEN_001, "only the operator lets tenants in")
        require_mail(sends_mail=sends_mail)
        await count_sign_up(rate_limiter, principal, source_address)

    async def register(call: ApiCall) -> AcceptedData:
        """Sign up with an e-mail address. A letter to it says how to go on, within an hour.

        Whether somebody has the address already, only the letter says. Where the installation is
        not open to everybody, or sends no e-mail, it is 403.
        """
        await registration.begin(email_in(call.body), call.attribution)
        return ACCEPTED

    async def confirm(call: ApiCall) -> WithCookies:
        """Make a tenant on the free plan and its owner, who is signed in then.

        A refusal leaves the token good: choose another name or password.
        """
        token, name = text_in(call.body, "token", MAX_TOKEN), name_in(call.body, Code.UNPROCESSABLE)
        password = text_in(call.body, "password", MAX_LENGTH)
        try:
            owner, tokens = await registration.complete(token, name, password, call.attribution)
        except InvalidRegistrationTokenError:
            raise ApiError(Code.AUTH_001, "no such registration, or it is over", "token") from None
        except InvalidPasswordError as problem:
            raise invalid_field("password", str(problem)) from None
        except NameTakenError:
            raise ApiError(Code.CONFLICT_001, "a tenant has this name", "name") from None
        except EmailTakenError:
            raise ApiError(Code.CONFLICT_001, "you have an account already", "token") from None
        return WithCookies(user_data(owner), cookies.of(tokens))

    return (
        Endpoint(
            "POST",
            "/auth/register",
            register,
            202,
            takes_body=True,
            open_to_anyone=True,
            guard=require_open,
            about=About(
                name="register",
                caller=Caller.ANYONE,
                parameters=(EMAIL,),
                example=ACCEPTED,
                codes=frozenset({Code.FORBIDDEN_001, Code.RATE_LIMIT_001}),
            ),
        ),
        Endpoint(
            "POST",
            "/auth/confirm-registration",
            confirm,
            201,
            takes_body=True,
            open_to_anyone=True,
            about=About(
                name="confirm_registration",
                caller=Caller.ANYONE,
                parameters=(_TOKEN, _NAME, NEW_PASSWORD),
                example=USER,
                codes=frozenset({Code.AUTH_001, Code.FORBIDDEN_001, Code.CONFLICT_001}),
            ),
        ),
    )
