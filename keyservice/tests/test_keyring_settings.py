"""A keyring's settings are stored, changed, listed, enforced and protected."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pytest
from keyservice.tests.test_keyrings import CARDS, LOGS, TEXT, V1, Caller
from msgspec import structs

from pqkeep_protocol.algorithms import USES, Algorithm, HashAlgorithm, Operation
from pqkeep_protocol.audit import GetUsage, ListRecords, ListUsage
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import (
    ALL_PURPOSES,
    PURPOSE_OF,
    KeyPurpose,
    KeyringInfo,
)
from pqkeep_protocol.keys import DEFAULT_KEYRING, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    AnyRequest,
    Attribution,
    CiphertextFormat,
    ComputeMac,
    CreateKeyring,
    Decapsulate,
    Decrypt,
    DisableKey,
    Encapsulate,
    Encrypt,
    GenerateDataKey,
    GenerateKey,
    GetActiveKey,
    GetKeyring,
    KeyService,
    ListKeyrings,
    ListKeys,
    ReEncrypt,
    RotateKey,
    Sign,
    SignHash,
    SignJws,
    SignMu,
    Target,
    Unwrap,
    UpdateKeyring,
    Verify,
    VerifyHash,
    VerifyMac,
    VerifyMu,
    Wrap,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Sql

QUOTA = 120
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@pytest.fixture
def caller(keys: KeyService, tenant: TenantId, attribution: Attribution) -> Caller:
    """Return a caller of one tenant."""
    return Caller(keys, tenant, attribution)


def uses_of(tenant: TenantId, **more: Any) -> list[AnyRequest]:
    """Return a request of each operation that uses a key. No request opens or verifies."""
    of: dict[str, Any] = {"tenant": tenant, "keyring": CARDS, "version": V1, **more}
    kem, signature = {**of, "algorithm": KEM}, {**of, "algorithm": SIGNATURE}
    mac: dict[str, Any] = {**of, "algorithm": Algorithm.HMAC_SHA_256}
    digest: dict[str, Any] = {"hash_algorithm": HashAlgorithm.SHA_256, "digest": bytes(32)}
    return [
        Encrypt(**kem, plaintext=TEXT),
        Decrypt(**kem, ciphertext=bytes(1200)),
        Wrap(**kem, symmetric_key=bytearray(32)),
        Unwrap(**kem, wrapped_key=bytes(1200)),
        Encapsulate(**kem),
        Decapsulate(**kem, kem_ciphertext=bytes(1088)),
        Sign(**signature, message=TEXT),
        SignHash(**signature, **digest),
        SignJws(**signature, payload=TEXT, detached=False),
        SignMu(**signature, mu=bytes(64)),
        Verify(**signature, message=TEXT, signature=bytes(3309)),
        VerifyHash(**signature, **digest, signature=bytes(3309)),
        VerifyMu(**signature, mu=bytes(64), signature=bytes(3309)),
        ComputeMac(**mac, message=TEXT),
        VerifyMac(**mac, message=TEXT, mac=bytes(32)),
    ]


def limited_by_minimums(tenant: TenantId) -> list[AnyRequest]:
    """Return requests with key version 2: every use of a key, in each form."""
    version = KeyVersion(2)
    kem: dict[str, Any] = {"tenant": tenant, "keyring": CARDS, "algorithm": KEM, "version": version}
    return [
        *uses_of(tenant, version=version),
        GenerateDataKey(**kem, size=32, plaintext=True),
        GenerateDataKey(**kem, size=32, plaintext=False, format=CiphertextFormat.CIPHERTEXT),
        GenerateDataKey(**kem, size=32, plaintext=False, format=CiphertextFormat.ENVELOPE),
        ReEncrypt(**kem, ciphertext=bytes(1200), is_wrapped_key=False, target=Target(KEM, LOGS)),
    ]


WITH_ONE_KEY = USES - {Operation.RE_ENCRYPT, Operation.GENERATE_DATA_KEY}
"""A re-encryption needs a purpose of each of two keyrings: tests/contract/test_re_encryption.py. A
data key needs the purpose of its form: test_symmetric_keys.py."""


STANDS_FOR = {
    KeyPurpose.ENCRYPT: {"encrypt"},
    KeyPurpose.DECRYPT: {"decrypt"},
    KeyPurpose.WRAP: {"wrap"},
    KeyPurpose.UNWRAP: {"unwrap"},
    KeyPurpose.ENCAPSULATE: {"encapsulate"},
    KeyPurpose.DECAPSULATE: {"decapsulate"},
    KeyPurpose.SIGN: {"sign", "sign-hash", "sign-jws", "sign-mu"},
    KeyPurpose.VERIFY: {"verify", "verify-hash", "verify-mu"},
    KeyPurpose.MAC: {"compute-mac", "verify-mac"},
}
"""The operations that each purpose allows."""


def test_every_use_of_a_key_has_a_purpose(tenant: TenantId) -> None:
    """Each operation that uses a key has a purpose, and each purpose an operation."""
    assert PURPOSE_OF.keys() == WITH_ONE_KEY == {request.operation for request in uses_of(tenant)}
    assert set(PURPOSE_OF.values()) == set(KeyPurpose)


@pytest.mark.parametrize("purpose", KeyPurpose)
async def test_each_operation_needs_its_purpose(purpose: KeyPurpose, caller: Caller) -> None:
    """With a single purpose, only its operations are permitted."""
    await caller.create(CARDS)
    await caller.generate(KEM, CARDS)
    await caller.generate(SIGNATURE, CARDS)
    await caller.ask(UpdateKeyring(tenant=caller.tenant, keyring=CARDS, purposes=(purpose,)))
    denied = set[Operation]()
    for use in uses_of(caller.tenant):
        try:
            await caller.ask(use)
        except Exception as error:  # noqa: BLE001 - of any kind, but for the one
            if getattr(error, "kind", None) is ErrorKind.PURPOSE_DENIED:
                denied.add(use.operation)
    assert denied == WITH_ONE_KEY - {Operation(name) for name in STANDS_FOR[purpose]}


async def test_purposes_do_not_keep_keys_from_being_kept(caller: Caller) -> None:
    """Without a fitting purpose, keys can be rotated and read, but not generated."""
    await caller.create(CARDS)
    await caller.generate(KEM, CARDS)
    verifying = (KeyPurpose.VERIFY,)
    await caller.ask(UpdateKeyring(tenant=caller.tenant, keyring=CARDS, purposes=verifying))
    other = GenerateKey(tenant=caller.tenant, keyring=CARDS, algorithm=Algorithm.X_WING, quota=None)
    assert await caller.refusal(other) is ErrorKind.NO_PURPOSE
    of: dict[str, Any] = {"tenant": caller.tenant, "keyring": CARDS, "algorithm": KEM}
    await caller.ask(RotateKey(**of))
    assert (await caller.ask(GetActiveKey(**of))).key.version == 2


async def test_a_purpose_that_is_taken_away_ends_at_once(caller: Caller) -> None:
    """A removed purpose is denied from the response on, and can be restored."""
    await caller.generate(KEM, DEFAULT_KEYRING)
    use = Encrypt(tenant=caller.tenant, algorithm=KEM, version=None, plaintext=TEXT)
    await caller.ask(use)
    await caller.ask(UpdateKeyring(tenant=caller.tenant, purposes=(KeyPurpose.DECRYPT,)))
    assert await caller.refusal(use) is ErrorKind.PURPOSE_DENIED
    await caller.ask(UpdateKeyring(tenant=caller.tenant, purposes=ALL_PURPOSES))
    await caller.ask(use)


@BOTH
async def test_settings_come_back_after_a_restart(
    caller: Caller,
    restarted: Callable[[], KeyService],
    attribution: Attribution,
) -> None:
    """Settings survive a restart. A change affects only the fields that it names."""
    labels = {"team": "payments", "stage": "grün"}
    made = await caller.create(
        CARDS, description="cards", labels=labels, purposes=(KeyPurpose.SIGN,), rotation_days=90
    )
    assert made.created_at is not None
    changed = await caller.ask(
        UpdateKeyring(tenant=caller.tenant, keyring=CARDS, rotation_days=0, archive_after_days=30)
    )
    expected = KeyringInfo(CARDS, "cards", labels, (KeyPurpose.SIGN,), 0, 30, made.created_at)
    assert changed.keyring == expected
    again = Caller(restarted(), caller.tenant, attribution)
    assert (await again.ask(GetKeyring(tenant=caller.tenant, keyring=CARDS))).keyring == expected
    listed = await again.ask(ListKeyrings(tenant=caller.tenant))
    assert listed.keyrings == (KeyringInfo(DEFAULT_KEYRING), expected)


async def test_the_default_keyring_is_always_there(caller: Caller) -> None:
    """The default keyring is read and changed like others, and cannot be created."""
    get = GetKeyring(tenant=caller.tenant)
    assert (await caller.ask(get)).keyring == KeyringInfo(DEFAULT_KEYRING)
    again = CreateKeyring(tenant=caller.tenant, keyring=DEFAULT_KEYRING)
    assert await caller.refusal(again) is ErrorKind.KEYRING_EXISTS
    await caller.ask(UpdateKeyring(tenant=caller.tenant, description="ours"))
    assert (await caller.ask(get)).keyring == KeyringInfo(DEFAULT_KEYRING, "ours")
    assert await caller.refusal(again) is ErrorKind.KEYRING_EXISTS


async def test_a_keyring_that_does_not_exist_is_not_found(caller: Caller) -> None:
    """Every request for a missing or another tenant's keyring is KEYRING_NOT_FOUND."""
    of: dict[str, Any] = {"tenant": caller.tenant, "keyring": CARDS}
    requests: list[Any] = [
        GenerateKey(**of, algorithm=KEM, quota=None),
        ListKeys(**of, algorithm=None, status=None),
        GetKeyring(**of),
        UpdateKeyring(**of),
        ListUsage(**of, algorithm=None),
        GetUsage(**of, algorithm=KEM, version=V1),
        *uses_of(caller.tenant),
    ]
    for request in requests:
        assert await caller.refusal(request) is ErrorKind.KEYRING_NOT_FOUND
    await caller.create(CARDS)
    stranger = structs.replace(GetKeyring(**of), tenant=TenantId(uuid4()))
    assert await caller.refusal(stranger) is ErrorKind.KEYRING_NOT_FOUND


