"""The operations end to end, with real cryptography and a real database."""

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from keyservice.tests.conftest import OneTenant

from pqkeep_keyservice.crypto.slhdsa import PARAMETER_SETS
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    CHECK_VALUE_SIZE,
    CURRENT,
    Algorithm,
    HashAlgorithm,
)
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Decapsulate,
    Decrypt,
    Encapsulate,
    Encrypt,
    GenerateKey,
    GetActiveKey,
    GetKey,
    KeyRequest,
    KeyService,
    ListKeys,
    Request,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    Sign,
    SignHash,
    Unwrap,
    Verify,
    VerifyHash,
    Wrap,
)

IN_PROCESS = sorted({*CURRENT} - {*PARAMETER_SETS})

pytestmark = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)

KEM, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.ML_DSA_65
V1, V2, V3 = KeyVersion(1), KeyVersion(2), KeyVersion(3)
TEXT = b"attack at dawn"


class Caller(OneTenant):
    """A caller of one tenant, with its requests."""

    def generate(self, algorithm: Algorithm = KEM) -> GenerateKey:
        return GenerateKey(tenant=self.tenant, algorithm=algorithm, quota=None)

    def rotate(self, algorithm: Algorithm = KEM) -> RotateKey:
        return RotateKey(tenant=self.tenant, algorithm=algorithm)

    def retire(self, version: KeyVersion, algorithm: Algorithm = KEM) -> RetireKey:
        return RetireKey(tenant=self.tenant, algorithm=algorithm, version=version)

    def archive(self, version: KeyVersion, algorithm: Algorithm = KEM) -> ScheduleArchive:
        return ScheduleArchive(days=0, tenant=self.tenant, algorithm=algorithm, version=version)

    def encrypt(self, version: KeyVersion | None = None, text: bytes = TEXT) -> Encrypt:
        return Encrypt(tenant=self.tenant, algorithm=KEM, version=version, plaintext=text)

    def decrypt(self, version: KeyVersion, blob: bytes) -> Decrypt:
        return Decrypt(tenant=self.tenant, algorithm=KEM, version=version, ciphertext=blob)

    def encapsulate(self, version: KeyVersion) -> Encapsulate:
        return Encapsulate(tenant=self.tenant, algorithm=KEM, version=version)

    def decapsulate(self, version: KeyVersion, ciphertext: bytes) -> Decapsulate:
        return Decapsulate(
            tenant=self.tenant, algorithm=KEM, version=version, kem_ciphertext=ciphertext
        )

    def sign(self, version: KeyVersion | None = None, text: bytes = TEXT) -> Sign:
        return Sign(tenant=self.tenant, algorithm=SIGNATURE, version=version, message=text)

    def verify(self, version: KeyVersion, signature: bytes, text: bytes = TEXT) -> Verify:
        return Verify(
            tenant=self.tenant,
            algorithm=SIGNATURE,
            version=version,
            message=text,
            signature=signature,
        )


@pytest.fixture
def caller(keys: KeyService, tenant: TenantId, attribution: Attribution) -> Caller:
    """Return a caller of one tenant."""
    return Caller(keys, tenant, attribution)


@pytest.fixture
def stranger(keys: KeyService, attribution: Attribution) -> Caller:
    """Return a caller of another tenant."""
    return Caller(keys, TenantId(uuid4()), attribution)


@pytest.mark.parametrize("size", [0, 1, 14, 2**20])
async def test_what_was_encrypted_is_decrypted(size: int, caller: Caller) -> None:
    """Any plaintext up to 1 MiB is decrypted, from a ciphertext of the documented length."""
    await caller.ask(caller.generate())
    text = bytes(size)
    encrypted = await caller.ask(caller.encrypt(text=text))
    assert encrypted.version == V1
    assert len(encrypted.ciphertext) == 1088 + 12 + size + 16
    assert (await caller.ask(caller.decrypt(V1, encrypted.ciphertext))).plaintext == text


async def test_old_blobs_open_after_rotations_and_a_restart(
    caller: Caller, restarted: Callable[[], KeyService], attribution: Attribution
) -> None:
    """Each rotation activates the next version, and older ciphertexts still open with theirs."""
    await caller.ask(caller.generate())
    blobs = [await caller.ask(caller.encrypt())]
    for version in (1, 2):
        rotated = await caller.ask(caller.rotate())
        assert (rotated.old_version, rotated.key.version) == (version, version + 1)
        assert rotated.key.status is KeyStatus.ACTIVE
        blobs.append(await caller.ask(caller.encrypt()))
    assert [blob.version for blob in blobs] == [1, 2, 3]
    for keys in (caller, Caller(restarted(), caller.tenant, attribution)):
        for version, blob in enumerate(blobs, 1):
            opened = await keys.ask(keys.decrypt(KeyVersion(version), blob.ciphertext))
            assert opened.plaintext == TEXT


