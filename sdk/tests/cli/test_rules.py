"""``pqkeep rules``, and the note of a command that a rule will end."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from sdk.tests.test_rules import RULE

if TYPE_CHECKING:
    from collections.abc import Callable

    from sdk.tests.cli.conftest import Command

DEPRECATED = (
    ("Deprecation", "@1782864000"),
    ("Sunset", "Fri, 01 Jan 2027 00:00:00 GMT"),
    ("Link", '</api/v1/rules/algorithms/kem>; rel="deprecation"; type="application/json"'),
)


def test_rules(command: Command) -> None:
    """Rules, profiles and previews are shown to people and to programs."""
    assert json.loads(command("--output", "json", "rules", "list").out) == {"rules": [], "total": 0}
    profiles = command("rules", "profiles").out.decode()
    assert profiles.split()[:4] == ["RULE", "ENDS", "USES", "SUCCESSOR"]
    assert "cnsa-2.0.mac" in profiles
    of = ("--output", "json", "rules")
    listed = json.loads(command(*of, "profiles").out)["profiles"]
    assert [profile["name"] for profile in listed] == ["cnsa-2.0", "eu-hybrid"]
    for group in ("rules", "campaign"):
        missing = command(group, "show", "kem")
        assert (missing.status, f"pqkeep {group} list" in missing.err) == (4, True), missing.err
    assert command("keys", "generate", "Kyber768").status == 0
    asked = ("preview", "--rule-profile", "eu-hybrid", "--use", "generate-key")
    (use,) = json.loads(command(*of, *asked).out)["refused"]
    assert (use["rule"], use["operation"], use["uses"]) == ("eu-hybrid.kem", "generate-key", 1)
    assert b"eu-hybrid.kem" in command("rules", *asked).out


@pytest.mark.parametrize(("options", "notes"), [((), 1), (("--quiet",), 0)])
def test_a_command_that_a_rule_will_end_says_so(
    command: Command, response: Callable[..., str], options: tuple[str, ...], notes: int
) -> None:
    """One line on standard error names rule and date, and standard output is as before."""
    url = response(json.dumps({"data": RULE}).encode(), 200, DEPRECATED)
    ended = command.as_(PQKEEP_URL=url)(*options, "rules", "show", "kem")
    assert ended.status == 0
    assert ended.out.startswith(b"name")
    assert b"API key 3 until 2027-04-01T00:00:00Z" in ended.out
    lines = ended.err.splitlines()
    assert len(lines) == notes
    for line in lines:
        assert "the rule kem denies from 2027-01-01T00:00:00Z on" in line
