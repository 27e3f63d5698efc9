"""Legacy keys are imported, and only read: by re-encrypt and by verify."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP, PSS, PKCS1v15
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA1, SHA256, SHA384, SHA512
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
)
from keyservice.tests.test_key_import import Caller

from pqkeep_keyservice.crypto import legacy
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_protocol import messages, public_keys
from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    CURRENT,
    LEGACY,
    VERIFIED_HASH,
    Algorithm,
    HashAlgorithm,
    Kind,
    Operation,
)
from pqkeep_protocol.audit import GetUsage, ListUsage
from pqkeep_protocol.der import INTEGER, OCTET_STRING, SEQUENCE, der
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keyrings import KeyPurpose
from pqkeep_protocol.keys import KeyStatus, KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Batch,
    BatchResults,
    CiphertextFormat,
    CreateKeyring,
    Decrypt,
    DisableKey,
    EnableKey,
    GenerateKey,
    GetKey,
    Item,
    ListKeys,
    ReEncrypt,
    Refused,
    RetireKey,
    ScheduleArchive,
    Target,
    Unwrap,
    UpdateKeyring,
    Verify,
    VerifyHash,
)

if TYPE_CHECKING:
    from keyservice.tests.conftest import InProcessService, Sql

    from pqkeep_protocol.messages import Attribution, KeyService

BOTH = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
V1 = KeyVersion(1)
HYBRID, CIPHER = Algorithm.X_WING, Algorithm.XAES_256_GCM
OAEP_256, RSA_256, P_256 = (
    Algorithm.RSA_OAEP_SHA_256,
    Algorithm.RSA_PKCS1_SHA_256,
    Algorithm.ECDSA_P_256,
)
CANARY = b"a canary in a mine, 32 bytes lon"
HASHES: Mapping[str, Callable[[], hashes.HashAlgorithm]] = {
    "SHA-1": SHA1,
    "SHA-256": SHA256,
    "SHA-384": SHA384,
    "SHA-512": SHA512,
}
CURVES: Mapping[Algorithm, tuple[ec.EllipticCurve, str]] = {
    Algorithm.ECDSA_P_256: (ec.SECP256R1(), "SHA-256"),
    Algorithm.ECDSA_P_384: (ec.SECP384R1(), "SHA-384"),
    Algorithm.ECDSA_P_521: (ec.SECP521R1(), "SHA-512"),
}
DECRYPTING = [name for name in LEGACY if ALGORITHMS[name].kind is Kind.LEGACY_DECRYPTION]
VERIFYING = [name for name in LEGACY if name not in DECRYPTING]


@cache
def rsa_key(bits: int = 2048, exponent: int = 65537) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(exponent, bits)


@cache
def ec_key(algorithm: Algorithm) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(CURVES[algorithm][0])


def hash_of(algorithm: Algorithm) -> hashes.HashAlgorithm:
    """Return the hash function with which the algorithm's messages are hashed."""
    name = CURVES[algorithm][1] if algorithm in CURVES else "SHA-" + algorithm.rsplit("-", 1)[1]
    return HASHES[name]()


def sealed(algorithm: Algorithm, data: bytes = CANARY, label: bytes | None = None) -> bytes:
    """Return a ciphertext of another program."""
    hash_ = hash_of(algorithm)
    return rsa_key().public_key().encrypt(data, OAEP(MGF1(hash_), hash_, label))


def signed(algorithm: Algorithm, data: bytes = CANARY) -> bytes:
    """Return a signature of another program."""
    hash_ = hash_of(algorithm)
    if algorithm in CURVES:
        return ec_key(algorithm).sign(data, ec.ECDSA(hash_))
    is_pss = algorithm.startswith("RSA-PSS")
    padding = PSS(MGF1(hash_), hash_.digest_size) if is_pss else PKCS1v15()
    return rsa_key().sign(data, padding, hash_)


def private_document(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey,
    form: PrivateFormat = PrivateFormat.PKCS8,
) -> bytes:
    return key.private_bytes(Encoding.DER, form, NoEncryption())


def document(algorithm: Algorithm) -> bytes:
    """Return the document that is imported: a private key to decrypt, a public one to verify."""
    if algorithm in DECRYPTING:
        return private_document(rsa_key())
    key = ec_key(algorithm) if algorithm in CURVES else rsa_key()
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def digest(name: HashAlgorithm, data: bytes = CANARY) -> bytes:
    hasher = hashes.Hash(HASHES[name]())
    hasher.update(data)
    return hasher.finalize()


