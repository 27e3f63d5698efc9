"""Every change to a result of the key service is refused, in one documented way.

In process, through the real operations. test_over_http.py does the same over HTTP.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from uuid import uuid4

import pytest
from tests.sampling import fast_algorithms_first, step

from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, HashAlgorithm, Kind, Operation
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    AnyRequest,
    AnyResult,
    Decapsulate,
    Decapsulated,
    Decrypt,
    Decrypted,
    Encapsulate,
    Encapsulated,
    Encrypt,
    Encrypted,
    GenerateKey,
    Sign,
    Signed,
    SignHash,
    Unwrap,
    Unwrapped,
    Verified,
    Verify,
    VerifyHash,
    Wrap,
    Wrapped,
)

Outcome = AnyResult | ErrorKind
Execute = Callable[[Sequence[AnyRequest]], list[Outcome]]

KEMS = [a for a in Algorithm if ALGORITHMS[a].kind is Kind.KEM]
WRAPPING = [a for a in KEMS if Operation.WRAP in ALGORITHMS[a].operations]
SIGNATURES = [a for a in Algorithm if ALGORITHMS[a].kind is Kind.SIGNATURE]
SHORT_SIGNATURES = [a for a in SIGNATURES if ALGORITHMS[a].standard != "FIPS 205"]
ONE = KeyVersion(1)
PLAINTEXT = b"sixteen or more bytes of plaintext"
MESSAGE = b"a message"
DIGEST = bytes(range(32))
NONCE, TAG = 12, 16
M_CIPHERTEXT = 1088
LOW_ORDER = (
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes.fromhex("eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
    bytes(31) + b"\x80",
    b"\1" + bytes(30) + b"\x80",
)
"""X25519 points of order 1, 2, 4 and 8.

Some are not in their shortest form (RFC 7748, section 6).
"""


def _encrypted(execute: Execute, tenant: TenantId, algorithm: Algorithm) -> bytes:
    request = Encrypt(tenant=tenant, algorithm=algorithm, version=ONE, plaintext=PLAINTEXT)
    (made,) = execute([request])
    assert isinstance(made, Encrypted)
    return made.ciphertext


def _wrapped(execute: Execute, tenant: TenantId, algorithm: Algorithm) -> bytes:
    key = bytearray(PLAINTEXT[:32])
    (made,) = execute([Wrap(tenant=tenant, algorithm=algorithm, version=ONE, symmetric_key=key)])
    assert isinstance(made, Wrapped)
    return made.wrapped_key


def _bit_flips(data: bytes, size: int) -> list[bytes]:
    """Return copies of data with one bit flipped in the first ``size`` bytes: every 7th, or each."""
    changes = []
    for bit in range(0, 8 * size, step(7)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        changes.append(bytes(changed))
    return changes


def _byte_changes(data: bytes) -> list[bytes]:
    """Return copies of data with one bit flipped in each byte in turn."""
    changes = []
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        changes.append(bytes(changed))
    return changes


def _borders(data: bytes, first: int) -> Iterator[bytes]:
    """Yield data cut or lengthened at the borders of its parts; ``first`` is the first part's size."""
    nonce = first + NONCE
    for size in (0, 1, first - 1, first, first + 1, nonce - 1, nonce, nonce + TAG - 1, nonce + TAG):
        yield data[:size]
    yield data[:-TAG]
    yield data[:-1]
    yield data + b"\0"
    yield data + data
    yield bytes(len(data))


def _opens(operation: Operation, tenant: TenantId, algorithm: Algorithm, blob: bytes) -> AnyRequest:
    if operation is Operation.DECRYPT:
        return Decrypt(tenant=tenant, algorithm=algorithm, version=ONE, ciphertext=blob)
    return Unwrap(tenant=tenant, algorithm=algorithm, version=ONE, wrapped_key=blob)


BLOBS = [(Operation.DECRYPT, a) for a in KEMS] + [(Operation.UNWRAP, a) for a in WRAPPING]


