"""/api/v1/auth/forgot-password and /auth/reset-password: another password, by a letter."""

from pqkeep_gateway.api.mail import mail_guard
from pqkeep_gateway.api.person_data import (
    ACCEPTED,
    EMAIL,
    MAX_TOKEN,
    OTHER_PASSWORD,
    SIGNED_OUT,
    AcceptedData,
    SignedOutData,
    email_in,
    invalid_field,
    text_in,
    token_parameter,
)
from pqkeep_gateway.http.about import About, Caller
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.people.password_resets import InvalidPasswordResetTokenError, PasswordResets
from pqkeep_gateway.people.passwords import MAX_LENGTH, InvalidPasswordError

_TOKEN = token_parameter("What the letter hands over.", "pqp_")


def endpoints(resets: PasswordResets, *, sends_mail: bool) -> tuple[Endpoint, ...]:
    """Return the endpoints of forgotten passwords."""

    async def forget(call: ApiCall) -> AcceptedData:
        """Have a letter sent with which another password can be chosen, within half an hour.

        Whether somebody has the address or not: the answer is the same, and takes as long.
        """
        await resets.begin(email_in(call.body), call.attribution)
        return ACCEPTED

    async def reset(call: ApiCall) -> SignedOutData:
        """Take another password, by the letter's token, once. Every session is over then.

        Nobody is signed in by it: with the new password, and the code where there is a second
        factor, sign in.
        """
        token = text_in(call.body, "token", MAX_TOKEN)
        new = text_in(call.body, "new_password", MAX_LENGTH)
        try:
            await resets.complete(token, new, call.attribution)
        except InvalidPasswordResetTokenError:
            raise ApiError(Code.AUTH_001, "no such letter, or it is over", "token") from None
        except InvalidPasswordError as problem:
            raise invalid_field("new_password", str(problem)) from None
        return SIGNED_OUT

    return (
        Endpoint(
            "POST",
            "/auth/forgot-password",
            forget,
            202,
            takes_body=True,
            open_to_anyone=True,
            guard=mail_guard(sends_mail=sends_mail),
            about=About(
                name="forgot_password",
                caller=Caller.ANYONE,
                parameters=(EMAIL,),
                example=ACCEPTED,
                codes=frozenset({Code.FORBIDDEN_001, Code.RATE_LIMIT_001}),
            ),
        ),
        Endpoint(
            "POST",
            "/auth/reset-password",
            reset,
            takes_body=True,
            open_to_anyone=True,
            about=About(
                name="reset_password",
                caller=Caller.ANYONE,
                parameters=(_TOKEN, OTHER_PASSWORD),
                example=SIGNED_OUT,
                codes=frozenset({Code.AUTH_001, Code.FORBIDDEN_001}),
            ),
        ),
    )
