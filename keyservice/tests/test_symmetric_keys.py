"""Symmetric keys: the published vectors of XAES-256-GCM, and results bound to one key version.

Provenance of the vectors: c2sp.org/XAES-256-GCM, "Test vectors" and "Accumulated randomized tests".
"""

from __future__ import annotations

import hmac
import sys
from collections.abc import Callable
from hashlib import shake_128
from time import process_time
from typing import Any
from uuid import uuid4

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.hashes import SHA256, SHA512, SHAKE128, XOFHash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st
from keyservice.tests.conftest import OneTenant

from pqkeep_keyservice.crypto import dem
from pqkeep_keyservice.crypto.kem import KEMS as KEM_TABLE
from pqkeep_keyservice.crypto.secret import Secret
from pqkeep_keyservice.crypto.symmetric import SYMMETRIC, SymmetricKey, Xaes256Gcm
from pqkeep_protocol.algorithms import ALGORITHMS, Algorithm, Kind, Operation
from pqkeep_protocol.codec import Answer, encode
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keyrings import KeyPurpose
from pqkeep_protocol.keys import KeyVersion, TenantId
from pqkeep_protocol.messages import (
    Attribution,
    Batch,
    CiphertextFormat,
    ComputeMac,
    CreateKeyring,
    DataKeySize,
    Decapsulate,
    Decrypt,
    DisableKey,
    Encapsulate,
    Encrypt,
    GenerateDataKey,
    GenerateKey,
    GetImportKey,
    Item,
    KeyService,
    ListKeys,
    ReEncrypt,
    Refused,
    RetireKey,
    RotateKey,
    Target,
    Unwrap,
    UpdateKeyring,
    VerifyMac,
    Wrap,
)

Sql = Callable[..., list[Any]]
XAES = Algorithm.XAES_256_GCM
MACS = [algorithm for algorithm, spec in ALGORITHMS.items() if spec.kind is Kind.MAC]
KEMS = [algorithm for algorithm, spec in ALGORITHMS.items() if spec.kind is Kind.KEM]
DATA_KEYS = [a for a, spec in ALGORITHMS.items() if Operation.GENERATE_DATA_KEY in spec.operations]
ONE, TWO = KeyVersion(1), KeyVersion(2)
NONCE = b"ABCDEFGHIJKLMNOPQRSTUVWX"
TEXT = b"a canary in a mine, 32 bytes lon"
both_databases = pytest.mark.parametrize("backend", ["sqlite", "postgresql"], indirect=True)


@pytest.mark.parametrize(
    ("key", "associated_data", "sealed"),
    [
        (b"\1", b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (
            b"\3",
            b"c2sp.org/XAES-256-GCM",
            "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d",
        ),
    ],
    ids=["the first bit of L is 0", "the first bit of L is 1"],
)
def test_the_cipher_gives_the_published_vectors(
    key: bytes, associated_data: bytes, sealed: str
) -> None:
    """The cipher gives both vectors of the specification: the first bit of L is 0 or 1."""
    cipher = Xaes256Gcm(key * 32)
    assert cipher.encrypt(NONCE, b"XAES-256-GCM", associated_data).hex() == sealed
    assert cipher.decrypt(NONCE, bytes.fromhex(sealed), associated_data) == b"XAES-256-GCM"


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (10_000, "e6b9edf2df6cec60c8cbd864e2211b597fb69a529160cd040d56c0c210081939"),
        pytest.param(
            1_000_000,
            "2163ae1445985a30b60585ee67daa55674df06901b890593e824b8a7c885ab15",
            marks=pytest.mark.campaign,
        ),
    ],
)
def test_the_cipher_gives_the_accumulated_vectors(count: int, expected: str) -> None:
    """The hash of all ciphertexts, with keys, nonces and data of every size from SHAKE-128."""
    read, seen = XOFHash(SHAKE128(sys.maxsize)).squeeze, shake_128()
    for _ in range(count):
        key, nonce = read(32), read(24)
        plaintext, associated_data = [read(size) if (size := read(1)[0]) else b"" for _ in "12"]
        cipher = Xaes256Gcm(key)
        sealed = cipher.encrypt(nonce, plaintext, associated_data)
        assert cipher.decrypt(nonce, sealed, associated_data) == plaintext
        seen.update(sealed)
    assert seen.hexdigest(32) == expected