@pytest.fixture
def caller(keys: KeyService, attribution: Attribution, tenant: TenantId) -> Caller:
    """Return a caller of one tenant."""
    return Caller(keys, tenant, attribution)


def moving(caller: Caller, algorithm: Algorithm, ciphertext: bytes, **more: Any) -> ReEncrypt:
    """Return the request that moves a ciphertext to X-Wing."""
    fields: dict[str, Any] = {"is_wrapped_key": False, "target": Target(HYBRID), **more}
    return ReEncrypt(
        tenant=caller.tenant, algorithm=algorithm, version=V1, ciphertext=ciphertext, **fields
    )


async def with_targets(caller: Caller) -> None:
    for algorithm in (HYBRID, CIPHER):
        await caller.ask(GenerateKey(tenant=caller.tenant, algorithm=algorithm, quota=None))


@BOTH
async def test_ciphertexts_move_to_hybrid_keys(caller: Caller, sql: Sql) -> None:
    """A ciphertext and a wrapped key of each hash move to X-Wing and XAES; records name both."""
    await with_targets(caller)
    for algorithm in DECRYPTING:
        key = await caller.import_key(document(algorithm), algorithm)
        assert (key.status, key.imported) == (KeyStatus.ACTIVE, True)
        ciphertext = sealed(algorithm, label=b"row 7")
        for target in (HYBRID, CIPHER):
            bound = Target(target, associated_data=b"row 7")
            request = moving(caller, algorithm, ciphertext, target=bound, associated_data=b"row 7")
            moved = await caller.ask(request)
            assert moved.moved
            named: dict[str, Any] = {"tenant": caller.tenant, "algorithm": target, "version": V1}
            opened = Decrypt(**named, ciphertext=moved.ciphertext, associated_data=b"row 7")
            assert (await caller.ask(opened)).plaintext == CANARY
            request = moving(
                caller,
                algorithm,
                sealed(algorithm),
                is_wrapped_key=True,
                target=Target(target),
            )
            wrapped = (await caller.ask(request)).ciphertext
            unwrapped = await caller.ask(Unwrap(**named, wrapped_key=wrapped))
            assert unwrapped.symmetric_key == CANARY
    found = sql(
        "SELECT algorithm, key_version, target FROM audit_records WHERE operation = 're-encrypt'"
    )
    assert found == [
        (algorithm, 1, f"default/{target}/1")
        for algorithm in DECRYPTING
        for target in (HYBRID, HYBRID, CIPHER, CIPHER)
    ]
    assert all(CANARY not in str(row).encode() for row in sql("SELECT * FROM audit_records"))


async def test_every_failure_of_a_decryption_is_the_same(caller: Caller) -> None:
    """All damage gives the same refusal: padding, size, hash, label, or a key without a size."""
    await with_targets(caller)
    await caller.import_key(document(OAEP_256), OAEP_256)
    good, public = sealed(OAEP_256), rsa_key().public_key()
    modulus = public.public_numbers().n.to_bytes(256)
    cases: list[tuple[bytes, dict[str, Any]]] = [
        (bytes((good[0] ^ 1,)) + good[1:], {}),
        (good[:-1] + bytes((good[-1] ^ 1,)), {}),
        (good[:-1], {}),
        (good + b"\0", {}),
        (b"", {}),
        (bytes(256), {}),
        (bytes(255) + b"\x01", {}),
        (modulus, {}),
        (b"\xff" * 256, {}),
        (public.encrypt(CANARY, PKCS1v15()), {}),
        (sealed(Algorithm.RSA_OAEP_SHA_1), {}),
        (public.encrypt(CANARY, OAEP(MGF1(SHA384()), SHA256(), None)), {}),
        (good, {"associated_data": b"a label"}),
        (sealed(OAEP_256, label=b"a label"), {}),
        (sealed(OAEP_256, b"15 bytes: no ke"), {"is_wrapped_key": True}),
        (sealed(OAEP_256, b""), {"is_wrapped_key": True}),
    ]
    for ciphertext, more in cases:
        refused = await caller.refusal(moving(caller, OAEP_256, ciphertext, **more))
        assert refused is ErrorKind.DECRYPTION_FAILED, (ciphertext, more)
    assert (await caller.ask(moving(caller, OAEP_256, good))).moved


