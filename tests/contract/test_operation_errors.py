"""The specification's table of operation errors, row by row."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from tests.contract.conftest import VERSIONS, World
from tests.contract.rows import api_rows
from tests.fixtures.caller import Caller
from tests.sampling import SLOW_ALGORITHMS, fast_algorithms_first, later

from pqkeep_protocol.algorithms import ALGORITHMS, CURRENT, LIFECYCLE, Algorithm, Kind, Operation
from pqkeep_protocol.keys import KeyStatus

if TYPE_CHECKING:
    import httpx2

KEMS = [algorithm for algorithm, spec in ALGORITHMS.items() if spec.kind is Kind.KEM]
SIGNATURES = [a for a, spec in ALGORITHMS.items() if spec.kind is Kind.SIGNATURE]
MISMATCHES = [
    pytest.param(
        operation,
        made,
        named,
        id=f"{operation} {made} as {named}",
    )
    for operation in (Operation.DECRYPT, Operation.DECAPSULATE, Operation.UNWRAP)
    for made in KEMS
    for named in KEMS
    if made is not named and operation in ALGORITHMS[made].operations
]
ARCHIVED, RETIRED, ACTIVE, NEXT = 1, 2, 3, 4
NOT_FOUND = (404, "ERR_NOT_FOUND_001")

ROWS = [
    pytest.param(
        "/kem/encrypt",
        {},
        (400, "ERR_KEM_001", "plaintext"),
        id="encrypt 400 ERR_KEM_001 missing plaintext",
    ),
    pytest.param(
        "/kem/encrypt",
        {"plaintext": "QUJD", "key_version": 0},
        (400, "ERR_KEM_001", "key_version"),
        id="encrypt 400 ERR_KEM_001 invalid key_version",
    ),
    pytest.param(
        "/kem/encrypt",
        {"plaintext": "not base64"},
        (400, "ERR_KEM_001", "plaintext"),
        id="encrypt 400 ERR_KEM_001 bad encoding",
    ),
    pytest.param(
        "/kem/encapsulate",
        {"key_version": "3"},
        (400, "ERR_KEM_001", "key_version"),
        id="encapsulate 400 ERR_KEM_001 invalid key_version",
    ),
    pytest.param(
        "/kem/encrypt",
        {"plaintext": "QUJD", "mode": "deterministic"},
        (400, "ERR_INVALID_001", "salt"),
        id="encrypt 400 ERR_INVALID_001 mode deterministic, no salt",
    ),
    pytest.param(
        "/kem/encrypt",
        {"plaintext": "QUJD", "mode": "deterministic", "salt": "?"},
        (400, "ERR_INVALID_002", "salt"),
        id="encrypt 400 ERR_INVALID_002 salt not valid base64",
    ),
    pytest.param(
        "/kem/encrypt",
        {"plaintext": "QUJD", "mode": "other"},
        (400, "ERR_KEM_007", "mode"),
        id="encrypt 400 ERR_KEM_007 invalid mode value",
    ),
    pytest.param(
        "/kem/key/wrap",
        {"key_version": ACTIVE},
        (400, "ERR_KEM_010", "symmetric_key"),
        id="wrap 400 ERR_KEM_010 missing key",
    ),
    pytest.param(
        "/kem/key/wrap",
        {"symmetric_key": "A" * 42 + "A=", "key_version": 0},
        (400, "ERR_KEM_010", "key_version"),
        id="wrap 400 ERR_KEM_010 invalid key_version",
    ),
    pytest.param(
        "/kem/key/wrap",
        {"symmetric_key": "not base64", "key_version": ACTIVE},
        (400, "ERR_KEM_010", "symmetric_key"),
        id="wrap 400 ERR_KEM_010 bad encoding",
    ),
    *(
        pytest.param(
            "/kem/key/wrap",
            {"symmetric_key": base64.b64encode(bytes(size)).decode(), "key_version": ACTIVE},
            (400, "ERR_KEM_010", "symmetric_key"),
            id=f"wrap 400 ERR_KEM_010 size {size}",
        )
        for size in (0, 1, 15, 17, 31, 33, 40, 56, 63, 65, 128)
    ),
    pytest.param(
        "/kem/key/unwrap",
        {"key_version": ACTIVE},
        (400, "ERR_KEM_011", "wrapped_key"),
        id="unwrap 400 ERR_KEM_011 missing wrapped_key",
    ),
    pytest.param(
        "/kem/key/unwrap",
        {"wrapped_key": "not base64", "key_version": ACTIVE},
        (400, "ERR_KEM_011", "wrapped_key"),
        id="unwrap 400 ERR_KEM_011 bad base64",
    ),
    pytest.param(
        "/kem/key/unwrap",
        {"wrapped_key": "QUJD", "key_version": ACTIVE},
        (400, "ERR_KEM_011", "wrapped_key"),
        id="unwrap 400 ERR_KEM_011 data too short",
    ),
    pytest.param(
        "/kem/key/unwrap",
        {"wrapped_key": "AAAA" * 400, "key_version": ACTIVE},
        (400, "ERR_KEM_012", "wrapped_key"),
        id="unwrap 400 ERR_KEM_012 corrupt data",
    ),
    *(
        pytest.param(
            f"/signature/{operation}",
            {"hash": "QUJD", "hash_algorithm": name, "signature": "QUJD", "key_version": ACTIVE},
            (400, "ERR_SIG_010", "hash_algorithm"),
            id=f"{operation} 400 ERR_SIG_010 hash algorithm {name}",
        )
        for operation in ("sign-hash", "verify-hash")
        for name in ("SHA-1", "sha-256", "SHA256", "", 256, None, ["SHA-256"])
    ),
    *(
        pytest.param(
            f"/signature/{operation}",
            {
                "hash": base64.b64encode(bytes(size)).decode(),
                "hash_algorithm": name,
                "signature": "QUJD",
                "key_version": ACTIVE,
            },
            (400, "ERR_SIG_011", "hash"),
            id=f"{operation} 400 ERR_SIG_011 {size} bytes of {name}",
        )
        for operation in ("sign-hash", "verify-hash")
        for name, sizes in (
            ("SHA-256", (0, 31, 33, 48, 64)),
            ("SHA-384", (0, 32, 47, 49, 64)),
            ("SHA-512", (0, 32, 48, 63, 65)),
        )
        for size in sizes
    ),
    pytest.param(
        "/signature/sign",
        {},
        (400, "ERR_SIG_001", "message"),
        id="sign 400 ERR_SIG_001 missing message",
    ),
    pytest.param(
        "/signature/sign",
        {"message": "not base64"},
        (400, "ERR_SIG_001", "message"),
        id="sign 400 ERR_SIG_001 bad base64",
    ),
    pytest.param(
        "/signature/sign",
        {"message": "QUJD", "key_version": -1},
        (400, "ERR_SIG_001", "key_version"),
        id="sign 400 ERR_SIG_001 invalid key_version",
    ),
    pytest.param(
        "/signature/verify",
        {"message": "not base64", "signature": "QUJD", "key_version": ACTIVE},
        (400, "ERR_SIG_001", "message"),
        id="verify 400 ERR_SIG_001 bad base64 in message",
    ),
    pytest.param(
        "/signature/verify",
        {"message": "QUJD", "signature": "not base64", "key_version": ACTIVE},
        (400, "ERR_SIG_001", "signature"),
        id="verify 400 ERR_SIG_001 bad base64 in signature",
    ),
    pytest.param(
        "/kms/keys/generate",
        {"algorithm": "RSA-2048"},
        (400, "ERR_INVALID_001", "algorithm"),
        id="generate 400 ERR_INVALID_001 unsupported algorithm",
    ),
    pytest.param(
        "/kms/keys/generate",
        {},
        (400, "ERR_INVALID_001", "algorithm"),
        id="generate 400 ERR_INVALID_001 missing algorithm",
    ),
    pytest.param(
        "/kms/keys/generate",
        {"algorithm": "Kyber768"},
        (400, "ERR_INVALID_001", "algorithm"),
        id="generate 400 ERR_INVALID_001 an active key exists",
    ),
    pytest.param(
        "/kms/keys/rotate",
        {"algorithm": "RSA-2048"},
        (400, "ERR_INVALID_001", "algorithm"),
        id="rotate 400 ERR_INVALID_001 bad algorithm",
    ),
    pytest.param(
        "/kms/keys/rotate",
        {},
        (400, "ERR_INVALID_001", "algorithm"),
        id="rotate 400 ERR_INVALID_001 missing algorithm",
    ),
    pytest.param(
        "/kms/keys/retire",
        {"algorithm": "RSA-2048", "key_version": ACTIVE},
        (400, "ERR_INVALID_001", "algorithm"),
        id="retire 400 ERR_INVALID_001 bad algorithm",
    ),
    pytest.param(
        "/kms/keys/retire",
        {"algorithm": "Kyber768"},
        (400, "ERR_INVALID_001", "key_version"),
        id="retire 400 ERR_INVALID_001 missing key_version",
    ),
    pytest.param(
        "/kms/keys/retire",
        {"algorithm": "Kyber768", "key_version": "3"},
        (400, "ERR_INVALID_001", "key_version"),
        id="retire 400 ERR_INVALID_001 bad key_version",
    ),
    pytest.param(
        "/kms/keys/retire",
        {"algorithm": "Kyber768", "key_version": True},
        (400, "ERR_INVALID_001", "key_version"),
        id="retire 400 ERR_INVALID_001 boolean key_version",
    ),
    pytest.param(
        "/kms/keys/retire",
        {"algorithm": "Kyber768", "key_version": ARCHIVED},
        (400, "ERR_INVALID_001", "key_version"),
        id="retire 400 ERR_INVALID_001 the key is archived",
    ),
    pytest.param(
        "/kms/keys/archive",
        {"algorithm": "Kyber768", "key_version": RETIRED},
        (403, "ERR_KMS_020", None),
        id="archive 403 ERR_KMS_020 a retired key over the API",
    ),
    pytest.param(
        "/kms/keys/archive",
        {"algorithm": "Kyber768", "key_version": ACTIVE},
        (403, "ERR_KMS_020", None),
        id="archive 403 ERR_KMS_020 an active key over the API",
    ),
    pytest.param(
        "/kms/keys/archive",
        {},
        (403, "ERR_KMS_020", None),
        id="archive 403 ERR_KMS_020 nothing over the API",
    ),
]

GET_ROWS = [
    pytest.param("/active", "algorithm", id="active 400 ERR_INVALID_001 missing algorithm"),
    pytest.param(
        "/active?algorithm=RSA", "algorithm", id="active 400 ERR_INVALID_001 bad algorithm"
    ),
    pytest.param(
        "/active?algorithm=", "algorithm", id="active 400 ERR_INVALID_001 empty algorithm"
    ),
    pytest.param("/3", "algorithm", id="by version 400 ERR_INVALID_001 missing algorithm"),
    pytest.param(
        "/3?algorithm=kyber768", "algorithm", id="by version 400 ERR_INVALID_001 bad algorithm"
    ),
    pytest.param(
        "/0?algorithm=Kyber768", "key_version", id="by version 400 ERR_INVALID_001 version 0"
    ),
    pytest.param(
        "/-1?algorithm=Kyber768", "key_version", id="by version 400 ERR_INVALID_001 version -1"
    ),
    pytest.param(
        "/1.0?algorithm=Kyber768", "key_version", id="by version 400 ERR_INVALID_001 version 1.0"
    ),
    pytest.param(
        "/x?algorithm=Kyber768", "key_version", id="by version 400 ERR_INVALID_001 version x"
    ),
    pytest.param(
        "/%D9%A3?algorithm=Kyber768",
        "key_version",
        id="by version 400 ERR_INVALID_001 an Arabic-Indic 3",
    ),
    pytest.param(
        "/%203?algorithm=Kyber768",
        "key_version",
        id="by version 400 ERR_INVALID_001 space before 3",
    ),
    pytest.param(
        "/x?algorithm=Kyber768&key_version=3",
        "key_version",
        id="by version 400 ERR_INVALID_001 the query is not the path",
    ),
    pytest.param("?algorithm=RSA", "algorithm", id="list 400 ERR_INVALID_001 bad algorithm"),
    pytest.param("?algorithm=", "algorithm", id="list 400 ERR_INVALID_001 empty algorithm"),
    pytest.param("?status=gone", "status", id="list 400 ERR_INVALID_001 bad status"),
    pytest.param("?status=ACTIVE", "status", id="list 400 ERR_INVALID_001 status in capitals"),
    pytest.param("?status=", "status", id="list 400 ERR_INVALID_001 empty status"),
    pytest.param("?" + "a&" * 15_000, None, id="list 400 ERR_INVALID_001 15,000 parameters"),
]

STATUSES = {
    Operation.ENCRYPT: {KeyStatus.ACTIVE},
    Operation.ENCAPSULATE: {KeyStatus.ACTIVE},
    Operation.WRAP: {KeyStatus.ACTIVE},
    Operation.SIGN: {KeyStatus.ACTIVE},
    Operation.SIGN_HASH: {KeyStatus.ACTIVE},
    Operation.SIGN_JWS: {KeyStatus.ACTIVE},
    Operation.SIGN_MU: {KeyStatus.ACTIVE},
    Operation.DECRYPT: {KeyStatus.ACTIVE, KeyStatus.RETIRED},
    Operation.DECAPSULATE: {KeyStatus.ACTIVE, KeyStatus.RETIRED},
    Operation.UNWRAP: {KeyStatus.ACTIVE, KeyStatus.RETIRED},
    Operation.VERIFY: {KeyStatus.ACTIVE, KeyStatus.RETIRED},
    Operation.VERIFY_HASH: {KeyStatus.ACTIVE, KeyStatus.RETIRED},
    Operation.VERIFY_MU: {KeyStatus.ACTIVE, KeyStatus.RETIRED},
    Operation.GENERATE_DATA_KEY: {KeyStatus.ACTIVE},
    Operation.COMPUTE_MAC: {KeyStatus.ACTIVE},
    Operation.VERIFY_MAC: {KeyStatus.ACTIVE, KeyStatus.RETIRED},
}
STATUS_ROWS = [
    pytest.param(operation, algorithm, status, id=f"{operation}, {status} {algorithm} key")
    for operation in STATUSES
    for algorithm in CURRENT
    if operation in ALGORITHMS[algorithm].operations
    for status in VERSIONS
]
"""For disabled keys see test_disabled_keys.py."""
STATUS_CASES = [later(row) if row.values[1] in SLOW_ALGORITHMS else row for row in STATUS_ROWS]


def damage(text: str, at: float, b64: Callable[[bytes], str], unb64: Callable[[str], bytes]) -> str:
    """Flip one bit at a relative position from 0 to 1."""
    data = bytearray(unb64(text))
    data[round(at * (len(data) - 1))] ^= 1
    return b64(bytes(data))


FIELDS = {row.path: {each.name for each in row.fields} for row in api_rows()}
"""The fields of each operation. Operations refuse other fields."""


@pytest.mark.parametrize(("path", "body", "refusal"), ROWS)
def test_a_row_of_the_table(
    world: World, path: str, body: dict[str, Any], refusal: tuple[int, str, str | None]
) -> None:
    """The request is refused with the status, the code and the field of its row."""
    known = {name: value for name, value in body.items() if name in FIELDS[path]}
    assert world.caller.refusal(path, known) == refusal


@pytest.mark.parametrize(("rest", "field"), GET_ROWS)
def test_a_row_of_the_table_for_looking_keys_up(
    world: World,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    rest: str,
    field: str,
) -> None:
    """An invalid query or path is 400 ERR_INVALID_001 with the field."""
    response = world.caller.ask("GET", f"/kms/keys{rest}")
    assert refused(response) == (400, "ERR_INVALID_001", field)


@pytest.mark.parametrize("algorithm", CURRENT)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        pytest.param("POST", "/kms/keys/rotate", id="rotate"),
        pytest.param("POST", "/kms/keys/retire", id="retire"),
        pytest.param("GET", "/kms/keys/active", id="active"),
        pytest.param("GET", "/kms/keys/1", id="by version"),
    ],
)
def test_no_key_is_404(
    nobody: Caller,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    method: str,
    path: str,
    algorithm: Algorithm,
) -> None:
    """Without a key of the algorithm, rotate, retire, active and by version are 404."""
    named: dict[str, object] = {"algorithm": algorithm.value}
    if path.endswith("/retire"):
        named["key_version"] = 1
    response = (
        nobody.ask(method, path, named)
        if method == "POST"
        else nobody.ask(method, path, params={"algorithm": algorithm.value})
    )
    assert refused(response)[:2] == NOT_FOUND


@pytest.mark.parametrize("version", ["4", "2147483647", "2147483648", "9" * 30])
def test_by_version_that_does_not_exist_is_404(
    world: World,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    version: str,
) -> None:
    """A version in the path that no key has is 404, for any number."""
    response = world.caller.ask("GET", f"/kms/keys/{version}?algorithm=Kyber768")
    assert refused(response)[:2] == NOT_FOUND


@pytest.mark.parametrize(("operation", "algorithm", "status"), STATUS_CASES)
def test_status_and_operation(
    world: World,
    paths: dict[Operation, str],
    versions: dict[KeyStatus, int],
    operation: Operation,
    algorithm: Algorithm,
    status: KeyStatus,
) -> None:
    """Active keys write and read, retired keys only read, archived keys are 404."""
    body = world.body(operation, algorithm, versions[status])
    response = world.caller.ask("POST", paths[operation], body)
    if status in STATUSES[operation]:
        assert response.status_code == 200
        assert response.json()["data"]["key_version"] == versions[status]
        assert response.json()["data"]["algorithm"] == algorithm.value
    else:
        assert response.status_code == 404
        assert response.json()["error"]["error_code"] == "ERR_NOT_FOUND_001"


def test_every_operation_on_keys_has_its_row() -> None:
    """Every operation with one key is in the table of statuses."""
    used = {operation for spec in ALGORITHMS.values() for operation in spec.operations}
    assert used - LIFECYCLE - {Operation.RE_ENCRYPT} == STATUSES.keys()


@pytest.mark.parametrize("algorithm", CURRENT)
@pytest.mark.parametrize("operation", [Operation.ENCRYPT, Operation.SIGN])
def test_without_an_active_key_and_without_a_version(
    nobody: Caller,
    paths: dict[Operation, str],
    operation: Operation,
    algorithm: Algorithm,
) -> None:
    """Encrypt and sign without key_version are 404 if no key is active."""
    data = "plaintext" if operation is Operation.ENCRYPT else "message"
    body = {data: "QUJD", "algorithm": algorithm.value}
    expected = (
        NOT_FOUND if operation in ALGORITHMS[algorithm].operations else (400, "ERR_INVALID_001")
    )
    assert nobody.refusal(paths[operation], body)[:2] == expected


@pytest.mark.parametrize("algorithm", KEMS)
@pytest.mark.parametrize("version", [RETIRED, ACTIVE])
class TestCiphertexts:
    """Decrypt and decapsulate with valid and damaged inputs."""

    def test_decrypt_returns_the_plaintext(
        self, world: World, algorithm: Algorithm, version: int
    ) -> None:
        """Decrypt returns the plaintext of encrypt."""
        body = world.body(Operation.DECRYPT, algorithm, version)
        assert world.caller.post("/kem/decrypt", body) == {
            "plaintext": world.plaintext,
            "key_version": version,
            "algorithm": algorithm.value,
        }

    @pytest.mark.parametrize("at", [0, 0.25, 0.5, 0.75, 0.9, 1])
    def test_decrypt_400_corrupt_ciphertext(
        self,
        world: World,
        b64: Callable[[bytes], str],
        unb64: Callable[[str], bytes],
        algorithm: Algorithm,
        version: int,
        at: float,
    ) -> None:
        """One flipped bit anywhere in a ciphertext is 400 ERR_KEM_002."""
        body = world.body(Operation.DECRYPT, algorithm, version)
        body["ciphertext"] = damage(body["ciphertext"], at, b64, unb64)
        assert world.caller.refusal("/kem/decrypt", body)[:2] == (400, "ERR_KEM_002")

    def test_decrypt_400_a_part_of_the_ciphertext(
        self,
        world: World,
        b64: Callable[[bytes], str],
        unb64: Callable[[str], bytes],
        algorithm: Algorithm,
        version: int,
    ) -> None:
        """A ciphertext that is cut anywhere, or too long, is 400 ERR_KEM_002."""
        body = world.body(Operation.DECRYPT, algorithm, version)
        whole = unb64(body["ciphertext"])
        kem = ALGORITHMS[algorithm].output_size
        for part in (0, 1, kem - 1, kem, kem + 1, kem + 12, kem + 28, len(whole) - 1):
            cut = {**body, "ciphertext": b64(whole[:part])}
            assert world.caller.refusal("/kem/decrypt", cut)[:2] == (400, "ERR_KEM_002"), part
        longer = {**body, "ciphertext": b64(whole + b"\0")}
        assert world.caller.refusal("/kem/decrypt", longer)[:2] == (400, "ERR_KEM_002")

    def test_decrypt_400_wrong_key_version(
        self, world: World, algorithm: Algorithm, version: int
    ) -> None:
        """If two versions decrypt, the wrong one is 400 ERR_KEM_002."""
        body = world.body(Operation.DECRYPT, algorithm, version)
        body["key_version"] = RETIRED + ACTIVE - version
        assert world.caller.refusal("/kem/decrypt", body)[:2] == (400, "ERR_KEM_002")

    def test_decapsulate_400_bad_size(
        self,
        world: World,
        b64: Callable[[bytes], str],
        unb64: Callable[[str], bytes],
        algorithm: Algorithm,
        version: int,
    ) -> None:
        """A kem_ciphertext of a size that no algorithm has is 400 ERR_KEM_002."""
        body = world.body(Operation.DECAPSULATE, algorithm, version)
        whole = unb64(body["kem_ciphertext"])
        for data in (b"", whole[:1], whole[:-1], whole + b"\0", whole + whole):
            spoiled = {**body, "kem_ciphertext": b64(data)}
            refusal = world.caller.refusal("/kem/decapsulate", spoiled)
            assert refusal[:2] == (400, "ERR_KEM_002"), len(data)

    def test_decapsulate_with_damage_gives_another_secret_or_an_error(
        self,
        world: World,
        b64: Callable[[bytes], str],
        unb64: Callable[[str], bytes],
        algorithm: Algorithm,
        version: int,
    ) -> None:
        """ML-KEM rejects implicitly: damage gives another secret or an error, never a fault."""
        body = world.body(Operation.DECAPSULATE, algorithm, version)
        right = world.caller.post("/kem/decapsulate", body)["shared_secret"]
        other_version = {**body, "key_version": RETIRED + ACTIVE - version}
        damaged = {**body, "kem_ciphertext": damage(body["kem_ciphertext"], 0.5, b64, unb64)}
        for spoiled in (other_version, damaged):
            response = world.caller.ask("POST", "/kem/decapsulate", spoiled)
            assert response.status_code in {200, 400}
            assert right not in response.text


@pytest.mark.parametrize(("operation", "made", "named"), MISMATCHES)
def test_algorithm_mismatch(
    world: World,
    paths: dict[Operation, str],
    operation: Operation,
    made: Algorithm,
    named: Algorithm,
) -> None:
    """A ciphertext under another KEM's name is 400 ERR_INVALID_001, field algorithm."""
    body = {**world.body(operation, made, ACTIVE), "algorithm": named.value}
    refusal = world.caller.refusal(paths[operation], body)
    assert refusal == (400, "ERR_INVALID_001", "algorithm")