async def test_encapsulation(caller: Caller) -> None:
    """Both sides get the same fresh 32 bytes, and the ciphertext has the standard's size."""
    await caller.ask(caller.generate())
    first, second = [await caller.ask(caller.encapsulate(V1)) for _ in range(2)]
    assert first.shared_secret != second.shared_secret
    for made in (first, second):
        assert (len(made.shared_secret), len(made.kem_ciphertext)) == (32, 1088)
        got = await caller.ask(caller.decapsulate(V1, made.kem_ciphertext))
        assert got.shared_secret == made.shared_secret


async def test_a_damaged_kem_ciphertext_gives_another_secret(caller: Caller) -> None:
    """ML-KEM rejects implicitly: a damaged ciphertext always gives the same wrong secret."""
    await caller.ask(caller.generate())
    made = await caller.ask(caller.encapsulate(V1))
    damaged = bytes([made.kem_ciphertext[0] ^ 1]) + made.kem_ciphertext[1:]
    responses = [await caller.ask(caller.decapsulate(V1, damaged)) for _ in range(2)]
    assert responses[0] == responses[1]
    assert responses[0].shared_secret != made.shared_secret


@pytest.mark.parametrize("size", [0, 1, 1087, 1089, 1568, 2**20])
async def test_a_kem_ciphertext_of_another_size_is_refused(size: int, caller: Caller) -> None:
    """A ciphertext of any size but 1088 bytes is DECRYPTION_FAILED."""
    await caller.ask(caller.generate())
    refusal = await caller.refusal(caller.decapsulate(V1, bytes(size)))
    assert refusal is ErrorKind.DECRYPTION_FAILED


async def test_signatures(caller: Caller) -> None:
    """A signature verifies with its version, also after a rotation. Two signatures differ."""
    await caller.ask(caller.generate(SIGNATURE))
    first, second = [await caller.ask(caller.sign()) for _ in range(2)]
    assert first.version == V1
    assert len(first.signature) == 3309
    assert first.signature != second.signature  # hedged
    await caller.ask(caller.verify(V1, first.signature))
    await caller.ask(caller.rotate(SIGNATURE))
    await caller.ask(caller.verify(V1, first.signature))
    assert (await caller.ask(caller.sign())).version == V2


async def test_no_other_signature_verifies(caller: Caller, stranger: Caller) -> None:
    """Another message, version, tenant, size or byte is VERIFICATION_FAILED."""
    for who in (caller, stranger):
        await who.ask(who.generate(SIGNATURE))
        await who.ask(who.rotate(SIGNATURE))
    good = (await caller.ask(caller.sign(V2))).signature
    flipped = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(0, len(good), 97)]
    attempts = [
        (caller, caller.verify(V2, good, b"another message")),
        (caller, caller.verify(V1, good)),
        (stranger, stranger.verify(V2, good)),
        *((caller, caller.verify(V2, good[:size])) for size in (0, 1, 3308)),
        (caller, caller.verify(V2, good + b"\0")),
        (caller, caller.verify(V2, bytes(65_536))),
        *((caller, caller.verify(V2, damaged)) for damaged in flipped),
    ]
    refusals = {await who.refusal(attempt) for who, attempt in attempts}
    assert refusals == {ErrorKind.VERIFICATION_FAILED}
    await caller.ask(caller.verify(V2, good))


async def test_every_byte_of_a_blob_counts(caller: Caller) -> None:
    """A ciphertext with a changed, missing or added byte is DECRYPTION_FAILED."""
    await caller.ask(caller.generate())
    blob = (await caller.ask(caller.encrypt())).ciphertext
    flipped = [blob[:at] + bytes([blob[at] ^ 0x80]) + blob[at + 1 :] for at in range(len(blob))]
    truncated = [blob[:size] for size in (*range(0, 1088, 64), *range(1088, len(blob)))]
    refusals = await asyncio.gather(
        *(
            caller.refusal(caller.decrypt(V1, damaged))
            for damaged in (*flipped, *truncated, blob + b"\0")
        )
    )
    assert set(refusals) == {ErrorKind.DECRYPTION_FAILED}