async def test_a_tenant_has_a_bounded_number_of_keyrings(caller: Caller) -> None:
    """A tenant can have as many as the request's quota says, including the default one."""
    for number in range(QUOTA - 1):
        await caller.create(f"k{number}", quota=QUOTA)
    more = CreateKeyring(tenant=caller.tenant, keyring="more", quota=QUOTA)
    assert await caller.refusal(more) is ErrorKind.KEYRING_QUOTA_REACHED
    await caller.ask(UpdateKeyring(tenant=caller.tenant, description="still changed"))
    assert await caller.refusal(more) is ErrorKind.KEYRING_QUOTA_REACHED
    page = await caller.ask(ListKeyrings(tenant=caller.tenant, limit=100))
    assert (len(page.keyrings), page.total, page.has_more) == (100, QUOTA, True)


async def test_lists_are_paged_and_filtered(caller: Caller) -> None:
    """Pages continue after a name, and a label matches only with its value."""
    for name, team in ((CARDS, "payments"), (LOGS, "payments"), ("mail", "people")):
        await caller.create(name, labels={"team": team})
    listing = ListKeyrings(tenant=caller.tenant, label=("team", "payments"), limit=1)
    first = await caller.ask(listing)
    assert ([keyring.name for keyring in first.keyrings], first.total) == ([CARDS], 2)
    second = await caller.ask(structs.replace(listing, after=CARDS))
    assert ([keyring.name for keyring in second.keyrings], second.has_more) == ([LOGS], False)