@BOTH
async def test_signatures_of_other_programs_verify(caller: Caller) -> None:
    """Each algorithm verifies a message and its digest, ECDSA in DER and as r || s; no other."""
    for algorithm in VERIFYING:
        key = await caller.import_key(document(algorithm), algorithm)
        assert public_keys.to_der(algorithm, key.public_key) == document(algorithm)
        signature, hash_ = (
            signed(algorithm),
            HashAlgorithm(hash_of(algorithm).name.replace("sha", "SHA-")),
        )
        named: dict[str, Any] = {"tenant": caller.tenant, "algorithm": algorithm, "version": V1}
        forms = [signature]
        if algorithm in CURVES:
            r, s = decode_dss_signature(signature)
            size = (CURVES[algorithm][0].key_size + 7) // 8
            forms.append(r.to_bytes(size) + s.to_bytes(size))
        for form in forms:
            await caller.ask(Verify(**named, message=CANARY, signature=form))
            over_digest = VerifyHash(
                **named, hash_algorithm=hash_, digest=digest(hash_), signature=form
            )
            await caller.ask(over_digest)
            for wrong in (
                Verify(**named, message=CANARY + b".", signature=form),
                Verify(**named, message=CANARY, signature=form[:-1]),
                Verify(**named, message=CANARY, signature=form + b"\0"),
                Verify(**named, message=CANARY, signature=b""),
                Verify(**named, message=CANARY, signature=bytes(len(form))),
            ):
                assert await caller.refusal(wrong) is ErrorKind.VERIFICATION_FAILED
        other = next(name for name in HashAlgorithm if name is not hash_)
        another_hash = VerifyHash(
            **named, hash_algorithm=other, digest=digest(other), signature=signature
        )
        expected = (
            ErrorKind.UNSUPPORTED if algorithm in VERIFIED_HASH else ErrorKind.VERIFICATION_FAILED
        )
        assert await caller.refusal(another_hash) is expected
        with_context = Verify(**named, message=CANARY, signature=signature, context=b"x")
        assert await caller.refusal(with_context) is ErrorKind.UNSUPPORTED


def every_request(tenant: TenantId, algorithm: Algorithm) -> Iterator[Any]:
    """Yield a request of each operation that names an algorithm."""
    named: dict[str, Any] = {"tenant": tenant, "algorithm": algorithm}
    one: dict[str, Any] = {**named, "version": V1}
    yield messages.Encrypt(**one, plaintext=CANARY)
    yield Decrypt(**one, ciphertext=bytes(256))
    yield messages.Encapsulate(**one)
    yield messages.Decapsulate(**one, kem_ciphertext=bytes(256))
    yield messages.Wrap(**one, symmetric_key=bytearray(32))
    yield Unwrap(**one, wrapped_key=bytes(256))
    yield messages.GenerateDataKey(**one, size=32, plaintext=True)
    yield messages.Sign(**one, message=CANARY)
    yield messages.SignHash(**one, hash_algorithm=HashAlgorithm.SHA_256, digest=bytes(32))
    yield messages.SignMu(**one, mu=bytes(64))
    yield messages.SignJws(**one, payload=CANARY, detached=False)
    yield messages.VerifyMu(**one, mu=bytes(64), signature=bytes(256))
    yield messages.ComputeMac(**one, message=CANARY)
    yield messages.VerifyMac(**one, message=CANARY, mac=bytes(32))
    yield GenerateKey(**named, quota=None)
    yield messages.RotateKey(**named)
    public_key: dict[str, Any] = {**named, "version": None, "public_key": bytes(270)}
    yield messages.Encrypt(**public_key, plaintext=CANARY)
    yield messages.Encapsulate(**public_key)
    yield Verify(**public_key, message=CANARY, signature=bytes(256))
    yield VerifyHash(
        **public_key, hash_algorithm=HashAlgorithm.SHA_256, digest=bytes(32), signature=b"s"
    )
    yield messages.VerifyMu(**public_key, mu=bytes(64), signature=b"s")
    yield ReEncrypt(
        **{**one, "algorithm": HYBRID},
        ciphertext=bytes(2000),
        is_wrapped_key=False,
        target=Target(algorithm),
    )
    yield ReEncrypt(**one, ciphertext=bytes(256), is_wrapped_key=False, target=Target(algorithm))
    yield ReEncrypt(**one, ciphertext=bytes(256), is_wrapped_key=True, target=Target(algorithm))
    if algorithm in DECRYPTING:
        yield Verify(**one, message=CANARY, signature=bytes(256))
        yield VerifyHash(
            **one, hash_algorithm=HashAlgorithm.SHA_256, digest=bytes(32), signature=b"s"
        )
        yield ReEncrypt(
            **one,
            ciphertext=bytes(256),
            is_wrapped_key=False,
            format=CiphertextFormat.ENVELOPE,
            target=Target(HYBRID),
        )
    else:
        yield ReEncrypt(**one, ciphertext=bytes(9), is_wrapped_key=False, target=Target(HYBRID))


