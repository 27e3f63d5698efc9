"""A batch returns a result for each request in order, and commits all records together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from pqkeep_keyservice import batch as batches
from pqkeep_keyservice.live.executors import InProcess
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, HashAlgorithm, Kind
from pqkeep_protocol.codec import (
    TO_GATEWAY,
    TO_KEY_SERVICE,
    Answer,
    Call,
    FrameDecoder,
    ToGateway,
    Unreadable,
    encode,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    MAX_ITEMS,
    Attribution,
    Batch,
    BatchResults,
    Decapsulate,
    Decapsulated,
    Decrypt,
    Decrypted,
    Encapsulate,
    Encapsulated,
    Encrypt,
    Encrypted,
    GenerateKey,
    Item,
    ItemRequest,
    KeyService,
    Refused,
    Sign,
    Signed,
    SignHash,
    SignMu,
    Unwrap,
    Unwrapped,
    Verified,
    Verify,
    VerifyHash,
    VerifyMu,
    Wrap,
    Wrapped,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService

    from pqkeep_keyservice.keys.key_versions import KeyEntry
    from pqkeep_keyservice.live.executors import Signable

Sql = Callable[..., list[Any]]
KEM, HYBRID, SIGNATURE = Algorithm.ML_KEM_768, Algorithm.X_WING, Algorithm.ML_DSA_65
ONE = KeyVersion(1)
RECORDS = "SELECT operation, algorithm, key_version, outcome, policy FROM audit_records ORDER BY id"
BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


def batch(tenant: TenantId, requests: Sequence[ItemRequest]) -> Batch:
    """Return a batch with a policy for each request."""
    return Batch(
        tenant=tenant,
        items=tuple(Item(request, f"policy-{place}") for place, request in enumerate(requests)),
    )


def encrypt(tenant: TenantId, text: bytes, algorithm: Algorithm = KEM) -> Encrypt:
    """Return a request that encrypts with the active key."""
    return Encrypt(tenant=tenant, algorithm=algorithm, version=None, plaintext=text)


@pytest.fixture
async def owner(tenant: TenantId, keys: KeyService, attribution: Attribution) -> TenantId:
    """Return a tenant with a key of each kind."""
    for algorithm in (KEM, HYBRID, SIGNATURE):
        await keys.execute(GenerateKey(tenant=tenant, algorithm=algorithm, quota=None), attribution)
    return tenant


@BOTH
async def test_every_operation_in_one_batch(
    owner: TenantId, keys: KeyService, attribution: Attribution, sql: Sql
) -> None:
    """Each item's result equals the result of a single request, and the order stays."""
    named: dict[str, Any] = {"tenant": owner, "version": ONE}
    digest: dict[str, Any] = {"hash_algorithm": HashAlgorithm.SHA_256, "digest": bytes(32)}
    first: tuple[ItemRequest, ...] = (
        Sign(**named, algorithm=SIGNATURE, message=b"text"),
        encrypt(owner, b"text", HYBRID),
        Wrap(**named, algorithm=KEM, symmetric_key=bytearray(b"k" * 32)),
        SignHash(**named, algorithm=SIGNATURE, **digest),
        Encapsulate(**named, algorithm=HYBRID),
        SignMu(**named, algorithm=SIGNATURE, mu=bytes(64)),
    )
    made = await keys.execute(batch(owner, first), attribution)
    signed, encrypted, wrapped, over_hash, encapsulated, over_mu = made.results
    assert isinstance(signed, Signed)
    assert isinstance(encrypted, Encrypted)
    assert isinstance(wrapped, Wrapped)
    assert isinstance(over_hash, Signed)
    assert isinstance(encapsulated, Encapsulated)
    assert isinstance(over_mu, Signed)
    second: tuple[ItemRequest, ...] = (
        Unwrap(**named, algorithm=KEM, wrapped_key=wrapped.wrapped_key),
        Verify(**named, algorithm=SIGNATURE, message=b"text", signature=signed.signature),
        Decapsulate(**named, algorithm=HYBRID, kem_ciphertext=encapsulated.kem_ciphertext),
        Decrypt(**named, algorithm=HYBRID, ciphertext=encrypted.ciphertext),
        VerifyHash(**named, algorithm=SIGNATURE, signature=over_hash.signature, **digest),
        Verify(**named, algorithm=SIGNATURE, message=b"else", signature=signed.signature),
        VerifyMu(**named, algorithm=SIGNATURE, mu=bytes(64), signature=over_mu.signature),
    )
    opened = await keys.execute(batch(owner, second), attribution)
    assert opened.results == (
        Unwrapped(symmetric_key=b"k" * 32),
        Verified(),
        Decapsulated(shared_secret=encapsulated.shared_secret),
        Decrypted(plaintext=b"text"),
        Verified(),
        Refused(kind=ErrorKind.VERIFICATION_FAILED),
        Verified(),
    )
    assert sql(RECORDS)[3:] == [
        (request.operation, request.algorithm, 1, outcome, f"policy-{place}")
        for requests, last in ((first, "success"), (second, "verification-failed"))
        for place, request in enumerate(requests)
        for outcome in (last if place == 5 else "success",)
    ]


