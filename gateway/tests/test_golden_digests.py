"""Stored credentials remain valid: fixed inputs give fixed bytes.

The vectors were created without this project's code. They fail if a label or an encoding changes,
which would lock every user out.
"""

import json
from pathlib import Path

import pytest

from pqkeep_gateway.access.credentials import CredentialKind, Pepper, Purpose

VECTORS = json.loads(
    (Path(__file__).parents[2] / "tests" / "vectors" / "formats-at-rest.json").read_text()
)["pepper"]


@pytest.mark.parametrize("purpose", Purpose)
def test_what_is_derived_for_each_purpose(purpose: Purpose, pepper: Pepper) -> None:
    """Each purpose has its own subkey, which computes one HMAC of the parts."""
    assert pepper.derive(purpose, b"a", b"bc").hex() == VECTORS["derived"][purpose]


@pytest.mark.parametrize("prefix", ["", *CredentialKind])
def test_the_digest_of_each_kind_of_credential(prefix: str, pepper: Pepper) -> None:
    """Each kind of credential has its own subkey. Any other text gives another subkey."""
    assert pepper.digest(f"{prefix}x").hex() == VECTORS["digests"][prefix]


def test_no_two_subkeys_are_one() -> None:
    """Every label is unique, and has a vector."""
    assert set(VECTORS["derived"]) == set(Purpose)
    assert set(VECTORS["digests"]) == {"", *CredentialKind}