@BOTH
async def test_an_earlier_state_or_a_missing_row_is_refused(
    caller: Caller,
    restarted: Callable[[], InProcessService],
    attribution: Attribution,
    sql: Sql,
) -> None:
    """A restored old row does not bring back removed purposes."""
    await caller.generate(KEM, DEFAULT_KEYRING)
    await caller.ask(UpdateKeyring(tenant=caller.tenant, description="first"))
    sql("CREATE TABLE before AS SELECT * FROM keyrings")
    await caller.ask(UpdateKeyring(tenant=caller.tenant, purposes=(KeyPurpose.DECRYPT,)))
    use = Encrypt(tenant=caller.tenant, algorithm=KEM, version=None, plaintext=TEXT)
    assert await caller.refusal(use) is ErrorKind.PURPOSE_DENIED
    for change in ("DELETE FROM keyrings", "INSERT INTO keyrings SELECT * FROM before"):
        sql(change)
        again = Caller(restarted(), caller.tenant, attribution)
        assert await again.refusal(use) is ErrorKind.UNAVAILABLE
        listing = ListKeyrings(tenant=caller.tenant)
        assert await again.refusal(listing) is ErrorKind.UNAVAILABLE


async def test_what_is_done_with_keyrings_is_recorded(caller: Caller) -> None:
    """Each request is recorded with the keyring's name, and a change with its revision."""
    await caller.create(CARDS)
    await caller.ask(UpdateKeyring(tenant=caller.tenant, keyring=CARDS, description="cards"))
    await caller.ask(GetKeyring(tenant=caller.tenant, keyring=CARDS))
    await caller.ask(ListKeyrings(tenant=caller.tenant))
    found = await caller.ask(ListRecords(tenant=caller.tenant))
    said = [msgspec.json.decode(line) for line in found.lines]
    names = ("operation", "keyring", "keyring_revision", "algorithm", "format")
    assert [tuple(record[name] for name in names) for record in said] == [
        ("create-keyring", CARDS, 1, None, 1),
        ("update-keyring", CARDS, 2, None, 1),
        ("get-keyring", CARDS, None, None, 1),
        ("list-keyrings", None, None, None, 1),
    ]