@pytest.mark.parametrize("algorithm", KEMS)
def test_encapsulate_and_decapsulate_agree(
    world: World, unb64: Callable[[str], bytes], algorithm: Algorithm
) -> None:
    """Decapsulate recovers the 32 bytes of encapsulate, with the specified sizes."""
    named = {"algorithm": algorithm.value, "key_version": ACTIVE}
    made = world.caller.post("/kem/encapsulate", named)
    assert made.keys() == {"kem_ciphertext", "shared_secret", "key_version", "algorithm"}
    assert len(unb64(made["shared_secret"])) == 32
    assert len(unb64(made["kem_ciphertext"])) == ALGORITHMS[algorithm].output_size
    found = world.caller.post(
        "/kem/decapsulate", {**named, "kem_ciphertext": made["kem_ciphertext"]}
    )
    assert found == {"shared_secret": made["shared_secret"], **named}


@pytest.mark.parametrize("algorithm", KEMS)
def test_a_ciphertext_has_the_specified_size(
    world: World, unb64: Callable[[str], bytes], algorithm: Algorithm
) -> None:
    """KEM ciphertext, 12 bytes of nonce, the data, 16 bytes of tag; always a new one."""
    body = {"plaintext": world.plaintext, "algorithm": algorithm.value}
    first, second = (world.caller.post("/kem/encrypt", body) for _ in range(2))
    assert first.keys() == {"ciphertext", "key_version", "algorithm"}
    size = ALGORITHMS[algorithm].output_size + 12 + len(unb64(world.plaintext)) + 16
    assert len(unb64(first["ciphertext"])) == size
    assert first["ciphertext"] != second["ciphertext"]


