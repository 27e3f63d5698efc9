"""A survey names the keys that need a tenant's attention, and counts the others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from keyservice.tests.conftest import OneTenant

from pqkeep_keyservice import clock
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import MAX_SURVEYED, KeySurvey, NotableKeys, SignCheckpoint, SurveyKeys
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CancelArchive,
    CreateKeyring,
    DeleteKeyring,
    Encrypt,
    GenerateKey,
    KeyService,
    PutRule,
    RestoreKeyring,
    RetireKey,
    RotateKey,
    ScheduleArchive,
)
from pqkeep_protocol.rules import Rule

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

KEM = Algorithm.ML_KEM_768
ONE = KeyVersion(1)


@pytest.fixture
def one(keys: KeyService, tenant: TenantId, attribution: Attribution) -> OneTenant:
    """A tenant."""
    return OneTenant(keys, tenant, attribution)


async def surveyed(one: OneTenant, *, old: int = 365, unused: int = 90) -> KeySurvey:
    """Return the survey after a checkpoint."""
    sign = SignCheckpoint(tenant=INSTALLATION, algorithm=Algorithm.ML_DSA_65)
    await one.keys.execute(sign, one.attribution)
    return await one.ask(
        SurveyKeys(tenant=one.tenant, old_days=old, unused_days=unused, denied_days=30)
    )


def names(found: NotableKeys) -> list[tuple[str, int | None]]:
    """Return keyring and version of the named keys."""
    return [(key.keyring, key.version) for key in found.first]


async def test_a_survey_finds_old_unused_and_doomed_keys(
    one: OneTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keyring's own number of days decides about its keys' age. Uses and cancellations count."""
    of: dict[str, Any] = {"tenant": one.tenant, "algorithm": KEM}
    rings: dict[str, dict[str, Any]] = {}
    for ring, days in (("fast", 30), ("slow", 0), ("gone", 0)):
        rings[ring] = {**of, "keyring": ring}
        await one.ask(CreateKeyring(tenant=one.tenant, keyring=ring, rotation_days=days))
        await one.ask(GenerateKey(**rings[ring], quota=None))
    await one.ask(GenerateKey(**of, quota=None))
    survey = await surveyed(one)
    assert [survey.old.count, survey.unused.count, survey.scheduled.count] == [0, 0, 0]
    assert survey.denied == ()
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + timedelta(days=100))
    await one.ask(DeleteKeyring(tenant=one.tenant, keyring="gone", days=9, only_if_allowed=False))
    survey = await surveyed(one)
    assert names(survey.old) == [("fast", 1)]
    assert survey.unused.count == 3
    assert names(survey.scheduled) == [("gone", None)]
    await one.ask(Encrypt(**of, version=None, plaintext=b""))
    await one.ask(RestoreKeyring(tenant=one.tenant, keyring="gone"))
    survey = await surveyed(one, unused=110)
    assert (survey.scheduled.count, survey.unused.count) == (0, 0)
    await one.ask(RotateKey(**rings["slow"]))
    await one.ask(ScheduleArchive(**rings["slow"], version=ONE, days=9))
    scheduled = (await surveyed(one)).scheduled
    assert names(scheduled) == [("slow", 1)]
    assert scheduled.newest_us == scheduled.first[0].at_us > 0
    await one.ask(CancelArchive(**rings["slow"], version=ONE))
    assert (await surveyed(one)).scheduled.count == 0
    await one.ask(RetireKey(**rings["fast"], version=ONE))
    assert ("fast", 1) not in names((await surveyed(one)).old)


async def test_a_survey_counts_more_than_it_names(
    one: OneTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A survey is small with any number of keys, and has no keys of other tenants."""
    for number in range(MAX_SURVEYED + 2):
        keyring = f"ring-{number}"
        await one.ask(CreateKeyring(tenant=one.tenant, keyring=keyring))
        await one.ask(GenerateKey(tenant=one.tenant, algorithm=KEM, keyring=keyring, quota=None))
    now = clock.now()
    monkeypatch.setattr(clock, "now", lambda: now + timedelta(days=400))
    survey = await surveyed(one)
    assert survey.old.count == survey.unused.count == MAX_SURVEYED + 2
    assert len(survey.old.first) == MAX_SURVEYED
    other = OneTenant(one.keys, TenantId(INSTALLATION), one.attribution)
    assert (await surveyed(other)).scheduled.count == 0


async def test_a_survey_has_the_rules_that_will_deny_uses(one: OneTenant) -> None:
    """Only a denial within the asked days that would have refused something counts."""
    now = clock.now().replace(microsecond=0)
    of: dict[str, Any] = {"tenant": one.tenant, "algorithm": KEM}
    await one.ask(GenerateKey(**of, quota=None))
    await one.ask(Encrypt(**of, version=None, plaintext=b""))
    for name, algorithm, days in (
        ("soon", KEM, 20),
        ("later", KEM, 60),
        ("unused", Algorithm.ML_KEM_1024, 20),
    ):
        rule = Rule(name, (algorithm,), deny_from=now + timedelta(days=days))
        await one.ask(PutRule(tenant=one.tenant, name=rule.name, rules=(rule,)))
    (denied,) = (await surveyed(one)).denied
    assert (denied.rule, denied.uses) == ("soon", 2)
