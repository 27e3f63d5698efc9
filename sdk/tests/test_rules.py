"""Rules of the service: lists, profiles and previews, and what the command shows."""

import json
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from pqkeep import Client, NotFoundError
from pqkeep.models import AlgorithmRule, RuleException

API_KEY = "pqk_" + "0" * 49
Answer = Callable[..., str]
Connect = Callable[..., Client]
RULE = {
    "name": "kem",
    "algorithms": ["Kyber768"],
    "keyrings": ["*"],
    "uses": ["encrypt"],
    "successor": None,
    "warn_from": None,
    "deny_from": "2027-01-01T00:00:00.000Z",
    "exceptions": [{"api_key": 3, "until": "2027-04-01T00:00:00.000Z"}],
}


def test_a_tenant_without_rules(client: Client) -> None:
    """Without rules the list is empty, and no name exists. Profiles have a preview."""
    listed = client.rules.list()
    assert (listed.rules, listed.revision) == ((), 0)
    with pytest.raises(NotFoundError):
        client.rules.get("kem")
    profiles = {profile.name: profile for profile in client.rules.profiles()}
    assert profiles.keys() == {"cnsa-2.0", "eu-hybrid"}
    assert profiles["cnsa-2.0"].rules[0].successor == "ML-KEM-1024"
    client.keys.generate("Kyber768")
    preview = client.rules.preview(
        profile="cnsa-2.0", algorithms=["Kyber768"], keyrings=["default"], uses=["generate-key"]
    )
    (use,) = preview.refused
    assert (use.rule, use.operation, use.keyring, use.uses) == (
        *("cnsa-2.0.kem", "generate-key", "default"),
        1,
    )
    assert use.principal.startswith("api-key:")
    assert not preview.incomplete


def test_a_rule_is_read(connect: Connect, response: Answer) -> None:
    """All fields of a rule have their types."""
    client = connect(response(json.dumps({"data": RULE}).encode(), 200), API_KEY)
    assert client.rules.get("kem") == AlgorithmRule(
        name="kem",
        algorithms=("Kyber768",),
        keyrings=("*",),
        uses=("encrypt",),
        successor=None,
        warn_from=None,
        deny_from=datetime(2027, 1, 1, tzinfo=UTC),
        exceptions=(RuleException(api_key=3, until=datetime(2027, 4, 1, tzinfo=UTC)),),
    )
