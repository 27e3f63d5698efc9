"""Imported private keys: accepted once, tested, marked, and used like other keys."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha3_256, shake_256
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from asn1crypto import core
from cryptography.hazmat.primitives.asymmetric.mldsa import MLDSA65PrivateKey, MLDSA87PrivateKey
from cryptography.hazmat.primitives.asymmetric.mlkem import (
    MLKEM768PrivateKey,
    MLKEM1024PrivateKey,
    MLKEM1024PublicKey,
)
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from keyservice.tests.conftest import OneTenant

from pqkeep_keyservice.crypto.kem import KEMS
from pqkeep_keyservice.crypto.key_wrapping import EXPANDED_SIZE
from pqkeep_keyservice.crypto.signature import signature_schemes
from pqkeep_keyservice.crypto.slhdsa_pqcrypto import Pqcrypto
from pqkeep_keyservice.keys.key_versions import KeyEntry, KeyName, KeyVersions
from pqkeep_keyservice.live import import_keys
from pqkeep_keyservice.live.import_keys import ImportKeys
from pqkeep_protocol import public_keys
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.der import OCTET_STRING, SEQUENCE, der
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import MAX_VERSIONS, KeyInfo, KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Decapsulate,
    GenerateKey,
    GetImportKey,
    GetKey,
    Idempotency,
    ImportKey,
    ImportPrivateKey,
    ListKeys,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    Sign,
    Verify,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Sql

    from pqkeep_protocol.messages import KeyService

BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
KEM_768, ML_DSA = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
V1, V2 = KeyVersion(1), KeyVersion(2)
SUITE = Suite(KEM.MLKEM1024, KDF.HKDF_SHA384, AEAD.AES_256_GCM)
OF_CRYPTOGRAPHY: dict[Algorithm, Any] = {
    Algorithm.ML_KEM_768: MLKEM768PrivateKey,
    Algorithm.ML_KEM_1024: MLKEM1024PrivateKey,
    Algorithm.ML_DSA_65: MLDSA65PrivateKey,
    Algorithm.ML_DSA_87: MLDSA87PrivateKey,
}
IN_PROCESS = [*OF_CRYPTOGRAPHY, Algorithm.X_WING, Algorithm.COMPOSITE_ML_DSA]


def schemes() -> dict[Algorithm, Any]:
    """Return every KEM and signature scheme."""
    return {**KEMS, **signature_schemes(Pqcrypto())}


def made_elsewhere(algorithm: Algorithm) -> tuple[bytes, bytes]:
    """Return PKCS#8 and public key of a new pair, from another library if one supports it."""
    if algorithm in OF_CRYPTOGRAPHY:
        private = OF_CRYPTOGRAPHY[algorithm].generate()
        data = private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        return data, private.public_key().public_bytes_raw()
    key = schemes()[algorithm].generate()
    return _info(algorithm, bytes(key.seed().reveal())), key.public_bytes()


def _info(algorithm: Algorithm, private_key: bytes) -> bytes:
    """Return PKCS#8 from a general DER writer."""
    asn1: Any = core
    identifier = asn1.SequenceOf(spec=core.ObjectIdentifier)
    identifier.append(asn1.ObjectIdentifier.load(public_keys.OBJECT_IDENTIFIER[algorithm]).native)
    parts = (asn1.Integer(0), identifier, asn1.OctetString(private_key))
    contents = b"".join(part.dump() for part in parts)
    data: bytes = asn1.Sequence(contents=contents).dump()
    return data


def wrap(issued: ImportKey, private_key: bytes, info: bytes | None = None) -> bytes:
    """Wrap a private key as an outside caller would."""
    public = MLKEM1024PublicKey.from_public_bytes(issued.public_key)
    return SUITE.encrypt(private_key, public, issued.info if info is None else info)


class Caller(OneTenant):
    """A caller of one tenant, with its requests."""

    async def issue(self, algorithm: Algorithm = ML_DSA, keyring: str = "default") -> ImportKey:
        return await self.ask(
            GetImportKey(tenant=self.tenant, algorithm=algorithm, keyring=keyring)
        )

    def importing(
        self,
        issued: ImportKey,
        private_key: bytes,
        algorithm: Algorithm = ML_DSA,
        **more: Any,
    ) -> ImportPrivateKey:
        fields: dict[str, Any] = {
            "import_key_id": issued.id,
            "wrapped_private_key": wrap(issued, private_key),
            "quota": None,
            **more,
        }
        return ImportPrivateKey(tenant=self.tenant, algorithm=algorithm, **fields)

    async def import_key(self, private_key: bytes, algorithm: Algorithm = ML_DSA) -> KeyInfo:
        request = self.importing(await self.issue(algorithm), private_key, algorithm)
        return (await self.ask(request)).key