@pytest.fixture(params=BLOBS, ids=lambda pair: f"{pair[0]}-{pair[1]}")
def blob(
    request: pytest.FixtureRequest, execute: Execute, tenant: TenantId
) -> tuple[Operation, Algorithm, bytes]:
    """Make each kind of result with each algorithm, and check that it opens."""
    operation, algorithm = request.param
    make = _encrypted if operation is Operation.DECRYPT else _wrapped
    made = make(execute, tenant, algorithm)
    (opened,) = execute([_opens(operation, tenant, algorithm, made)])
    assert opened in (Decrypted(plaintext=PLAINTEXT), Unwrapped(symmetric_key=PLAINTEXT[:32]))
    return operation, algorithm, made


@pytest.mark.parametrize("algorithm", KEMS)
def test_no_bit_of_a_kem_ciphertext_can_change_in_a_blob(
    algorithm: Algorithm, execute: Execute
) -> None:
    """With any bit of its KEM ciphertext flipped, decrypt refuses with DECRYPTION_FAILED."""
    lone = TenantId(uuid4())
    execute([GenerateKey(tenant=lone, algorithm=algorithm, quota=None)])
    made = _encrypted(execute, lone, algorithm)
    size = ALGORITHMS[algorithm].output_size
    changes = _bit_flips(made, size)
    responses = execute([_opens(Operation.DECRYPT, lone, algorithm, each) for each in changes])
    assert responses.count(ErrorKind.DECRYPTION_FAILED) == len(responses) == len(changes)


@pytest.mark.parametrize("algorithm", KEMS)
def test_no_bit_of_a_kem_ciphertext_can_change_and_give_the_same_secret(
    algorithm: Algorithm, execute: Execute, tenant: TenantId
) -> None:
    """With any bit flipped, decapsulate gives another secret, or refuses."""
    request = Encapsulate(tenant=tenant, algorithm=algorithm, version=ONE)
    (made,) = execute([request])
    assert isinstance(made, Encapsulated)
    changes = _bit_flips(made.kem_ciphertext, len(made.kem_ciphertext))
    requests: list[AnyRequest] = [
        Decapsulate(tenant=tenant, algorithm=algorithm, version=ONE, kem_ciphertext=ciphertext)
        for ciphertext in (made.kem_ciphertext, *changes)
    ]
    secrets: Counter[bytes] = Counter()
    for response in execute(requests):
        if isinstance(response, Decapsulated):
            assert len(response.shared_secret) == 32
            secrets[response.shared_secret] += 1
        else:
            assert response is ErrorKind.DECRYPTION_FAILED
    assert secrets[made.shared_secret] == 1
    assert max(secrets.values()) == 1
    assert len(secrets) > len(changes) - 8


def test_no_byte_of_a_blob_can_change(
    blob: tuple[Operation, Algorithm, bytes], execute: Execute, tenant: TenantId
) -> None:
    """A ciphertext with any changed byte is refused with DECRYPTION_FAILED."""
    operation, algorithm, made = blob
    requests = [_opens(operation, tenant, algorithm, changed) for changed in _byte_changes(made)]
    responses = execute(requests)
    assert responses.count(ErrorKind.DECRYPTION_FAILED) == len(responses) == len(made)


def test_no_blob_opens_cut_or_lengthened(
    blob: tuple[Operation, Algorithm, bytes], execute: Execute, tenant: TenantId
) -> None:
    """A ciphertext cut or lengthened at any border is refused with DECRYPTION_FAILED."""
    operation, algorithm, made = blob
    borders = list(_borders(made, ALGORITHMS[algorithm].output_size))
    responses = execute([_opens(operation, tenant, algorithm, changed) for changed in borders])
    assert set(responses) == {ErrorKind.DECRYPTION_FAILED}


@pytest.mark.parametrize("algorithm", KEMS)
def test_a_kem_ciphertext_of_another_size_is_refused(
    algorithm: Algorithm, execute: Execute, tenant: TenantId
) -> None:
    """Decapsulate refuses other sizes near the borders with DECRYPTION_FAILED."""
    size = ALGORITHMS[algorithm].output_size
    sizes = {0, 1, 31, 32, 33, M_CIPHERTEXT - 1, M_CIPHERTEXT, M_CIPHERTEXT + 1}
    sizes |= {size - 1, size + 1, 2 * size, 4096}
    responses = execute(
        [
            Decapsulate(
                tenant=tenant,
                algorithm=algorithm,
                version=ONE,
                kem_ciphertext=os.urandom(other),
            )
            for other in sizes - {size}
        ]
    )
    assert set(responses) == {ErrorKind.DECRYPTION_FAILED}


