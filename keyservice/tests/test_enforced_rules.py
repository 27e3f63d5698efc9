"""The key service enforces rules in every operation that makes new data or new keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from keyservice.tests.test_key_import import made_elsewhere, wrap

from pqkeep_keyservice import clock
from pqkeep_keyservice.keys.rules import RuleSet
from pqkeep_protocol.algorithms import DIGEST_SIZE, Algorithm, HashAlgorithm, Operation
from pqkeep_protocol.audit import AnyAuditRequest, ListInventory, SignCheckpoint
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import INSTALLATION, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    AnyRequest,
    Attribution,
    Batch,
    ComputeMac,
    CreateKeyring,
    Decapsulate,
    Decrypt,
    DeleteRule,
    Encapsulate,
    Encrypt,
    GenerateDataKey,
    GenerateKey,
    GetActiveKey,
    GetImportKey,
    ImportPrivateKey,
    Item,
    ListKeys,
    ListRules,
    OverrideRule,
    PutRule,
    ReEncrypt,
    Refused,
    RotateKey,
    Rules,
    ScheduleDestruction,
    Sign,
    SignHash,
    SignJws,
    SignMu,
    Target,
    Unwrap,
    UpdateKeyring,
    Verify,
    VerifyMac,
    Wrap,
)
from pqkeep_protocol.rules import MAX_RULES, Rule, RuleException, RuleUse

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Serving

Sql = Callable[..., list[Any]]
KEM, OTHER, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.X_WING, Algorithm.ML_DSA_65
CIPHER, MAC = Algorithm.XAES_256_GCM, Algorithm.HMAC_SHA_256
V1 = KeyVersion(1)
PROGRAM, PERSON = "api-key:3/billing", "user:1"
DAY = timedelta(days=1)
DENIED = ErrorKind.RULE_DENIED
both_databases = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
RECORDS = (
    "SELECT operation, outcome, rule, principal FROM audit_records WHERE rule IS NOT NULL"
    " ORDER BY id"
)
ENDED = (KEM, SIGNATURE, CIPHER, MAC)
MESSAGE: dict[str, Any] = {"message": b"text"}
PAYLOAD: dict[str, Any] = {"payload": b"text", "detached": False}
DIGEST: dict[str, Any] = {"hash_algorithm": HashAlgorithm.SHA_256, "digest": bytes(32)}


def seconds() -> datetime:
    """Return the current second."""
    return datetime.now(UTC).replace(microsecond=0)


class Caller:
    """A tenant with a key of each kind."""

    def __init__(self, service: InProcessService, tenant: TenantId) -> None:
        self.service = service
        self.tenant = tenant

    async def ask(
        self, request: AnyRequest | Batch | AnyAuditRequest, principal: str = PERSON
    ) -> Any:
        """Return a result, or the error."""
        try:
            return await self.service.execute(request, Attribution("r", principal, "", ""))
        except KeyServiceError as refusal:
            return refusal

    async def kind(self, request: AnyRequest, principal: str = PERSON) -> ErrorKind | None:
        """Return the kind of the refusal, or None."""
        return getattr(await self.ask(request, principal), "kind", None)

    def key(self, algorithm: Algorithm = KEM) -> dict[str, Any]:
        return {"tenant": self.tenant, "algorithm": algorithm}

    async def prepare(self) -> None:
        for algorithm in (*ENDED, OTHER):
            done = await self.ask(GenerateKey(**self.key(algorithm), quota=None))
            assert not isinstance(done, KeyServiceError)

    async def put(self, **fields: Any) -> Rules:
        rule = Rule(**{"name": "end", "algorithms": ENDED, **fields})
        done = await self.ask(self.putting(rule))
        assert isinstance(done, Rules)
        return done

    def putting(self, *rules: Rule, name: str = "") -> PutRule:
        """Return the request that puts rules."""
        return PutRule(tenant=self.tenant, name=name or rules[0].name, rules=rules)

    async def reads(self) -> list[AnyRequest]:
        """Return requests that read earlier results."""
        kem = self.key()
        one: dict[str, Any] = {"version": V1}
        blob = await self.ask(Encrypt(**kem, version=V1, plaintext=b"text"))
        capsule = await self.ask(Encapsulate(**kem, **one))
        wrapped = await self.ask(Wrap(**kem, **one, symmetric_key=bytearray(32)))
        signed = await self.ask(Sign(**self.key(SIGNATURE), **one, **MESSAGE))
        mac = await self.ask(ComputeMac(**self.key(MAC), **one, **MESSAGE))
        return [
            Decrypt(**kem, **one, ciphertext=blob.ciphertext),
            Decapsulate(**kem, **one, kem_ciphertext=capsule.kem_ciphertext),
            Unwrap(**kem, **one, wrapped_key=wrapped.wrapped_key),
            Verify(**self.key(SIGNATURE), **one, **MESSAGE, signature=signed.signature),
            VerifyMac(**self.key(MAC), **one, **MESSAGE, mac=mac.mac),
            ReEncrypt(
                **kem,
                **one,
                ciphertext=blob.ciphertext,
                is_wrapped_key=False,
                target=Target(OTHER),
            ),
            GetActiveKey(**kem),
            ListKeys(tenant=self.tenant, algorithm=None, status=None),
            GenerateKey(**kem, quota=None, if_absent=True),
        ]

    def writes(self) -> dict[RuleUse, list[AnyRequest]]:
        """Return requests that make new data and keys, by use."""
        kem = self.key()
        active: dict[str, Any] = {"version": None}
        mu = SignMu(**self.key(SIGNATURE), **active, mu=bytes(64))
        return {
            RuleUse.ENCRYPT: [
                Encrypt(**kem, **active, plaintext=b""),
                Encrypt(**self.key(CIPHER), **active, plaintext=b""),
            ],
            RuleUse.ENCAPSULATE: [Encapsulate(**kem, version=V1)],
            RuleUse.WRAP: [Wrap(**kem, version=V1, symmetric_key=bytearray(32))],
            RuleUse.GENERATE_DATA_KEY: [
                GenerateDataKey(**kem, **active, size=32, plaintext=True),
            ],
            RuleUse.SIGN: [
                Sign(**self.key(SIGNATURE), **active, **MESSAGE),
                SignHash(**self.key(SIGNATURE), **active, **DIGEST),
                SignJws(**self.key(SIGNATURE), **active, **PAYLOAD),
                mu,
            ],
            RuleUse.COMPUTE_MAC: [ComputeMac(**self.key(MAC), **active, **MESSAGE)],
            RuleUse.GENERATE_KEY: [
                GetImportKey(**kem),
                RotateKey(**kem),
                GenerateKey(**kem, keyring="empty", quota=None),
            ],
        }


@pytest.fixture
async def caller(service: InProcessService, tenant: TenantId) -> Caller:
    """Return a tenant with keys."""
    await service.parts.activation.start()
    caller = Caller(service, tenant)
    await caller.prepare()
    await caller.ask(CreateKeyring(tenant=tenant, keyring="empty"))
    return caller


@both_databases
async def test_a_rule_denies_its_uses_and_no_reading(caller: Caller, sql: Sql) -> None:
    """Each use of a rule denies only its own operations. Others, and all reading, continue."""
    reads = await caller.reads()
    writes = caller.writes()
    for use, requests in writes.items():
        for other, others in writes.items():
            if other in {use, RuleUse.GENERATE_KEY}:
                continue
            assert await caller.kind(others[0]) is None
        await caller.put(name=use.value, uses=(use,), deny_from=seconds() - DAY)
        for request in requests:
            refused = await caller.ask(request)
            assert isinstance(refused, KeyServiceError), request.operation
            assert (refused.kind, refused.notice and refused.notice.rule) == (DENIED, use.value)
        override = OverrideRule(tenant=caller.tenant, name=use.value, rules=())
        assert await caller.kind(override) is None
    await caller.put(deny_from=seconds() - DAY)
    assert [await caller.kind(request) for request in reads] == [None] * len(reads)
    denied = [row for row in sql(RECORDS) if row[1] == DENIED.value]
    assert [row[2] for row in denied] == [use for use in writes for _ in writes[use]]


async def test_a_rule_denies_sign_hash_with_one_hash_function(caller: Caller) -> None:
    """A rule on SHA-256 denies such digests only.

    Other digests, and the message itself, are signed.
    """
    await caller.put(
        algorithms=(SIGNATURE,), uses=(RuleUse.SIGN_SHA_256,), deny_from=seconds() - DAY
    )
    for function, size in DIGEST_SIZE.items():
        request = SignHash(
            **caller.key(SIGNATURE), version=None, hash_algorithm=function, digest=bytes(size)
        )
        expected = DENIED if function is HashAlgorithm.SHA_256 else None
        assert await caller.kind(request) is expected
    assert await caller.kind(Sign(**caller.key(SIGNATURE), version=None, **MESSAGE)) is None


async def test_a_warning_is_in_the_result_and_in_the_record(
    caller: Caller, service: InProcessService, sql: Sql
) -> None:
    """From ``warn_from`` a result carries the rule and its dates, from memory and from a task."""
    warn, deny = seconds(), seconds() + 30 * DAY
    encrypt = Encrypt(**caller.key(), version=None, plaintext=b"")
    assert (await caller.ask(encrypt)).notice is None
    await caller.put(warn_from=warn, deny_from=deny, algorithms=(KEM,), successor=OTHER)
    for request in (
        encrypt,
        Encapsulate(**caller.key(), version=V1),
        GenerateKey(**caller.key(), keyring="empty", quota=None),
    ):
        notice = (await caller.ask(request)).notice
        assert (notice.rule, notice.deprecation, notice.sunset) == ("end", warn, deny)
        assert notice.successor is OTHER
    answered: list[Any] = []
    loop_time = 1e12
    transactions = service.parts.transactions
    assert transactions.execute_from_memory(
        encrypt, Attribution("r", PERSON, "", ""), loop_time, answered.append
    )
    await caller.ask(GetActiveKey(**caller.key()))  # commits after it
    assert answered[0].notice.rule == "end"
    operations = ["put-rule", "encrypt", "encapsulate", "generate-key", "encrypt"]
    assert [row[0] for row in sql(RECORDS)] == operations
    assert {row[1:3] for row in sql(RECORDS)} == {("success", "end")}


async def test_dates_and_exceptions_hold_by_the_clock(
    caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The denial begins at its instant, and for an excepted API key at the end of its exception."""
    deny, until = seconds() + DAY, seconds() + 2 * DAY
    excepted = (RuleException(3, until),)
    await caller.put(deny_from=deny, algorithms=(KEM,), exceptions=excepted)
    encrypt = Encrypt(**caller.key(), version=None, plaintext=b"")
    moment = timedelta(microseconds=1)
    for at, person, program in (
        (deny - moment, None, None),
        (deny, DENIED, None),
        (until - moment, DENIED, None),
        (until, DENIED, DENIED),
    ):
        monkeypatch.setattr(clock, "now", lambda at=at: at)
        assert await caller.kind(encrypt) is person
        assert await caller.kind(encrypt, PROGRAM) is program


