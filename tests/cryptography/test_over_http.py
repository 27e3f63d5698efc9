"""Tampering, separation and sizes over HTTP: one documented code each, never a fault."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from itertools import permutations

import httpx2
import pytest

from pqkeep_protocol.algorithms import (
    ALGORITHMS,
    CURRENT,
    DIGEST_SIZE,
    Algorithm,
    HashAlgorithm,
    Kind,
    Operation,
)

Body = dict[str, object]
Post = Callable[[str, Body], httpx2.Response]

KEMS = [a for a in Algorithm if ALGORITHMS[a].kind is Kind.KEM]
WRAPPING = [a for a in KEMS if Operation.WRAP in ALGORITHMS[a].operations]
SIGNATURES = [a for a in Algorithm if ALGORITHMS[a].kind is Kind.SIGNATURE]
QUICK_SIGNATURES = (Algorithm.ML_DSA_65, Algorithm.COMPOSITE_ML_DSA, Algorithm.SLH_DSA_SHA2_128F)
SIZES = (16, 24, 32, 48, 64)
WRAPPED_SIZES = {ALGORITHMS[a].output_size + 12 + size + 16 for a in WRAPPING for size in SIZES}
DATA = bytes(range(64))
NONCE, TAG = 12, 16
M_CIPHERTEXT = 1088
LOW_ORDER = (
    bytes(32),
    b"\1" + bytes(31),
    bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
    bytes.fromhex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"),
    bytes.fromhex("ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f"),
)
PATHS = {
    Operation.ENCRYPT: "/kem/encrypt",
    Operation.DECRYPT: "/kem/decrypt",
    Operation.ENCAPSULATE: "/kem/encapsulate",
    Operation.DECAPSULATE: "/kem/decapsulate",
    Operation.WRAP: "/kem/key/wrap",
    Operation.UNWRAP: "/kem/key/unwrap",
    Operation.SIGN: "/signature/sign",
    Operation.VERIFY: "/signature/verify",
    Operation.SIGN_HASH: "/signature/sign-hash",
    Operation.VERIFY_HASH: "/signature/verify-hash",
}
NO_ALGORITHMS: tuple[object, ...] = ("", "kyber768", "ml-kem-768", 1, True, [], {})
MISMATCH = (400, "ERR_INVALID_001", "algorithm")


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _bytes(response: httpx2.Response, name: str) -> bytes:
    assert response.status_code == 200, response.text
    return b64decode(response.json()["data"][name], validate=True)


def _refusal(response: httpx2.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["error_code"], error.get("field")


def _ciphertext(post: Post, algorithm: Algorithm, data: bytes = DATA) -> bytes:
    body: Body = {"algorithm": algorithm, "plaintext": _text(data)}
    return _bytes(post("/kem/encrypt", body), "ciphertext")


def _kem_ciphertext(post: Post, algorithm: Algorithm) -> bytes:
    body: Body = {"algorithm": algorithm, "key_version": 1}
    return _bytes(post("/kem/encapsulate", body), "kem_ciphertext")


def _wrapped(post: Post, algorithm: Algorithm, data: bytes = DATA) -> bytes:
    body: Body = {"algorithm": algorithm, "key_version": 1, "symmetric_key": _text(data)}
    return _bytes(post("/kem/key/wrap", body), "wrapped_key")


def _decrypt(post: Post, algorithm: Algorithm, blob: bytes) -> httpx2.Response:
    body: Body = {"algorithm": algorithm, "key_version": 1, "ciphertext": _text(blob)}
    return post("/kem/decrypt", body)


def _decapsulate(post: Post, algorithm: Algorithm, ciphertext: bytes) -> httpx2.Response:
    body: Body = {"algorithm": algorithm, "key_version": 1, "kem_ciphertext": _text(ciphertext)}
    return post("/kem/decapsulate", body)


def _unwrap(
    post: Post, algorithm: Algorithm, blob: bytes, path: str = "/kem/key/unwrap"
) -> httpx2.Response:
    body: Body = {"algorithm": algorithm, "key_version": 1, "wrapped_key": _text(blob)}
    return post(path, body)


def _flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 1
    return bytes(changed)


def _damaged(blob: bytes, first: int) -> Iterator[bytes]:
    """Yield ciphertexts with flipped bits at the borders of parts, and too long ciphertexts."""
    for position in (0, first - 1, first, first + NONCE - 1, first + NONCE, -TAG - 1, -TAG, -1):
        yield _flipped(blob, position)
    yield blob + b"\0"
    yield blob + blob


def _cut(blob: bytes, first: int) -> Iterator[bytes]:
    """Yield a ciphertext cut at the borders of its parts."""
    for size in (0, 1, first - 1, first, first + NONCE, first + NONCE + TAG - 1):
        yield blob[:size]


@pytest.mark.parametrize("algorithm", KEMS)
def test_a_damaged_ciphertext_has_one_code(algorithm: Algorithm, post: Post) -> None:
    """A flipped bit or another length at any part's border is 400 ERR_KEM_002 for decrypt."""
    size = ALGORITHMS[algorithm].output_size
    made = _ciphertext(post, algorithm)
    assert _bytes(_decrypt(post, algorithm, made), "plaintext") == DATA
    for blob in (*_damaged(made, size), *_cut(made, size), made[:-1]):
        answer = _decrypt(post, algorithm, blob)
        assert _refusal(answer) == (400, "ERR_KEM_002", "ciphertext")