@pytest.fixture
def caller(keys: KeyService, attribution: Attribution, tenant: TenantId) -> Caller:
    """Return a caller of one tenant."""
    return Caller(keys, tenant, attribution)


@BOTH
@pytest.mark.parametrize("algorithm", [*IN_PROCESS, Algorithm.SLH_DSA_SHA2_128F])
async def test_an_imported_key_is_the_one_that_was_made(
    algorithm: Algorithm, caller: Caller
) -> None:
    """An imported key works, is marked as imported, and has its original public key."""
    private_key, public_key = made_elsewhere(algorithm)
    key = await caller.import_key(private_key, algorithm)
    assert (key.version, key.status, key.imported) == (V1, KeyStatus.ACTIVE, True)
    assert key.public_key == public_key
    named: dict[str, Any] = {"tenant": caller.tenant, "algorithm": algorithm, "version": V1}
    if algorithm in KEMS:
        secret, ciphertext = KEMS[algorithm].load_public(public_key).encapsulate()
        opened = await caller.ask(Decapsulate(**named, kem_ciphertext=ciphertext))
        assert opened.shared_secret == secret
    else:
        signature = (await caller.ask(Sign(**named, message=b"text"))).signature
        schemes()[algorithm].load_public(public_key).verify(signature, b"text")


@BOTH
async def test_it_is_imported_for_ever(
    caller: Caller, restarted: Callable[[], KeyService], sql: Sql
) -> None:
    """The mark remains in lists, after rotation, archiving and restart.

    If it is removed from the database, the key is refused. Generated keys have no mark.
    """
    await caller.import_key(made_elsewhere(ML_DSA)[0])
    named: dict[str, Any] = {"tenant": caller.tenant, "algorithm": ML_DSA}
    await caller.ask(RotateKey(**named))
    await caller.ask(ScheduleArchive(days=0, **named, version=V1))
    for keys in (caller.keys, restarted()):
        asking = Caller(keys, caller.tenant, caller.attribution)
        listed = (await asking.ask(ListKeys(**named, status=None))).keys
        assert [(key.version, key.imported) for key in listed] == [(V1, True), (V2, False)]
        assert (await asking.ask(GetKey(**named, version=V1))).key.imported
    sql("UPDATE keys SET imported = (version = 2)")
    asking = Caller(restarted(), caller.tenant, caller.attribution)
    assert await asking.refusal(GetKey(**named, version=V1)) is ErrorKind.UNAVAILABLE


async def test_an_import_key_is_good_for_one_private_key(
    caller: Caller, attribution: Attribution
) -> None:
    """An import key works once, and only for its tenant and algorithm. An unknown id is refused."""
    private_key = made_elsewhere(ML_DSA)[0]
    not_found = ErrorKind.IMPORT_KEY_NOT_FOUND
    issued = await caller.issue()
    stranger = Caller(caller.keys, TenantId(uuid4()), attribution)
    assert await stranger.refusal(stranger.importing(issued, private_key)) is not_found
    for other in (Algorithm.ML_DSA_87, KEM_768):
        assert await caller.refusal(caller.importing(issued, private_key, other)) is not_found
    made_up = caller.importing(issued, private_key, import_key_id=UUID(int=1))
    assert await caller.refusal(made_up) is not_found
    await caller.ask(caller.importing(issued, private_key))
    await caller.ask(RetireKey(tenant=caller.tenant, algorithm=ML_DSA, version=V1))
    assert await caller.refusal(caller.importing(issued, private_key)) is not_found


async def test_only_one_of_many_uses_an_import_key(caller: Caller) -> None:
    """Sixteen concurrent imports with one import key make one key."""
    private_key = made_elsewhere(ML_DSA)[0]
    issued = await caller.issue()
    request = caller.importing(issued, private_key)
    outcomes = await asyncio.gather(
        *(caller.ask(request) for _ in range(16)), return_exceptions=True
    )
    assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == 1
    listed = await caller.ask(ListKeys(tenant=caller.tenant, algorithm=ML_DSA, status=None))
    assert listed.total == 1