def loaded(algorithm: Algorithm, seed: int = 0) -> SymmetricKey:
    """Return a key with a fixed secret."""
    scheme = SYMMETRIC[algorithm]
    return scheme.load_seed(Secret(bytes((seed,)) * scheme.size))


@settings(max_examples=100, deadline=None)
@given(plaintext=st.binary(max_size=300), data=st.binary(max_size=40), info=st.binary(max_size=40))
def test_what_was_sealed_is_opened(plaintext: bytes, data: bytes, info: bytes) -> None:
    """Any data is 40 bytes longer when sealed, different each time, and opens again."""
    key = loaded(XAES)
    sealed, again = (key.encrypt(plaintext, info=info, associated_data=data) for _ in range(2))
    assert len(sealed) == len(plaintext) + 40
    assert sealed != again
    assert key.decrypt(sealed, info=info, associated_data=data) == plaintext


@settings(max_examples=100, deadline=None)
@given(plaintext=st.binary(max_size=60), bit=st.integers(min_value=0), cut=st.integers(min_value=1))
def test_what_was_changed_does_not_open(plaintext: bytes, bit: int, cut: int) -> None:
    """Nothing opens after a changed bit or a cut, or with another info, data or key."""
    key = loaded(XAES)
    sealed = key.encrypt(plaintext, info=b"info", associated_data=b"data")
    place, mask = divmod(bit % (8 * len(sealed)), 8)
    changed = bytearray(sealed)
    changed[place] ^= 1 << mask
    cases: list[tuple[SymmetricKey, bytes, bytes, bytes]] = [
        (key, bytes(changed), b"info", b"data"),
        (key, sealed[: -1 - cut % len(sealed)], b"info", b"data"),
        (key, sealed, b"another", b"data"),
        (key, sealed, b"info", b"another"),
        (loaded(XAES, 1), sealed, b"info", b"data"),
    ]
    for other, blob, info, data in cases:
        with pytest.raises(dem.DecryptionError):
            other.decrypt(blob, info=info, associated_data=data)


@pytest.mark.parametrize("algorithm", SYMMETRIC)
def test_check_values_differ_and_are_no_key(algorithm: Algorithm) -> None:
    """The check value is HKDF of the secret under a label that no other derivation has."""
    scheme, key = SYMMETRIC[algorithm], loaded(algorithm)
    info = b"pqkeep/v1/key-check-value/" + algorithm.encode()
    expected = HKDF(scheme.hash, length=32, salt=None, info=info).derive(bytes(scheme.size))
    assert key.public_bytes() == expected
    assert len({loaded(algorithm, seed).public_bytes() for seed in range(8)}) == 8
    for wrong in (scheme.size - 1, scheme.size + 1, 0):
        with pytest.raises(ValueError, match="a key for"):
            scheme.load_seed(Secret(bytes(wrong)))


class Caller(OneTenant):
    """A caller of one tenant with symmetric keys and KEM keys in two keyrings."""

    async def prepare(self, *algorithms: Algorithm) -> None:
        """Make a second keyring, and two versions of each key in both."""
        await self.ask(CreateKeyring(tenant=self.tenant, keyring="other"))
        for keyring in ("default", "other"):
            for algorithm in algorithms:
                named: Any = {"tenant": self.tenant, "algorithm": algorithm, "keyring": keyring}
                await self.ask(GenerateKey(**named, quota=None))
                await self.ask(RotateKey(**named))

    def named(self, algorithm: Algorithm = XAES, **more: Any) -> Any:
        """Return the fields of a request."""
        return {"tenant": self.tenant, "algorithm": algorithm, **more}