async def test_a_re_encryption_is_denied_by_its_target(caller: Caller) -> None:
    """An ended target is refused before anything is sealed; an ended source is not."""
    key = caller.key()
    blob = await caller.ask(Encrypt(**key, version=None, plaintext=b"text"))
    wrapped = await caller.ask(Wrap(**key, version=V1, symmetric_key=bytearray(32)))
    await caller.put(deny_from=seconds() - DAY, algorithms=(OTHER,), uses=(RuleUse.WRAP,))
    moves = {
        is_wrapped: ReEncrypt(
            **key, version=V1, ciphertext=data, is_wrapped_key=is_wrapped, target=Target(OTHER)
        )
        for is_wrapped, data in ((False, blob.ciphertext), (True, wrapped.wrapped_key))
    }
    assert await caller.kind(moves[False]) is None
    assert await caller.kind(moves[True]) is DENIED
    await caller.put(name="encrypt", deny_from=seconds(), algorithms=(OTHER,))
    refused = await caller.ask(moves[False])
    assert (refused.kind, refused.notice.rule) == (DENIED, "encrypt")


async def test_supplied_public_keys_are_covered(caller: Caller, sql: Sql) -> None:
    """A rule covers a tenant's own public key by its keyring, and another owner's only by ``*``."""
    own = (await caller.ask(GetActiveKey(**caller.key()))).key.public_key
    foreign = made_elsewhere(KEM)[1]

    def to(public_key: bytes) -> list[AnyRequest]:
        given: dict[str, Any] = {**caller.key(), "version": None, "public_key": public_key}
        return [Encrypt(**given, plaintext=b""), Encapsulate(**given)]

    await caller.put(deny_from=seconds() - DAY, algorithms=(KEM,), keyrings=("default",))
    assert [await caller.kind(request) for request in to(own)] == [DENIED, DENIED]
    assert [await caller.kind(request) for request in to(foreign)] == [None, None]
    await caller.put(name="all", deny_from=seconds() - DAY, algorithms=(KEM,))
    assert [await caller.kind(request) for request in to(foreign)] == [DENIED, DENIED]
    recorded = "SELECT keyring, rule FROM audit_records WHERE outcome = 'rule-denied' ORDER BY id"
    assert sql(recorded) == [("default", "end")] * 2 + [(None, "all")] * 2