@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_x_wing_refuses_low_order_points(point: bytes, execute: Execute, tenant: TenantId) -> None:
    """An X25519 part of low order is refused by decapsulate, decrypt and unwrap."""
    blob = _encrypted(execute, tenant, Algorithm.X_WING)
    kem_ciphertext = blob[:M_CIPHERTEXT] + point
    responses = execute(
        [
            Decapsulate(
                tenant=tenant,
                algorithm=Algorithm.X_WING,
                version=ONE,
                kem_ciphertext=kem_ciphertext,
            ),
            _opens(Operation.DECRYPT, tenant, Algorithm.X_WING, kem_ciphertext + bytes(64)),
            _opens(Operation.UNWRAP, tenant, Algorithm.X_WING, kem_ciphertext + bytes(64)),
        ]
    )
    assert set(responses) == {ErrorKind.DECRYPTION_FAILED}


def _signs(operation: Operation, tenant: TenantId, algorithm: Algorithm) -> AnyRequest:
    if operation is Operation.SIGN:
        return Sign(tenant=tenant, algorithm=algorithm, version=ONE, message=MESSAGE)
    return SignHash(
        tenant=tenant,
        algorithm=algorithm,
        version=ONE,
        hash_algorithm=HashAlgorithm.SHA_256,
        digest=DIGEST,
    )


def _verifies(
    operation: Operation, tenant: TenantId, algorithm: Algorithm, signature: bytes
) -> AnyRequest:
    if operation is Operation.SIGN:
        return Verify(
            tenant=tenant, algorithm=algorithm, version=ONE, message=MESSAGE, signature=signature
        )
    return VerifyHash(
        tenant=tenant,
        algorithm=algorithm,
        version=ONE,
        hash_algorithm=HashAlgorithm.SHA_256,
        digest=DIGEST,
        signature=signature,
    )


def _signature(
    execute: Execute, operation: Operation, tenant: TenantId, algorithm: Algorithm
) -> bytes:
    (made,) = execute([_signs(operation, tenant, algorithm)])
    assert isinstance(made, Signed)
    (held,) = execute([_verifies(operation, tenant, algorithm, made.signature)])
    assert held == Verified()
    return made.signature


@pytest.mark.parametrize("operation", [Operation.SIGN, Operation.SIGN_HASH])
@pytest.mark.parametrize("algorithm", SHORT_SIGNATURES)
def test_no_byte_of_a_signature_can_change(
    algorithm: Algorithm,
    operation: Operation,
    execute: Execute,
    tenant: TenantId,
) -> None:
    """A signature with a changed byte (every fifth, or any) is VERIFICATION_FAILED.

    test_slhdsa.py changes SLH-DSA's, without a process in between.
    """
    signature = _signature(execute, operation, tenant, algorithm)
    changes = _byte_changes(signature)[:: step(5)]
    responses = execute([_verifies(operation, tenant, algorithm, each) for each in changes])
    assert responses.count(ErrorKind.VERIFICATION_FAILED) == len(responses) == len(changes)


@pytest.mark.parametrize("operation", [Operation.SIGN, Operation.SIGN_HASH])
@pytest.mark.parametrize("algorithm", fast_algorithms_first(SIGNATURES))
def test_no_signature_holds_cut_or_lengthened(
    algorithm: Algorithm,
    operation: Operation,
    execute: Execute,
    tenant: TenantId,
) -> None:
    """A signature cut or lengthened at its ends or the composite's border is VERIFICATION_FAILED."""
    signature = _signature(execute, operation, tenant, algorithm)
    half = 3309
    changed = [
        *(signature[:size] for size in (0, 1, 16, half - 1, len(signature) - 1)),
        *((signature[:half], signature[: half + 1]) if len(signature) > half else ()),
        signature[1:],
        signature + b"\0",
        signature + signature,
        bytes(len(signature)),
        bytes(65_536),
    ]
    responses = execute([_verifies(operation, tenant, algorithm, each) for each in changed])
    assert set(responses) == {ErrorKind.VERIFICATION_FAILED}