@pytest.mark.threat("legacy-keys")
async def test_they_do_nothing_else(caller: Caller) -> None:
    """Each other operation with a legacy key, or to one, is unsupported, alone and in a batch."""
    await with_targets(caller)
    for algorithm in LEGACY:
        await caller.import_key(document(algorithm), algorithm)
        await require_nothing_else(caller, algorithm)


async def require_nothing_else(caller: Caller, algorithm: Algorithm) -> None:
    requests = list(every_request(caller.tenant, algorithm))
    for request in requests:
        assert await caller.refusal(request) is ErrorKind.UNSUPPORTED, request
    items = [Item(request) for request in requests if isinstance(request, messages.ItemRequest)]
    answered: BatchResults = await caller.ask(Batch(tenant=caller.tenant, items=tuple(items)))
    assert {one.kind for one in answered.results if isinstance(one, Refused)} == {
        ErrorKind.UNSUPPORTED
    }
    assert len(answered.results) == len(items)
    tried = {request.operation for request in requests}
    reading = {Operation.RE_ENCRYPT, Operation.VERIFY, Operation.VERIFY_HASH}
    of_keys = {
        operation
        for name in CURRENT
        for operation in ALGORITHMS[name].operations - ALGORITHMS[algorithm].operations
    }
    assert of_keys - {Operation.LIST_PUBLIC_KEYS} <= tried | reading


@BOTH
async def test_they_live_and_die_as_other_keys(caller: Caller, sql: Sql) -> None:
    """Retired they read, disabled and archived not; uses are counted, and no list shows them."""
    await with_targets(caller)
    await caller.import_key(document(OAEP_256), OAEP_256)
    request = moving(caller, OAEP_256, sealed(OAEP_256))
    named: dict[str, Any] = {"tenant": caller.tenant, "algorithm": OAEP_256, "version": V1}
    await caller.ask(RetireKey(**named))
    await caller.ask(request)
    await caller.ask(DisableKey(**named))
    assert await caller.refusal(request) is ErrorKind.KEY_NOT_FOUND
    await caller.ask(EnableKey(**named))
    await caller.ask(request)
    assert (await caller.ask(GetUsage(**named))).uses == 2
    for more, expected in (
        ({"algorithm": None}, []),
        ({"algorithm": None, "all_keyrings": True}, []),
        ({"algorithm": None, "legacy": True}, [OAEP_256]),
        ({"algorithm": None, "legacy": True, "all_keyrings": True}, [OAEP_256]),
        ({"algorithm": OAEP_256}, [OAEP_256]),
    ):
        fields: dict[str, Any] = more
        listed = await caller.ask(ListKeys(tenant=caller.tenant, status=None, **fields))
        found = [key.algorithm for key in listed.keys if key.algorithm in LEGACY]
        assert found == expected
        assert listed.total == len(listed.keys)
    for more, expected in (
        ({"algorithm": None}, [HYBRID]),
        ({"algorithm": None, "legacy": True}, [OAEP_256, HYBRID]),
    ):
        fields = more
        used = await caller.ask(ListUsage(tenant=caller.tenant, **fields))
        assert [usage.algorithm for usage in used.usage] == expected
    await caller.ask(ScheduleArchive(**named, days=0))
    assert await caller.refusal(request) is ErrorKind.KEY_NOT_FOUND
    assert sql("SELECT sealed_seed FROM keys WHERE algorithm = 'RSA-OAEP-SHA-256'") == [(None,)]
    second = await caller.import_key(document(OAEP_256), OAEP_256)
    assert second.version == 2