@pytest.fixture
def caller(keys: KeyService, tenant: TenantId, attribution: Attribution) -> Caller:
    """Return a caller of one tenant."""
    return Caller(keys, tenant, attribution)


Places = list[tuple[Caller, dict[str, Any]]]
BOUND = b"customers/42"


async def places_of(caller: Caller, *algorithms: Algorithm) -> Places:
    """Return each key version of two keyrings of two tenants, with the fields that identify it."""
    tenants = (caller, Caller(caller.keys, TenantId(uuid4()), caller.attribution))
    for tenant in tenants:
        await tenant.prepare(*algorithms)
    return [
        (tenant, tenant.named(algorithm, version=version, keyring=keyring))
        for tenant in tenants
        for keyring in ("default", "other")
        for algorithm in algorithms
        for version in (ONE, TWO)
    ]


async def sealed_in_each_form(caller: Caller, of: dict[str, Any]) -> dict[str, bytes]:
    """Return the results of one key version, by a name and the operation that opens them."""
    bound: Any = {"associated_data": BOUND}
    made = dict[str, bytes]()
    forms: list[tuple[str, CiphertextFormat | None]] = [
        ("decrypt", CiphertextFormat.CIPHERTEXT),
        ("open", CiphertextFormat.ENVELOPE),
        ("unwrap", None),
    ]
    for name, form in forms:
        data_key = GenerateDataKey(**of, **bound, size=32, plaintext=False, format=form)
        made[f"{name} a data key"] = (await caller.ask(data_key)).encrypted
        if form is not None:
            encrypt = Encrypt(**of, **bound, plaintext=TEXT, format=form)
            made[f"{name} data"] = (await caller.ask(encrypt)).ciphertext
    wrap = Wrap(**of, **bound, symmetric_key=bytearray(TEXT))
    return made | {"unwrap a key": (await caller.ask(wrap)).wrapped_key}


def openings(of: dict[str, Any], blob: bytes) -> dict[str, Any]:
    """Return the requests that could open a blob, by the operation."""
    bound: Any = {"associated_data": BOUND}
    return {
        "decrypt": Decrypt(**of, **bound, ciphertext=blob),
        "open": Decrypt(**of, **bound, ciphertext=blob, format=CiphertextFormat.ENVELOPE),
        "unwrap": Unwrap(**of, **bound, wrapped_key=blob),
    }


@pytest.mark.threat("other-tenant")
@both_databases
async def test_a_result_opens_only_where_it_was_made(caller: Caller) -> None:
    """No other tenant, keyring, version, form or purpose opens a ciphertext, envelope or key.

    The results of each of eight key versions are tried with each operation of each version.
    """
    places = await places_of(caller, XAES)
    assert len(places) == 8
    active = [place for place in places if place[1]["version"] == TWO]
    for maker, of in active:
        for name, blob in (await sealed_in_each_form(maker, of)).items():
            for asker, fields in places:
                for operation, request in openings(fields, blob).items():
                    is_its_own = fields == of and name.split()[0] == operation
                    if is_its_own:
                        await asker.ask(request)
                    else:
                        assert await asker.refusal(request) is ErrorKind.DECRYPTION_FAILED
            unbound = Decrypt(**of, ciphertext=blob)
            assert await maker.refusal(unbound) is ErrorKind.DECRYPTION_FAILED


@pytest.mark.threat("other-tenant")
@both_databases
async def test_a_mac_verifies_only_where_it_was_made(caller: Caller) -> None:
    """A MAC is valid only if complete, and only for its tenant, keyring, version and algorithm."""
    places = await places_of(caller, *MACS)
    assert len(places) == 16
    for maker, of in [place for place in places if place[1]["version"] == TWO]:
        mac = (await maker.ask(ComputeMac(**of, message=TEXT))).mac
        for asker, fields in places:
            for cut in (len(mac), 32, 16, 1, 0):
                request = VerifyMac(**fields, message=TEXT, mac=mac[:cut])
                if fields == of and cut == len(mac):
                    await asker.ask(request)
                else:
                    assert await asker.refusal(request) is ErrorKind.VERIFICATION_FAILED