@BOTH
async def test_records_of_a_batch_stand_together(
    owner: TenantId, keys: KeyService, attribution: Attribution, sql: Sql
) -> None:
    """The records of a batch have consecutive numbers, even with concurrent requests."""
    many = [
        keys.execute(
            batch(owner, [encrypt(owner, b"")] * MAX_ITEMS),
            Attribution(f"batch-{number}", "a", "b"),
        )
        for number in range(4)
    ]
    alone = [keys.execute(encrypt(owner, b""), attribution) for _ in range(20)]
    await asyncio.gather(*many, *alone)
    for number in range(4):
        found = sql(
            "SELECT number, policy FROM audit_records WHERE request_id = ? ORDER BY id",
            f"batch-{number}",
        )
        first = found[0][0]
        assert found == [(first + place, f"policy-{place}") for place in range(MAX_ITEMS)]


BAD: dict[str, tuple[Callable[[TenantId], ItemRequest], ErrorKind]] = {
    "no such version": (
        lambda tenant: Encapsulate(tenant=tenant, algorithm=KEM, version=KeyVersion(9)),
        ErrorKind.KEY_NOT_FOUND,
    ),
    "no key": (
        lambda tenant: encrypt(tenant, b"", Algorithm.ML_KEM_1024),
        ErrorKind.KEY_NOT_FOUND,
    ),
    "does not open": (
        lambda tenant: Decrypt(tenant=tenant, algorithm=KEM, version=ONE, ciphertext=bytes(1200)),
        ErrorKind.DECRYPTION_FAILED,
    ),
    "too short": (
        lambda tenant: Decapsulate(tenant=tenant, algorithm=KEM, version=ONE, kem_ciphertext=b""),
        ErrorKind.DECRYPTION_FAILED,
    ),
    "not this algorithm's": (
        lambda tenant: encrypt(tenant, b"", SIGNATURE),
        ErrorKind.UNSUPPORTED,
    ),
    "does not hold": (
        lambda tenant: Verify(
            tenant=tenant, algorithm=SIGNATURE, version=ONE, message=b"", signature=b""
        ),
        ErrorKind.VERIFICATION_FAILED,
    ),
}


@pytest.mark.parametrize(("kind", "place"), [*product(BAD, [0, 3, 7])])
async def test_a_refused_request_leaves_the_others(
    *,
    kind: str,
    place: int,
    owner: TenantId,
    keys: KeyService,
    attribution: Attribution,
    sql: Sql,
) -> None:
    """If one of eight requests is wrong, seven succeed, and all eight are recorded."""
    make, expected = BAD[kind]
    requests: list[ItemRequest] = [encrypt(owner, bytes([number])) for number in range(8)]
    requests[place] = make(owner)
    results = (await keys.execute(batch(owner, requests), attribution)).results
    assert results[place] == Refused(kind=expected)
    others = [number for number in range(8) if number != place]
    decrypt = [
        Decrypt(tenant=owner, algorithm=KEM, version=ONE, ciphertext=result.ciphertext)
        for result in results
        if isinstance(result, Encrypted)
    ]
    opened = await keys.execute(batch(owner, decrypt), attribution)
    assert opened.results == tuple(Decrypted(plaintext=bytes([other])) for other in others)
    outcomes = [outcome for *_, outcome, _ in sql(RECORDS)[3:11]]
    assert outcomes == [expected if number == place else "success" for number in range(8)]