async def test_after_a_restart_there_are_no_import_keys(
    caller: Caller, restarted: Callable[[], KeyService]
) -> None:
    """Import keys from before a restart are not found."""
    issued = await caller.issue()
    asking = Caller(restarted(), caller.tenant, caller.attribution)
    request = asking.importing(issued, made_elsewhere(ML_DSA)[0])
    assert await asking.refusal(request) is ErrorKind.IMPORT_KEY_NOT_FOUND


def _changed(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def _both(algorithm: Algorithm, seed: bytes, expanded: bytes) -> bytes:
    """Return PKCS#8 with a seed and an expanded key."""
    return _info(algorithm, der(SEQUENCE, der(OCTET_STRING, seed) + der(OCTET_STRING, expanded)))


async def test_what_is_no_private_key_is_refused(caller: Caller) -> None:
    """Each kind of unusable private key has its own refusal, and uses up the import key."""
    good, own = made_elsewhere(ML_DSA)
    _, other = made_elsewhere(ML_DSA)
    seed = good[-32:]
    with_another_public_key = der(
        SEQUENCE,
        bytes.fromhex("020101")
        + public_keys.algorithm_identifier(ML_DSA)
        + der(OCTET_STRING, der(0x80, seed))
        + der(0x81, b"\0" + other),
    )
    slh = Algorithm.SLH_DSA_SHA2_128F
    slh_key, _ = made_elsewhere(slh)
    kem_key, kem_public_key = made_elsewhere(KEM_768)
    composite, _ = made_elsewhere(Algorithm.COMPOSITE_ML_DSA)
    known = own[:32] + bytes(32) + shake_256(own).digest(64)
    with_another_k = _both(ML_DSA, seed, known + bytes(EXPANDED_SIZE[ML_DSA] - len(known)))
    kem_seed, ek = kem_key[-64:], kem_public_key
    known = ek + sha3_256(ek).digest() + bytes(32)
    with_another_z = _both(KEM_768, kem_seed, bytes(EXPANDED_SIZE[KEM_768] - len(known)) + known)
    unwrapped, malformed = ErrorKind.DECRYPTION_FAILED, ErrorKind.PRIVATE_KEY_MALFORMED
    another, contradiction = ErrorKind.PRIVATE_KEY_ALGORITHM, ErrorKind.PRIVATE_KEY_CONTRADICTION
    cases: list[tuple[Algorithm, Callable[[ImportKey], bytes], ErrorKind]] = [
        (ML_DSA, lambda issued: wrap(issued, good, b"another info"), unwrapped),
        (ML_DSA, lambda issued: wrap(issued, good)[:-1], unwrapped),
        (ML_DSA, lambda issued: _changed(wrap(issued, good), -1), unwrapped),
        (ML_DSA, lambda issued: b"", unwrapped),
        (ML_DSA, lambda issued: wrap(issued, kem_key), another),
        (Algorithm.ML_DSA_87, lambda issued: wrap(issued, good), another),
        (ML_DSA, lambda issued: wrap(issued, good[22:]), malformed),
        (ML_DSA, lambda issued: wrap(issued, good + b"\0"), malformed),
        (ML_DSA, lambda issued: wrap(issued, _changed(good, 2)), malformed),
        (ML_DSA, lambda issued: wrap(issued, b""), malformed),
        (
            Algorithm.COMPOSITE_ML_DSA,
            lambda issued: wrap(issued, _changed(composite, -50)),
            contradiction,
        ),
        (slh, lambda issued: wrap(issued, _changed(slh_key, -1)), contradiction),
        (ML_DSA, lambda issued: wrap(issued, with_another_public_key), contradiction),
        (ML_DSA, lambda issued: wrap(issued, with_another_k), contradiction),
        (KEM_768, lambda issued: wrap(issued, with_another_z), contradiction),
    ]
    for algorithm, wrapped, kind in cases:
        issued = await caller.issue(algorithm)
        request = caller.importing(issued, b"", algorithm, wrapped_private_key=wrapped(issued))
        assert await caller.refusal(request) is kind
        assert await caller.refusal(request) is ErrorKind.IMPORT_KEY_NOT_FOUND
    listed = await caller.ask(ListKeys(tenant=caller.tenant, algorithm=None, status=None))
    assert listed.total == 0


async def test_an_active_key_or_a_quota_refuses_it(caller: Caller) -> None:
    """An active key or the quota refuses an import. With an active key the import key remains."""
    private_key = made_elsewhere(ML_DSA)[0]
    await caller.ask(GenerateKey(tenant=caller.tenant, algorithm=KEM_768, quota=None))
    over = caller.importing(await caller.issue(), private_key, quota=1)
    assert await caller.refusal(over) is ErrorKind.KEY_QUOTA_REACHED
    await caller.ask(GenerateKey(tenant=caller.tenant, algorithm=ML_DSA, quota=None))
    issued = await caller.issue()
    request = caller.importing(issued, private_key)
    assert await caller.refusal(request) is ErrorKind.KEY_EXISTS
    await caller.ask(RetireKey(tenant=caller.tenant, algorithm=ML_DSA, version=V1))
    assert (await caller.ask(request)).key.version == V2


async def test_an_import_key_outlasts_a_full_key(service: InProcessService, caller: Caller) -> None:
    """An import to a key with the maximum of versions is refused; the import key remains."""
    archived = KeyInfo(ML_DSA, V1, KeyStatus.ARCHIVED, b"public", datetime(2026, 1, 1, tzinfo=UTC))
    full = KeyVersions(caller.tenant, ML_DSA, entries=(KeyEntry(archived, None),) * MAX_VERSIONS)
    keys = service.parts.key_cache
    request = caller.importing(await caller.issue(), made_elsewhere(ML_DSA)[0])
    keys.invalidate(full)
    keys.update(full, service.parts.store.writer.epoch)
    assert await caller.refusal(request) is ErrorKind.VERSION_LIMIT_REACHED
    keys.invalidate(full)
    assert (await caller.ask(request)).key.version == V1


async def test_a_repeated_import_gives_the_first_answer(caller: Caller) -> None:
    """A repeated import with the same Idempotency-Key uses the import key once."""
    idempotency = Idempotency(bytes(32), bytes(32))
    issued = await caller.issue()
    request = caller.importing(issued, made_elsewhere(ML_DSA)[0], idempotency=idempotency)
    first, again = await caller.ask(request), await caller.ask(request)
    assert first.key == again.key


async def test_a_signature_from_before_still_verifies(caller: Caller) -> None:
    """A signature made before the import verifies here."""
    private = MLDSA65PrivateKey.generate()
    signature = private.sign(b"text")
    data = private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    await caller.import_key(data)
    named: dict[str, Any] = {"tenant": caller.tenant, "algorithm": ML_DSA, "version": V1}
    await caller.ask(Verify(**named, message=b"text", signature=signature))


def test_import_keys_end_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import key expires. Above the global limit, the tenant with the most loses its oldest."""
    monkeypatch.setattr(import_keys, "CAPACITY", 20)
    held = ImportKeys()
    mine = KeyName(TenantId(uuid4()), ML_DSA)
    first, _, _ = held.issue(mine, 0.0)
    with pytest.raises(KeyServiceError):
        held.claim(first, mine._replace(keyring="other"), 0.0)
    held.claim(first, mine, import_keys.LIFETIME_SECONDS - 1)
    second, _, _ = held.issue(mine, 0.0)
    with pytest.raises(KeyServiceError):
        held.claim(second, mine, import_keys.LIFETIME_SECONDS)
    assert len(held) == 0
    ids = [held.issue(mine, 0.0)[0] for _ in range(import_keys.PER_TENANT + 1)]
    assert len(held) == import_keys.PER_TENANT
    with pytest.raises(KeyServiceError):
        held.claim(ids[0], mine, 1.0)
    held.claim(ids[1], mine, 1.0)
    for _ in range(20 - len(held)):
        held.issue(KeyName(TenantId(uuid4()), ML_DSA), 1.0)
    other = KeyName(TenantId(uuid4()), ML_DSA)
    (kept, _, _), count = held.issue(other, 1.0), len(held)
    assert count == 20
    with pytest.raises(KeyServiceError):  # the tenant that had the most lost its oldest
        held.claim(ids[2], mine, 1.0)
    for _ in range(2 * 20):
        held.issue(mine, 1.0)
    held.claim(kept, other, 1.0)
    held.issue(KeyName(TenantId(uuid4()), ML_DSA), import_keys.LIFETIME_SECONDS + 1.0)
    assert len(held) == 1


def test_what_an_import_key_decrypts_is_not_shown(service: InProcessService) -> None:
    """No repr shows a private import key or an imported private key."""
    held = ImportKeys()
    name = KeyName(TenantId(uuid4()), ML_DSA)
    issued, _, _ = held.issue(name, 0.0)
    key = held.claim(issued, name, 0.0)
    assert "0x" in repr(key)
    assert len(repr(key)) < 120