@both_databases
async def test_an_older_version_opens_what_it_made_only(caller: Caller) -> None:
    """Results from before a rotation open under their own version and under no later one."""
    await caller.ask(GenerateKey(**caller.named(), quota=None))
    first = caller.named(version=ONE, keyring="default")
    made = await sealed_in_each_form(caller, first)
    await caller.ask(RotateKey(**caller.named()))
    for name, blob in made.items():
        operation = name.split()[0]
        await caller.ask(openings(first, blob)[operation])
        second = openings({**first, "version": TWO}, blob)[operation]
        assert await caller.refusal(second) is ErrorKind.DECRYPTION_FAILED


@both_databases
async def test_keys_are_wrapped_and_survive_a_restart(
    caller: Caller, restarted: Callable[[], KeyService], attribution: Attribution
) -> None:
    """A wrapped key, an envelope and a MAC open after a rotation and a restart."""
    mac_of = MACS[0]
    await caller.prepare(XAES, mac_of)
    wrap = Wrap(**caller.named(version=TWO), symmetric_key=bytearray(TEXT))
    wrapped = (await caller.ask(wrap)).wrapped_key
    assert bytes(wrap.symmetric_key) == bytes(len(TEXT))
    envelope = CiphertextFormat.ENVELOPE
    sealed = await caller.ask(
        Encrypt(**caller.named(version=None, plaintext=TEXT, format=envelope))
    )
    mac = (await caller.ask(ComputeMac(**caller.named(mac_of, version=None, message=TEXT)))).mac
    for algorithm in (XAES, mac_of):
        await caller.ask(RotateKey(**caller.named(algorithm)))
    later = Caller(restarted(), caller.tenant, attribution)
    unwrap = Unwrap(**caller.named(version=TWO, wrapped_key=wrapped))
    assert (await later.ask(unwrap)).symmetric_key == TEXT
    decrypt = Decrypt(**caller.named(version=TWO, ciphertext=sealed.ciphertext, format=envelope))
    assert (await later.ask(decrypt)).plaintext == TEXT
    await later.ask(VerifyMac(**caller.named(mac_of, version=TWO, message=TEXT, mac=mac)))


@both_databases
@pytest.mark.parametrize("other", KEMS)
async def test_data_moves_in_both_directions(other: Algorithm, caller: Caller, sql: Sql) -> None:
    """Ciphertexts and wrapped keys move to a KEM and back; no response or record has the data."""
    await caller.prepare(XAES, other)
    kinds = [False] if Operation.WRAP not in ALGORITHMS[other].operations else [False, True]
    for is_wrapped_key in kinds:
        if is_wrapped_key:
            wrap = Wrap(**caller.named(version=TWO), symmetric_key=bytearray(TEXT))
            blob = (await caller.ask(wrap)).wrapped_key
        else:
            blob = (
                await caller.ask(Encrypt(**caller.named(version=None, plaintext=TEXT)))
            ).ciphertext
        for source, target in ((XAES, other), (other, XAES)):
            request = ReEncrypt(
                **caller.named(source, version=TWO, ciphertext=blob),
                is_wrapped_key=is_wrapped_key,
                target=Target(target),
            )
            moved = await caller.ask(request)
            assert TEXT not in encode(Answer(1, moved))
            blob = moved.ciphertext
        if is_wrapped_key:
            unwrap = Unwrap(**caller.named(version=TWO, wrapped_key=blob))
            assert (await caller.ask(unwrap)).symmetric_key == TEXT
        else:
            decrypt = Decrypt(**caller.named(version=TWO, ciphertext=blob))
            assert (await caller.ask(decrypt)).plaintext == TEXT
    rows = sql("SELECT * FROM audit_records")
    assert all(TEXT.decode() not in str(row) for row in rows)


