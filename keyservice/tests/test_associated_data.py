"""A ciphertext or wrapped key with associated data opens only with the same data."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import permutations
from typing import Any

import pytest

from pqkeep_protocol.algorithms import ALGORITHMS, MAX_ASSOCIATED_DATA, Algorithm, Operation
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Decrypt,
    Encrypt,
    GenerateKey,
    KeyService,
    Unwrap,
    Wrap,
)

ONE = KeyVersion(1)
KEMS = [a for a, spec in ALGORITHMS.items() if Operation.ENCRYPT in spec.operations]
WRAPPING = [a for a, spec in ALGORITHMS.items() if Operation.WRAP in spec.operations]
KEY = bytes(range(32))
ROWS = (b"customers/1", b"customers/2", b"customers/1\0", b"")

Seal = Callable[[Algorithm, bytes], Awaitable[bytes]]
Open = Callable[[Algorithm, bytes, bytes], Awaitable[bytes]]


@pytest.fixture
async def bound(
    keys: KeyService, tenant: TenantId, attribution: Attribution
) -> dict[Operation, tuple[Seal, Open]]:
    """Return functions to encrypt, decrypt, wrap and unwrap with a key of every algorithm."""
    for algorithm in KEMS:
        await keys.execute(GenerateKey(tenant=tenant, algorithm=algorithm, quota=None), attribution)

    async def encrypt(algorithm: Algorithm, data: bytes) -> bytes:
        named: Any = {"tenant": tenant, "algorithm": algorithm, "version": ONE}
        request = Encrypt(**named, plaintext=KEY, associated_data=data)
        return (await keys.execute(request, attribution)).ciphertext

    async def decrypt(algorithm: Algorithm, ciphertext: bytes, data: bytes) -> bytes:
        named: Any = {"tenant": tenant, "algorithm": algorithm, "version": ONE}
        request = Decrypt(**named, ciphertext=ciphertext, associated_data=data)
        return (await keys.execute(request, attribution)).plaintext

    async def wrap(algorithm: Algorithm, data: bytes) -> bytes:
        named: Any = {"tenant": tenant, "algorithm": algorithm, "version": ONE}
        request = Wrap(**named, symmetric_key=bytearray(KEY), associated_data=data)
        return (await keys.execute(request, attribution)).wrapped_key

    async def unwrap(algorithm: Algorithm, wrapped_key: bytes, data: bytes) -> bytes:
        named: Any = {"tenant": tenant, "algorithm": algorithm, "version": ONE}
        request = Unwrap(**named, wrapped_key=wrapped_key, associated_data=data)
        return (await keys.execute(request, attribution)).symmetric_key

    return {Operation.ENCRYPT: (encrypt, decrypt), Operation.WRAP: (wrap, unwrap)}


CASES = [(Operation.ENCRYPT, a) for a in KEMS] + [(Operation.WRAP, a) for a in WRAPPING]


@pytest.mark.parametrize(("operation", "algorithm"), CASES)
async def test_what_was_copied_to_another_row_does_not_open(
    operation: Operation, algorithm: Algorithm, bound: dict[Operation, tuple[Seal, Open]]
) -> None:
    """Data bound to its row opens only there. Elsewhere, or without a row, it fails to decrypt."""
    seal, unseal = bound[operation]
    sealed = {row: await seal(algorithm, row) for row in ROWS}
    for row in ROWS:
        assert await unseal(algorithm, sealed[row], row) == KEY
    for row, other in permutations(ROWS, 2):
        with pytest.raises(KeyServiceError) as refused:
            await unseal(algorithm, sealed[row], other)
        assert refused.value.kind is ErrorKind.DECRYPTION_FAILED


@pytest.mark.parametrize(("operation", "algorithm"), CASES)
async def test_the_most_that_can_be_bound(
    operation: Operation, algorithm: Algorithm, bound: dict[Operation, tuple[Seal, Open]]
) -> None:
    """All bytes of 64 KiB are bound, and the ciphertext does not grow."""
    seal, unseal = bound[operation]
    most = bytes(MAX_ASSOCIATED_DATA)
    sealed = await seal(algorithm, most)
    assert len(sealed) == len(await seal(algorithm, b""))
    assert await unseal(algorithm, sealed, most) == KEY
    with pytest.raises(KeyServiceError) as refused:
        await unseal(algorithm, sealed, most[:-1] + b"\1")
    assert refused.value.kind is ErrorKind.DECRYPTION_FAILED


@pytest.mark.parametrize(
    ("operation", "algorithm", "named"),
    [(o, a, b) for o, a in CASES for b in (KEMS if o is Operation.ENCRYPT else WRAPPING) if a != b],
)
async def test_a_wrong_algorithm_is_told_from_wrong_data(
    *,
    operation: Operation,
    algorithm: Algorithm,
    named: Algorithm,
    bound: dict[Operation, tuple[Seal, Open]],
) -> None:
    """Another algorithm is reported as a mismatch only if the associated data is right."""
    seal, unseal = bound[operation]
    sealed = await seal(algorithm, b"row")
    for data, kind in ((b"row", ErrorKind.ALGORITHM_MISMATCH), (b"", ErrorKind.DECRYPTION_FAILED)):
        with pytest.raises(KeyServiceError) as refused:
            await unseal(named, sealed, data)
        assert refused.value.kind is kind
