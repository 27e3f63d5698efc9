"""docs/cryptography.md is correct: sizes, layouts, and every program."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from tests.docs.conftest import Service
from tests.patience import PATIENCE
from tests.sampling import fast_algorithms_first

from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    BOX_OVERHEAD,
    DIGEST_SIZE,
    KEY_PAIRS,
    SYMMETRIC_KEY_SIZES,
    XAES_OVERHEAD,
    Algorithm,
    HashAlgorithm,
    Kind,
    Operation,
)

Example = Callable[[str], dict[str, Any]]
PublicKeys = Mapping[Algorithm, bytes]

KEMS = [a for a, spec in ALGORITHMS.items() if spec.kind is Kind.KEM]
SIGNATURES = [a for a, spec in ALGORITHMS.items() if spec.kind is Kind.SIGNATURE]
SLH_DSA = [a for a in SIGNATURES if a.startswith("SLH-DSA")]
WRAPPING = [a for a in KEMS if Operation.WRAP in ALGORITHMS[a].operations]
ML_KEM = [a for a in KEMS if a is not Algorithm.X_WING]
ML_DSA = [Algorithm.ML_DSA_65, Algorithm.ML_DSA_87]

EXAMPLES = {
    "verify-ml-dsa",
    "verify-composite",
    "verify-slh-dsa",
    "compute-mu",
    "verify-sign-hash",
    "encapsulate-ml-kem",
    "encapsulate-x-wing",
    "make-blob",
    "open-blob",
    "open-symmetric",
    "open-envelope",
    "unseal",
    "public-key",
}
MODULES = {"base64", "cryptography", "hashlib", "os", "slhdsa", "typing"}
SEALED_OVERHEAD = 46
P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
MESSAGE = b"a message that pqkeep signed"
VECTORS = Path(__file__).parent.parent / "vectors" / "envelopes.json"
ENVELOPES = json.loads(VECTORS.read_bytes())["envelopes"]


def changed(data: bytes, at: int) -> bytes:
    """Return the data with one changed bit in one byte."""
    copy = bytearray(data)
    copy[at] ^= 0x01
    return bytes(copy)


def each_changed(data: bytes, *borders: int) -> Iterator[bytes]:
    """Return copies with one byte changed: first, middle, last, or at a border."""
    positions = {0, len(data) // 2, len(data) - 1}
    positions |= {at for border in borders for at in (border - 1, border)}
    for at in sorted(at for at in positions if at < len(data)):
        yield changed(data, at)


@pytest.fixture(scope="module")
def table(document: str) -> Mapping[str, tuple[str, str, int, int, int]]:
    """The document's table of algorithms: standard name, document, and the three sizes."""
    rows = {}
    for line in document.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[0].startswith("`"):
            sizes = [int(re.findall(r"\d+", cell)[-1]) for cell in cells[3:6]]
            rows[cells[0].strip("`")] = (cells[1], cells[2], sizes[0], sizes[1], sizes[2])
    return rows


def test_every_wire_value_occurs(document: str) -> None:
    """Each API name of an algorithm or a hash function is in the text."""
    for value in (*Algorithm, *HashAlgorithm):
        assert f"`{value}`" in document
    for hash_algorithm, size in DIGEST_SIZE.items():
        assert re.search(rf"^\| `{hash_algorithm}` \|.*\| {size} \|$", document, re.MULTILINE)
    for size in SYMMETRIC_KEY_SIZES:
        assert str(size) in document
    for algorithm in KEMS:
        longer = ALGORITHMS[algorithm].output_size + BOX_OVERHEAD
        said = rf"\b{longer}( bytes longer than its data)? with `{algorithm}`"
        assert re.search(said, " ".join(document.split()))


