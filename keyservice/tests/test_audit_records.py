"""Each request adds exactly one row with its caller, operation and outcome."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from keyservice.tests.test_key_import import made_elsewhere, wrap

from pqkeep_protocol.algorithms import Algorithm, HashAlgorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    CancelArchive,
    CancelDestruction,
    ComputeMac,
    CreateKeyring,
    Decapsulate,
    Decrypt,
    DeleteKeyring,
    DeleteRule,
    DisableKey,
    EnableKey,
    Encapsulate,
    Encrypt,
    GenerateDataKey,
    GenerateKey,
    GetActiveKey,
    GetImportKey,
    GetKey,
    GetKeyring,
    ImportPrivateKey,
    KeyRequest,
    KeyService,
    ListKeyrings,
    ListKeys,
    ListPublicKeys,
    ListRules,
    OverrideRule,
    PutRule,
    ReEncrypt,
    RestoreKeyring,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    ScheduleDestruction,
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
from pqkeep_protocol.rules import Rule

Sql = Callable[..., list[Any]]
KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
SECRET = b"never in the audit log"
LAST = (
    "SELECT tenant_id, principal, operation, algorithm, key_version, outcome, request_id,"
    " source_address, policy FROM audit_records ORDER BY id DESC LIMIT 1"
)
COUNT = "SELECT count(*) FROM audit_records"


class Recorded:
    """Executes requests, and compares the row that each one adds."""

    def __init__(
        self, keys: KeyService, tenant: TenantId, attribution: Attribution, sql: Sql
    ) -> None:
        self._keys, self._attribution, self._sql = keys, attribution, sql
        self.tenant = tenant

    async def ask(
        self,
        request: KeyRequest[Any],
        version: int | None,
        outcome: str = "success",
        *,
        done: Operation | None = None,
        policy: str | Callable[[Any], str] | None = None,
    ) -> Any:
        """As many points as there are tests of them. Return the result, if any.

        ``done`` and ``policy`` replace the request's own operation and policy in the record. A
        function of the result can return the policy.
        """
        (before,) = self._sql(COUNT)[0]
        started = time.time_ns() // 1000
        result = None
        try:
            result = await self._keys.execute(request, self._attribution)
        except KeyServiceError as refusal:
            assert refusal.kind == outcome  # noqa: PT017 - or there is a result, see below
        assert (result is not None) == (outcome == "success")
        assert self._sql(COUNT) == [(before + 1,)]
        assert self._sql(LAST) == [
            (
                str(self.tenant),
                self._attribution.principal,
                (done or request.operation).value,
                getattr(request, "algorithm", None),
                version,
                outcome,
                self._attribution.request_id,
                self._attribution.source_address,
                (policy(result) if callable(policy) else policy) or self._attribution.policy,
            )
        ]
        ((recorded,),) = self._sql("SELECT max(recorded_at_us) FROM audit_records")
        assert started <= recorded <= time.time_ns() // 1000
        return result


@pytest.fixture
def recorded(keys: KeyService, tenant: TenantId, attribution: Attribution, sql: Sql) -> Recorded:
    """Return a caller that checks each record."""
    return Recorded(keys, tenant, attribution, sql)


async def use_symmetric_keys(recorded: Recorded) -> None:
    """Make a data key, and compute and verify a MAC."""
    named: dict[str, Any] = {"tenant": recorded.tenant, "version": None}
    cipher, mac_of = Algorithm.XAES_256_GCM, Algorithm.HMAC_SHA_256
    for algorithm in (cipher, mac_of):
        generate = GenerateKey(tenant=recorded.tenant, algorithm=algorithm, quota=None)
        await recorded.ask(generate, 1)
    await recorded.ask(GenerateDataKey(**named, algorithm=cipher, size=32, plaintext=True), 1)
    mac = await recorded.ask(ComputeMac(**named, algorithm=mac_of, message=SECRET), 1)
    named["version"] = KeyVersion(1)
    verify = VerifyMac(**named, algorithm=mac_of, message=SECRET, mac=mac.mac)
    await recorded.ask(verify, 1)


async def use_keyring(recorded: Recorded, cards: dict[str, Any]) -> None:
    """Make, change, delete and restore a keyring."""

    def at(deleted: Any) -> str:
        return f"at-{deleted.keyring.archive_at:%Y-%m-%dT%H:%M:%SZ}"

    for ask in (CreateKeyring, UpdateKeyring, GetKeyring, ListKeyrings):
        await recorded.ask(ask(**cards), None)
    delete = DeleteKeyring(**cards, days=7, only_if_allowed=False)
    await recorded.ask(delete, None, policy=at)
    await recorded.ask(RestoreKeyring(**cards), None)


async def use_rules(recorded: Recorded) -> None:
    """List, put, delete and override a rule."""
    named: dict[str, Any] = {"tenant": recorded.tenant}
    await recorded.ask(PutRule(**named, name="end", rules=(Rule("end", (KEM,)),)), None)
    await recorded.ask(ListRules(**named), None)
    await recorded.ask(DeleteRule(**named, name="end"), None)
    await recorded.ask(OverrideRule(**named, name="end", rules=(Rule("end", (KEM,)),)), None)


async def test_every_success_is_recorded(recorded: Recorded, sql: Sql) -> None:
    """Each operation adds one row with the version that was used."""
    kem: dict[str, Any] = {"tenant": recorded.tenant, "algorithm": KEM}
    signature: dict[str, Any] = {"tenant": recorded.tenant, "algorithm": SIGNATURE}
    one: dict[str, Any] = {"version": KeyVersion(1)}
    await recorded.ask(GenerateKey(**kem, quota=None), 1)
    await recorded.ask(GenerateKey(**signature, quota=5), 1)
    await recorded.ask(RotateKey(**kem), 2)
    blob = await recorded.ask(Encrypt(**kem, version=None, plaintext=SECRET), 2)
    await recorded.ask(Decrypt(**kem, version=blob.version, ciphertext=blob.ciphertext), 2)
    moved: dict[str, Any] = {"version": KeyVersion(2), "ciphertext": blob.ciphertext}
    await recorded.ask(ReEncrypt(**kem, **moved, is_wrapped_key=False, target=Target(KEM)), 2)
    made = await recorded.ask(Encapsulate(**kem, version=KeyVersion(2)), 2)
    await recorded.ask(Decapsulate(**kem, **one, kem_ciphertext=made.kem_ciphertext), 1)
    signed = await recorded.ask(Sign(**signature, version=None, message=SECRET), 1)
    await recorded.ask(Verify(**signature, **one, message=SECRET, signature=signed.signature), 1)
    wrapped = await recorded.ask(Wrap(**kem, version=KeyVersion(2), symmetric_key=bytearray(32)), 2)
    await recorded.ask(Unwrap(**kem, version=KeyVersion(2), wrapped_key=wrapped.wrapped_key), 2)
    hashed: dict[str, Any] = {"hash_algorithm": HashAlgorithm.SHA_256, "digest": bytes(32)}
    signed = await recorded.ask(SignHash(**signature, version=None, **hashed), 1)
    await recorded.ask(VerifyHash(**signature, **one, **hashed, signature=signed.signature), 1)
    payload: dict[str, Any] = {"payload": SECRET, "detached": False}
    await recorded.ask(SignJws(**signature, version=None, **payload), 1)
    signed = await recorded.ask(SignMu(**signature, version=None, mu=bytes(64)), 1)
    await recorded.ask(VerifyMu(**signature, **one, mu=bytes(64), signature=signed.signature), 1)
    await use_symmetric_keys(recorded)
    await recorded.ask(GetKey(**kem, **one), 1)
    await recorded.ask(GetActiveKey(**kem), 2)
    await recorded.ask(ListKeys(tenant=recorded.tenant, algorithm=None, status=None), None)
    await recorded.ask(ListKeys(**kem, status=KeyStatus.ACTIVE), None)
    await recorded.ask(
        ListPublicKeys(tenant=recorded.tenant, algorithms=(Algorithm.ML_KEM_768,)), None
    )
    await recorded.ask(RetireKey(**kem, version=KeyVersion(2)), 2)
    await recorded.ask(RetireKey(**kem, version=KeyVersion(2)), 2)  # changes nothing
    for kind in (DisableKey, EnableKey, partial(ScheduleArchive, days=7), CancelArchive):
        await recorded.ask(kind(**kem, **one), 1)
    archive = ScheduleArchive(days=0, **kem, **one)
    await recorded.ask(archive, 1, done=Operation.ARCHIVE_KEY)
    at = datetime.now(UTC).replace(microsecond=0) + timedelta(days=10)
    destroy = ScheduleDestruction(tenant=recorded.tenant, at=at)
    await recorded.ask(destroy, None, policy=f"at-{at:%Y-%m-%dT%H:%M:%SZ}")
    await recorded.ask(CancelDestruction(tenant=recorded.tenant), None)
    cards: dict[str, Any] = {"tenant": recorded.tenant, "keyring": "cards"}
    await use_keyring(recorded, cards)
    imported: dict[str, Any] = {**cards, "algorithm": SIGNATURE}
    issued = await recorded.ask(GetImportKey(**imported), None)
    wrapped_key = wrap(issued, made_elsewhere(SIGNATURE)[0])
    importing = ImportPrivateKey(
        **imported, import_key_id=issued.id, wrapped_private_key=wrapped_key, quota=None
    )
    await recorded.ask(importing, 1)
    await use_rules(recorded)
    operations = {name for (name,) in sql("SELECT DISTINCT operation FROM audit_records")}
    assert operations == set(Operation)


async def test_every_refusal_is_recorded_with_its_kind(recorded: Recorded) -> None:
    """A refused request adds one row with the requested version."""
    kem: dict[str, Any] = {"tenant": recorded.tenant, "algorithm": KEM}
    signature: dict[str, Any] = {"tenant": recorded.tenant, "algorithm": SIGNATURE}
    one: dict[str, Any] = {"version": KeyVersion(1)}
    await recorded.ask(GetActiveKey(**kem), None, ErrorKind.KEY_NOT_FOUND)
    await recorded.ask(
        Encrypt(**kem, version=None, plaintext=SECRET), None, ErrorKind.KEY_NOT_FOUND
    )
    await recorded.ask(GetKey(**kem, version=KeyVersion(7)), 7, ErrorKind.KEY_NOT_FOUND)
    await recorded.ask(Sign(**kem, **one, message=SECRET), 1, ErrorKind.UNSUPPORTED)
    await recorded.ask(GenerateKey(**kem, quota=0), None, ErrorKind.KEY_QUOTA_REACHED)
    await recorded.ask(GenerateKey(**kem, quota=None), 1)
    await recorded.ask(GenerateKey(**kem, quota=None), None, ErrorKind.KEY_EXISTS)
    await recorded.ask(ScheduleArchive(days=0, **kem, **one), 1, ErrorKind.KEY_STATUS)
    await recorded.ask(Decrypt(**kem, **one, ciphertext=SECRET), 1, ErrorKind.DECRYPTION_FAILED)
    await recorded.ask(GenerateKey(**signature, quota=None), 1)
    await recorded.ask(
        Verify(**signature, **one, message=SECRET, signature=SECRET),
        1,
        ErrorKind.VERIFICATION_FAILED,
    )


async def test_the_log_holds_no_content(recorded: Recorded, sql: Sql) -> None:
    """No row has a plaintext, ciphertext, message, signature or shared secret."""
    kem: dict[str, Any] = {"tenant": recorded.tenant, "algorithm": KEM}
    signature: dict[str, Any] = {"tenant": recorded.tenant, "algorithm": SIGNATURE}
    await recorded.ask(GenerateKey(**kem, quota=None), 1)
    await recorded.ask(GenerateKey(**signature, quota=None), 1)
    blob = await recorded.ask(Encrypt(**kem, version=None, plaintext=SECRET), 1)
    made = await recorded.ask(Encapsulate(**kem, version=KeyVersion(1)), 1)
    signed = await recorded.ask(Sign(**signature, version=None, message=SECRET), 1)
    log = repr(sql("SELECT * FROM audit_records")).encode()
    for content in (SECRET, blob.ciphertext, made.shared_secret, signed.signature):
        assert repr(content[:16])[2:-1].encode() not in log
        assert content[:16].hex().encode() not in log
