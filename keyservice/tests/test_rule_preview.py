"""A preview shows exactly the uses of the last days that a rule would have refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from pqkeep_keyservice import clock
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    PREVIEW_DAYS,
    RE_ENCRYPT_TARGET,
    PreviewedUse,
    PreviewRules,
    SignCheckpoint,
)
from pqkeep_protocol.keys import INSTALLATION, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CreateKeyring,
    Decrypt,
    Encapsulate,
    Encrypt,
    GenerateKey,
    KeyService,
    ReEncrypt,
    RotateKey,
    Target,
)
from pqkeep_protocol.rules import Rule, RuleException, RuleUse

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

KEM, OTHER = Algorithm.ML_KEM_768, Algorithm.X_WING
ONE = KeyVersion(1)
BILLING, ORDERS = "api-key:1/billing", "api-key:2"


class World:
    """A tenant that used its keys, and previews."""

    def __init__(self, keys: KeyService, tenant: TenantId) -> None:
        self.keys = keys
        self.tenant = tenant

    async def ask(self, principal: str, request: Any) -> Any:
        """Execute a request of a principal."""
        return await self.keys.execute(request, Attribution("r", principal, "192.0.2.1"))


@pytest.fixture
async def world(keys: KeyService, tenant: TenantId, stranger: TenantId) -> World:
    """Two principals use two keyrings, and a public key of others."""
    made = World(keys, tenant)
    foreign = await World(keys, stranger).ask(
        BILLING, GenerateKey(tenant=stranger, algorithm=KEM, quota=None)
    )
    of: dict[str, Any] = {"tenant": tenant, "algorithm": KEM}
    cards: dict[str, Any] = {**of, "keyring": "cards.a"}
    await made.ask(BILLING, CreateKeyring(tenant=tenant, keyring="cards.a"))
    for named in (of, cards, {**of, "algorithm": OTHER}):
        await made.ask(BILLING, GenerateKey(**named, quota=None))
    await made.ask(BILLING, RotateKey(**cards))
    for _ in range(3):
        sealed = await made.ask(BILLING, Encrypt(**of, version=None, plaintext=b""))
    await made.ask(ORDERS, Encrypt(**cards, version=None, plaintext=b""))
    await made.ask(ORDERS, Encrypt(**{**of, "algorithm": OTHER}, version=None, plaintext=b""))
    await made.ask(ORDERS, Decrypt(**of, version=ONE, ciphertext=sealed.ciphertext))
    supplied = Encapsulate(**of, version=None, public_key=foreign.key.public_key)
    await made.ask(ORDERS, supplied)
    await made.ask(
        ORDERS,
        ReEncrypt(
            **of,
            version=ONE,
            ciphertext=sealed.ciphertext,
            is_wrapped_key=False,
            target=Target(KEM, "cards.a"),
        ),
    )
    sign = SignCheckpoint(tenant=INSTALLATION, algorithm=Algorithm.ML_DSA_65)
    await keys.execute(sign, Attribution("r", "operator", ""))
    return made


@pytest.fixture
def stranger() -> TenantId:
    """Return another tenant."""
    return TenantId(uuid4())


async def test_a_preview_has_the_uses_that_a_rule_ends(world: World) -> None:
    """Keyrings, algorithms and uses select; reading and other algorithms are not there."""
    everything = [
        ("r", BILLING, "cards.a", "generate-key", 1),
        ("r", BILLING, "cards.a", "rotate-key", 1),
        ("r", BILLING, "default", "encrypt", 3),
        ("r", BILLING, "default", "generate-key", 1),
        ("r", ORDERS, None, "encapsulate", 1),
        ("r", ORDERS, "cards.a", "encrypt", 1),
        ("r", ORDERS, "cards.a", RE_ENCRYPT_TARGET, 1),
    ]
    by_name = sorted(everything, key=lambda row: (row[1], str(row[2] or ""), row[3]))
    shown = await _previewed(world, Rule("r", (KEM,)))
    assert shown == by_name
    in_cards = [row for row in by_name if row[2] == "cards.a"]
    assert await _previewed(world, Rule("r", (KEM,), ("cards.*",))) == in_cards
    assert await _previewed(world, Rule("r", (KEM,), ("cards.a", "default"))) == [
        row for row in by_name if row[2]
    ]
    assert await _previewed(world, Rule("r", (KEM,), ("cards",))) == []
    encrypting = [row for row in by_name if row[3] in {"encrypt", RE_ENCRYPT_TARGET}]
    assert await _previewed(world, Rule("r", (KEM,), uses=(RuleUse.ENCRYPT,))) == encrypting
    assert await _previewed(world, Rule("r", (Algorithm.ML_KEM_1024,))) == []


async def _previewed(world: World, *rules: Rule) -> list[tuple[Any, ...]]:
    preview = await world.ask(BILLING, PreviewRules(tenant=world.tenant, rules=rules))
    assert not preview.has_more
    uses: list[PreviewedUse] = list(preview.uses)
    assert all(use.first_used_us <= use.last_used_us for use in uses)
    return sorted(
        ((use.rule, use.principal, use.keyring, use.operation, use.uses) for use in uses),
        key=lambda row: (row[1], str(row[2] or ""), row[3]),
    )


async def test_a_use_counts_for_the_first_of_several_rules(world: World) -> None:
    """If several rules match, a use counts once. API keys with an exception are left out."""
    encrypts = (RuleUse.ENCRYPT,)
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=1)
    rules = (
        Rule("cards", (KEM,), ("cards.*",), encrypts),
        Rule("all", (KEM, OTHER), ("*",), encrypts, exceptions=(RuleException(1, until),)),
    )
    assert await _previewed(world, *rules) == [
        ("cards", ORDERS, "cards.a", "encrypt", 1),
        ("cards", ORDERS, "cards.a", RE_ENCRYPT_TARGET, 1),
        ("all", ORDERS, "default", "encrypt", 1),
    ]
    over = RuleException(1, until - timedelta(days=2))
    ended = Rule("all", (KEM,), ("default",), encrypts, exceptions=(over,))
    assert await _previewed(world, ended) == [("all", BILLING, "default", "encrypt", 3)]


async def test_older_uses_and_other_tenants_are_left_out(
    world: World, stranger: TenantId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preview has the tenant's own uses of the last PREVIEW_DAYS days."""
    rule = Rule("r", (KEM,))
    other = World(world.keys, stranger)
    assert await _previewed(other, rule) == [("r", BILLING, "default", "generate-key", 1)]
    later = clock.now() + timedelta(days=PREVIEW_DAYS + 1)
    monkeypatch.setattr(clock, "now", lambda: later)
    assert await _previewed(world, rule) == []