async def test_an_import_is_denied_after_its_import_key(caller: Caller) -> None:
    """An import key that was issued before the date does not help."""
    named = {**caller.key(SIGNATURE), "keyring": "empty"}
    issued = await caller.ask(GetImportKey(**named))
    await caller.put(deny_from=seconds() - DAY)
    importing = ImportPrivateKey(
        **named,
        import_key_id=issued.id,
        wrapped_private_key=wrap(issued, made_elsewhere(SIGNATURE)[0]),
        quota=None,
    )
    assert await caller.kind(importing) is DENIED


async def test_each_item_of_a_batch_has_its_rule(caller: Caller, sql: Sql) -> None:
    """Rules decide each item of a batch on its own, in threads and worker processes too."""
    await caller.put(warn_from=seconds(), algorithms=(KEM,))
    await caller.put(name="sign", deny_from=seconds(), algorithms=(SIGNATURE,))
    key, capsules = caller.key(), 20
    requests: list[Any] = [
        *[Encapsulate(**key, version=V1)] * capsules,
        Encrypt(**key, version=None, plaintext=b""),
        Encrypt(**caller.key(OTHER), version=None, plaintext=b""),
        Sign(**caller.key(SIGNATURE), version=None, message=b"text"),
    ]
    batch = Batch(tenant=caller.tenant, items=tuple(Item(request) for request in requests))
    *warned, free, denied = (await caller.ask(batch)).results
    assert {result.notice.rule for result in warned} == {"end"}
    assert free.notice is None
    assert isinstance(denied, Refused)
    assert (denied.kind, denied.notice and denied.notice.rule) == (DENIED, "sign")
    recorded = sql("SELECT rule FROM audit_records ORDER BY id DESC LIMIT 23")[::-1]
    assert [rule for (rule,) in recorded] == ["end"] * (capsules + 1) + [None, "sign"]


