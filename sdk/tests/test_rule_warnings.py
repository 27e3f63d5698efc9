"""Warnings of rules: each rule warns once in a process, and names the calling program."""

import json
import logging
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from pqkeep import Client, RuleWarning

API_KEY = "pqk_" + "0" * 49
SEALED = {"ciphertext": "QUJD", "key_version": 1, "algorithm": "Kyber768"}
BODY = json.dumps({"data": SEALED}).encode()
SINCE = ("Deprecation", "@1767225600")
UNTIL = ("Sunset", "Fri, 01 Jan 2027 00:00:00 GMT")
Answer = Callable[..., str]
Connect = Callable[..., Client]


def link_to(rule: str) -> tuple[str, str]:
    """Return the header that names a rule."""
    return ("Link", f'</api/v1/rules/algorithms/{rule}>; rel="deprecation"; type="a/b"')


def test_a_rule_is_warned_of_once(
    connect: Connect, response: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    """The first response warns and logs with the rule and its dates. Later ones do not."""
    rule = f"kem-{uuid4()}"
    client = connect(response(BODY, 200, (SINCE, UNTIL, link_to(rule))), API_KEY)
    with caplog.at_level(logging.WARNING), pytest.warns(RuleWarning) as caught:
        assert client.kem.encrypt(b"x").ciphertext == b"ABC"
    (warned,) = caught
    assert issubclass(warned.category, DeprecationWarning)
    assert isinstance(warned.message, RuleWarning)
    assert warned.message.rule == rule
    assert warned.message.deprecation == datetime(2026, 1, 1, tzinfo=UTC)
    assert warned.message.sunset == datetime(2027, 1, 1, tzinfo=UTC)
    assert "/src/pqkeep/" not in warned.filename
    (logged,) = (record for record in caplog.records if record.name == "pqkeep")
    assert rule in logged.getMessage()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client.kem.encrypt(b"x")


def test_items_name_their_own_rules(connect: Connect, response: Answer) -> None:
    """Each rule that an item of a batch names is warned of; a rule may have no date of denial."""
    rules = [f"kem-{uuid4()}" for _ in range(2)]
    items = [
        {"data": SEALED, "warning": {"rule": rule, "deprecation": "2026-01-01T00:00:00.000Z"}}
        for rule in rules
    ]
    body = json.dumps({"data": {"results": items}}).encode()
    client = connect(response(body, 200, (SINCE, link_to(rules[0]))), API_KEY)
    with pytest.warns(RuleWarning) as caught:
        list(client.kem.encrypt_many([{"plaintext": b"x"}] * 2))
    messages = [warning.message for warning in caught]
    assert [message.rule for message in messages if isinstance(message, RuleWarning)] == rules
    assert all(getattr(message, "sunset", None) is None for message in messages)


@pytest.mark.parametrize(
    "headers",
    [
        (SINCE,),
        (link_to("kem"),),
        (SINCE, ("Link", '<https://example.com/kem>; rel="deprecation"')),
        (SINCE, link_to("no rule")),
        (SINCE, link_to("x" * 65)),
    ],
)
def test_other_deprecations_are_ignored(
    connect: Connect, response: Answer, headers: tuple[tuple[str, str], ...]
) -> None:
    """Headers that are not for a rule of the service, such as a proxy's, cause no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        connect(response(BODY, 200, headers), API_KEY).kem.encrypt(b"x")


def test_unreadable_dates_leave_the_warning(connect: Connect, response: Answer) -> None:
    """A rule with dates that cannot be read is warned of without them."""
    rule = f"kem-{uuid4()}"
    headers = (("Deprecation", "@" + "9" * 40), ("Sunset", "soon"), link_to(rule))
    with pytest.warns(RuleWarning) as caught:
        connect(response(BODY, 200, headers), API_KEY).kem.encrypt(b"x")
    (warned,) = caught
    assert isinstance(warned.message, RuleWarning)
    assert (warned.message.deprecation, warned.message.sunset) == (None, None)