async def test_a_blob_belongs_to_its_tenant_and_version(caller: Caller, stranger: Caller) -> None:
    """A ciphertext opens with no other version and for no other tenant."""
    for who in (caller, stranger):
        await who.ask(who.generate())
        await who.ask(who.rotate())
    blob = (await caller.ask(caller.encrypt(V2))).ciphertext
    failed = ErrorKind.DECRYPTION_FAILED
    assert await caller.refusal(caller.decrypt(V1, blob)) is failed
    assert await stranger.refusal(stranger.decrypt(V2, blob)) is failed
    assert (await caller.ask(caller.decrypt(V2, blob))).plaintext == TEXT


def open_by_hand(secret: bytes, blob: bytes, *, purpose: bytes, who: UUID, version: int) -> bytes:
    """Open a ciphertext as documented: HKDF-SHA256, then AES-256-GCM."""
    parts = b"pqkeep/v1", purpose, b"Kyber768", who.bytes, version.to_bytes(4, "big")
    info = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
    key = HKDF(SHA256(), length=32, salt=None, info=info).derive(secret)
    return AESGCM(key).decrypt(blob[1088:1100], blob[1100:], None)


async def test_the_blob_is_the_documented_construction(caller: Caller) -> None:
    """The shared secret opens the ciphertext as documented, only with its binding."""
    await caller.ask(caller.generate())
    blob = (await caller.ask(caller.encrypt())).ciphertext
    secret = (await caller.ask(caller.decapsulate(V1, blob[:1088]))).shared_secret
    who = caller.tenant
    assert open_by_hand(secret, blob, purpose=b"encrypt", who=who, version=1) == TEXT
    for purpose, tenant, version in (
        (b"wrap", who, 1),
        (b"encrypt", UUID(int=who.int ^ 1), 1),
        (b"encrypt", who, 2),
    ):
        with pytest.raises(InvalidTag):
            open_by_hand(secret, blob, purpose=purpose, who=tenant, version=version)


def uses(
    caller: Caller, blob: bytes, signature: bytes, ciphertext: bytes
) -> dict[str, Request[Any]]:
    """Return one request of each cryptographic operation with version 1."""
    return {
        "encrypt": caller.encrypt(V1),
        "encapsulate": caller.encapsulate(V1),
        "sign": caller.sign(V1),
        "decrypt": caller.decrypt(V1, blob),
        "decapsulate": caller.decapsulate(V1, ciphertext),
        "verify": caller.verify(V1, signature),
    }


@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        (KeyStatus.ACTIVE, {"encrypt", "encapsulate", "sign", "decrypt", "decapsulate", "verify"}),
        (KeyStatus.RETIRED, {"decrypt", "decapsulate", "verify"}),
        (KeyStatus.ARCHIVED, set()),
    ],
)
async def test_what_a_status_permits(status: KeyStatus, allowed: set[str], caller: Caller) -> None:
    """Used keys follow the specification's table of statuses and operations."""
    for algorithm in (KEM, SIGNATURE):
        await caller.ask(caller.generate(algorithm))
    blob = (await caller.ask(caller.encrypt())).ciphertext
    ciphertext = (await caller.ask(caller.encapsulate(V1))).kem_ciphertext
    signature = (await caller.ask(caller.sign())).signature
    requests = uses(caller, blob, signature, ciphertext)
    for request in requests.values():  # so that everything that is kept in memory is
        await caller.ask(request)
    for algorithm in (KEM, SIGNATURE):
        if status is not KeyStatus.ACTIVE:
            await caller.ask(caller.retire(V1, algorithm))
        if status is KeyStatus.ARCHIVED:
            await caller.ask(caller.archive(V1, algorithm))

    for name, request in requests.items():
        if name in allowed:
            await caller.ask(request)
        else:
            refusal = await caller.refusal(request)
            assert refusal is ErrorKind.KEY_NOT_FOUND, name


