"""The error codes equal the specification's, and a test shows each."""

import re
from pathlib import Path

import pytest

from pqkeep_gateway.http.errors import Code

ROOT = Path(__file__).parents[2]

CATALOGUE: dict[str, set[int]] = {
    "ERR_AUTH_001": {401},
    "ERR_AUTH_MFA_001": {401},
    "ERR_MFA_001": {401},
    "ERR_MFA_002": {401},
    "ERR_MFA_006": {401},
    "ERR_MFA_011": {403},
    "ERR_MFA_013": {401},
    "ERR_INVALID_001": {400, 405, 422},
    "ERR_INVALID_002": {400},
    "ERR_INVALID_003": {422},
    "ERR_FORBIDDEN_001": {403},
    "ERR_NOT_FOUND_001": {404},
    "ERR_CONFLICT_001": {409},
    "ERR_RATE_LIMIT_001": {429},
    "ERR_POLICY_001": {403},
    "ERR_KEM_001": {400},
    "ERR_KEM_002": {400},
    "ERR_KEM_003": {500},
    "ERR_KEM_004": {500},
    "ERR_KEM_006": {422},
    "ERR_KEM_007": {400},
    "ERR_KEM_010": {400},
    "ERR_KEM_011": {400},
    "ERR_KEM_012": {400},
    "ERR_KMS_001": {400},
    "ERR_KMS_003": {404},
    "ERR_KMS_020": {403},
    "ERR_SIG_001": {400},
    "ERR_SIG_002": {400},
    "ERR_SIG_010": {400},
    "ERR_SIG_011": {400},
    "ERR_CRYPTO_001": {500},
    "ERR_CRYPTO_004": {404},
    "ERR_INTERNAL_001": {500},
    "ERR_BAD_GATEWAY_001": {502},
    "ERR_SERVICE_001": {503},
    "ERR_TIMEOUT_001": {504},
}
"""The specification's full catalogue, and 405, which it does not have."""

SHOWN_BY: dict[tuple[str, int], str] = {
    ("ERR_AUTH_001", 401): "contract/test_credentials.py::test_without_a_credential",
    ("ERR_AUTH_MFA_001", 401): (
        "contract/test_second_factors.py::test_an_organization_can_require_it"
    ),
    ("ERR_MFA_001", 401): "contract/test_second_factors.py::test_a_wrong_code",
    ("ERR_MFA_011", 403): "contract/test_second_factors.py::test_not_every_plan_can_require_it",
    (
        "ERR_MFA_013",
        401,
    ): "contract/test_step_up_proofs.py::test_without_a_proof_of_this_session_nothing_is_done",
    ("ERR_FORBIDDEN_001", 403): "contract/test_credentials.py::test_the_operator_uses_no_keys",
    ("ERR_POLICY_001", 403): "contract/test_subscriptions.py::test_a_refusal_names_the_policy",
    ("ERR_KMS_020", 403): "contract/test_operation_errors.py::test_a_row_of_the_table",
    ("ERR_NOT_FOUND_001", 404): "contract/test_operation_errors.py::test_no_key_is_404",
    ("ERR_INVALID_001", 400): "contract/test_body.py::test_a_body_that_is_no_json_object",
    ("ERR_INVALID_001", 405): (
        "contract/test_envelope.py::test_a_wrong_method_is_405_and_names_the_right_ones"
    ),
    ("ERR_INVALID_001", 422): "contract/test_tenant_changes.py::test_bad_values",
    ("ERR_INVALID_002", 400): "contract/test_fields.py::test_mode_and_salt_are_checked",
    ("ERR_CONFLICT_001", 409): "contract/test_tenants.py::test_a_name_is_taken_once",
    ("ERR_RATE_LIMIT_001", 429): (
        "contract/test_rate_limits.py::test_a_refusal_says_when_to_come_back"
    ),
    ("ERR_KEM_001", 400): "contract/test_operation_errors.py::test_a_row_of_the_table",
    ("ERR_KEM_002", 400): "contract/test_operation_errors.py::test_a_row_of_the_table",
    ("ERR_KEM_007", 400): "contract/test_fields.py::test_mode_and_salt_are_checked",
    ("ERR_KEM_010", 400): "contract/test_operation_errors.py::test_a_row_of_the_table",
    ("ERR_KEM_011", 400): "contract/test_operation_errors.py::test_a_row_of_the_table",
    ("ERR_KEM_012", 400): "contract/test_operation_errors.py::test_a_row_of_the_table",
    ("ERR_SIG_001", 400): "contract/test_operation_errors.py::test_a_row_of_the_table",
    ("ERR_SIG_002", 400): "contract/test_fields.py::test_one_over_the_limit",
    ("ERR_SIG_010", 400): "contract/test_operation_errors.py::test_a_row_of_the_table",
    ("ERR_SIG_011", 400): "contract/test_operation_errors.py::test_a_row_of_the_table",
    ("ERR_INTERNAL_001", 500): "faults/test_key_service_failures.py::test_refusals",
    ("ERR_BAD_GATEWAY_001", 502): "faults/test_key_service_failures.py::test_nonsense_is_502",
    ("ERR_SERVICE_001", 503): "faults/test_key_service_failures.py::test_without_a_key_service",
    ("ERR_TIMEOUT_001", 504): "faults/test_key_service_failures.py::test_refusals",
}
"""A test over HTTP for each error."""
NAMES = [f"{code} {status}" for code, status in SHOWN_BY]


def test_statuses_are_the_catalogue_s() -> None:
    """Each code has one of the specification's statuses."""
    assert all(error.status in CATALOGUE[error.code] for error in Code)


def test_every_error_is_shown_by_a_test() -> None:
    """The table of tests has each error of the gateway."""
    assert SHOWN_BY.keys() == {(code.code, code.status) for code in Code}


@pytest.mark.parametrize(("error", "test"), SHOWN_BY.items(), ids=NAMES)
def test_the_test_that_shows_it_is_there(error: tuple[str, int], test: str) -> None:
    """The named test exists, and its file expects the code."""
    file, name = test.split("::")
    source = (ROOT / "tests" / file).read_text()
    assert f"\ndef {name}(" in source
    assert f'"{error[0]}"' in source


def test_no_test_expects_a_code_that_does_not_exist() -> None:
    """All codes that tests over HTTP expect exist."""
    expected = {
        code
        for folder in ("contract", "faults")
        for file in (ROOT / "tests" / folder).glob("*.py")
        for code in re.findall(r"\bERR_[A-Z]+(?:_[A-Z]+)*_\d{3}\b", file.read_text())
    }
    assert expected <= CATALOGUE.keys()
    assert expected >= {code.code for code in Code}