async def test_purposes_decide(caller: Caller) -> None:
    """A keyring without decrypt and unwrap, or with derived keys, takes no key that decrypts."""
    await with_targets(caller)
    for name, purposes, derived in (
        ("reads", (KeyPurpose.DECRYPT, KeyPurpose.VERIFY), False),
        ("signs", (KeyPurpose.SIGN,), False),
        ("derives", (KeyPurpose.ENCRYPT, KeyPurpose.DECRYPT), True),
    ):
        create = CreateKeyring(
            tenant=caller.tenant, keyring=name, purposes=purposes, derived=derived
        )
        await caller.ask(create)
    for algorithm in (OAEP_256, P_256):
        for keyring in ("signs", "derives"):
            issued = await caller.issue(algorithm, keyring)
            request = caller.importing(issued, document(algorithm), algorithm, keyring=keyring)
            assert await caller.refusal(request) is ErrorKind.NO_PURPOSE
        issued = await caller.issue(algorithm, "reads")
        await caller.ask(caller.importing(issued, document(algorithm), algorithm, keyring="reads"))
    ciphertext = sealed(OAEP_256)
    await caller.ask(moving(caller, OAEP_256, ciphertext, keyring="reads"))
    wrapped = moving(caller, OAEP_256, ciphertext, keyring="reads", is_wrapped_key=True)
    assert await caller.refusal(wrapped) is ErrorKind.PURPOSE_DENIED
    with_context = moving(caller, OAEP_256, ciphertext, keyring="reads", context=b"a customer")
    assert await caller.refusal(with_context) is ErrorKind.CONTEXT_REFUSED


async def test_a_schedule_never_rotates_them(caller: Caller, service: InProcessService) -> None:
    """A schedule retires and archives legacy keys, and never rotates them."""
    settings = UpdateKeyring(tenant=caller.tenant, rotation_days=1, archive_after_days=1)
    await caller.ask(settings)
    await caller.import_key(document(OAEP_256), OAEP_256)
    named: dict[str, Any] = {"tenant": caller.tenant, "algorithm": OAEP_256}
    await service.parts.schedule.carry_out(datetime.now(UTC) + timedelta(days=100))
    assert (await caller.ask(GetKey(**named, version=V1))).key.status is KeyStatus.ACTIVE
    await caller.ask(RetireKey(**named, version=V1))
    await service.parts.schedule.carry_out(datetime.now(UTC) + timedelta(days=100))
    assert (await caller.ask(GetKey(**named, version=V1))).key.archive_at is not None


