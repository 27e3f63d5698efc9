"""Supplied public keys: a foreign key needs no version, and an own key keeps its status."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any
from uuid import uuid4

import pytest
from msgspec import structs
from tests.sampling import fast_algorithms_first

from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, HashAlgorithm, Kind
from pqkeep_protocol.audit import ListUsage
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keyrings import KeyPurpose, KeyringPatterns
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Batch,
    CiphertextFormat,
    CreateKeyring,
    Decapsulate,
    Decrypt,
    DeleteKeyring,
    DisableKey,
    EnableKey,
    Encapsulate,
    Encrypt,
    GenerateKey,
    Item,
    KeyService,
    Refused,
    RestoreKeyring,
    RetireKey,
    RotateKey,
    ScheduleArchive,
    Sign,
    SignHash,
    SignMu,
    UpdateKeyring,
    Verify,
    VerifyHash,
    VerifyMu,
)

Sql = Callable[..., list[Any]]
ONE = KeyVersion(1)
KEMS = [a for a, spec in ALGORITHMS.items() if spec.kind is Kind.KEM]
SIGNATURES = [a for a, spec in ALGORITHMS.items() if spec.kind is Kind.SIGNATURE]
DATA, ROW = b"4111-1111", b"customers/42"
HASHED: dict[str, Any] = {"hash_algorithm": HashAlgorithm.SHA_256, "digest": bytes(32)}
LOW_ORDER = bytes(32)


@pytest.fixture
def stranger() -> TenantId:
    """Return a tenant without keys."""
    return TenantId(uuid4())


@pytest.mark.parametrize("algorithm", KEMS)
async def test_the_key_s_owner_opens_what_a_stranger_made(
    algorithm: Algorithm,
    keys: KeyService,
    tenant: TenantId,
    stranger: TenantId,
    attribution: Attribution,
) -> None:
    """Data for a supplied key decrypts only with its private half."""
    mine: Any = {"tenant": tenant, "algorithm": algorithm}
    theirs: Any = {"tenant": stranger, "algorithm": algorithm, "version": None}
    made = await keys.execute(GenerateKey(**mine, quota=None), attribution)
    public_key = made.key.public_key
    sealed = await keys.execute(
        Encrypt(**theirs, plaintext=DATA, associated_data=ROW, public_key=public_key), attribution
    )
    assert sealed.version is None
    decrypt: Any = {**mine, "version": ONE, "ciphertext": sealed.ciphertext}
    opened = await keys.execute(Decrypt(**decrypt, associated_data=ROW), attribution)
    assert opened.plaintext == DATA
    wrong: tuple[dict[str, Any], ...] = (
        {},
        {"associated_data": ROW, "format": CiphertextFormat.ENVELOPE},
    )
    for more in wrong:
        with pytest.raises(KeyServiceError) as refused:
            await keys.execute(Decrypt(**decrypt, **more), attribution)
        assert refused.value.kind is ErrorKind.DECRYPTION_FAILED
    shared = await keys.execute(Encapsulate(**theirs, public_key=public_key), attribution)
    decapsulate = Decapsulate(**mine, version=ONE, kem_ciphertext=shared.kem_ciphertext)
    recovered = await keys.execute(decapsulate, attribution)
    assert recovered.shared_secret == shared.shared_secret


@pytest.mark.parametrize("algorithm", fast_algorithms_first(SIGNATURES))
async def test_a_supplied_key_verifies_as_a_version_does(
    algorithm: Algorithm,
    keys: KeyService,
    tenant: TenantId,
    stranger: TenantId,
    attribution: Attribution,
) -> None:
    """For messages, digests and mus, a supplied key gives the results of its stored version."""
    mine: Any = {"tenant": tenant, "algorithm": algorithm}
    made = await keys.execute(GenerateKey(**mine, quota=None), attribution)
    by_version: Any = {**mine, "version": ONE}
    by_key: Any = {
        "tenant": stranger,
        "algorithm": algorithm,
        "version": None,
        "public_key": made.key.public_key,
    }
    signed: list[tuple[Any, Any, dict[str, Any]]] = [
        (Sign, Verify, {"message": DATA, "context": b"cards"}),
        (SignHash, VerifyHash, HASHED),
    ]
    if SignMu.operation in ALGORITHMS[algorithm].operations:
        signed.append((SignMu, VerifyMu, {"mu": bytes(64)}))
    for sign, verify, what in signed:
        signature = (await keys.execute(sign(**by_version, **what), attribution)).signature
        for key in (by_version, by_key):
            await keys.execute(verify(**key, **what, signature=signature), attribution)
            with pytest.raises(KeyServiceError) as refused:
                await keys.execute(verify(**key, **what, signature=signature[:-1]), attribution)
            assert refused.value.kind is ErrorKind.VERIFICATION_FAILED


BAD = [
    (Algorithm.ML_KEM_768, b""),
    (Algorithm.ML_KEM_768, bytes(1183)),
    (Algorithm.ML_KEM_768, b"\xff" * 1184),  # coefficients beyond the modulus, FIPS 203, 7.2
    (Algorithm.ML_KEM_1024, b"\xff" * 1568),
    (Algorithm.X_WING, bytes(1184) + LOW_ORDER),
    (Algorithm.X_WING, bytes(1184)),
    (Algorithm.ML_DSA_65, bytes(1951)),
    (Algorithm.ML_DSA_87, bytes(1952)),
    (Algorithm.COMPOSITE_ML_DSA, bytes(2017)),
    (Algorithm.COMPOSITE_ML_DSA, bytes(1952) + b"\4" + b"\1" * 64),  # not on the curve
    (Algorithm.SLH_DSA_SHA2_128F, bytes(31)),
]


@pytest.mark.parametrize(("algorithm", "public_key"), BAD)
async def test_what_is_no_key_is_refused_as_such(
    algorithm: Algorithm,
    public_key: bytes,
    keys: KeyService,
    stranger: TenantId,
    attribution: Attribution,
) -> None:
    """A key of wrong size, out of range, off the curve or of low order is INVALID_PUBLIC_KEY."""
    key: Any = {
        "tenant": stranger,
        "algorithm": algorithm,
        "version": None,
        "public_key": public_key,
    }
    if algorithm in KEMS:
        requests: list[Any] = [Encapsulate(**key), Encrypt(**key, plaintext=DATA)]
    else:
        requests = [
            Verify(**key, message=DATA, signature=DATA),
            VerifyHash(**key, **HASHED, signature=DATA),
        ]
    for request in requests:
        with pytest.raises(KeyServiceError) as refused:
            await keys.execute(request, attribution)
        assert refused.value.kind is ErrorKind.INVALID_PUBLIC_KEY


async def test_it_is_recorded_by_its_fingerprint_and_counted_as_no_version_s_use(
    keys: KeyService, tenant: TenantId, stranger: TenantId, attribution: Attribution, sql: Sql
) -> None:
    """Records of a foreign key have no version, and its SHA-256."""
    algorithm = Algorithm.ML_DSA_65
    mine: Any = {"tenant": tenant, "algorithm": algorithm}
    made = await keys.execute(GenerateKey(**mine, quota=None), attribution)
    public_key = made.key.public_key
    sign = Sign(**mine, version=ONE, message=DATA)
    signature = (await keys.execute(sign, attribution)).signature
    uses = (await keys.execute(ListUsage(tenant=tenant, algorithm=None), attribution)).usage
    for key, message, outcome in (
        (public_key, DATA, "success"),
        (public_key, ROW, ErrorKind.VERIFICATION_FAILED),
        (b"no key", DATA, ErrorKind.INVALID_PUBLIC_KEY),
    ):
        request = Verify(
            tenant=stranger,
            algorithm=algorithm,
            version=None,
            public_key=key,
            message=message,
            signature=signature,
        )
        try:
            await keys.execute(request, attribution)
        except KeyServiceError as refusal:
            assert refusal.kind == outcome  # noqa: PT017 - or there is a result, see below
        (recorded,) = sql(
            "SELECT operation, algorithm, key_version, outcome, public_key_sha256"
            " FROM audit_records ORDER BY id DESC LIMIT 1"
        )
        assert recorded == ("verify", algorithm, None, outcome, sha256(key).digest())
    after = (await keys.execute(ListUsage(tenant=tenant, algorithm=None), attribution)).usage
    assert after == uses


def test_a_request_has_one_key() -> None:
    """A request is invalid with both a version and a supplied key, and without both."""
    named: Any = {"tenant": TenantId(uuid4()), "algorithm": Algorithm.ML_KEM_768}
    verify: Any = {**named, "message": b"", "signature": b""}
    for kind, fields, both in (
        (Encapsulate, named, False),
        (Verify, verify, False),
        (VerifyHash, {**named, **HASHED, "signature": b""}, False),
        (VerifyMu, {**named, "mu": bytes(64), "signature": b""}, False),
        (Encrypt, {**named, "plaintext": b""}, True),
    ):
        with pytest.raises(ValueError, match="version"):
            kind(**fields, version=ONE, public_key=b"")
        if not both:  # encrypt has the active key then
            with pytest.raises(ValueError, match="version"):
                kind(**fields, version=None)
    with pytest.raises(ValueError, match="version"):
        Encrypt(
            **named,
            version=None,
            plaintext=b"",
            public_key=b"",
            format=CiphertextFormat.ENVELOPE,
        )


USED = "SELECT keyring, key_version, outcome FROM audit_records ORDER BY id DESC LIMIT 1"
WITH_OWN = [
    *((algorithm, kind) for algorithm in KEMS for kind in ("encrypt", "encapsulate")),
    (Algorithm.ML_DSA_65, "verify"),
]


async def try_own(
    kind: str, key: dict[str, Any], keys: KeyService, attribution: Attribution
) -> ErrorKind | None:
    """Return how an operation with a supplied key is refused, or None."""
    requests: dict[str, Any] = {"encrypt": Encrypt, "encapsulate": Encapsulate, "verify": Verify}
    more: dict[str, dict[str, Any]] = {
        "encrypt": {"plaintext": DATA},
        "encapsulate": {},
        "verify": {"message": DATA, "signature": b"no signature"},
    }
    request = requests[kind](**key, **more[kind])
    try:
        await keys.execute(request, attribution)
    except KeyServiceError as refused:
        return None if refused.kind is ErrorKind.VERIFICATION_FAILED else refused.kind
    return None


REFUSED, ALLOWED = ErrorKind.KEY_NOT_FOUND, None
_CARDS: Any = {"tenant": TenantId(uuid4()), "keyring": "cards"}
STEPS: list[tuple[str, Any, ErrorKind | None, ErrorKind | None]] = [
    ("active", None, ALLOWED, ALLOWED),
    ("disabled", DisableKey, REFUSED, REFUSED),
    ("enabled", EnableKey, ALLOWED, ALLOWED),
    ("retired", RetireKey, REFUSED, ALLOWED),
    ("allowed", {"retired_public_keys_allowed": True}, ALLOWED, ALLOWED),
    (
        "below the minimum",
        {"minimum_encryption_version": 2},
        ErrorKind.VERSION_BELOW_MINIMUM,
        ALLOWED,
    ),
    ("any version", {"minimum_encryption_version": 0}, ALLOWED, ALLOWED),
    ("retired and disabled", DisableKey, REFUSED, REFUSED),
    ("retired and enabled", EnableKey, ALLOWED, ALLOWED),
    ("no longer allowed", {"retired_public_keys_allowed": False}, REFUSED, ALLOWED),
    ("allowed again", {"retired_public_keys_allowed": True}, ALLOWED, ALLOWED),
    (
        "in a deleted keyring",
        DeleteKeyring(**_CARDS, days=30, only_if_allowed=False),
        ErrorKind.KEYRING_NOT_FOUND,
        ErrorKind.KEYRING_NOT_FOUND,
    ),
    (
        "in a restored keyring",
        RestoreKeyring(**_CARDS),
        ALLOWED,
        ALLOWED,
    ),
    ("archived", ScheduleArchive, REFUSED, REFUSED),
]
"""Each step, and how requests with the public key are then refused: encrypting and verifying."""


def change_of(step: Any, named: dict[str, Any]) -> Any:
    """Return the request of a step: changed settings, a change of the version, or of the keyring."""
    if isinstance(step, dict):
        return UpdateKeyring(tenant=named["tenant"], keyring=named["keyring"], **step)
    if isinstance(step, type):
        return step(**named, version=ONE, **({"days": 0} if step is ScheduleArchive else {}))
    return structs.replace(step, tenant=named["tenant"])


@pytest.mark.threat("scoped-api-key")
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize(("algorithm", "kind"), WITH_OWN)
async def test_one_s_own_key_keeps_its_status(
    algorithm: Algorithm,
    kind: str,
    keys: KeyService,
    tenant: TenantId,
    stranger: TenantId,
    attribution: Attribution,
    sql: Sql,
) -> None:
    """A tenant's own public key is used as its status and keyring allow.

    Another owner's counts as foreign.
    """
    named: Any = {"tenant": tenant, "algorithm": algorithm, "keyring": "cards"}
    await keys.execute(CreateKeyring(tenant=tenant, keyring="cards"), attribution)
    made = await keys.execute(GenerateKey(**named, quota=None), attribution)
    key = {"algorithm": algorithm, "version": None, "public_key": made.key.public_key}
    own, other = {**key, "tenant": tenant}, {**key, "tenant": stranger}
    for name, step, encrypting, verifying in STEPS:
        if step is not None:
            await keys.execute(change_of(step, named), attribution)
        expected = verifying if kind == "verify" else encrypting
        assert await try_own(kind, own, keys, attribution) is expected, name
        (recorded,) = sql(USED)
        assert recorded[:2] == ("cards", 1), name
        assert await try_own(kind, other, keys, attribution) is None, name
        (recorded,) = sql(USED)
        assert recorded[:2] == (None, None), name


async def test_its_use_is_the_version_s(
    keys: KeyService, tenant: TenantId, attribution: Attribution
) -> None:
    """Encryption to a tenant's own public key counts as a use of its version."""
    named: Any = {"tenant": tenant, "algorithm": Algorithm.ML_KEM_768}
    made = await keys.execute(GenerateKey(**named, quota=None), attribution)
    await keys.execute(
        Encrypt(**named, version=None, plaintext=DATA, public_key=made.key.public_key), attribution
    )
    (usage,) = (await keys.execute(ListUsage(tenant=tenant, algorithm=None), attribution)).usage
    assert (usage.version, usage.uses) == (ONE, 1)


