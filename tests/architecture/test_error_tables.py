"""Only the error tables name error codes, and every domain error has a response."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest
from tests.contract.rows import api_rows

import pqkeep_gateway.wiring  # noqa: F401 - loads every module
from pqkeep_gateway.api import errors

SOURCE = Path(__file__).parents[2] / "gateway" / "src" / "pqkeep_gateway"
TABLES = frozenset(
    {
        "http/errors.py",
        "api/errors.py",
        "reference/guidance.py",
        "portal/outcomes.py",
        "transit/responses.py",
    }
)
"""The catalogue, the tables of responses, and the code's texts in reference and portal."""
OPENAPI = "reference/openapi.py"
"""Documents the errors of all requests."""
INTERNAL = frozenset(
    {
        "ApiError",
        "ChangedError",
        "ClientGoneError",
        "ContractChangedError",
        "DuplicateNoticeError",
        "InvalidAddressError",
        "InvalidFilterError",
        "InvalidInventoryError",
        "InvalidKeySetError",
        "InvalidProviderResponseError",
        "InvalidValueError",
        "NotAgainError",
        "MailDeferredError",
        "MailRejectedError",
        "OperatorError",
        "RefusedError",
        "ShardInUseError",
        "SinkError",
        "TlsError",
        "TransitError",  # an ApiError in the words of Vault
        "QuotaUsedUpError",
        "RehearsedError",  # caught by the pipeline
        "RefusedAddressError",
        "TooSlowError",
        "InvalidUrlError",
        "UsedError",  # of it only UsedCodeError is raised
        "_TooNearError",
    }
)
"""Exceptions that handlers catch themselves, as their docstrings say."""


def codes_named(source: str) -> list[int]:
    """Return the lines that name a member of the catalogue."""
    return [
        each.lineno
        for each in ast.walk(ast.parse(source))
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id == "Code"
    ]


def test_codes_are_named_in_the_tables_only() -> None:
    """No handler and no rule names an error code."""
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if codes_named(path.read_text())
    }
    assert found == TABLES | {OPENAPI}


@pytest.mark.parametrize(
    "source", ["raise ApiError(Code.CONFLICT_001, 'no')", "code = Code.INVALID_001"]
)
def test_a_code_outside_of_the_tables_is_caught(source: str) -> None:
    """A member of the catalogue is found in any place."""
    assert codes_named(source)


def domain_errors() -> set[type[Exception]]:
    """Return every exception class that the gateway defines."""
    return {
        each
        for name, module in sys.modules.items()
        if name.startswith("pqkeep_gateway.")
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, Exception)
        if each.__module__.startswith("pqkeep_gateway.")
    }


def test_every_domain_error_has_its_answer() -> None:
    """Each exception class is in the tables, or is listed as handled elsewhere."""
    missing = set()
    for each in domain_errors():
        try:
            errors.code_of(each)
        except LookupError:
            missing.add(each.__name__)
    assert missing == INTERNAL


def test_rows_document_errors_that_have_answers() -> None:
    """All documented errors of a row are in the tables."""
    assert all(errors.code_of(error) for row in api_rows() for error in row.errors)