@both_databases
async def test_a_wrong_algorithm_is_named(caller: Caller) -> None:
    """A ciphertext of XAES that is sent as one of ML-KEM-768 is refused, and the reverse."""
    kem = Algorithm.ML_KEM_768
    await caller.prepare(XAES, kem)
    for one, other in ((XAES, kem), (kem, XAES)):
        named = caller.named(one, version=None, plaintext=TEXT)
        blob = (await caller.ask(Encrypt(**named))).ciphertext
        wrong = Decrypt(**caller.named(other, version=TWO, ciphertext=blob))
        assert await caller.refusal(wrong) is ErrorKind.ALGORITHM_MISMATCH


@both_databases
@pytest.mark.parametrize("algorithm", DATA_KEYS)
async def test_data_keys(algorithm: Algorithm, caller: Caller, sql: Sql) -> None:
    """A data key of each size and form opens only with its own key, and is recorded once."""
    await caller.prepare(algorithm)
    wraps = Operation.WRAP in ALGORITHMS[algorithm].operations
    forms = [CiphertextFormat.CIPHERTEXT, CiphertextFormat.ENVELOPE, *([None] if wraps else [])]
    sizes: list[DataKeySize] = [16, 32, 64]
    seen = set[bytes]()
    for size in sizes:
        for form in forms:
            named = caller.named(algorithm, version=None, size=size, format=form)
            made = await caller.ask(GenerateDataKey(**named, plaintext=True))
            assert (len(made.plaintext), made.version) == (size, TWO)
            seen.add(made.plaintext)
            for keyring, opens in (("default", True), ("other", False)):
                of = caller.named(algorithm, version=TWO, keyring=keyring)
                if form is None:
                    request: Any = Unwrap(**of, wrapped_key=made.encrypted)
                else:
                    request = Decrypt(**of, ciphertext=made.encrypted, format=form)
                if not opens:
                    assert await caller.refusal(request) is ErrorKind.DECRYPTION_FAILED
                elif form is None:
                    assert (await caller.ask(request)).symmetric_key == made.plaintext
                else:
                    assert (await caller.ask(request)).plaintext == made.plaintext
            hidden = await caller.ask(GenerateDataKey(**named, plaintext=False))
            assert hidden.plaintext == b""
    assert len(seen) == len(sizes) * len(forms)
    records = sql(
        "SELECT algorithm, key_version FROM audit_records WHERE operation = 'generate-data-key'"
    )
    assert records == [(algorithm, 2)] * (2 * len(seen))
    if not wraps:
        wrapped = GenerateDataKey(**caller.named(algorithm, version=None, size=32), plaintext=True)
        assert await caller.refusal(wrapped) is ErrorKind.UNSUPPORTED


@both_databases
async def test_a_data_key_needs_the_purpose_of_its_form(caller: Caller) -> None:
    """A keyring without wrap makes no wrapped data keys, and one without encrypt no encrypted."""
    await caller.prepare(XAES)
    for purpose, allowed, refused in (
        (KeyPurpose.WRAP, None, CiphertextFormat.CIPHERTEXT),
        (KeyPurpose.ENCRYPT, CiphertextFormat.CIPHERTEXT, None),
    ):
        await caller.ask(UpdateKeyring(tenant=caller.tenant, purposes=(purpose,)))
        for form in (allowed, refused):
            named = caller.named(version=None, size=32, plaintext=False, format=form)
            request = GenerateDataKey(**named)
            if form is allowed:
                await caller.ask(request)
            else:
                assert await caller.refusal(request) is ErrorKind.PURPOSE_DENIED