READS = {
    Operation.DECRYPT,
    Operation.UNWRAP,
    Operation.DECAPSULATE,
    Operation.VERIFY,
    Operation.VERIFY_HASH,
    Operation.VERIFY_MU,
    Operation.VERIFY_MAC,
    Operation.RE_ENCRYPT,
}
"""The operations that ``minimum_decryption_version`` alone limits."""


async def _below_minimum(caller: Caller, **fields: Any) -> set[Operation]:
    """Return the operations with the active version 2 that these fields of a keyring refuse."""
    await caller.ask(UpdateKeyring(tenant=caller.tenant, keyring=CARDS, **fields))
    refused = set[Operation]()
    allowed = set[Operation]()
    for use in limited_by_minimums(caller.tenant):
        try:
            await caller.ask(use)
        except KeyServiceError as error:
            if error.kind is ErrorKind.VERSION_BELOW_MINIMUM:
                refused.add(use.operation)
                continue
        allowed.add(use.operation)
    assert not refused & allowed, "one form of an operation is refused, and another is not"
    return refused


@BOTH
async def test_a_minimum_version_refuses_its_operations_and_no_others(
    caller: Caller, restarted: Callable[[], KeyService], attribution: Attribution
) -> None:
    """Each operation refuses a version below the minimum until the minimum is lower."""
    await caller.create(CARDS)
    await caller.create(LOGS)
    await caller.generate(KEM, LOGS)
    for algorithm in (KEM, SIGNATURE, Algorithm.HMAC_SHA_256):
        await caller.generate(algorithm, CARDS)
        await caller.ask(RotateKey(tenant=caller.tenant, keyring=CARDS, algorithm=algorithm))
    makes = USES - READS
    assert await _below_minimum(caller, minimum_encryption_version=2) == set()
    assert await _below_minimum(caller, minimum_encryption_version=3) == makes
    again = Caller(restarted(), caller.tenant, attribution)
    assert await _below_minimum(again, description="after a restart") == makes
    assert await _below_minimum(again, minimum_encryption_version=0) == set()
    assert await _below_minimum(again, minimum_decryption_version=2) == set()
    assert await _below_minimum(again, minimum_decryption_version=3) == USES
    assert await _below_minimum(again, minimum_decryption_version=0) == set()


async def test_the_active_key_is_below_the_minimum_until_it_is_rotated(caller: Caller) -> None:
    """A request without a version is refused too, until a rotation makes a new version."""
    await caller.create(CARDS, minimum_encryption_version=2)
    await caller.generate(KEM, CARDS)
    of: dict[str, Any] = {"tenant": caller.tenant, "keyring": CARDS, "algorithm": KEM}
    use = Encrypt(**of, version=None, plaintext=TEXT)
    assert await caller.refusal(use) is ErrorKind.VERSION_BELOW_MINIMUM
    data_key = GenerateDataKey(**of, version=None, size=32, plaintext=False)
    assert await caller.refusal(data_key) is ErrorKind.VERSION_BELOW_MINIMUM
    await caller.ask(RotateKey(**of))
    assert (await caller.ask(use)).version == 2
    assert (await caller.ask(data_key)).version == 2


async def test_a_lower_minimum_does_not_enable_a_disabled_version(caller: Caller) -> None:
    """A minimum is no status: what a person disabled stays disabled."""
    await caller.create(CARDS, minimum_decryption_version=2)
    await caller.generate(KEM, CARDS)
    of: dict[str, Any] = {"tenant": caller.tenant, "keyring": CARDS, "algorithm": KEM}
    await caller.ask(DisableKey(**of, version=V1))
    await caller.ask(
        UpdateKeyring(tenant=caller.tenant, keyring=CARDS, minimum_decryption_version=0)
    )
    opening = Decrypt(**of, version=V1, ciphertext=bytes(1200))
    assert await caller.refusal(opening) is ErrorKind.KEY_NOT_FOUND