@pytest.mark.parametrize("algorithm", fast_algorithms_first(SIGNATURES))
class TestSignatures:
    """An invalid signature is a response with valid false, never an error."""

    def test_verify_is_true_for_what_sign_made(self, world: World, algorithm: Algorithm) -> None:
        """Verify returns true for a signature of sign, with a retired and an active key."""
        for version in (RETIRED, ACTIVE):
            body = world.body(Operation.VERIFY, algorithm, version)
            assert world.caller.post("/signature/verify", body) == {
                "valid": True,
                "key_version": version,
                "algorithm": algorithm.value,
            }

    @pytest.mark.parametrize("field", ["message", "signature"])
    @pytest.mark.parametrize("at", [0, 0.5, 1])
    def test_one_bit_changed(
        self,
        world: World,
        b64: Callable[[bytes], str],
        unb64: Callable[[str], bytes],
        algorithm: Algorithm,
        field: str,
        at: float,
    ) -> None:
        """One flipped bit in message or signature is 200 with valid false."""
        body = world.body(Operation.VERIFY, algorithm, ACTIVE)
        body[field] = damage(body[field], at, b64, unb64)
        assert world.caller.post("/signature/verify", body)["valid"] is False

    def test_a_signature_of_another_size(
        self,
        world: World,
        b64: Callable[[bytes], str],
        unb64: Callable[[str], bytes],
        algorithm: Algorithm,
    ) -> None:
        """A signature that is empty, cut or too long is 200 with valid false."""
        body = world.body(Operation.VERIFY, algorithm, ACTIVE)
        whole = unb64(body["signature"])
        for data in (b"", whole[:1], whole[:-1], whole + b"\0", whole + whole):
            spoiled = {**body, "signature": b64(data)}
            assert world.caller.post("/signature/verify", spoiled)["valid"] is False, len(data)

    def test_a_signature_over_a_hash_is_another(self, world: World, algorithm: Algorithm) -> None:
        """A signature of sign-hash verifies only over its hash, not over a message."""
        body = world.body(Operation.VERIFY_HASH, algorithm, ACTIVE)
        assert world.caller.post("/signature/verify-hash", body) == {
            "valid": True,
            "key_version": ACTIVE,
            "algorithm": algorithm.value,
            "hash_algorithm": "SHA-256",
        }
        as_message = {"message": body["hash"]} | {
            name: value for name, value in body.items() if name not in ("hash", "hash_algorithm")
        }
        assert world.caller.post("/signature/verify", as_message)["valid"] is False
        signed = world.body(Operation.VERIFY, algorithm, ACTIVE)["signature"]
        other = {**body, "signature": signed}
        assert world.caller.post("/signature/verify-hash", other)["valid"] is False

    def test_another_version(self, world: World, algorithm: Algorithm) -> None:
        """A signature of the active key is not valid for the retired one."""
        body = {**world.body(Operation.VERIFY, algorithm, ACTIVE), "key_version": RETIRED}
        assert world.caller.post("/signature/verify", body)["valid"] is False

    def test_every_other_algorithm(self, world: World, algorithm: Algorithm) -> None:
        """A signature under another algorithm's name is not valid, without a fault."""
        for other in world.algorithms.intersection(SIGNATURES):
            if other is not algorithm:
                body = world.body(Operation.VERIFY, algorithm, ACTIVE)
                response = world.caller.ask(
                    "POST", "/signature/verify", {**body, "algorithm": other.value}
                )
                if response.status_code == 200:
                    assert response.json()["data"]["valid"] is False
                else:
                    assert response.json()["error"]["error_code"] == "ERR_INVALID_001"