@both_databases
@pytest.mark.parametrize("algorithm", MACS)
async def test_macs(algorithm: Algorithm, caller: Caller) -> None:
    """A MAC verifies with its own key version and message only."""
    await caller.prepare(algorithm)
    named = caller.named(algorithm, version=None, message=TEXT)
    first, second = [await caller.ask(ComputeMac(**named)) for _ in range(2)]
    mac = first.mac
    assert (mac, first.version) == (second.mac, TWO)
    assert len(mac) == ALGORITHMS[algorithm].output_size
    right = VerifyMac(**caller.named(algorithm, version=TWO, message=TEXT, mac=mac))
    await caller.ask(right)
    for change in (
        {"version": ONE},
        {"keyring": "other"},
        {"message": TEXT + b"\0"},
        {"mac": mac[:-1]},
        {"mac": mac + b"\0"},
        {"mac": b""},
        {"mac": bytes([mac[0] ^ 1]) + mac[1:]},
    ):
        fields: Any = {"version": TWO, "message": TEXT, "mac": mac, **change}
        wrong = VerifyMac(**caller.named(algorithm, **fields))
        assert await caller.refusal(wrong) is ErrorKind.VERIFICATION_FAILED


@pytest.mark.parametrize("algorithm", MACS)
def test_a_mac_is_hmac_of_the_library(algorithm: Algorithm) -> None:
    """The MAC is HMAC under the key that HKDF derives, as docs/cryptography.md says."""
    scheme, info = (
        SYMMETRIC[algorithm],
        dem.key_info(b"mac", TenantId(uuid4()), algorithm, ONE, "k"),
    )
    hashes = {Algorithm.HMAC_SHA_256: SHA256(), Algorithm.HMAC_SHA_512: SHA512()}
    kdf = HKDF(hashes[algorithm], length=scheme.size, salt=None, info=info)
    expected = hmac.digest(kdf.derive(bytes(scheme.size)), TEXT, hashes[algorithm].name)
    assert loaded(algorithm).mac(TEXT, info=info) == expected


@both_databases
async def test_status_and_purpose_apply(caller: Caller) -> None:
    """A retired key reads and verifies only; a disabled key and a missing purpose refuse all."""
    mac_of = MACS[1]
    await caller.prepare(XAES, mac_of)
    blob = (await caller.ask(Encrypt(**caller.named(version=None, plaintext=TEXT)))).ciphertext
    compute = ComputeMac(**caller.named(mac_of, version=TWO, message=TEXT))
    mac = (await caller.ask(compute)).mac
    decrypt = Decrypt(**caller.named(version=TWO, ciphertext=blob))
    verify = VerifyMac(**caller.named(mac_of, version=TWO, message=TEXT, mac=mac))
    writes = [Encrypt(**caller.named(version=TWO, plaintext=TEXT)), compute]
    for algorithm in (XAES, mac_of):
        await caller.ask(RetireKey(**caller.named(algorithm, version=TWO)))
    for read in (decrypt, verify):
        await caller.ask(read)
    for write in writes:
        assert await caller.refusal(write) is ErrorKind.KEY_NOT_FOUND
    await caller.ask(UpdateKeyring(tenant=caller.tenant, purposes=(KeyPurpose.ENCRYPT,)))
    for read in (decrypt, verify):
        assert await caller.refusal(read) is ErrorKind.PURPOSE_DENIED
    purposes = (KeyPurpose.DECRYPT, KeyPurpose.MAC)
    await caller.ask(UpdateKeyring(tenant=caller.tenant, purposes=purposes))
    for algorithm in (XAES, mac_of):
        await caller.ask(DisableKey(**caller.named(algorithm, version=TWO)))
    for read in (decrypt, verify):
        assert await caller.refusal(read) is ErrorKind.KEY_NOT_FOUND