@pytest.mark.parametrize("algorithm", WRAPPING)
def test_a_damaged_wrapped_key_has_one_code(algorithm: Algorithm, post: Post) -> None:
    """Unwrap of a damaged wrapped key is 400 ERR_KEM_012, of a short one ERR_KEM_011.

    A short one of another algorithm's size is an algorithm mismatch.
    """
    size = ALGORITHMS[algorithm].output_size
    made = _wrapped(post, algorithm)
    for blob in (*_damaged(made, size), made[:-1]):
        answer = _unwrap(post, algorithm, blob)
        assert _refusal(answer) == (400, "ERR_KEM_012", "wrapped_key")
    shortest = size + NONCE + min(SIZES) + TAG
    for blob in (*_cut(made, size), made[: shortest - 1]):
        answer = _unwrap(post, algorithm, blob)
        too_short = (400, "ERR_KEM_011", "wrapped_key")
        assert _refusal(answer) == (MISMATCH if len(blob) in WRAPPED_SIZES else too_short)
    answer = _unwrap(post, algorithm, made[:shortest])
    assert _refusal(answer) == (400, "ERR_KEM_012", "wrapped_key")


@pytest.mark.parametrize("algorithm", KEMS)
def test_a_kem_ciphertext_of_no_algorithms_size_has_one_code(
    algorithm: Algorithm, post: Post
) -> None:
    """Decapsulate is 400 ERR_KEM_002 for every size that no KEM has."""
    size = ALGORITHMS[algorithm].output_size
    made = _kem_ciphertext(post, algorithm)
    for other in (b"", made[:1], made[: size - 1], made + b"\0", made + made):
        answer = _decapsulate(post, algorithm, other)
        assert _refusal(answer) == (400, "ERR_KEM_002", "kem_ciphertext")


@pytest.mark.parametrize("algorithm", KEMS)
def test_a_changed_kem_ciphertext_gives_another_secret(algorithm: Algorithm, post: Post) -> None:
    """Decapsulate of a flipped bit is 200 with another secret: implicit rejection."""
    body: Body = {"algorithm": algorithm, "key_version": 1}
    made = post("/kem/encapsulate", body)
    ciphertext, secret = _bytes(made, "kem_ciphertext"), _bytes(made, "shared_secret")
    assert _bytes(_decapsulate(post, algorithm, ciphertext), "shared_secret") == secret
    others = {
        _bytes(_decapsulate(post, algorithm, _flipped(ciphertext, position)), "shared_secret")
        for position in (0, M_CIPHERTEXT - 1, len(ciphertext) - 1)
    }
    assert len(others) == len({0, M_CIPHERTEXT - 1, len(ciphertext) - 1})
    assert secret not in others


@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_a_low_order_point_has_one_code(point: bytes, post: Post) -> None:
    """X-Wing with an X25519 part of low order is 400 ERR_KEM_002, and ERR_KEM_012 for unwrap."""
    ciphertext = _kem_ciphertext(post, Algorithm.X_WING)[:M_CIPHERTEXT] + point
    answer = _decapsulate(post, Algorithm.X_WING, ciphertext)
    assert _refusal(answer) == (400, "ERR_KEM_002", "kem_ciphertext")
    answer = _decrypt(post, Algorithm.X_WING, ciphertext + DATA)
    assert _refusal(answer) == (400, "ERR_KEM_002", "ciphertext")
    answer = _unwrap(post, Algorithm.X_WING, ciphertext + DATA)
    assert _refusal(answer) == (400, "ERR_KEM_012", "wrapped_key")