async def test_minimum_versions_bind_re_encryption_and_supplied_keys(caller: Caller) -> None:
    """Re-encryption obeys both keyrings, and encryption to an own public key obeys its keyring."""
    for name in (CARDS, LOGS):
        await caller.create(name)
    await caller.generate(KEM, CARDS, LOGS)
    of: dict[str, Any] = {"tenant": caller.tenant, "keyring": CARDS, "algorithm": KEM}
    sealed = await caller.ask(Encrypt(**of, version=None, plaintext=TEXT))
    again = ReEncrypt(
        **of,
        version=V1,
        ciphertext=sealed.ciphertext,
        is_wrapped_key=False,
        target=Target(KEM, LOGS),
    )
    await caller.ask(again)

    async def refusal_with(keyring: str, request: AnyRequest, **minimums: Any) -> object:
        change = UpdateKeyring(tenant=caller.tenant, keyring=keyring, **minimums)
        await caller.ask(change)
        kind = await caller.refusal(request)
        await caller.ask(structs.replace(change, **dict.fromkeys(minimums, 0)))
        return kind

    below, target = ErrorKind.VERSION_BELOW_MINIMUM, ErrorKind.TARGET_VERSION_BELOW_MINIMUM
    assert await refusal_with(CARDS, again, minimum_decryption_version=2) is below
    assert await refusal_with(LOGS, again, minimum_encryption_version=2) is target
    assert await refusal_with(LOGS, again, minimum_decryption_version=2) is target
    public_key = (await caller.ask(GetActiveKey(**of))).key.public_key
    supplied = Encrypt(
        tenant=caller.tenant, algorithm=KEM, version=None, plaintext=TEXT, public_key=public_key
    )
    await caller.ask(supplied)
    assert await refusal_with(CARDS, supplied, minimum_encryption_version=2) is below
    await caller.ask(again)


@BOTH
async def test_the_keys_of_a_keyring_begin_at_its_first_version(
    caller: Caller, restarted: Callable[[], InProcessService], attribution: Attribution
) -> None:
    """Each algorithm's first key has the keyring's first version, also after a restart."""
    made = await caller.create(CARDS, first_version=7)
    assert made.first_version == 7
    again = Caller(restarted(), caller.tenant, attribution)
    for algorithm in (KEM, SIGNATURE, Algorithm.XAES_256_GCM):
        of: dict[str, Any] = {"tenant": caller.tenant, "keyring": CARDS, "algorithm": algorithm}
        assert (await again.ask(GenerateKey(**of, quota=None))).key.version == 7
        rotated = await again.ask(RotateKey(**of))
        assert (rotated.key.version, rotated.old_version) == (8, 7)
    found = await again.ask(GetKeyring(tenant=caller.tenant, keyring=CARDS))
    assert found.keyring.first_version == 7


@pytest.mark.threat("keys-database-writer")
@BOTH
@pytest.mark.parametrize(
    "column", ["minimum_decryption_version", "minimum_encryption_version", "first_version"]
)
async def test_a_changed_version_number_is_damage(
    caller: Caller,
    restarted: Callable[[], InProcessService],
    attribution: Attribution,
    sql: Sql,
    column: str,
) -> None:
    """The keyring's MAC covers minimum and first versions: a lowered one refuses every use."""
    floors = {"minimum_decryption_version": 7, "minimum_encryption_version": 7}
    await caller.create(CARDS, **floors, first_version=7)
    sql(f"UPDATE keyrings SET {column} = 1 WHERE name = '{CARDS}'")  # noqa: S608 - our own names
    again = Caller(restarted(), caller.tenant, attribution)
    get = GetKeyring(tenant=caller.tenant, keyring=CARDS)
    assert await again.refusal(get) is ErrorKind.UNAVAILABLE


@pytest.mark.threat("keys-database-writer")
@BOTH
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("transit_type", "'chacha20-poly1305'"),
        ("derived", "TRUE"),
        ("deletion_allowed", "TRUE"),
        ("retired_public_keys_allowed", "TRUE"),
    ],
)
async def test_a_changed_setting_is_damage(
    caller: Caller,
    restarted: Callable[[], InProcessService],
    attribution: Attribution,
    sql: Sql,
    column: str,
    value: str,
) -> None:
    """The keyring's MAC covers its Transit type and its Boolean settings."""
    made = await caller.ask(
        CreateKeyring(tenant=caller.tenant, keyring=CARDS, transit_type="aes256-gcm96")
    )
    assert (made.keyring.transit_type, made.keyring.derived) == ("aes256-gcm96", False)
    sql(f"UPDATE keyrings SET {column} = {value} WHERE name = '{CARDS}'")  # noqa: S608 - our own names
    again = Caller(restarted(), caller.tenant, attribution)
    get = GetKeyring(tenant=caller.tenant, keyring=CARDS)
    assert await again.refusal(get) is ErrorKind.UNAVAILABLE
