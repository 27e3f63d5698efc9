"""The inventory assesses the rules that concern a key."""

from datetime import UTC, datetime

import pytest

from pqkeep_gateway.api.inventory import assessed, concerns
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import InventoryKey
from pqkeep_protocol.keys import KeyStatus, KeyVersion
from pqkeep_protocol.rules import Rule

AT = datetime(2030, 1, 1, tzinfo=UTC)
KEY = InventoryKey(
    keyring="cards.eu",
    algorithm=Algorithm.ML_KEM_768,
    version=KeyVersion(1),
    status=KeyStatus.ACTIVE,
    created_at=AT,
    retired_at=None,
    disabled_until=None,
    rotation_at=None,
    archive_at=None,
    imported=False,
    has_private_key=True,
    fingerprint=bytes(32),
    is_keyring_deleted=False,
    labels={"confidential-until": "2035-06-30"},
    operations=(),
    principals=(),
    has_more_principals=False,
)


@pytest.mark.parametrize(
    ("keyrings", "algorithm", "expected"),
    [
        (("*",), Algorithm.ML_KEM_768, True),
        (("other", "cards.*"), Algorithm.ML_KEM_768, True),
        (("cards.eu",), Algorithm.ML_KEM_768, True),
        (("cards",), Algorithm.ML_KEM_768, False),
        (("cards.eu.*",), Algorithm.ML_KEM_768, False),
        (("*",), Algorithm.X_WING, False),
    ],
)
def test_a_rule_concerns_keys_of_its_keyrings_and_algorithms(
    keyrings: tuple[str, ...], algorithm: Algorithm, *, expected: bool
) -> None:
    """Exact names and prefixes match, and only the rule's algorithms."""
    rule = Rule(name="r", algorithms=(algorithm,), keyrings=keyrings)
    assert concerns(rule, KEY) is expected


@pytest.mark.parametrize(
    ("warn", "deny", "state", "longer"),
    [
        (2029, 2031, "warns", True),
        (2031, 2036, "announced", False),
        (2028, 2029, "denies", True),
        (None, 2030, "denies", True),
        (2030, None, "warns", False),
        (None, None, "announced", False),
    ],
)
def test_the_state_follows_the_dates(
    warn: int | None, deny: int | None, state: str, *, longer: bool
) -> None:
    """Each date applies from its instant on; data that outlast the denial are marked."""
    rule = Rule(
        name="r",
        algorithms=(Algorithm.ML_KEM_768,),
        warn_from=None if warn is None else datetime(warn, 1, 1, tzinfo=UTC),
        deny_from=None if deny is None else datetime(deny, 1, 1, tzinfo=UTC),
    )
    found = assessed(rule, KEY, AT)
    assert (found.state, found.confidential_longer) == (state, longer)
