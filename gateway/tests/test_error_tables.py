"""Every failure of every operation has the right error."""

import re

import pytest

from pqkeep_gateway.api.errors import KEY_FIELDS, error_for
from pqkeep_gateway.http.errors import ApiError, Code
from pqkeep_gateway.http.field import Problem
from pqkeep_protocol.algorithms import ON_TENANTS, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError

EVERYWHERE = {
    ErrorKind.KEY_NOT_FOUND: (404, "ERR_NOT_FOUND_001"),
    ErrorKind.KEY_EXISTS: (400, "ERR_INVALID_001"),
    ErrorKind.KEY_QUOTA_REACHED: (403, "ERR_FORBIDDEN_001"),
    ErrorKind.KEY_STATUS: (400, "ERR_INVALID_001"),
    ErrorKind.UNSUPPORTED: (400, "ERR_INVALID_001"),
    ErrorKind.OVERLOADED: (503, "ERR_SERVICE_001"),
    ErrorKind.STANDBY: (503, "ERR_SERVICE_001"),
    ErrorKind.UNAVAILABLE: (503, "ERR_SERVICE_001"),
    ErrorKind.DEADLINE_EXCEEDED: (504, "ERR_TIMEOUT_001"),
    ErrorKind.BAD_RESPONSE: (502, "ERR_BAD_GATEWAY_001"),
    ErrorKind.INTERNAL: (500, "ERR_INTERNAL_001"),
}


@pytest.mark.parametrize("operation", Operation)
def test_every_refusal_of_every_operation_has_an_answer(operation: Operation) -> None:
    """Every pair of operation and refusal has an error, and 503 always has Retry-After."""
    for kind in ErrorKind:
        error = error_for(operation, KeyServiceError(kind))
        assert isinstance(error, ApiError)
        assert error.message, kind
        assert ("Retry-After" in error.headers) is (error.code.status == 503), kind
        if kind in EVERYWHERE:
            assert (error.code.status, error.code.code) == EVERYWHERE[kind]


@pytest.mark.parametrize("operation", sorted(set(Operation) - ON_TENANTS))
def test_every_operation_has_a_code_for_every_problem_of_a_field(operation: Operation) -> None:
    """An invalid field is 400 in every operation; the name of an impossible object is 404."""
    for problem in Problem:
        status = 404 if problem is Problem.NOT_FOUND else 400
        assert KEY_FIELDS[operation].code("any", problem).status == status, problem


@pytest.mark.parametrize(
    ("operation", "code"),
    [("decrypt", "ERR_KEM_002"), ("decapsulate", "ERR_KEM_002"), ("unwrap", "ERR_KEM_012")],
)
def test_what_does_not_open(operation: str, code: str) -> None:
    """A failed decryption has the code of its operation."""
    error = error_for(Operation(operation), KeyServiceError(ErrorKind.DECRYPTION_FAILED))
    assert (error.code.status, error.code.code) == (400, code)


@pytest.mark.parametrize("code", Code)
def test_codes_have_their_form(code: Code) -> None:
    """Each code is ERR_<CATEGORY>_<NNN> with an HTTP error status."""
    assert re.fullmatch(r"ERR_[A-Z]+(_[A-Z]+)*_\d{3}", code.code)
    assert 400 <= code.status < 600
