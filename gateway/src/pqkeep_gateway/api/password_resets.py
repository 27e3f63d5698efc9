"""/api/v1/auth/forgot-password and /auth/reset-password: a new password by e-mail."""

from pqkeep_gateway.access.callers import Permission
from pqkeep_gateway.access.credential_lookups import TooManyUnknownCredentialsError
from pqkeep_gateway.access.rate_limit import TooManyAttemptsError
from pqkeep_gateway.api.errors import NO_MAIL, UNPROCESSABLE_FIELDS
from pqkeep_gateway.api.people_fields import (
    ACCEPTED,
    EMAIL,
    OTHER_PASSWORD,
    SIGNED_OUT,
    AcceptedData,
    SignedOutData,
    token_field,
)
from pqkeep_gateway.http.endpoint import ApiCall, Endpoint
from pqkeep_gateway.people.password_resets import PasswordResets
from pqkeep_gateway.people.passwords import InvalidPasswordError
from pqkeep_gateway.storage.password_resets import InvalidPasswordResetTokenError

_TOKEN = token_field("The token in the message.", "pqp_")


def endpoints(resets: PasswordResets, *, sends_mail: bool) -> tuple[Endpoint, ...]:
    """Return the endpoints for forgotten passwords."""
    handlers = _PasswordResets(resets)
    return (
        Endpoint(
            method="POST",
            path="/auth/forgot-password",
            name="forgot_password",
            handler=handlers.begin,
            permission=Permission.PUBLIC,
            disabled="" if sends_mail else NO_MAIL,
            fields=(EMAIL,),
            field_codes=UNPROCESSABLE_FIELDS,
            example=ACCEPTED,
            status=202,
            errors=(TooManyAttemptsError,),
        ),
        Endpoint(
            method="POST",
            path="/auth/reset-password",
            name="reset_password",
            handler=handlers.complete,
            permission=Permission.PUBLIC,
            fields=(_TOKEN, OTHER_PASSWORD),
            field_codes=UNPROCESSABLE_FIELDS,
            example=SIGNED_OUT,
            errors=(
                InvalidPasswordResetTokenError,
                TooManyUnknownCredentialsError,
                InvalidPasswordError,
            ),
        ),
    )


class _PasswordResets:
    """The handlers."""

    def __init__(self, resets: PasswordResets) -> None:
        self._resets = resets

    async def begin(self, call: ApiCall) -> AcceptedData:
        """Send a message for choosing a new password within half an hour.

        The response and its duration are the same for known and unknown addresses.
        """
        await self._resets.begin(call[EMAIL], call.attribution)
        return ACCEPTED

    async def complete(self, call: ApiCall) -> SignedOutData:
        """Choose a new password with the single-use token of the message. All sessions end.

        This does not sign anyone in. Sign in with the new password, and the code of a second
        factor.
        """
        await self._resets.complete(call[_TOKEN], call[OTHER_PASSWORD], call.attribution)
        return SIGNED_OUT