@pytest.mark.parametrize(
    "algorithm", [a for a, spec in ALGORITHMS.items() if Operation.WRAP in spec.operations]
)
class TestWrappedKeys:
    """Unwrap returns the key of wrap; damage is 400 ERR_KEM_012."""

    @pytest.mark.parametrize("size", [16, 24, 32, 48, 64])
    @pytest.mark.parametrize("prefix", ["/kem/key", "/kem"], ids=["long path", "short path"])
    def test_every_size(
        self,
        world: World,
        b64: Callable[[bytes], str],
        algorithm: Algorithm,
        prefix: str,
        size: int,
    ) -> None:
        """Keys of all permitted sizes are wrapped, with both forms of the path."""
        named = {"algorithm": algorithm.value, "key_version": ACTIVE}
        secret = b64(bytes(range(size)))
        made = world.caller.post(f"{prefix}/wrap", {"symmetric_key": secret, **named})
        is_symmetric = ALGORITHMS[algorithm].is_symmetric
        method = algorithm.value if is_symmetric else "KEM-DEM"
        assert made == {"wrapped_key": made["wrapped_key"], "wrapping_method": method, **named}
        body = {"wrapped_key": made["wrapped_key"], **named}
        assert world.caller.post(f"{prefix}/unwrap", body) == {"symmetric_key": secret, **named}

    @pytest.mark.parametrize("at", [0, 0.5, 0.97, 1])
    def test_damage(
        self,
        world: World,
        b64: Callable[[bytes], str],
        unb64: Callable[[str], bytes],
        algorithm: Algorithm,
        at: float,
    ) -> None:
        """One flipped bit anywhere in a wrapped key is 400 ERR_KEM_012."""
        body = world.body(Operation.UNWRAP, algorithm, ACTIVE)
        body["wrapped_key"] = damage(body["wrapped_key"], at, b64, unb64)
        assert world.caller.refusal("/kem/key/unwrap", body)[:2] == (400, "ERR_KEM_012")

    def test_the_wrong_version(self, world: World, algorithm: Algorithm) -> None:
        """A wrapped key of another version is 400 ERR_KEM_012."""
        body = {**world.body(Operation.UNWRAP, algorithm, ACTIVE), "key_version": RETIRED}
        assert world.caller.refusal("/kem/key/unwrap", body)[:2] == (400, "ERR_KEM_012")

    def test_a_wrapped_key_is_no_ciphertext(self, world: World, algorithm: Algorithm) -> None:
        """Decrypt does not open wrapped keys, and unwrap does not open ciphertexts."""
        named = {"algorithm": algorithm.value, "key_version": ACTIVE}
        wrapped = world.body(Operation.UNWRAP, algorithm, ACTIVE)["wrapped_key"]
        refusal = world.caller.refusal("/kem/decrypt", {"ciphertext": wrapped, **named})
        assert refusal[:2] == (400, "ERR_KEM_002")
        blob = world.body(Operation.DECRYPT, algorithm, ACTIVE)["ciphertext"]
        refusal = world.caller.refusal("/kem/key/unwrap", {"wrapped_key": blob, **named})
        assert refusal[:2] == (400, "ERR_KEM_012")


@pytest.mark.parametrize(
    ("path", "body", "algorithm"),
    [
        pytest.param("/kem/encrypt", {"plaintext": "QUJD"}, "Kyber768", id="encrypt"),
        pytest.param("/kem/encapsulate", {"key_version": ACTIVE}, "Kyber768", id="encapsulate"),
        pytest.param("/signature/sign", {"message": "QUJD"}, "Dilithium3", id="sign"),
    ],
)
def test_the_default_algorithm(
    world: World, path: str, body: dict[str, Any], algorithm: str
) -> None:
    """KEM operations default to Kyber768, signature operations to Dilithium3."""
    assert world.caller.post(path, body)["algorithm"] == algorithm
