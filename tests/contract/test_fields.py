"""Rules of every field: required, of the right type, encoded and in range."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from tests.contract.conftest import World
from tests.fixtures.caller import refusal_of

from pqkeep_protocol.algorithms import ALGORITHMS, CURRENT, USES, Algorithm, Kind, Operation

MIB = 1_048_576
KIB_64 = 65_536
MISSING = object()

BINARY_FIELDS = [
    pytest.param(Operation.ENCRYPT, "plaintext", "ERR_KEM_001", id="encrypt plaintext"),
    pytest.param(Operation.DECRYPT, "ciphertext", "ERR_KEM_002", id="decrypt ciphertext"),
    pytest.param(
        Operation.DECAPSULATE, "kem_ciphertext", "ERR_KEM_002", id="decapsulate kem_ciphertext"
    ),
    pytest.param(Operation.WRAP, "symmetric_key", "ERR_KEM_010", id="wrap symmetric_key"),
    pytest.param(Operation.UNWRAP, "wrapped_key", "ERR_KEM_011", id="unwrap wrapped_key"),
    pytest.param(Operation.SIGN, "message", "ERR_SIG_001", id="sign message"),
    pytest.param(Operation.VERIFY, "message", "ERR_SIG_001", id="verify message"),
    pytest.param(Operation.VERIFY, "signature", "ERR_SIG_001", id="verify signature"),
    pytest.param(Operation.SIGN_HASH, "hash", "ERR_SIG_001", id="sign-hash hash"),
    pytest.param(Operation.VERIFY_HASH, "hash", "ERR_SIG_001", id="verify-hash hash"),
    pytest.param(Operation.VERIFY_HASH, "signature", "ERR_SIG_001", id="verify-hash signature"),
    pytest.param(Operation.SIGN_MU, "mu", "ERR_SIG_001", id="sign-mu mu"),
    pytest.param(Operation.VERIFY_MU, "mu", "ERR_SIG_001", id="verify-mu mu"),
    pytest.param(Operation.VERIFY_MU, "signature", "ERR_SIG_001", id="verify-mu signature"),
    pytest.param(Operation.COMPUTE_MAC, "message", "ERR_INVALID_001", id="compute-mac message"),
    pytest.param(Operation.VERIFY_MAC, "message", "ERR_INVALID_001", id="verify-mac message"),
    pytest.param(Operation.VERIFY_MAC, "mac", "ERR_INVALID_001", id="verify-mac mac"),
]
NOT_BASE64 = [
    pytest.param(MISSING, id="missing"),
    pytest.param(None, id="null"),
    pytest.param(True, id="true"),
    pytest.param(0, id="0"),
    pytest.param(1.5, id="1.5"),
    pytest.param([], id="array"),
    pytest.param({}, id="object"),
    pytest.param(["QUJD"], id="array of a string"),
    pytest.param("QUI", id="without padding"),
    pytest.param("QQ=", id="half the padding"),
    pytest.param("QUJD=", id="padding too much"),
    pytest.param("QUJD====", id="padding only at the end"),
    pytest.param("=", id="padding alone"),
    pytest.param("Q", id="one character"),
    pytest.param("-_-_", id="URL-safe alphabet"),
    pytest.param(" QUJD", id="space before"),
    pytest.param("QUJD ", id="space after"),
    pytest.param("QU JD", id="space inside"),
    pytest.param("QUJD\n", id="line feed after"),
    pytest.param("QUJD\r\nQUJD", id="lines"),
    pytest.param("QUI=QUJD", id="padding inside"),
    pytest.param("QUJD\0", id="null byte"),
    pytest.param("QUJDé===", id="not ASCII"),
    pytest.param("ＱＵＪＤ", id="full-width letters"),  # noqa: RUF001
    pytest.param("data:;base64,QUJD", id="data URL"),
]
VERSION_FIELDS = [
    pytest.param(Operation.ENCRYPT, "ERR_KEM_001", False, id="encrypt"),
    pytest.param(Operation.DECRYPT, "ERR_KEM_002", True, id="decrypt"),
    pytest.param(Operation.ENCAPSULATE, "ERR_KEM_001", True, id="encapsulate"),
    pytest.param(Operation.DECAPSULATE, "ERR_KEM_002", True, id="decapsulate"),
    pytest.param(Operation.WRAP, "ERR_KEM_010", True, id="wrap"),
    pytest.param(Operation.UNWRAP, "ERR_KEM_011", True, id="unwrap"),
    pytest.param(Operation.SIGN, "ERR_SIG_001", False, id="sign"),
    pytest.param(Operation.VERIFY, "ERR_SIG_001", True, id="verify"),
    pytest.param(Operation.SIGN_HASH, "ERR_SIG_001", False, id="sign-hash"),
    pytest.param(Operation.VERIFY_HASH, "ERR_SIG_001", True, id="verify-hash"),
    pytest.param(Operation.SIGN_MU, "ERR_SIG_001", False, id="sign-mu"),
    pytest.param(Operation.VERIFY_MU, "ERR_SIG_001", True, id="verify-mu"),
    pytest.param(Operation.GENERATE_DATA_KEY, "ERR_KEM_010", False, id="data-key"),
    pytest.param(Operation.COMPUTE_MAC, "ERR_INVALID_001", False, id="compute-mac"),
    pytest.param(Operation.VERIFY_MAC, "ERR_INVALID_001", True, id="verify-mac"),
]
NO_VERSION = [
    pytest.param(0, id="0"),
    pytest.param(-1, id="-1"),
    pytest.param(-(2**63), id="-2^63"),
    pytest.param(-(10**30), id="-10^30"),
    pytest.param(True, id="true"),
    pytest.param(False, id="false"),
    pytest.param(3.0, id="3.0"),
    pytest.param(2.5, id="2.5"),
    pytest.param("3", id="string 3"),
    pytest.param("", id="empty string"),
    pytest.param([3], id="array"),
    pytest.param({"value": 3}, id="object"),
]
UNKNOWN_VERSION = [
    pytest.param(4, id="the next one"),
    pytest.param(2**31 - 1, id="2^31-1"),
    pytest.param(2**31, id="2^31"),
    pytest.param(2**32 + 3, id="2^32+3"),
    pytest.param(2**53 + 1, id="2^53+1"),
    pytest.param(2**63, id="2^63"),
    pytest.param(2**64, id="2^64"),
    pytest.param(2**64 + 3, id="2^64+3"),
    pytest.param(10**30, id="10^30"),
]
NO_ALGORITHM = [
    pytest.param("", id="empty"),
    pytest.param("kyber768", id="wrong case"),
    pytest.param("ml-kem-768", id="another name, wrong case"),
    pytest.param("ML-KEM-512", id="a standard that is not served"),
    pytest.param("ML_KEM_768", id="a name of ours"),
    pytest.param(" Kyber768", id="space before"),
    pytest.param("RSA", id="another"),
    pytest.param(True, id="true"),
    pytest.param(1, id="number"),
    pytest.param(["Kyber768"], id="array"),
    pytest.param({"Kyber768": 1}, id="object"),
    pytest.param("x" * 10_000, id="10,000 characters"),
]


def example(operation: Operation) -> Algorithm:
    """Return the first algorithm with an operation."""
    return next(a for a, spec in ALGORITHMS.items() if operation in spec.operations)


@pytest.fixture
def body(world: World) -> Callable[[Operation], dict[str, Any]]:
    """Make a request that succeeds, with an active key. The test then changes it."""
    return lambda operation: world.body(operation, example(operation), 3)


@pytest.mark.parametrize(("operation", "field", "code"), BINARY_FIELDS)
@pytest.mark.parametrize("value", NOT_BASE64)
def test_a_binary_field_is_standard_base64(
    world: World,
    paths: dict[Operation, str],
    body: Callable[[Operation], dict[str, Any]],
    operation: Operation,
    field: str,
    code: str,
    value: object,
) -> None:
    """A binary field that is missing, of another type or invalid base64 is named."""
    spoiled = {**body(operation), field: value}
    if value is MISSING:
        del spoiled[field]
    assert world.caller.refusal(paths[operation], spoiled) == (400, code, field)


@pytest.mark.parametrize(("operation", "code", "required"), VERSION_FIELDS)
@pytest.mark.parametrize("value", NO_VERSION)
def test_key_version_is_a_positive_integer(
    world: World,
    paths: dict[Operation, str],
    body: Callable[[Operation], dict[str, Any]],
    operation: Operation,
    code: str,
    required: bool,  # noqa: FBT001 - a column of the table
    value: object,
) -> None:
    """A key_version that is not a positive JSON integer is named, required or not."""
    spoiled = {**body(operation), "key_version": value}
    assert world.caller.refusal(paths[operation], spoiled) == (400, code, "key_version")


@pytest.mark.parametrize(("operation", "code", "required"), VERSION_FIELDS)
def test_key_version_is_required_where_the_table_says_so(
    world: World,
    paths: dict[Operation, str],
    body: Callable[[Operation], dict[str, Any]],
    operation: Operation,
    code: str,
    required: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """Encrypt and sign default to the active key; the others require key_version."""
    without = body(operation)
    del without["key_version"]
    response = world.caller.ask("POST", paths[operation], without)
    if required:
        assert response.status_code == 400
        error = response.json()["error"]
        assert (error["error_code"], error["field"]) == (code, "key_version")
    else:
        assert response.json()["data"]["key_version"] == 3


@pytest.mark.parametrize(("operation", "code", "required"), VERSION_FIELDS)
@pytest.mark.parametrize("value", UNKNOWN_VERSION)
def test_a_version_that_does_not_exist_is_404(
    world: World,
    paths: dict[Operation, str],
    body: Callable[[Operation], dict[str, Any]],
    operation: Operation,
    code: str,
    required: bool,  # noqa: FBT001 - a column of the table
    value: int,
) -> None:
    """A version that does not exist is 404 ERR_NOT_FOUND_001, for any number."""
    asked = {**body(operation), "key_version": value}
    status, error, _ = world.caller.refusal(paths[operation], asked)
    assert (status, error) == (404, "ERR_NOT_FOUND_001")


@pytest.mark.parametrize("value", NO_ALGORITHM)
@pytest.mark.parametrize(
    "path",
    [
        "/kem/encrypt",
        "/kem/decrypt",
        "/kem/encapsulate",
        "/kem/decapsulate",
        "/signature/sign",
        "/signature/verify",
        "/kem/key/wrap",
        "/kem/key/unwrap",
        "/kem/data-key",
        "/mac/compute",
        "/mac/verify",
        "/signature/sign-hash",
        "/signature/verify-hash",
        "/signature/sign-mu",
        "/signature/verify-mu",
        "/kms/keys/generate",
        "/kms/keys/rotate",
        "/kms/keys/retire",
    ],
)
def test_algorithm_is_a_wire_value(world: World, path: str, value: object) -> None:
    """An invalid algorithm is always 400 ERR_INVALID_001, field algorithm."""
    refusal = world.caller.refusal(path, {"algorithm": value})
    assert refusal == (400, "ERR_INVALID_001", "algorithm")


@pytest.mark.parametrize("algorithm", CURRENT)
@pytest.mark.parametrize("operation", [operation for operation in Operation if operation in USES])
def test_an_algorithm_does_only_its_own_operations(
    world: World, paths: dict[Operation, str], algorithm: Algorithm, operation: Operation
) -> None:
    """An algorithm of the wrong kind is 400 ERR_INVALID_001, field algorithm."""
    body: dict[str, object] = {"algorithm": algorithm.value}
    if operation is Operation.GENERATE_DATA_KEY:  # which needs no other field
        body["size"] = 0
    refusal = world.caller.refusal(paths[operation], body)
    mismatch = (400, "ERR_INVALID_001", "algorithm")
    assert (refusal == mismatch) is (operation not in ALGORITHMS[algorithm].operations)


@pytest.mark.parametrize(
    ("path", "field", "other", "size"),
    [
        pytest.param("/kem/encrypt", "plaintext", {}, MIB, id="encrypt plaintext 1 MiB"),
        pytest.param("/signature/sign", "message", {}, MIB, id="sign message 1 MiB"),
        pytest.param("/mac/compute", "message", {}, MIB, id="compute-mac message 1 MiB"),
    ],
)
def test_exactly_at_the_limit(
    world: World,
    b64: Callable[[bytes], str],
    path: str,
    field: str,
    other: dict[str, Any],
    size: int,
) -> None:
    """The largest plaintext and the largest message are accepted."""
    assert world.caller.post(path, {field: b64(bytes(size)), **other})


@pytest.mark.parametrize(
    ("path", "field", "other", "size", "code"),
    [
        pytest.param(
            "/kem/encrypt", "plaintext", {}, MIB, "ERR_KEM_001", id="encrypt plaintext 1 MiB"
        ),
        pytest.param("/signature/sign", "message", {}, MIB, "ERR_SIG_002", id="sign 1 MiB"),
        pytest.param(
            "/signature/verify",
            "message",
            {"signature": "QUJD", "key_version": 3},
            MIB,
            "ERR_SIG_002",
            id="verify message 1 MiB",
        ),
        pytest.param(
            "/signature/verify",
            "signature",
            {"message": "QUJD", "key_version": 3},
            KIB_64,
            "ERR_SIG_002",
            id="verify signature 64 KiB",
        ),
        pytest.param(
            "/kem/decrypt",
            "ciphertext",
            {"key_version": 3},
            MIB + KIB_64,
            "ERR_KEM_002",
            id="decrypt ciphertext 1 MiB and overhead",
        ),
        pytest.param(
            "/kem/decapsulate",
            "kem_ciphertext",
            {"key_version": 3},
            KIB_64,
            "ERR_KEM_002",
            id="decapsulate kem_ciphertext 64 KiB",
        ),
    ],
)
def test_one_over_the_limit(
    world: World,
    b64: Callable[[bytes], str],
    path: str,
    field: str,
    other: dict[str, Any],
    size: int,
    code: str,
) -> None:
    """One byte over the limit is refused with the operation's code and the field."""
    refusal = world.caller.refusal(path, {field: b64(bytes(size + 1)), **other})
    assert refusal == (400, code, field)


