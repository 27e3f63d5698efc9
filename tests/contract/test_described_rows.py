"""The reference's description of each row follows from the row."""

from __future__ import annotations

from tests.contract.rows import api_rows

from pqkeep_gateway.access.callers import GRANTS, Credential, Permission, Role
from pqkeep_gateway.http.endpoint import Endpoint
from pqkeep_gateway.http.errors import Code
from pqkeep_gateway.people.challenges import SecondFactorRequiredError
from pqkeep_gateway.reference.openapi import codes
from pqkeep_gateway.reference.snippets import curl

ROWS = api_rows()
API_KEY, COOKIE, STEP_UP = '-H "X-API-Key:', '-b "$COOKIES"', '-H "X-Step-Up-Token:'


def test_a_credential_can_be_refused_anywhere() -> None:
    """401, 403 and 429 for a credential are listed for every operation, even without need of one."""
    listed = {Code.AUTH_001, Code.FORBIDDEN_001, Code.RATE_LIMIT_001}
    assert [row.name for row in ROWS if not listed <= codes(row)] == []


def test_a_second_factor_is_owed_where_that_can_be() -> None:
    """ERR_AUTH_MFA_001 is listed for sign-ins, and where a session without a factor is refused."""
    assert [
        row.name for row in ROWS if (Code.AUTH_MFA_001 in codes(row)) is not _is_owed(row)
    ] == []


def _is_owed(row: Endpoint) -> bool:
    is_sign_in = SecondFactorRequiredError in row.errors
    callers = GRANTS[row.permission]
    takes_sessions = Role.VIEWER in callers or Role.OWNER in callers
    needs_session = takes_sessions and Credential.NONE not in callers
    return is_sign_in or (needs_session and not row.during_enrollment)


def test_the_example_shows_a_credential_that_is_accepted() -> None:
    """An example has an API key where allowed, else a session's cookie, or no credential."""
    for row in ROWS:
        command = curl(row, {})
        shown = {each for each in (API_KEY, COOKIE, STEP_UP) if each in command}
        assert shown == _accepted(row), row.name


def _accepted(row: Endpoint) -> set[str]:
    callers = GRANTS[row.permission]
    if callers == GRANTS[Permission.PUBLIC]:
        return set()
    if Credential.API_KEY in callers or not callers & frozenset(Role):
        return {API_KEY}
    return {COOKIE, STEP_UP} if row.needs_step_up else {COOKIE}