# --- Changes of rules ---------------------------------------------------------------------


@pytest.mark.threat("compromised-gateway")
async def test_a_gateway_cannot_weaken_a_rule(caller: Caller, sql: Sql) -> None:
    """A weaker rule, an old frame of the same rule, and a deletion are refused and recorded."""
    first = caller.putting(Rule("end", (KEM,), deny_from=seconds() + DAY))
    assert await caller.kind(first) is None
    assert await caller.kind(first) is None  # nothing changes
    await caller.put(algorithms=(KEM, SIGNATURE), deny_from=seconds() - DAY)
    before = await caller.ask(ListRules(tenant=caller.tenant))
    weaker: list[AnyRequest] = [
        first,
        caller.putting(Rule("end", (KEM,))),
        DeleteRule(tenant=caller.tenant, name="end"),
    ]
    assert [await caller.kind(request) for request in weaker] == [ErrorKind.RULE_WEAKENED] * 3
    assert await caller.kind(DeleteRule(tenant=caller.tenant, name="none")) is (
        ErrorKind.RULE_NOT_FOUND
    )
    after = await caller.ask(ListRules(tenant=caller.tenant))
    assert (after.rules, after.revision) == (before.rules, before.revision)
    assert [row[:3] for row in sql(RECORDS)][-4:] == [
        ("put-rule", "rule-weakened", "end"),
        ("put-rule", "rule-weakened", "end"),
        ("delete-rule", "rule-weakened", "end"),
        ("delete-rule", "rule-not-found", "none"),
    ]