@pytest.mark.parametrize("kind", ["encrypt", "encapsulate", "verify"])
async def test_a_keyring_s_purposes_and_the_caller_s_keyrings_hold(
    kind: str, keys: KeyService, tenant: TenantId, attribution: Attribution, sql: Sql
) -> None:
    """A public key does not bypass a keyring's purposes or an API key's scopes."""
    algorithm = Algorithm.ML_DSA_65 if kind == "verify" else Algorithm.ML_KEM_768
    named: Any = {"tenant": tenant, "algorithm": algorithm, "keyring": "cards"}
    await keys.execute(CreateKeyring(tenant=tenant, keyring="cards"), attribution)
    made = await keys.execute(GenerateKey(**named, quota=None), attribution)
    key: Any = {
        "tenant": tenant,
        "algorithm": algorithm,
        "version": None,
        "public_key": made.key.public_key,
    }
    for within, refused in (
        (None, None),
        (KeyringPatterns(("cards",)), None),
        (KeyringPatterns((), ("ca",)), None),
        (KeyringPatterns(("default",), ("x",)), ErrorKind.SCOPE_DENIED),
        (KeyringPatterns(), ErrorKind.SCOPE_DENIED),
    ):
        found = await try_own(kind, {**key, "within": within}, keys, attribution)
        assert found is refused, within
        assert sql(USED)[0][:2] == ("cards", 1)
    changed = UpdateKeyring(tenant=tenant, keyring="cards", purposes=(KeyPurpose.WRAP,))
    await keys.execute(changed, attribution)
    assert await try_own(kind, key, keys, attribution) is ErrorKind.PURPOSE_DENIED


async def test_a_batch_resolves_each_supplied_key(
    keys: KeyService, tenant: TenantId, attribution: Attribution, sql: Sql
) -> None:
    """A batch also refuses a retired version's public key, and the record names the version."""
    named: Any = {"tenant": tenant, "algorithm": Algorithm.ML_KEM_768}
    made = await keys.execute(GenerateKey(**named, quota=None), attribution)
    await keys.execute(RotateKey(**named), attribution)
    item = Encrypt(**named, version=None, plaintext=DATA, public_key=made.key.public_key)
    batch = Batch(tenant=tenant, items=(Item(item, "policy"),))
    (result,) = (await keys.execute(batch, attribution)).results
    assert result == Refused(kind=ErrorKind.KEY_NOT_FOUND)
    assert sql(USED) == [("default", 1, ErrorKind.KEY_NOT_FOUND)]