async def test_another_tenants_request_refuses_the_batch(
    owner: TenantId, keys: KeyService, attribution: Attribution, sql: Sql
) -> None:
    """A batch with another tenant's request is refused as a whole and not recorded."""
    before = sql(RECORDS)
    requests = [encrypt(owner, b""), encrypt(TenantId(uuid4()), b"")]
    for tenant in {request.tenant for request in requests}:
        with pytest.raises(KeyServiceError) as refused:
            await keys.execute(batch(tenant, requests), attribution)
        assert refused.value.kind is ErrorKind.UNSUPPORTED
    assert sql(RECORDS) == before


@pytest.mark.parametrize("late", [0.0, 3600.0])
async def test_what_is_not_done_in_time_is_refused_and_recorded(
    *,
    late: float,
    service: InProcessService,
    owner: TenantId,
    attribution: Attribution,
    sql: Sql,
) -> None:
    """After the deadline no request begins, here or in a thread, and each record says so."""
    requests: list[ItemRequest] = [
        encrypt(owner, b""),
        Sign(tenant=owner, algorithm=SIGNATURE, version=None, message=b""),
    ]
    deadline = asyncio.get_running_loop().time() - late
    done = await service.parts.batches.execute(batch(owner, requests), attribution, deadline)
    assert done.results == (Refused(kind=ErrorKind.DEADLINE_EXCEEDED),) * 2
    assert [outcome for *_, outcome, _ in sql(RECORDS)[3:]] == ["deadline-exceeded"] * 2


async def test_no_signature_is_begun_shortly_before_the_deadline(
    service: InProcessService, owner: TenantId, attribution: Attribution
) -> None:
    """A signature that could not end in time is refused at once, so the batch ends in time."""
    requests: list[ItemRequest] = [
        encrypt(owner, b""),
        Sign(tenant=owner, algorithm=SIGNATURE, version=None, message=b""),
    ]
    deadline = asyncio.get_running_loop().time() + batches.SECONDS_TO_SIGN
    done = await service.parts.batches.execute(batch(owner, requests), attribution, deadline)
    encrypted, signed = done.results
    assert isinstance(encrypted, Encrypted)
    assert signed == Refused(kind=ErrorKind.DEADLINE_EXCEEDED)