@pytest.mark.parametrize(
    ("path", "field", "code"),
    [
        ("/kem/encrypt", "plaintext", "ERR_KEM_001"),
        ("/signature/sign", "message", "ERR_SIG_002"),
    ],
)
def test_twice_the_limit_is_the_operation_s_error(
    world: World, b64: Callable[[bytes], str], path: str, field: str, code: str
) -> None:
    """A plaintext or message of 2 MiB is refused with the operation's code, not the body's."""
    refusal = world.caller.refusal(path, {field: b64(bytes(2 * MIB))})
    assert refusal == (400, code, field)


def test_the_largest_message_and_signature_are_checked(
    world: World, b64: Callable[[bytes], str]
) -> None:
    """Verify accepts 1 MiB and 64 KiB, and returns false for unrelated values."""
    body = {"message": b64(bytes(MIB)), "signature": b64(bytes(KIB_64)), "key_version": 3}
    assert world.caller.post("/signature/verify", body)["valid"] is False


def test_the_largest_ciphertext_is_decrypted(
    world: World, b64: Callable[[bytes], str], unb64: Callable[[str], bytes]
) -> None:
    """Decrypt accepts the ciphertext of the largest plaintext, for every KEM."""
    plaintext = bytes(range(256)) * (MIB // 256)
    for algorithm, spec in ALGORITHMS.items():
        if spec.kind is not Kind.KEM:
            continue
        named = {"algorithm": algorithm.value}
        made = world.caller.post("/kem/encrypt", {"plaintext": b64(plaintext), **named})
        body = {"ciphertext": made["ciphertext"], "key_version": made["key_version"], **named}
        assert unb64(world.caller.post("/kem/decrypt", body)["plaintext"]) == plaintext


@pytest.mark.parametrize("algorithm", [a for a, s in ALGORITHMS.items() if s.kind is Kind.KEM])
def test_an_empty_plaintext_is_a_plaintext(world: World, algorithm: Algorithm) -> None:
    """An empty plaintext can be encrypted: empty is not missing."""
    named = {"algorithm": algorithm.value}
    made = world.caller.post("/kem/encrypt", {"plaintext": "", **named})
    body = {"ciphertext": made["ciphertext"], "key_version": made["key_version"], **named}
    assert world.caller.post("/kem/decrypt", body)["plaintext"] == ""


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        pytest.param({"mode": "random"}, (400, "ERR_KEM_007", "mode"), id="unknown mode"),
        pytest.param({"mode": ""}, (400, "ERR_KEM_007", "mode"), id="empty mode"),
        pytest.param({"mode": "Standard"}, (400, "ERR_KEM_007", "mode"), id="mode in capitals"),
        pytest.param({"mode": 1}, (400, "ERR_KEM_007", "mode"), id="mode is a number"),
        pytest.param({"mode": ["standard"]}, (400, "ERR_KEM_007", "mode"), id="mode is an array"),
        pytest.param({"mode": {}}, (400, "ERR_KEM_007", "mode"), id="mode is an object"),
        pytest.param({"mode": "deterministic"}, (400, "ERR_INVALID_001", "salt"), id="no salt"),
        pytest.param(
            {"mode": "deterministic", "salt": None},
            (400, "ERR_INVALID_001", "salt"),
            id="salt is null",
        ),
        pytest.param(
            {"mode": "deterministic", "salt": "-_-_"},
            (400, "ERR_INVALID_002", "salt"),
            id="salt not base64",
        ),
        pytest.param(
            {"mode": "deterministic", "salt": 1},
            (400, "ERR_INVALID_002", "salt"),
            id="salt is a number",
        ),
        pytest.param(
            {"salt": "QUI"}, (400, "ERR_INVALID_002", "salt"), id="salt not base64, mode standard"
        ),
    ],
)
def test_mode_and_salt_are_checked(
    world: World, given: dict[str, Any], refusal: tuple[int, str, str]
) -> None:
    """Mode must be standard or deterministic, with a base64 salt for deterministic."""
    body = {"plaintext": "QUJD", **given}
    assert world.caller.refusal("/kem/encrypt", body) == refusal