@both_databases
async def test_a_profile_is_put_whole_or_not_at_all(caller: Caller, sql: Sql) -> None:
    """A profile's rules are one change with one record. If one rule is refused, all are."""
    kinds = ("hash", "kem", "mac", "signature")

    def profile(name: str, deny_from: datetime) -> PutRule:
        """Return a request for four rules."""
        rules = [Rule(f"{name}.{kind}", (KEM,), deny_from=deny_from) for kind in kinds]
        return caller.putting(*rules, name=name)

    async def names() -> dict[str, datetime | None]:
        """Return the rules of a profile by name, without the others."""
        listed = await caller.ask(ListRules(tenant=caller.tenant))
        return {rule.name: rule.deny_from for rule in listed.rules if "." in rule.name}

    later, sooner, past = (seconds() + days * DAY for days in (2, 1, -1))
    put = await caller.ask(profile("cnsa", later))
    assert (put.revision, len(put.rules)) == (1, 4)
    assert (await caller.put(name="eu.mac", deny_from=past)).revision == 2
    assert await caller.kind(profile("eu", later)) is ErrorKind.RULE_WEAKENED
    whole = {f"cnsa.{kind}": later for kind in kinds}
    assert await names() == {**whole, "eu.mac": past}
    await asyncio.gather(*(caller.ask(profile("cnsa", at)) for at in (sooner, past)))
    assert await names() == {**dict.fromkeys(whole, past), "eu.mac": past}
    for number in range(42):
        await caller.put(name=f"rule-{number}")
    assert await caller.kind(profile("too-many", later)) is ErrorKind.RULE_LIMIT_REACHED
    assert len(await names()) == 5
    recorded = [row[1:3] for row in sql(RECORDS) if not row[2].startswith("rule-")]
    assert recorded[:3] == [("success", "cnsa"), ("success", "eu.mac"), ("rule-weakened", "eu")]
    assert recorded[-1] == ("rule-limit-reached", "too-many")


@pytest.mark.threat("compromised-gateway")
async def test_a_change_has_the_name_of_its_rules(caller: Caller) -> None:
    """A record must name the rule or profile that was put."""
    for name, names in (("eu", ("cnsa.kem",)), ("cnsa", ("cnsa2",)), ("cnsa", ("cnsa", "cnsa"))):
        with pytest.raises(ValueError, match="name"):
            caller.putting(*(Rule(rule, (KEM,)) for rule in names), name=name)