async def test_no_signature_waits_for_a_worker_until_the_deadline(
    service: InProcessService,
    owner: TenantId,
    attribution: Attribution,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signature without a free worker is refused, and the other results are returned."""

    async def wait(
        self: InProcess, tenant: TenantId, entry: KeyEntry, signable: Signable, deadline: float
    ) -> bytes:
        await asyncio.sleep(deadline - asyncio.get_running_loop().time())
        raise KeyServiceError(ErrorKind.DEADLINE_EXCEEDED)

    monkeypatch.setattr(InProcess, "sign", wait)
    requests: list[ItemRequest] = [
        encrypt(owner, b""),
        Sign(tenant=owner, algorithm=SIGNATURE, version=None, message=b""),
    ]
    deadline = asyncio.get_running_loop().time() + batches.SECONDS_TO_SIGN + 0.1
    done = await service.parts.batches.execute(batch(owner, requests), attribution, deadline)
    encrypted, signed = done.results
    assert isinstance(encrypted, Encrypted)
    assert signed == Refused(kind=ErrorKind.DEADLINE_EXCEEDED)


async def test_keys_to_wrap_are_wiped(
    owner: TenantId, keys: KeyService, attribution: Attribution
) -> None:
    """Each symmetric key of a batch is overwritten, even for a refused request."""
    requests = [
        Wrap(
            tenant=owner,
            algorithm=KEM,
            version=KeyVersion(version),
            symmetric_key=bytearray(b"k" * 16),
        )
        for version in (1, 2, 1)
    ]
    done = await keys.execute(batch(owner, requests), attribution)
    assert [type(result) for result in done.results] == [Wrapped, Refused, Wrapped]
    assert [request.symmetric_key for request in requests] == [bytearray(16)] * 3


async def test_a_single_request_does_not_wait_for_a_batch(
    *,
    owner: TenantId,
    keys: KeyService,
    attribution: Attribution,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request during a batch is recorded before the batch ends."""
    monkeypatch.setattr(batches, "SLICE_SECONDS", 0.0)
    many = asyncio.create_task(
        keys.execute(batch(owner, [encrypt(owner, b"")] * MAX_ITEMS), attribution)
    )
    await asyncio.sleep(0)
    await keys.execute(Encapsulate(tenant=owner, algorithm=KEM, version=ONE), attribution)
    await many
    assert [operation for operation, *_ in sql(RECORDS)[3:]] == [
        "encapsulate",
        *["encrypt"] * MAX_ITEMS,
    ]


async def test_tenants_take_turns(
    *,
    tenant: TenantId,
    keys: KeyService,
    attribution: Attribution,
    sql: Sql,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant's single batch does not wait for ten earlier batches of another tenant."""
    monkeypatch.setattr(batches, "SLICE_SECONDS", 0.0)
    other = TenantId(uuid4())
    for caller in (tenant, other):
        await keys.execute(GenerateKey(tenant=caller, algorithm=KEM, quota=None), attribution)
    tenants = [tenant] * 10 + [other]
    await asyncio.gather(
        *(
            keys.execute(batch(tenant, [encrypt(tenant, b"")] * 8), attribution)
            for tenant in tenants
        )
    )
    first = sql("SELECT tenant_id FROM audit_records WHERE operation = 'encrypt' ORDER BY id")
    place = first.index((str(other),))
    assert place <= 2 * 8


def test_a_batch_has_1_to_128_requests(tenant: TenantId, attribution: Attribution) -> None:
    """A batch without requests, or with 129, cannot be read."""
    for count, is_valid in ((0, False), (1, True), (MAX_ITEMS, True), (MAX_ITEMS + 1, False)):
        frame = Call(1, 1000, attribution, batch(tenant, [encrypt(tenant, b"")] * count))
        decoder = FrameDecoder(TO_KEY_SERVICE)
        data = encode(frame)
        decoder.space()[: len(data)] = data
        expected = frame if is_valid else Unreadable(1, "call")
        assert list(decoder.filled(len(data))) == [expected]


LARGEST_SIGNATURE = max(
    spec.output_size for spec in ALGORITHMS.values() if spec.kind is Kind.SIGNATURE
)
OVERHEAD = max(spec.output_size for spec in ALGORITHMS.values() if spec.kind is Kind.KEM) + 28
BODY = 4 * 1024 * 1024 * 3 // 4
"""Bytes in a request's body without its base64."""


@pytest.mark.parametrize(
    "result",
    [
        Signed(signature=bytes(LARGEST_SIGNATURE), version=KeyVersion(2**31 - 1)),
        Encrypted(ciphertext=bytes(BODY // MAX_ITEMS + OVERHEAD), version=KeyVersion(2**31 - 1)),
        Decrypted(plaintext=bytes(BODY // MAX_ITEMS)),
    ],
    ids=["signatures", "ciphertexts", "plaintexts"],
)
def test_the_largest_results_fit_into_a_frame(result: Signed | Encrypted | Decrypted) -> None:
    """128 of the largest signatures, or all results for a body of 4 MiB, fit into one frame."""
    response = Answer(2**64 - 1, BatchResults(results=(result,) * MAX_ITEMS))
    data = encode(response)
    decoder = FrameDecoder(TO_GATEWAY)
    frames: list[ToGateway | Unreadable] = []
    while data:
        space = decoder.space()
        taken, data = data[: len(space)], data[len(space) :]
        space[: len(taken)] = taken
        frames += decoder.filled(len(taken))
    assert frames == [response]