def integer(number: int) -> bytes:
    return der(INTEGER, number.to_bytes(number.bit_length() // 8 + 1))


def public_document(modulus: int, exponent: int) -> bytes:
    """Return a SubjectPublicKeyInfo with any numbers."""
    return public_keys.to_der(RSA_256, der(SEQUENCE, integer(modulus) + integer(exponent)))


def changed_document(**changes: int) -> bytes:
    """Return PKCS#8 of the RSA key with other numbers."""
    numbers = rsa_key().private_numbers()
    parts = {
        "n": numbers.public_numbers.n,
        "e": numbers.public_numbers.e,
        **{name: getattr(numbers, name) for name in ("d", "p", "q", "dmp1", "dmq1", "iqmp")},
    }
    content = b"".join(integer(number) for number in (0, *(parts | changes).values()))
    identifier = public_keys.algorithm_identifier(OAEP_256)
    private_key = der(OCTET_STRING, der(SEQUENCE, content))
    return der(SEQUENCE, integer(0) + identifier + private_key)


def composite_document() -> bytes:
    """Return PKCS#8 of a key with consistent numbers and a composite first prime."""
    p, q = rsa_key().private_numbers().public_numbers.n, rsa_key(1024).private_numbers().q
    d = pow(65537, -1, (p - 1) * (q - 1))
    parts = {"dmp1": d % (p - 1), "dmq1": d % (q - 1), "iqmp": pow(q, -1, p)}
    return changed_document(n=p * q, d=d, p=p, q=q, **parts)


def refused_documents() -> Iterator[tuple[Algorithm, bytes, ErrorKind]]:
    """Yield documents that are no key to import."""
    malformed, another = ErrorKind.PRIVATE_KEY_MALFORMED, ErrorKind.PRIVATE_KEY_ALGORITHM
    parameters = ErrorKind.PRIVATE_KEY_PARAMETERS
    good, small = private_document(rsa_key()), rsa_key(1024)
    curve = ec_key(P_256)
    yield OAEP_256, b"", malformed
    yield OAEP_256, good[:-1], malformed
    yield OAEP_256, good + b"\0", malformed
    yield OAEP_256, document(RSA_256), malformed
    yield OAEP_256, private_document(curve), another
    yield OAEP_256, private_document(small), parameters
    numbers = rsa_key().private_numbers()
    modulus = numbers.public_numbers.n
    contradiction = ErrorKind.PRIVATE_KEY_CONTRADICTION
    for name in ("d", "p", "q", "dmp1", "dmq1", "iqmp"):
        yield OAEP_256, changed_document(**{name: getattr(numbers, name) ^ 2}), contradiction
    yield OAEP_256, changed_document(n=modulus ^ 2), contradiction
    yield OAEP_256, changed_document(e=3), contradiction
    yield OAEP_256, changed_document(d=modulus + numbers.d), contradiction
    yield OAEP_256, composite_document(), contradiction
    yield OAEP_256, changed_document(e=2**64 + 13), parameters
    yield RSA_256, public_document(modulus, 2**64 + 13), parameters
    for exponent in (1, 2, 65536):
        yield OAEP_256, changed_document(e=exponent), parameters
        yield RSA_256, public_document(modulus, exponent), malformed
    yield RSA_256, public_document(modulus >> 1 | 1, 65537), parameters
    yield RSA_256, public_document(modulus << 2056 | 1, 65537), parameters
    yield RSA_256, b"", malformed
    yield RSA_256, document(RSA_256) + b"\0", malformed
    yield RSA_256, good, malformed
    yield RSA_256, document(P_256), another
    yield P_256, document(RSA_256), another
    yield P_256, document(Algorithm.ECDSA_P_384), another
    off_curve = bytearray(document(P_256))
    off_curve[-1] ^= 1
    yield P_256, bytes(off_curve), malformed


@pytest.mark.threat("legacy-keys")
async def test_weak_and_contradictory_keys_are_refused(caller: Caller) -> None:
    """Each unusable document has its own refusal, and no part of it is stored."""
    for algorithm, refused, kind in refused_documents():
        request = caller.importing(await caller.issue(algorithm), refused, algorithm)
        assert await caller.refusal(request) is kind, (algorithm, kind, refused[:40])
    listed = ListKeys(tenant=caller.tenant, algorithm=None, status=None, legacy=True)
    assert (await caller.ask(listed)).total == 0


@pytest.mark.threat("legacy-keys")
async def test_no_document_costs_a_primality_check(caller: Caller) -> None:
    """A valid key is checked in a part of that time, and a long prime is refused at once."""
    refused = changed_document(p=2**11213 - 1)
    request = caller.importing(await caller.issue(OAEP_256), refused, OAEP_256)
    began = perf_counter()
    assert await caller.refusal(request) is ErrorKind.PRIVATE_KEY_CONTRADICTION
    assert perf_counter() - began < 10  # a primality check: 40 seconds of a free processor
    data = private_document(rsa_key())
    began = process_time()
    load_der_private_key(data, None)  # with the library's check of the primes
    library = process_time() - began
    began = process_time()
    legacy.DECRYPTION[OAEP_256].adopt(Secret(bytearray(data)))
    assert process_time() - began < library / 4


async def test_documents_of_other_programs_are_taken(
    caller: Caller, restarted: Callable[[], KeyService], sql: Sql
) -> None:
    """PKCS#1 and PKCS#8 give the same key, and a restarted key service decrypts with it."""
    await with_targets(caller)
    data = private_document(rsa_key(), PrivateFormat.TraditionalOpenSSL)
    key = await caller.import_key(data, OAEP_256)
    assert public_keys.to_der(OAEP_256, key.public_key) == document(RSA_256)
    ((stored,),) = sql("SELECT sealed_seed FROM keys WHERE algorithm = 'RSA-OAEP-SHA-256'")
    assert data[100:] not in stored
    again = Caller(restarted(), caller.tenant, caller.attribution)
    assert (await again.ask(moving(again, OAEP_256, sealed(OAEP_256)))).moved


@BOTH
async def test_a_changed_row_is_refused(
    caller: Caller, restarted: Callable[[], KeyService], sql: Sql
) -> None:
    """Keys of both kinds whose rows were exchanged in the database are refused."""
    for algorithm in (RSA_256, Algorithm.RSA_PSS_SHA_256):
        await caller.import_key(document(algorithm), algorithm)
    sql(
        "UPDATE keys SET sealed_seed = (SELECT sealed_seed FROM keys WHERE algorithm = "
        "'RSA-PSS-SHA-256') WHERE algorithm = 'RSA-PKCS1-SHA-256'"
    )
    again = Caller(restarted(), caller.tenant, caller.attribution)
    request = Verify(
        tenant=caller.tenant,
        algorithm=RSA_256,
        version=V1,
        message=CANARY,
        signature=signed(RSA_256),
    )
    assert await again.refusal(request) is ErrorKind.UNAVAILABLE