@pytest.mark.parametrize("algorithm", QUICK_SIGNATURES)
@pytest.mark.parametrize("kind", ["message", "hash"])
def test_a_damaged_signature_is_not_valid(algorithm: Algorithm, kind: str, post: Post) -> None:
    """Verify and verify-hash are 200 and false for a changed, cut or lengthened signature."""
    body: Body = {"algorithm": algorithm, "key_version": 1, kind: _text(DATA)}
    sign, verify = "/signature/sign", "/signature/verify"
    if kind == "hash":
        body["hash_algorithm"] = "SHA-512"
        sign, verify = "/signature/sign-hash", "/signature/verify-hash"
    made = _bytes(post(sign, body), "signature")
    given = [(made, True), (b"", False), (made[:1], False), (made[:3309], len(made) == 3309)]
    given += [(made[:-1], False), (made + b"\0", False), (bytes(65_536), False)]
    given += [(_flipped(made, position), False) for position in (0, 3308, -1)]
    for signature, valid in given:
        answer = post(verify, {**body, "signature": _text(signature)})
        assert answer.status_code == 200
        assert answer.json()["data"]["valid"] is valid


def test_signatures_are_for_one_endpoint(post: Post) -> None:
    """A signature of sign is invalid for verify-hash, and one of sign-hash for verify."""
    for algorithm in QUICK_SIGNATURES:
        named: Body = {"algorithm": algorithm, "key_version": 1}
        over_message: Body = {**named, "message": _text(DATA)}
        over_hash: Body = {**named, "hash": _text(DATA), "hash_algorithm": "SHA-512"}
        signed = _bytes(post("/signature/sign", over_message), "signature")
        hashed = _bytes(post("/signature/sign-hash", over_hash), "signature")
        for path, body, signature, valid in (
            ("/signature/verify", over_message, signed, True),
            ("/signature/verify-hash", over_hash, hashed, True),
            ("/signature/verify", over_message, hashed, False),
            ("/signature/verify-hash", over_hash, signed, False),
        ):
            answer = post(path, {**body, "signature": _text(signature)})
            assert answer.json()["data"]["valid"] is valid


@pytest.mark.parametrize(("made_with", "named"), list(permutations(KEMS, 2)))
def test_another_kems_ciphertext_is_a_mismatch(
    made_with: Algorithm, named: Algorithm, post: Post
) -> None:
    """Decrypt and decapsulate name the field algorithm for another KEM's ciphertext."""
    for data in (b"", DATA):
        blob = _ciphertext(post, made_with, data)
        assert _refusal(_decrypt(post, named, blob)) == MISMATCH
    ciphertext = _kem_ciphertext(post, made_with)
    assert _refusal(_decapsulate(post, named, ciphertext)) == MISMATCH


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("made_with", WRAPPING)
def test_a_key_wrapped_with_another_kem_is_a_mismatch(
    made_with: Algorithm, size: int, post: Post
) -> None:
    """Unwrap names the field algorithm for a key of each size wrapped by the other KEM."""
    (named,) = set(WRAPPING) - {made_with}
    blob = _wrapped(post, made_with, DATA[:size])
    assert _refusal(_unwrap(post, named, blob)) == MISMATCH


def test_an_algorithm_of_another_kind_is_named(post: Post) -> None:
    """An operation is 400 ERR_INVALID_001, field algorithm, for an algorithm that it lacks.

    This check comes before all other fields.
    """
    refused = 0
    for operation, path in PATHS.items():
        for algorithm in CURRENT:
            if operation not in ALGORITHMS[algorithm].operations:
                assert _refusal(post(path, {"algorithm": algorithm})) == MISMATCH
                refused += 1
        for wrong in NO_ALGORITHMS:
            assert _refusal(post(path, {"algorithm": wrong})) == MISMATCH
    symmetric = 6 + 2 * 10  # of the cipher, and of two kinds of MACs
    assert refused == 6 * len(SIGNATURES) + 4 * len(KEMS) + 2 + symmetric


@pytest.mark.parametrize("algorithm", WRAPPING)
def test_keys_of_five_sizes_can_be_wrapped(algorithm: Algorithm, post: Post) -> None:
    """Wrap accepts 16, 24, 32, 48 and 64 bytes; other sizes up to 80 are 400 ERR_KEM_010."""
    for size in range(81):
        key = bytes(size)
        body: Body = {"algorithm": algorithm, "key_version": 1, "symmetric_key": _text(key)}
        answer = post("/kem/key/wrap", body)
        if size in SIZES:
            wrapped = _bytes(answer, "wrapped_key")
            assert len(wrapped) == ALGORITHMS[algorithm].output_size + NONCE + size + TAG
            assert _bytes(_unwrap(post, algorithm, wrapped), "symmetric_key") == key
        else:
            assert _refusal(answer) == (400, "ERR_KEM_010", "symmetric_key")


