"""What needs e-mail is refused where the service sends none."""

from pqkeep_gateway.access.principals import Principal
from pqkeep_gateway.http.endpoint import Guard
from pqkeep_gateway.http.errors import ApiError, Code


def require_mail(*, sends_mail: bool) -> None:
    """Raise ApiError where the service sends no e-mail."""
    if not sends_mail:
        raise ApiError(
            Code.FORBIDDEN_001, "this service sends no e-mail yet: ask whoever runs it to set it up"
        )


def mail_guard(*, sends_mail: bool) -> Guard:
    """Return what turns everybody away where the service sends no e-mail."""

    async def guard(principal: Principal, source_address: str) -> None:
        require_mail(sends_mail=sends_mail)

    return guard