@pytest.mark.parametrize(
    "given",
    [{"mode": "standard"}, {"mode": "deterministic", "salt": "QUJD"}, {"salt": "QUJD"}],
    ids=["standard", "deterministic with a salt", "a salt alone"],
)
def test_deterministic_mode_is_accepted_and_randomised(world: World, given: dict[str, Any]) -> None:
    """Both modes encrypt, and two ciphertexts of one plaintext always differ."""
    body = {"plaintext": "QUJD", **given}
    first, second = (world.caller.post("/kem/encrypt", body)["ciphertext"] for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    "field", ["key_version", "algorithm", "mode", "salt"], ids=lambda field: f"{field} null"
)
def test_null_is_the_same_as_missing(world: World, field: str) -> None:
    """Null in an optional field means that the field is missing."""
    made = world.caller.post("/kem/encrypt", {"plaintext": "QUJD", field: None})
    assert (made["key_version"], made["algorithm"]) == (3, "Kyber768")


def test_no_error_repeats_what_was_sent(
    world: World, paths: dict[Operation, str], body: Callable[[Operation], dict[str, Any]]
) -> None:
    """An error never quotes the input of any field."""
    marker = "EchoMeIfYouDare"
    for operation, path in paths.items():
        for field in ("algorithm", "key_version", "mode", "salt", *body(operation)):
            response = world.caller.ask("POST", path, {**body(operation), field: marker + "!"})
            assert marker not in response.text
    for query in (f"?algorithm={marker}", f"?status={marker}", f"/{marker}?algorithm={marker}"):
        response = world.caller.ask("GET", f"/kms/keys{query}")
        assert response.status_code == 400
        assert marker not in response.text


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (Operation.SIGN_HASH, "hash"),
        (Operation.SIGN_MU, "mu"),
        (Operation.WRAP, "symmetric_key"),
        (Operation.UNWRAP, "wrapped_key"),
        (Operation.DECRYPT, "ciphertext"),
        (Operation.DECAPSULATE, "kem_ciphertext"),
    ],
)
def test_hexadecimal_that_is_base64_too_is_named(
    world: World,
    operation: Operation,
    field: str,
    body: Callable[[Operation], dict[str, Any]],
    paths: dict[Operation, str],
) -> None:
    """Hexadecimal digits that are also base64 are recognized in the error."""
    digits = bytes(range(40)).hex()
    response = world.caller.ask("POST", paths[operation], {**body(operation), field: digits})
    assert response.status_code == 400
    assert "hexadecimal" in response.json()["error"]["message"]
    assert digits not in response.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("-----BEGIN PGP MESSAGE-----\n\nQUJD\n-----END PGP MESSAGE-----\n", "base64 of PEM"),
        ('{"kty": "AKP", "alg": "ML-KEM-768"}', "base64 of JSON"),
        ("A" * 1500, "base64 of base64"),
    ],
)
@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (Operation.WRAP, "symmetric_key"),
        (Operation.UNWRAP, "wrapped_key"),
        (Operation.DECRYPT, "ciphertext"),
        (Operation.DECAPSULATE, "kem_ciphertext"),
        (Operation.ENCAPSULATE, "public_key"),
    ],
)
def test_text_that_is_encoded_once_more_is_named(
    world: World,
    operation: Operation,
    field: str,
    body: Callable[[Operation], dict[str, Any]],
    paths: dict[Operation, str],
    text: str,
    said: str,
) -> None:
    """Base64 of a text, as secret stores encode files, is recognized in the error."""
    fields = {**body(operation), field: b64encode(text.encode()).decode()}
    if field == "public_key":
        fields.pop("key_version", None)
    response = world.caller.ask("POST", paths[operation], fields)
    assert response.status_code == 400
    assert response.json()["error"]["field"] == field
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("size", [0, 1, 1115])
def test_a_ciphertext_that_is_too_short_is_no_failed_check(
    world: World, body: Callable[[Operation], dict[str, Any]], size: int
) -> None:
    """A too short ciphertext is reported as too short, and not as a failed decryption."""
    fields = {**body(Operation.DECRYPT), "ciphertext": b64encode(bytes(size)).decode()}
    response = world.caller.ask("POST", "/kem/decrypt", fields)
    assert refusal_of(response) == (400, "ERR_KEM_002", "ciphertext")
    message = response.json()["error"]["message"]
    assert message.startswith(
        f"ciphertext has {size:,} bytes; a ciphertext has at least 1,116 bytes"
    )