@pytest.mark.parametrize("algorithm", WRAPPING)
def test_the_short_paths_are_the_long_ones(algorithm: Algorithm, post: Post) -> None:
    """Results of either path of wrap open on both paths of unwrap, with equal errors."""
    body: Body = {"algorithm": algorithm, "key_version": 1, "symmetric_key": _text(DATA)}
    for wrap in ("/kem/wrap", "/kem/key/wrap"):
        answer = post(wrap, body)
        assert answer.json()["data"].keys() == {
            "wrapped_key",
            "key_version",
            "algorithm",
            "wrapping_method",
        }
        assert answer.json()["data"]["wrapping_method"] == "KEM-DEM"
        for unwrap in ("/kem/unwrap", "/kem/key/unwrap"):
            wrapped = _bytes(answer, "wrapped_key")
            opened = _unwrap(post, algorithm, wrapped, unwrap)
            assert _bytes(opened, "symmetric_key") == DATA
            damaged = _unwrap(post, algorithm, _flipped(wrapped, -1), unwrap)
            assert _refusal(damaged) == (400, "ERR_KEM_012", "wrapped_key")
            short = _unwrap(post, algorithm, b"short", unwrap)
            assert _refusal(short) == (400, "ERR_KEM_011", "wrapped_key")
        wrong = post(wrap, {**body, "symmetric_key": "AAAA"})
        assert _refusal(wrong) == (400, "ERR_KEM_010", "symmetric_key")


REST: dict[str, Body] = {
    "sign-hash": {"key_version": 1},
    "verify-hash": {"key_version": 1, "signature": ""},
}
"""The other fields of a request."""


@pytest.mark.parametrize("operation", ["sign-hash", "verify-hash"])
def test_digests_have_their_hashs_size(operation: str, post: Post) -> None:
    """A digest of the wrong size for its hash function, up to 80 bytes, is 400 ERR_SIG_011."""
    for hash_algorithm in HashAlgorithm:
        for size in set(range(81)) - {DIGEST_SIZE[hash_algorithm]}:
            body: Body = {"hash": _text(bytes(size)), "hash_algorithm": hash_algorithm}
            answer = post("/signature/" + operation, {**body, **REST[operation]})
            assert _refusal(answer) == (400, "ERR_SIG_011", "hash")


@pytest.mark.parametrize("operation", ["sign-hash", "verify-hash"])
@pytest.mark.parametrize(
    "name",
    [None, "", "sha-256", "SHA256", "SHA-1", "SHA-224", "SHA3-256", "SHA-256 ", 256, [], {}, True],
    ids=repr,
)
def test_other_hash_functions_are_refused(operation: str, name: object, post: Post) -> None:
    """An unknown hash function, or another spelling, is 400 ERR_SIG_010."""
    for size in DIGEST_SIZE.values():
        body: Body = {"hash": _text(bytes(size)), "hash_algorithm": name}
        answer = post("/signature/" + operation, {**body, **REST[operation]})
        assert _refusal(answer) == (400, "ERR_SIG_010", "hash_algorithm")


def test_another_tenants_blobs_do_not_open(
    post: Post, new_tenant_with_keys: Callable[[], Post]
) -> None:
    """Another tenant's ciphertext and wrapped key have the codes of damaged ones."""
    stranger = new_tenant_with_keys()
    for algorithm in KEMS:
        answer = _decrypt(stranger, algorithm, _ciphertext(post, algorithm))
        assert _refusal(answer) == (400, "ERR_KEM_002", "ciphertext")
    for algorithm in WRAPPING:
        answer = _unwrap(stranger, algorithm, _wrapped(post, algorithm))
        assert _refusal(answer) == (400, "ERR_KEM_012", "wrapped_key")


def test_wrapped_keys_and_ciphertexts_are_not_the_same(post: Post) -> None:
    """A wrapped key does not decrypt, and a ciphertext does not unwrap."""
    for algorithm in WRAPPING:
        answer = _decrypt(post, algorithm, _wrapped(post, algorithm))
        assert _refusal(answer) == (400, "ERR_KEM_002", "ciphertext")
        answer = _unwrap(post, algorithm, _ciphertext(post, algorithm))
        assert _refusal(answer) == (400, "ERR_KEM_012", "wrapped_key")