async def test_symmetric_keys_have_no_public_half(caller: Caller) -> None:
    """Encapsulation and import are refused, and so is a check value in place of a public key."""
    await caller.prepare(XAES)
    listed = await caller.ask(
        ListKeys(tenant=caller.tenant, algorithm=XAES, status=None, keyring="default")
    )
    check_value = listed.keys[0].public_key
    for request in (
        Encapsulate(**caller.named(version=ONE)),
        Decapsulate(**caller.named(version=ONE, kem_ciphertext=b"")),
        GetImportKey(**caller.named()),
        Encrypt(**caller.named(version=None, plaintext=TEXT, public_key=check_value)),
        ComputeMac(**caller.named(version=None, message=TEXT)),
        Encrypt(**caller.named(MACS[0], version=None, plaintext=TEXT)),
    ):
        assert await caller.refusal(request) is ErrorKind.UNSUPPORTED


@both_databases
@pytest.mark.parametrize("algorithm", SYMMETRIC)
async def test_the_record_of_a_key_has_its_fingerprint(
    algorithm: Algorithm, caller: Caller, sql: Sql
) -> None:
    """A generated and a rotated key are recorded with the fingerprint that the key shows."""
    first = (await caller.ask(GenerateKey(**caller.named(algorithm), quota=None))).key
    second = (await caller.ask(RotateKey(**caller.named(algorithm)))).key
    recorded = sql("SELECT public_key_sha256 FROM audit_records ORDER BY id")
    assert [bytes(value) for (value,) in recorded] == [first.public_key, second.public_key]


@both_databases
async def test_a_batch_of_symmetric_keys(caller: Caller) -> None:
    """Each item of a batch has its own result. A wrong MAC fails only its item."""
    mac_of = MACS[0]
    await caller.prepare(XAES, mac_of)
    named = caller.named(mac_of, version=TWO, message=TEXT)
    mac = (await caller.ask(ComputeMac(**named))).mac
    requests: list[Any] = [
        Encrypt(**caller.named(version=None, plaintext=TEXT)),
        VerifyMac(**named, mac=mac),
        VerifyMac(**named, mac=mac[::-1]),
        GenerateDataKey(**caller.named(version=None, size=32, plaintext=True)),
    ]
    batch = Batch(tenant=caller.tenant, items=tuple(map(Item, requests)))
    encrypted, right, wrong, data_key = (await caller.ask(batch)).results
    assert isinstance(wrong, Refused)
    assert wrong.kind is ErrorKind.VERIFICATION_FAILED
    assert not isinstance(right, Refused)
    decrypt: Any = encrypted
    opened = Decrypt(**caller.named(version=TWO, ciphertext=decrypt.ciphertext))
    assert (await caller.ask(opened)).plaintext == TEXT
    made: Any = data_key
    unwrap = Unwrap(**caller.named(version=TWO, wrapped_key=made.encrypted))
    assert (await caller.ask(unwrap)).symmetric_key == made.plaintext


def test_the_cipher_costs_less_than_a_kem() -> None:
    """Encryption of 1 KiB takes less CPU with XAES-256-GCM than with ML-KEM-768, in one run."""
    kem, data, rounds = KEM_TABLE[Algorithm.ML_KEM_768], bytes(1024), 300
    public = kem.load_public(kem.generate().public_bytes())
    key = loaded(XAES)

    def with_kem() -> None:
        secret, ciphertext = public.encapsulate()
        dem.encrypt(kem.hkdf_hash, secret, data, info=b"info", prefix=ciphertext)

    def with_cipher() -> None:
        key.encrypt(data, info=b"info", associated_data=b"")

    spent = {with_kem: 0.0, with_cipher: 0.0}
    for _ in range(rounds):  # by turns, so that both meet the same other work
        for encrypt in spent:
            started = process_time()
            encrypt()
            spent[encrypt] += process_time() - started
    assert spent[with_cipher] < spent[with_kem]


def test_a_tag_is_checked_by_the_library() -> None:
    """The bare cipher refuses a cut tag with the library's error."""
    cipher = Xaes256Gcm(bytes(32))
    sealed = cipher.encrypt(NONCE, TEXT, b"")
    for blob in (sealed[:-1], sealed[:15], b""):
        with pytest.raises(InvalidTag):
            cipher.decrypt(NONCE, blob, b"")