@pytest.mark.parametrize("algorithm", KEY_PAIRS)
def test_the_service_returns_the_tables_sizes(
    algorithm: Algorithm,
    table: Mapping[str, tuple[str, str, int, int, int]],
    service: Service,
    public_keys: PublicKeys,
) -> None:
    """Public key, ciphertext or signature, and stored private key have the table's sizes."""
    _, _, public_key, output, private_key = table[algorithm]
    assert len(public_keys[algorithm]) == public_key
    if algorithm in KEMS:
        made = service.post("/kem/encapsulate", algorithm=algorithm, key_version=1)
        kem_ciphertext = service.read(
            "/kem/encapsulate", "kem_ciphertext", algorithm=algorithm, key_version=1
        )
        assert len(made["shared_secret"]) == 44
        assert len(kem_ciphertext) == output
    else:
        signature = service.read(
            "/signature/sign", "signature", algorithm=algorithm, message=MESSAGE
        )
        if algorithm is Algorithm.COMPOSITE_ML_DSA:
            assert output - 12 <= len(signature) <= output
        else:
            assert len(signature) == output
    assert len(service.stored(algorithm).sealed) == private_key + SEALED_OVERHEAD


def test_the_programs_are_all_there(sources: Mapping[str, str], document: str) -> None:
    """Every program in a fence has a name, and no documented one is missing."""
    assert set(sources) == EXAMPLES
    assert document.count("```python") == len(EXAMPLES)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_programs_stand_by_themselves(name: str, sources: Mapping[str, str]) -> None:
    """No program imports pqkeep: only the modules that the document names."""
    source = sources[name]
    assert "pqkeep_" not in source
    assert "__import__" not in source
    imported = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(str(node.module).partition(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"exec", "eval", "compile"}
    assert imported <= MODULES


def check_verifier(
    verify: Callable[[bytes, bytes, bytes], bool],
    public_key: bytes,
    message: bytes,
    signature: bytes,
    *borders: int,
) -> None:
    """Assert that a signature is valid, and invalid after a change of any input."""
    assert verify(public_key, message, signature) is True
    assert verify(public_key, b"", signature) is False
    for other in each_changed(message):
        assert verify(public_key, other, signature) is False
    for other in each_changed(signature, *borders):
        assert verify(public_key, message, other) is False
    for other in (signature[:-1], signature + b"\0", b""):
        assert verify(public_key, message, other) is False
    assert verify(changed(public_key, 0), message, signature) is False


@pytest.mark.parametrize("algorithm", ML_DSA)
def test_ml_dsa_signatures_verify_outside(
    algorithm: Algorithm, service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """The documented program verifies ML-DSA signatures from the API. It refuses changed ones."""
    signature = service.read("/signature/sign", "signature", algorithm=algorithm, message=MESSAGE)
    verify = example("verify-ml-dsa")["verify_ml_dsa"]
    check_verifier(verify, public_keys[algorithm], MESSAGE, signature)


def test_composite_signatures_verify_outside(
    service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """The documented program verifies a composite signature, but not with a changed half."""
    algorithm = Algorithm.COMPOSITE_ML_DSA
    signature = service.read("/signature/sign", "signature", algorithm=algorithm, message=MESSAGE)
    verify = example("verify-composite")["verify_composite"]
    check_verifier(verify, public_keys[algorithm], MESSAGE, signature, 3309)


@pytest.mark.parametrize("algorithm", fast_algorithms_first(SLH_DSA))
def test_slh_dsa_signatures_verify_outside(
    algorithm: Algorithm, service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """The documented program verifies an SLH-DSA signature with an independent library."""
    signature = service.read("/signature/sign", "signature", algorithm=algorithm, message=MESSAGE)
    verify = example("verify-slh-dsa")["verify_slh_dsa"]

    def verifier(public_key: bytes, message: bytes, signature: bytes) -> bool:
        holds: bool = verify(algorithm.value, public_key, message, signature)
        return holds

    check_verifier(verifier, public_keys[algorithm], MESSAGE, signature)


@pytest.mark.parametrize("algorithm", fast_algorithms_first(SIGNATURES))
def test_signatures_over_digests_verify_outside(
    algorithm: Algorithm, service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """The documented program verifies sign-hash with all hash functions, and refuses changes."""
    verify = example("verify-sign-hash")["verify_hash"]
    for hash_algorithm in HashAlgorithm:
        digest = hashlib.new(hash_algorithm.replace("-", ""), MESSAGE).digest()
        signature = service.read(
            "/signature/sign-hash",
            "signature",
            algorithm=algorithm,
            hash=digest,
            hash_algorithm=hash_algorithm,
        )
        for named in HashAlgorithm:
            holds = verify(algorithm.value, public_keys[algorithm], named, digest, signature)
            assert holds is (named is hash_algorithm)

    def verifier(public_key: bytes, digest: bytes, signature: bytes) -> bool:
        last: bool = verify(algorithm.value, public_key, hash_algorithm, digest, signature)
        return last

    check_verifier(verifier, public_keys[algorithm], digest, signature)


@pytest.mark.parametrize("context", [b"", b"contracts"])
@pytest.mark.parametrize("algorithm", ML_DSA)
def test_a_computed_mu_is_signed_as_its_message(
    algorithm: Algorithm,
    context: bytes,
    service: Service,
    public_keys: PublicKeys,
    example: Example,
) -> None:
    """The signature by the program's mu verifies for the message and its context."""
    mu = example("compute-mu")["compute_mu"](public_keys[algorithm], BytesIO(MESSAGE), context)
    signature = service.read("/signature/sign-mu", "signature", algorithm=algorithm, mu=mu)
    verify = {"algorithm": algorithm, "key_version": 1, "signature": signature}
    response = service.post("/signature/verify", **verify, message=MESSAGE, context=context)
    assert response["valid"] is True


@pytest.mark.parametrize("algorithm", fast_algorithms_first(SIGNATURES))
def test_the_two_kinds_of_signature_stay_apart(
    algorithm: Algorithm, service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """A signature over the message OID and digest is refused by the program and by verify-hash."""
    program = example("verify-sign-hash")
    digest = hashlib.sha256(MESSAGE).digest()
    message = program["OIDS"]["SHA-256"] + digest
    signature = service.read("/signature/sign", "signature", algorithm=algorithm, message=message)
    verify = program["verify_hash"]
    assert not verify(algorithm.value, public_keys[algorithm], "SHA-256", digest, signature)
    response = service.post(
        "/signature/verify-hash",
        algorithm=algorithm,
        key_version=1,
        hash=digest,
        hash_algorithm="SHA-256",
        signature=signature,
    )
    assert response["valid"] is False


@pytest.mark.parametrize("algorithm", fast_algorithms_first(SIGNATURES))
def test_signatures_are_hedged(
    algorithm: Algorithm, service: Service, public_keys: PublicKeys
) -> None:
    """Two signatures of one message differ."""
    first, second = (
        service.read("/signature/sign", "signature", algorithm=algorithm, message=MESSAGE)
        for _ in range(2)
    )
    assert first != second


def test_a_composite_signatures_bytes_are_not_unique(
    service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """The documented second form of a composite signature verifies inside and outside."""
    algorithm = Algorithm.COMPOSITE_ML_DSA
    signature = service.read("/signature/sign", "signature", algorithm=algorithm, message=MESSAGE)
    r, s = decode_dss_signature(signature[3309:])
    twin = signature[:3309] + encode_dss_signature(r, P256_ORDER - s)
    assert twin != signature
    assert example("verify-composite")["verify_composite"](public_keys[algorithm], MESSAGE, twin)
    response = service.post(
        "/signature/verify",
        algorithm=algorithm,
        key_version=1,
        message=MESSAGE,
        signature=twin,
    )
    assert response["valid"] is True


def decapsulate(service: Service, algorithm: Algorithm, kem_ciphertext: bytes) -> bytes:
    """Return the shared secret that the service recovers from a KEM ciphertext."""
    return service.read(
        "/kem/decapsulate",
        "shared_secret",
        algorithm=algorithm,
        key_version=1,
        kem_ciphertext=kem_ciphertext,
    )


def encapsulate(example: Example, algorithm: Algorithm, public_key: bytes) -> tuple[bytes, bytes]:
    """Encapsulate with the documented program for the algorithm."""
    name = "x-wing" if algorithm is Algorithm.X_WING else "ml-kem"
    program = example(f"encapsulate-{name}")[f"encapsulate_{name.replace('-', '_')}"]
    result: tuple[bytes, bytes] = program(public_key)
    return result


@pytest.mark.parametrize("algorithm", KEMS)
def test_encapsulated_outside_decapsulated_inside(
    algorithm: Algorithm, service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """The service recovers the documented program's secret, and another one after a change."""
    secret, kem_ciphertext = encapsulate(example, algorithm, public_keys[algorithm])
    assert len(secret) == 32
    assert decapsulate(service, algorithm, kem_ciphertext) == secret
    for other in each_changed(kem_ciphertext, 1088):
        rejected = decapsulate(service, algorithm, other)
        assert rejected != secret
        assert rejected == decapsulate(service, algorithm, other)


@pytest.mark.parametrize("algorithm", KEMS)
def test_decapsulate_refuses_what_the_document_says(
    algorithm: Algorithm, service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """A wrong size is ERR_KEM_002, and so is an X25519 point of low order."""
    _, kem_ciphertext = encapsulate(example, algorithm, public_keys[algorithm])
    bad = [kem_ciphertext[:-1], kem_ciphertext + b"\0", b""]
    if algorithm is Algorithm.X_WING:
        low_order = kem_ciphertext[:1088] + bytes(32)
        bad.append(low_order)
        box = bytes(12 + 16 + 16)
        for path, field, code in (
            ("/kem/decrypt", "ciphertext", "ERR_KEM_002"),
            ("/kem/key/unwrap", "wrapped_key", "ERR_KEM_012"),
        ):
            fields = {field: low_order + box}
            refusal = service.refusal(path, algorithm=algorithm, key_version=1, **fields)
            assert refusal == (400, code)
    for other in bad:
        refusal = service.refusal(
            "/kem/decapsulate", algorithm=algorithm, key_version=1, kem_ciphertext=other
        )
        assert refusal == (400, "ERR_KEM_002")


def decrypt(service: Service, algorithm: Algorithm, blob: bytes) -> bytes:
    """Return the service's plaintext of a ciphertext."""
    return service.read(
        "/kem/decrypt", "plaintext", algorithm=algorithm, key_version=1, ciphertext=blob
    )


@pytest.mark.parametrize("algorithm", KEMS)
def test_blobs_made_outside_open_inside(
    algorithm: Algorithm, service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """The service decrypts the documented program's blob, and refuses it with one byte changed."""
    make_blob = example("make-blob")["make_blob"]
    data, size = b"made outside", ALGORITHMS[algorithm].output_size
    for plaintext in (data, b""):
        arguments = (
            algorithm.value,
            public_keys[algorithm],
            service.caller.tenant_id,
            1,
            plaintext,
        )
        blob = make_blob("encrypt", *arguments)
        assert len(blob) == size + BOX_OVERHEAD + len(plaintext)
        assert decrypt(service, algorithm, blob) == plaintext
    blob = make_blob(
        "encrypt", algorithm.value, public_keys[algorithm], service.caller.tenant_id, 1, data
    )
    for other in (*each_changed(blob, 1088, size, size + 12, len(blob) - 16), blob[:-1]):
        refusal = service.refusal(
            "/kem/decrypt", algorithm=algorithm, key_version=1, ciphertext=other
        )
        assert refusal == (400, "ERR_KEM_002")


@pytest.mark.parametrize("algorithm", KEMS)
def test_envelopes_open_outside(algorithm: Algorithm, service: Service, example: Example) -> None:
    """The documented program opens the service's envelope, only with its associated data."""
    program, row = example("open-envelope"), b"customers/42"
    envelope = service.post(
        "/kem/encrypt",
        algorithm=algorithm,
        plaintext=MESSAGE,
        associated_data=row,
        format="envelope",
    )["envelope"]
    named, version, keyring, kem_ciphertext = program["read_envelope"](envelope)
    assert (named, version, keyring) == (algorithm, 1, "default")
    secret = decapsulate(service, algorithm, kem_ciphertext)
    tenant = service.caller.tenant_id
    assert program["open_envelope"](envelope, secret, tenant, row) == MESSAGE
    for bad in ((envelope, secret, tenant), (envelope, secret, tenant, b"customers/43")):
        with pytest.raises(InvalidTag):
            program["open_envelope"](*bad)
    if algorithm is Algorithm.ML_KEM_768:
        assert envelope.startswith("pqk1.AQAAAAEHZGVmYXVsd")


def test_symmetric_keys_open_outside(service: Service, example: Example) -> None:
    """With the root key, the documented program opens only XAES-256-GCM's own ciphertexts."""
    algorithm, row, tenant = Algorithm.XAES_256_GCM, b"customers/42", service.caller.tenant_id
    made = service.post("/kms/keys/generate", algorithm=algorithm)
    stored = service.stored(algorithm)
    place = (stored.tenant_id, algorithm.value, stored.version, stored.public_key)
    key = example("unseal")["unseal"](service.root_key, stored.sealed, *place)
    program = example("open-symmetric")
    assert program["fingerprint"](key) == made["fingerprint"] == stored.public_key.hex()
    named: Any = {"algorithm": algorithm, "associated_data": row}
    blob = service.read("/kem/encrypt", "ciphertext", plaintext=MESSAGE, **named)
    assert len(blob) == len(MESSAGE) + XAES_OVERHEAD
    opened = program["open_symmetric"]("encrypt", key, tenant, 1, blob, row)
    assert opened == MESSAGE
    wrapped = service.read("/kem/data-key", "wrapped_key", **named)
    assert len(program["open_symmetric"]("wrap", key, tenant, 1, wrapped, row)) == 32
    for bad in (
        ("wrap", key, tenant, 1, blob, row),
        ("encrypt", key, tenant, 2, blob, row),
        ("encrypt", key, tenant[::-1], 1, blob, row),
        ("encrypt", key, tenant, 1, blob),
        *(("encrypt", key, tenant, 1, other, row) for other in each_changed(blob, 0, 12, 24)),
    ):
        with pytest.raises(InvalidTag):
            program["open_symmetric"](*bad)


@pytest.mark.parametrize("vector", ENVELOPES, ids=lambda vector: vector["algorithm"])
def test_the_stored_envelopes_are_read(vector: dict[str, Any], example: Example) -> None:
    """The documented program, without pqkeep's code, opens the golden envelopes."""
    program = example("open-envelope")
    named, version, keyring, _ = program["read_envelope"](vector["envelope"])
    assert (named, version, keyring) == (
        vector["algorithm"],
        vector["key_version"],
        vector["keyring"],
    )
    opened = program["open_envelope"](
        vector["envelope"],
        bytes.fromhex(vector["shared_secret"]),
        vector["tenant_id"],
        bytes.fromhex(vector["associated_data"]),
    )
    assert opened.decode() == vector["plaintext"]


@pytest.mark.parametrize("algorithm", WRAPPING)
def test_keys_wrapped_outside_unwrap_inside(
    algorithm: Algorithm, service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """The service unwraps the documented program's keys, and refuses changed wrapped keys."""
    make_blob = example("make-blob")["make_blob"]
    named = {"algorithm": algorithm, "key_version": 1}
    for size in sorted(SYMMETRIC_KEY_SIZES):
        secret = os.urandom(size)
        arguments = (algorithm.value, public_keys[algorithm], service.caller.tenant_id, 1, secret)
        wrapped = make_blob("wrap", *arguments)
        found = service.read("/kem/key/unwrap", "symmetric_key", wrapped_key=wrapped, **named)
        assert found == secret
    for other in each_changed(wrapped, ALGORITHMS[algorithm].output_size):
        refusal = service.refusal("/kem/key/unwrap", wrapped_key=other, **named)
        assert refusal == (400, "ERR_KEM_012")


@pytest.mark.parametrize("algorithm", KEMS)
def test_a_blob_is_bound_to_every_field_of_info(
    algorithm: Algorithm, service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """Decrypt and unwrap refuse a blob for another purpose, tenant or version."""
    make_blob, public_key = example("make-blob")["make_blob"], public_keys[algorithm]
    tenant, data = service.caller.tenant_id, bytes(32)
    other_tenant = tenant[:-1] + ("1" if tenant[-1] == "0" else "0")
    named = {"algorithm": algorithm, "key_version": 1}
    for purpose, owner, version in (
        ("wrap", tenant, 1),
        ("encrypt", other_tenant, 1),
        ("encrypt", tenant, 2),
    ):
        blob = make_blob(purpose, algorithm.value, public_key, owner, version, data)
        assert service.refusal("/kem/decrypt", ciphertext=blob, **named) == (400, "ERR_KEM_002")
    if algorithm in WRAPPING:
        blob = make_blob("encrypt", algorithm.value, public_key, tenant, 1, data)
        refusal = service.refusal("/kem/key/unwrap", wrapped_key=blob, **named)
        assert refusal == (400, "ERR_KEM_012")


def test_a_blob_is_bound_to_its_algorithm(
    service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """A ciphertext under another KEM's name gets the documented error."""
    arguments = (public_keys[Algorithm.X_WING], service.caller.tenant_id, 1, b"data")
    blob = example("make-blob")["make_blob"]("encrypt", "X-Wing", *arguments)
    refusal = service.refusal(
        "/kem/decrypt", algorithm=Algorithm.ML_KEM_768, key_version=1, ciphertext=blob
    )
    assert refusal == (400, "ERR_INVALID_001")


@pytest.mark.parametrize(
    ("purpose", "algorithm"),
    [*(("encrypt", kem) for kem in KEMS), *(("wrap", kem) for kem in WRAPPING)],
)
def test_blobs_made_inside_open_outside(
    purpose: str, algorithm: Algorithm, service: Service, public_keys: PublicKeys, example: Example
) -> None:
    """With the decapsulated secret the documented program opens only the service's ciphertext."""
    data, named = os.urandom(32), {"algorithm": algorithm, "key_version": 1}
    if purpose == "encrypt":
        blob = service.read("/kem/encrypt", "ciphertext", plaintext=data, **named)
    else:
        blob = service.read("/kem/key/wrap", "wrapped_key", symmetric_key=data, **named)
    program = example("open-blob")
    open_blob, size = program["open_blob"], program["KEM_CIPHERTEXT"][algorithm.value]
    secret = decapsulate(service, algorithm, blob[:size])
    tenant = service.caller.tenant_id
    assert open_blob(purpose, algorithm.value, secret, tenant, 1, blob) == data

    for other in each_changed(blob[size:], 12, len(blob) - size - 16):
        with pytest.raises(InvalidTag):
            open_blob(purpose, algorithm.value, secret, tenant, 1, blob[:size] + other)
    wrong = decapsulate(service, algorithm, changed(blob[:size], 0))
    other_purpose = "wrap" if purpose == "encrypt" else "encrypt"
    for arguments in (
        (purpose, algorithm.value, wrong, tenant, 1),
        (other_purpose, algorithm.value, secret, tenant, 1),
        (purpose, algorithm.value, secret, tenant, 2),
        (purpose, algorithm.value, secret, tenant[::-1], 1),
    ):
        with pytest.raises(InvalidTag):
            open_blob(*arguments, blob)


def test_the_worked_example_is_right(document: str, example: Example) -> None:
    """The hexadecimal example gives its plaintext, also with the documented program."""
    block = document.partition("<!-- example values: kem-dem -->")[2].split("```")[1]
    lines = (line.rsplit(maxsplit=1) for line in block.splitlines()[1:])
    values = {name.strip(): bytes.fromhex(value) for name, value in lines}
    tenant, data = "00112233-4455-6677-8899-aabbccddeeff", b"hello, world"
    box = values["nonce"] + values["ciphertext"] + values["tag"]
    opened = AESGCM(values["key"]).decrypt(box[:12], box[12:], None)
    assert opened == data
    assert len(values["info"]) == 54

    fields = document.partition("`info` has 54 bytes:")[2].split("```")[1].splitlines()[1:]
    parts = [bytes.fromhex("".join(re.findall(r"\b[0-9a-f]{4,}\b", f)[:2])) for f in fields]
    assert b"".join(parts) == values["info"]

    open_blob, secret = example("open-blob")["open_blob"], values["shared secret"]
    assert open_blob("encrypt", "Kyber768", secret, tenant, 7, bytes(1088) + box) == data
    found = re.search(r"through SHA-384, the key\n`([0-9a-f]{64})`", document)
    assert found is not None
    large = AESGCM(bytes.fromhex(found[1])).encrypt(bytes(12), data, None)
    blob = bytes(1568) + bytes(12) + large
    assert open_blob("encrypt", "ML-KEM-1024", secret, tenant, 7, blob) == data


@pytest.mark.parametrize("algorithm", KEMS)
def test_deterministic_mode_is_randomized(
    algorithm: Algorithm, service: Service, public_keys: PublicKeys
) -> None:
    """The same plaintext and salt in deterministic mode give different ciphertexts."""
    fields = {"plaintext": b"the same", "mode": "deterministic", "salt": b"salt"}
    first, second = (
        service.read("/kem/encrypt", "ciphertext", algorithm=algorithm, **fields) for _ in range(2)
    )
    assert first != second
    assert decrypt(service, algorithm, first) == decrypt(service, algorithm, second)


@pytest.mark.parametrize("algorithm", KEY_PAIRS)
def test_private_keys_unseal_outside(
    algorithm: Algorithm,
    table: Mapping[str, tuple[str, str, int, int, int]],
    service: Service,
    public_keys: PublicKeys,
    example: Example,
) -> None:
    """From root key and row the documented programs recover the key pair, only for this row."""
    stored, unseal = service.stored(algorithm), example("unseal")["unseal"]
    assert stored.public_key == public_keys[algorithm]
    tenant, root_key = stored.tenant_id, service.root_key
    place = (tenant, algorithm.value, stored.version, stored.public_key)
    private_key = unseal(root_key, stored.sealed, *place)
    assert len(private_key) == table[algorithm][4]
    public_key_of = example("public-key")["public_key_of"]
    assert public_key_of(algorithm.value, private_key) == stored.public_key

    neighbour = next(other for other in Algorithm if other is not algorithm)
    for arguments in (
        (changed(root_key, 0), stored.sealed, *place),
        *((root_key, other, *place) for other in each_changed(stored.sealed, 2, 18, 30)),
        (root_key, stored.sealed, tenant[::-1], *place[1:]),
        (root_key, stored.sealed, tenant, neighbour.value, *place[2:]),
        (root_key, stored.sealed, *place[:2], stored.version + 1, stored.public_key),
        (root_key, stored.sealed, *place[:3], changed(stored.public_key, 0)),
    ):
        with pytest.raises(InvalidTag):
            unseal(*arguments)


def test_the_check_value_is_the_documents(service: Service, example: Example) -> None:
    """The stored check value equals the documented program's result for the root key."""
    check_value = example("unseal")["check_value"]
    assert check_value(service.root_key) == service.check_value()
    assert check_value(changed(service.root_key, 31)) != service.check_value()


def test_the_self_test_is_as_described() -> None:
    """``pqkeepd selftest`` passes, and its table names every algorithm."""
    command = [str(Path(sys.executable).parent / "pqkeepd"), "selftest"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    for algorithm in Algorithm:
        assert re.search(rf"\b{algorithm}\b.*passed", done.stdout)