@pytest.mark.parametrize("algorithm", [*IN_PROCESS, Algorithm.SLH_DSA_SHA2_128F])
async def test_the_life_of_a_key(algorithm: Algorithm, caller: Caller) -> None:
    """Generate, rotate, retire, archive and the look-ups agree."""
    made = (await caller.ask(caller.generate(algorithm))).key
    assert (made.algorithm, made.version, made.status) == (algorithm, V1, KeyStatus.ACTIVE)
    size = ALGORITHMS[algorithm].public_key_size or CHECK_VALUE_SIZE
    assert len(made.public_key) == size
    assert await caller.refusal(caller.generate(algorithm)) is ErrorKind.KEY_EXISTS

    second = (await caller.ask(caller.rotate(algorithm))).key
    active = GetActiveKey(tenant=caller.tenant, algorithm=algorithm)
    assert (await caller.ask(active)).key == second
    assert await caller.refusal(caller.archive(V2, algorithm)) is ErrorKind.KEY_STATUS

    for _ in range(2):  # retiring twice is no error
        retired = (await caller.ask(caller.retire(V2, algorithm))).key
        assert retired.status is KeyStatus.RETIRED
    assert await caller.refusal(active) is ErrorKind.KEY_NOT_FOUND
    assert await caller.refusal(caller.rotate(algorithm)) is ErrorKind.KEY_NOT_FOUND

    archived = (await caller.ask(caller.archive(V1, algorithm))).key
    assert (archived.status, archived.public_key) == (KeyStatus.ARCHIVED, made.public_key)
    assert await caller.refusal(caller.retire(V1, algorithm)) is ErrorKind.KEY_STATUS
    assert await caller.refusal(caller.archive(V1, algorithm)) is ErrorKind.KEY_STATUS
    third = (await caller.ask(caller.generate(algorithm))).key
    assert third.version == V3
    known = [
        (await caller.ask(GetKey(tenant=caller.tenant, algorithm=algorithm, version=version))).key
        for version in (V1, V2, V3)
    ]
    assert known == [archived, retired, third]


async def test_lists(caller: Caller, stranger: Caller) -> None:
    """A list has the tenant's keys, by algorithm and version, with the requested statuses."""
    for algorithm in (KEM, SIGNATURE):
        await caller.ask(caller.generate(algorithm))
        await caller.ask(caller.rotate(algorithm))
    await caller.ask(caller.archive(V1, KEM))
    await stranger.ask(stranger.generate())

    async def listed(
        algorithm: Algorithm | None, status: KeyStatus | None
    ) -> list[tuple[str, int]]:
        request = ListKeys(tenant=caller.tenant, algorithm=algorithm, status=status)
        return [(key.algorithm, key.version) for key in (await caller.ask(request)).keys]

    everything = [("Dilithium3", 1), ("Dilithium3", 2), ("Kyber768", 1), ("Kyber768", 2)]
    assert await listed(None, None) == everything
    assert await listed(KEM, None) == everything[2:]
    assert await listed(None, KeyStatus.ACTIVE) == [everything[1], everything[3]]
    assert await listed(None, KeyStatus.RETIRED) == everything[:1]
    assert await listed(SIGNATURE, KeyStatus.ARCHIVED) == []


async def test_a_strangers_key_does_not_exist(caller: Caller, stranger: Caller) -> None:
    """Another tenant's keys are not found, listed, rotated or retired."""
    await caller.ask(caller.generate())
    not_found = ErrorKind.KEY_NOT_FOUND
    attempts: list[KeyRequest[Any]] = [
        stranger.encrypt(),
        stranger.encrypt(V1),
        stranger.encapsulate(V1),
        stranger.rotate(),
        stranger.retire(V1),
        stranger.archive(V1),
    ]
    for attempt in attempts:
        assert await stranger.refusal(attempt) is not_found
    everything = ListKeys(tenant=stranger.tenant, algorithm=None, status=None)
    assert (await stranger.ask(everything)).keys == ()


def first_uses(tenant: TenantId, algorithm: Algorithm) -> list[KeyRequest[Any]]:
    """Return one request of each cryptographic operation, with any algorithm."""
    key: dict[str, Any] = {"tenant": tenant, "algorithm": algorithm, "version": V1}
    return [
        Encrypt(**key, plaintext=b""),
        Decrypt(**key, ciphertext=b""),
        Encapsulate(**key),
        Decapsulate(**key, kem_ciphertext=b""),
        Sign(**key, message=b""),
        Verify(**key, message=b"", signature=b""),
        Wrap(**key, symmetric_key=bytearray(32)),
        Unwrap(**key, wrapped_key=b""),
        SignHash(**key, hash_algorithm=HashAlgorithm.SHA_256, digest=bytes(32)),
        VerifyHash(**key, hash_algorithm=HashAlgorithm.SHA_256, digest=bytes(32), signature=b""),
    ]


@pytest.mark.parametrize("algorithm", IN_PROCESS)
async def test_an_algorithm_of_the_wrong_kind_is_unsupported(
    algorithm: Algorithm, caller: Caller
) -> None:
    """An operation is UNSUPPORTED exactly if the algorithm does not have it."""
    for expected in (ErrorKind.KEY_NOT_FOUND, None):
        for request in first_uses(caller.tenant, algorithm):
            supported = request.operation in ALGORITHMS[algorithm].operations
            if not supported:
                assert await caller.refusal(request) is ErrorKind.UNSUPPORTED
            elif expected is not None:
                assert await caller.refusal(request) is expected
        if expected is not None:
            await caller.ask(caller.generate(algorithm))