async def test_the_operator_can_weaken_a_rule(caller: Caller, sql: Sql) -> None:
    """The operator's request lifts a rule at once, and puts all of several rules or none.

    The record has the new digest of the rules.
    """
    await caller.put(deny_from=seconds() - DAY)
    encrypt = Encrypt(**caller.key(), version=None, plaintext=b"")
    assert await caller.kind(encrypt) is DENIED
    lifted = OverrideRule(tenant=caller.tenant, name="end", rules=())
    done = await caller.ask(lifted, "operator")
    assert (done.rules, done.revision) == ((), 2)
    assert await caller.kind(encrypt) is None
    recorded = sql(
        "SELECT keyring, keyring_revision, public_key_sha256, rule FROM audit_records"
        " WHERE operation = 'override-rule'"
    )
    assert [(*row[:2], bytes(row[2]), row[3]) for row in recorded] == [
        (None, 2, done.sha256, "end")
    ]
    assert await caller.kind(lifted) is ErrorKind.RULE_NOT_FOUND
    rules = tuple(Rule(f"rule-{number}", (KEM,)) for number in range(MAX_RULES))
    put = partial(OverrideRule, tenant=caller.tenant, name=None)
    done = await caller.ask(put(rules=rules[:2]), "operator")
    assert (len(done.rules), done.revision) == (2, 3)
    assert await caller.kind(put(rules=rules[2:])) is None
    assert await caller.kind(put(rules=(Rule("new", (KEM,)), Rule("rule-0", (OTHER,))))) is (
        ErrorKind.RULE_LIMIT_REACHED
    )
    listed = await caller.ask(ListRules(tenant=caller.tenant))
    assert (listed.revision, set(listed.rules)) == (4, set(rules))
    for wrong in ((), (rules[0], rules[0])):
        with pytest.raises(ValueError, match="name"):
            put(rules=wrong)


# --- Storage ------------------------------------------------------------------------------


