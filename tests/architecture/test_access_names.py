"""The tables of scopes and of proofs have exactly the served operations."""

from __future__ import annotations

from tests.docs.api_tables import rows

from pqkeep_gateway.access.callers import COVERED_BY_PROOF, GRANTS, WITHOUT_SCOPE, Credential
from pqkeep_gateway.access.scopes import GROUPS


def test_each_operation_for_api_keys_is_in_a_group_of_scopes() -> None:
    """Each endpoint for API keys is in a group of scopes."""
    served = {
        row.audit_operation
        for row in rows()
        if Credential.API_KEY in GRANTS[row.permission] and row.permission not in WITHOUT_SCOPE
    }
    assert frozenset().union(*GROUPS.values()) == served


def test_each_operation_that_a_proof_covers_is_served() -> None:
    """The table of covered operations has only names of existing operations."""
    assert {row.name for row in rows()} >= COVERED_BY_PROOF