@both_databases
@pytest.mark.threat("keys-database-writer")
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE tenant_rules SET rules = '[]'",
        "UPDATE tenant_rules SET revision = 9",
        "DELETE FROM tenant_rules",
    ],
)
async def test_damaged_rules_refuse_new_data_and_no_reading(
    damage: str,
    serving: Serving,
    tenant: TenantId,
    sql: Sql,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Changed, removed or outdated rows stop new data of their tenant until an operator repairs."""
    other = TenantId(uuid4())
    async with serving() as service:
        await service.parts.activation.start()
        caller, second = Caller(service, tenant), Caller(service, other)
        for each in (caller, second):
            await each.prepare()
        reads = await caller.reads()
        await caller.put(deny_from=seconds() - DAY)
    sql(damage)
    for starts in (True, False):
        async with serving() as service:
            if starts:
                caplog.clear()
                await service.parts.activation.start()
                assert str(tenant) in caplog.text
            caller, second = Caller(service, tenant), Caller(service, other)
            encrypt = Encrypt(**caller.key(), version=None, plaintext=b"")
            unavailable = ErrorKind.UNAVAILABLE
            put = caller.putting(Rule("end", (KEM,)))
            for request in (encrypt, RotateKey(**caller.key()), put):
                assert await caller.kind(request) is unavailable
            outcomes = {request.operation: await caller.kind(request) for request in reads}
            assert outcomes.pop(Operation.RE_ENCRYPT) is unavailable  # its target is new data
            assert set(outcomes.values()) == {None}
            await caller.ask(SignCheckpoint(tenant=INSTALLATION, algorithm=SIGNATURE))
            inventory = await caller.ask(ListInventory(tenant=tenant))
            assert (inventory.rules, len(inventory.keys)) == (None, inventory.total)
            assert await second.kind(Encrypt(**second.key(), version=None, plaintext=b"")) is None
            new = Rule("end", (SIGNATURE,), deny_from=seconds())
            repair = partial(OverrideRule, tenant=tenant, name="end", rules=(new,))
            assert await caller.kind(repair()) is unavailable
            if not starts:
                assert await caller.kind(repair(discards_damaged=True)) is None
                assert await caller.kind(encrypt) is None
    async with serving() as service:
        await service.parts.activation.start()
        found = await Caller(service, tenant).ask(ListRules(tenant=tenant))
        assert [rule.algorithms for rule in found.rules] == [(SIGNATURE,)]


@pytest.mark.threat("keys-database-writer")
async def test_an_earlier_row_is_refused(serving: Serving, tenant: TenantId, sql: Sql) -> None:
    """A row with a valid MAC that is older than the log's last change refuses new data."""
    async with serving() as service:
        caller = Caller(service, tenant)
        await caller.prepare()
        await caller.put(deny_from=seconds() + DAY)
        (earlier,) = sql("SELECT * FROM tenant_rules")
        await caller.put(deny_from=seconds() - DAY)
    sql("DELETE FROM tenant_rules")
    sql("INSERT INTO tenant_rules VALUES (?, ?, ?, ?)", *earlier)
    async with serving() as service:
        encrypt = Encrypt(**caller.key(), version=None, plaintext=b"")
        assert await Caller(service, tenant).kind(encrypt) is ErrorKind.UNAVAILABLE


@both_databases
async def test_rules_outlive_the_process(serving: Serving, tenant: TenantId) -> None:
    """Rules hold after a restart: read at the start, and before that by each request."""
    async with serving() as service:
        caller = Caller(service, tenant)
        await caller.prepare()
        await caller.put(deny_from=seconds() - DAY)
    encrypt = Encrypt(**caller.key(), version=None, plaintext=b"")
    for starts in (True, False):
        async with serving() as service:
            if starts:
                await service.parts.activation.start()
            assert await Caller(service, tenant).kind(encrypt) is DENIED


async def test_a_change_during_the_load_is_not_lost(caller: Caller) -> None:
    """While all rules are read, a rule changes. The old rules do not overwrite the new rule."""
    rules = caller.service.parts.rules
    await caller.put(deny_from=seconds() - DAY)
    newer = RuleSet(caller.tenant, (), 7)
    found = await rules.get(caller.tenant)
    assert found.revision == 1
    rules.update(newer, caller.service.parts.store.writer.epoch)
    assert await rules.get(caller.tenant) is newer
    rules.invalidate(caller.tenant)
    assert (await rules.get(caller.tenant)).revision == 1


async def test_a_destroyed_tenant_has_no_rules(caller: Caller, sql: Sql) -> None:
    """The rules of a tenant are deleted before its destruction is completed."""
    await caller.put(deny_from=seconds() - DAY)
    await caller.ask(ScheduleDestruction(tenant=caller.tenant, at=seconds()))
    await caller.service.parts.schedule.carry_out(datetime.now(UTC) + DAY)
    assert sql("SELECT rules, revision FROM tenant_rules") == [("[]", 2)]
    assert sql("SELECT operation FROM audit_records ORDER BY id DESC LIMIT 2") == [
        ("destroy-tenant",),
        ("delete-rule",),
    ]


# --- The schedule -------------------------------------------------------------------------


async def carry_out(caller: Caller, days: int) -> list[tuple[Algorithm, int, KeyStatus]]:
    """Make the due changes of a later day, and return the tenant's KEMs."""
    await caller.service.parts.schedule.carry_out(datetime.now(UTC) + days * DAY)
    listed = await caller.ask(ListKeys(tenant=caller.tenant, algorithm=None, status=None))
    kems = {KEM, OTHER, Algorithm.ML_KEM_1024}
    return sorted(
        (key.algorithm, key.version, key.status) for key in listed.keys if key.algorithm in kems
    )


@pytest.fixture
async def rotating(service: InProcessService, tenant: TenantId) -> Caller:
    """Return a tenant with one KEM key, which rotates each month."""
    await service.parts.activation.start()
    caller = Caller(service, tenant)
    await caller.ask(GenerateKey(**caller.key(), quota=None))
    await caller.ask(UpdateKeyring(tenant=tenant, rotation_days=30))
    return caller


async def test_a_rotation_goes_to_the_successor(rotating: Caller, sql: Sql) -> None:
    """After the date the successor gets a key, and the ended algorithm's version is retired."""
    await rotating.put(algorithms=(KEM,), successor=OTHER, deny_from=seconds() - DAY)
    assert await carry_out(rotating, 31) == [(KEM, 1, "retired"), (OTHER, 1, "active")]
    made = "SELECT operation, algorithm, key_version, principal, policy, rule FROM audit_records"
    by_schedule = ("schedule", "rotation-days", "end")
    assert sql(f"{made} WHERE policy = 'rotation-days' ORDER BY id") == [
        ("generate-key", OTHER.value, 1, *by_schedule),
        ("retire-key", KEM.value, 1, *by_schedule),
    ]
    await rotating.ask(OverrideRule(tenant=rotating.tenant, name="end", rules=()))
    assert (OTHER, 2, "active") in await carry_out(rotating, 90)


async def test_a_rotation_follows_successors(rotating: Caller) -> None:
    """If a successor is denied, its own successor is used."""
    last = Algorithm.ML_KEM_1024
    await rotating.put(algorithms=(KEM,), successor=OTHER, deny_from=seconds() - DAY)
    await rotating.put(name="x", algorithms=(OTHER,), successor=last, deny_from=seconds() - DAY)
    assert await carry_out(rotating, 31) == [(KEM, 1, "retired"), (last, 1, "active")]


@pytest.mark.parametrize("successor", [None, OTHER])
async def test_a_rotation_without_a_possible_successor_is_refused(
    successor: Algorithm | None, rotating: Caller, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused rotation makes no key, and is recorded once: also if successors form a circle."""
    schedule = rotating.service.parts.schedule
    await rotating.put(algorithms=(KEM,), successor=successor, deny_from=seconds() - DAY)
    await rotating.put(name="x", algorithms=(OTHER,), successor=KEM, deny_from=seconds() - DAY)
    assert await carry_out(rotating, 31) == [(KEM, 1, "active")]
    assert schedule.changes["none", "failure"] == 1
    assert "rule-denied" in caplog.text
    with pytest.raises(KeyServiceError):
        await rotating.service.parts.transactions.make_due_change(
            (await rotating.service.parts.store.database.query(_due))[0], seconds() + 31 * DAY, 1e12
        )
    refused = "SELECT operation, principal, rule FROM audit_records WHERE outcome = 'rule-denied'"
    assert sql(refused) == [("rotate-key", "schedule", "end")]


def _due(connection: Any) -> list[Any]:
    from pqkeep_keyservice.storage.key_versions import list_due_keys  # noqa: PLC0415

    now = datetime.now(UTC) + 31 * DAY
    return [key.name for key in list_due_keys(connection, now, None, 10)]


async def test_a_key_that_callers_may_still_use_stays_active(rotating: Caller) -> None:
    """With an exception, or another permitted use, the successor gets a key and nothing retires."""
    until = RuleException(3, seconds() + 60 * DAY)
    await rotating.put(
        algorithms=(KEM,), successor=OTHER, deny_from=seconds() - DAY, exceptions=(until,)
    )
    assert await carry_out(rotating, 31) == [(KEM, 1, "active"), (OTHER, 1, "active")]
    assert (KEM, 1, "retired") in await carry_out(rotating, 61)


async def test_a_rotation_before_the_date_is_only_warned(rotating: Caller, sql: Sql) -> None:
    """Between the dates the key rotates, and its record names the rule."""
    await rotating.put(
        algorithms=(KEM,), warn_from=seconds(), deny_from=seconds() + 90 * DAY, successor=OTHER
    )
    assert await carry_out(rotating, 31) == [(KEM, 1, "retired"), (KEM, 2, "active")]
    assert sql("SELECT operation, rule FROM audit_records ORDER BY id DESC LIMIT 2")[1] == (
        "rotate-key",
        "end",
    )
