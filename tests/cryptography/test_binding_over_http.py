"""Associated data, contexts, envelopes, mu and supplied public keys, over HTTP."""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from tests.fixtures.installation import Installation
from tests.sampling import step

from pqkeep_protocol.algorithms import ALGORITHMS, MAX_ASSOCIATED_DATA, Algorithm, Kind, Operation
from pqkeep_protocol.public_keys import to_pem

Body = dict[str, object]
Post = Callable[[str, Body], httpx2.Response]

KEMS = [a for a, spec in ALGORITHMS.items() if spec.kind is Kind.KEM]
ENCRYPTING = [a for a, spec in ALGORITHMS.items() if spec.kind in {Kind.KEM, Kind.CIPHER}]
ML_DSA = [Algorithm.ML_DSA_65, Algorithm.ML_DSA_87]
DATA, ROW, OTHER_ROW = b"4111-1111", b"customers/42", b"customers/43"
HEADER = 6 + len("default")
NUMBER = {
    Algorithm.ML_KEM_768: 1,
    Algorithm.X_WING: 2,
    Algorithm.ML_KEM_1024: 3,
    Algorithm.XAES_256_GCM: 4,
}
EMPTY: tuple[object, ...] = (None, "")


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def _data(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    data: dict[str, Any] = response.json()["data"]
    return data


def _refusal(response: httpx2.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["error_code"], error.get("field")


def _opened(envelope: str) -> bytes:
    text = envelope.removeprefix("pqk1.")
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _closed(data: bytes) -> str:
    return "pqk1." + urlsafe_b64encode(data).decode().rstrip("=")


def _envelope(post: Post, algorithm: Algorithm, **more: object) -> str:
    body: Body = {"algorithm": algorithm, "plaintext": _text(DATA), "format": "envelope", **more}
    data = _data(post("/kem/encrypt", body))
    assert data.keys() == {"envelope", "key_version", "algorithm"}
    envelope: str = data["envelope"]
    return envelope


# --- associated data ------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ENCRYPTING)
def test_a_row_s_ciphertext_does_not_open_in_another_row(algorithm: Algorithm, post: Post) -> None:
    """A ciphertext bound to its row is refused elsewhere; an unbound one opens anywhere."""
    rows: tuple[object, ...] = (_text(ROW), _text(OTHER_ROW), *EMPTY)
    for made in rows:
        plain: Body = {"algorithm": algorithm, "plaintext": _text(DATA), "associated_data": made}
        sealed = _data(post("/kem/encrypt", plain))
        assert sealed.keys() == {"ciphertext", "key_version", "algorithm"}
        for read in rows:
            response = post("/kem/decrypt", {**sealed, "associated_data": read})
            if made == read or {made, read} <= set(EMPTY):
                assert b64decode(_data(response)["plaintext"]) == DATA
            else:
                assert _refusal(response) == (400, "ERR_KEM_002", "ciphertext")


@pytest.mark.parametrize("algorithm", [a for a in ENCRYPTING if a is not Algorithm.ML_KEM_1024])
def test_a_row_s_wrapped_key_does_not_open_in_another_row(algorithm: Algorithm, post: Post) -> None:
    """The same holds for wrapped keys, with their own code."""
    key: Body = {"algorithm": algorithm, "key_version": 1, "symmetric_key": _text(bytes(32))}
    wrapped = _data(post("/kem/key/wrap", {**key, "associated_data": _text(ROW)}))
    del wrapped["wrapping_method"]
    opened = _data(post("/kem/key/unwrap", {**wrapped, "associated_data": _text(ROW)}))
    assert b64decode(opened["symmetric_key"]) == bytes(32)
    for row in (_text(OTHER_ROW), *EMPTY):
        response = post("/kem/key/unwrap", {**wrapped, "associated_data": row})
        assert _refusal(response) == (400, "ERR_KEM_012", "wrapped_key")


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/kem/encrypt", "ERR_KEM_001"),
        ("/kem/decrypt", "ERR_KEM_002"),
        ("/kem/key/wrap", "ERR_KEM_010"),
        ("/kem/key/unwrap", "ERR_KEM_011"),
    ],
)
def test_associated_data_that_cannot_be(path: str, code: str, post: Post) -> None:
    """Associated data above 65,536 bytes, or in invalid base64, has the operation's own code."""
    body: dict[str, Body] = {
        "/kem/encrypt": {"plaintext": "AAAA"},
        "/kem/decrypt": {"ciphertext": "AAAA", "key_version": 1},
        "/kem/key/wrap": {"symmetric_key": _text(bytes(32)), "key_version": 1},
        "/kem/key/unwrap": {"wrapped_key": _text(bytes(1148)), "key_version": 1},
    }
    wrong: tuple[object, ...] = (_text(bytes(MAX_ASSOCIATED_DATA + 1)), "no base64 ", 42, [], "A")
    for bad in wrong:
        response = post(path, {**body[path], "associated_data": bad})
        assert _refusal(response) == (400, code, "associated_data")


def test_the_largest_of_everything_at_once(post: Post) -> None:
    """An envelope holds 1 MiB of data with 64 KiB of associated data."""
    data, row = os.urandom(1_048_576), _text(os.urandom(MAX_ASSOCIATED_DATA))
    body: Body = {"plaintext": _text(data), "associated_data": row, "format": "envelope"}
    envelope = _data(post("/kem/encrypt", body))["envelope"]
    opened = _data(post("/kem/decrypt", {"envelope": envelope, "associated_data": row}))
    assert b64decode(opened["plaintext"]) == data


# --- contexts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["sign", "verify"])
def test_a_context_that_cannot_be(operation: str, post: Post) -> None:
    """A context above 255 bytes, a reserved one, or invalid base64 is ERR_SIG_001."""
    body: Body = {"message": _text(DATA)}
    if operation == "verify":
        body |= {"signature": "", "key_version": 1}
    ours = (b"pqkeep/", b"pqkeep/v1/sign-hash", b"pqkeep/v2/anything")
    for bad in (_text(bytes(256)), *map(_text, ours), "invoices ", 1, {}):
        response = post(f"/signature/{operation}", {**body, "context": bad})
        assert _refusal(response) == (400, "ERR_SIG_001", "context")


@pytest.mark.parametrize("algorithm", [*ML_DSA, Algorithm.COMPOSITE_ML_DSA])
def test_a_context_is_part_of_what_is_signed(algorithm: Algorithm, post: Post) -> None:
    """A signature verifies only with its own context."""
    context = _text(bytes(255))
    message: Body = {"message": _text(DATA), "algorithm": algorithm}
    signed = _data(post("/signature/sign", {**message, "context": context}))
    for other in (context, _text(bytes(254)), *EMPTY):
        verified = _data(post("/signature/verify", {**message, **signed, "context": other}))
        assert verified["valid"] is (other == context)


# --- envelopes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ENCRYPTING)
def test_an_envelope_decrypts_by_itself(algorithm: Algorithm, post: Post) -> None:
    """An envelope names its key and decrypts like a ciphertext; repeating the names is allowed."""
    envelope = _envelope(post, algorithm)
    assert _opened(envelope)[:HEADER] == bytes((NUMBER[algorithm], 0, 0, 0, 1, 7)) + b"default"
    for more in ({}, {"algorithm": algorithm}, {"ciphertext": None, "key_version": None}):
        opened = _data(post("/kem/decrypt", {"envelope": envelope, **more}))
        assert opened == {"plaintext": _text(DATA), "key_version": 1, "algorithm": algorithm}


@pytest.mark.parametrize("algorithm", ENCRYPTING)
def test_every_changed_byte_is_refused(algorithm: Algorithm, post: Post) -> None:
    """Each changed byte is refused: header, KEM ciphertext, nonce, data and tag."""
    data = _opened(_envelope(post, algorithm))
    size = HEADER + ALGORITHMS[algorithm].output_size
    for place in (*range(HEADER), *range(HEADER, size, step(97)), *range(size, len(data))):
        changed = bytearray(data)
        changed[place] ^= 1
        status, code, _ = _refusal(post("/kem/decrypt", {"envelope": _closed(bytes(changed))}))
        assert (status, code) in {
            (400, "ERR_KEM_002"),
            (400, "ERR_INVALID_001"),  # another algorithm is named
            (404, "ERR_NOT_FOUND_001"),  # another version, or keyring, which there is not
        }


def test_no_other_header_opens_it(post: Post) -> None:
    """With any other key of the tenant in its header, the envelope does not open."""
    blobs = {a: _opened(_envelope(post, a))[HEADER:] for a in ENCRYPTING}
    for algorithm, blob in blobs.items():
        for other in ENCRYPTING:
            header = bytes((NUMBER[other], 0, 0, 0, 1, 7)) + b"default"
            response = post("/kem/decrypt", {"envelope": _closed(header + blob)})
            assert (response.status_code == 200) is (other is algorithm)


def _malformed(envelope: str) -> Iterator[object]:
    data = _opened(envelope)
    yield from ("", "pqk1.", "pqk1", "pqk2." + envelope[5:], envelope[5:], " " + envelope)
    yield from (envelope + "=", envelope + "\n", envelope.replace("pqk1", "PQK1"))
    yield from (1, [], {}, True, "pqk1." + _text(data), _closed(data[:HEADER])[:-1])
    yield _closed(data[:5])
    yield _closed(bytes((9,)) + data[1:])
    yield _closed(data[:1] + bytes(4) + data[5:])
    yield _closed(data[:5] + bytes((0,)) + data[HEADER:])
    yield _closed(data[:5] + bytes((7,)) + b".efault" + data[HEADER:])
    yield _closed(data + bytes(1_100_000))
    padded = _closed(data + b"\0" * (2 - len(data) % 3 or 2))
    yield padded[:-1] + chr(ord(padded[-1]) + 1)  # bits behind the end that are not zero


def test_what_is_no_envelope_is_refused(post: Post) -> None:
    """A text in a form that encrypt does not make is 400 with its field."""
    for bad in _malformed(_envelope(post, Algorithm.ML_KEM_768)):
        response = post("/kem/decrypt", {"envelope": bad})
        assert _refusal(response) == (400, "ERR_KEM_002", "envelope")


@pytest.mark.parametrize(
    ("more", "refusal"),
    [
        ({"ciphertext": "AAAA", "key_version": 1}, (400, "ERR_KEM_002", "ciphertext")),
        ({"key_version": 1}, (400, "ERR_KEM_002", "key_version")),
        ({"algorithm": "X-Wing"}, (400, "ERR_INVALID_001", "algorithm")),
        ({"keyring": "payments.cards"}, (400, "ERR_INVALID_001", "keyring")),
        ({"algorithm": "Dilithium3"}, (400, "ERR_INVALID_001", "algorithm")),
        ({"associated_data": _text(ROW)}, (400, "ERR_KEM_002", "envelope")),
    ],
)
def test_what_an_envelope_says_cannot_be_said_otherwise(
    more: Body, refusal: tuple[int, str, str], post: Post
) -> None:
    """A ciphertext, a version, or another algorithm or keyring beside an envelope is refused."""
    envelope = _envelope(post, Algorithm.ML_KEM_768)
    assert _refusal(post("/kem/decrypt", {"envelope": envelope, **more})) == refusal


@pytest.mark.parametrize(
    "lists", [{"algorithms": ["X-Wing"]}, {"keyrings": ["payments.*"]}, {"operations": ["encrypt"]}]
)
def test_scopes_are_asked_for_what_the_envelope_names(
    lists: dict[str, list[str]], installation: Installation
) -> None:
    """Scopes apply to the envelope's algorithm and keyring, not to the defaults."""
    owner = installation.new_tenant()
    for algorithm in ("Kyber768", "X-Wing"):
        owner.post("/kms/keys/generate", {"algorithm": algorithm}, status=201)
    sealed = owner.post("/kem/encrypt", {"plaintext": _text(DATA), "format": "envelope"})
    path = f"/tenants/{owner.tenant_id}/api-keys"
    made = owner.post(path, {"scopes": [{"operations": ["decrypt"], **lists}]}, status=201)
    limited = installation.caller(made["api_key"], owner.tenant_id)
    response = limited.ask("POST", "/kem/decrypt", {"envelope": sealed["envelope"]})
    assert _refusal(response) == (403, "ERR_POLICY_001", None)


def test_envelopes_and_supplied_keys_in_a_batch(
    post: Post, new_post: Callable[[Algorithm], tuple[Post, bytes]]
) -> None:
    """Each item can have its own envelope, or its own public key."""
    envelopes = [_envelope(post, algorithm) for algorithm in ENCRYPTING]
    items: list[Body] = [{"envelope": each} for each in envelopes]
    response = post("/kem/decrypt/batch", {"items": [*items, {"envelope": "pqk1."}]})
    *opened, refused = _data(response)["results"]
    assert [each["data"]["algorithm"] for each in opened] == ENCRYPTING
    assert {each["data"]["plaintext"] for each in opened} == {_text(DATA)}
    assert refused["error"]["error_code"] == "ERR_KEM_002"
    _, public_key = new_post(Algorithm.ML_KEM_768)
    response = post("/kem/encapsulate/batch", {"items": [{"public_key": _text(public_key)}, {}]})
    made, refused = _data(response)["results"]
    assert made["data"].keys() == {"kem_ciphertext", "shared_secret", "algorithm"}
    assert refused["error"]["field"] == "key_version"


def test_format_is_one_of_two(post: Post) -> None:
    """The default format is `ciphertext`. Unknown formats are refused."""
    body: Body = {"plaintext": _text(DATA)}
    assert "ciphertext" in _data(post("/kem/encrypt", {**body, "format": "ciphertext"}))
    for bad in ("", "Envelope", "jwe", 1):
        response = post("/kem/encrypt", {**body, "format": bad})
        assert _refusal(response) == (400, "ERR_KEM_001", "format")


# --- supplied public keys -------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", KEMS)
def test_data_for_whoever_has_the_key(
    algorithm: Algorithm, post: Post, new_post: Callable[[Algorithm], tuple[Post, bytes]]
) -> None:
    """A tenant encrypts to another's public key, as base64 and PEM, and the owner decrypts."""
    owner, public_key = new_post(algorithm)
    for text in (_text(public_key), to_pem(algorithm, public_key)):
        key: Body = {"algorithm": algorithm, "public_key": text}
        sealed = _data(
            post("/kem/encrypt", {**key, "plaintext": _text(DATA), "associated_data": _text(ROW)})
        )
        assert sealed.keys() == {"ciphertext", "algorithm"}
        read: Body = {**sealed, "key_version": 1}
        opened = _data(owner("/kem/decrypt", {**read, "associated_data": _text(ROW)}))
        assert b64decode(opened["plaintext"]) == DATA
        assert _refusal(owner("/kem/decrypt", read)) == (400, "ERR_KEM_002", "ciphertext")
        shared = _data(post("/kem/encapsulate", key))
        assert shared.keys() == {"kem_ciphertext", "shared_secret", "algorithm"}
        secret = shared.pop("shared_secret")
        assert _data(owner("/kem/decapsulate", {**shared, "key_version": 1})) == {
            "shared_secret": secret,
            "key_version": 1,
            "algorithm": algorithm,
        }


@pytest.mark.parametrize("algorithm", [*ML_DSA, Algorithm.COMPOSITE_ML_DSA])
def test_signatures_of_whoever_has_the_key(
    algorithm: Algorithm, post: Post, new_post: Callable[[Algorithm], tuple[Post, bytes]]
) -> None:
    """A signer's public key verifies in each of the verifying operations."""
    owner, public_key = new_post(algorithm)
    digest: Body = {"hash": _text(bytes(32)), "hash_algorithm": "SHA-256"}
    cases: list[tuple[str, Body]] = [("", {"message": _text(DATA)}), ("-hash", digest)]
    if Operation.SIGN_MU in ALGORITHMS[algorithm].operations:
        cases.append(("-mu", {"mu": _text(bytes(64))}))
    for name, what in cases:
        signed = _data(owner(f"/signature/sign{name}", {**what, "algorithm": algorithm}))
        for text in (_text(public_key), to_pem(algorithm, public_key)):
            body: Body = {**what, "algorithm": algorithm, "public_key": text}
            good = _data(
                post(f"/signature/verify{name}", {**body, "signature": signed["signature"]})
            )
            assert good.pop("hash_algorithm", "SHA-256") == "SHA-256"
            assert good == {"valid": True, "algorithm": algorithm}
            bad = _data(post(f"/signature/verify{name}", {**body, "signature": "AAAA"}))
            assert bad["valid"] is False


TAKES_A_KEY: dict[str, tuple[str, Body, Algorithm]] = {
    "/kem/encrypt": ("ERR_KEM_001", {"plaintext": "AAAA"}, Algorithm.ML_KEM_768),
    "/kem/encapsulate": ("ERR_KEM_001", {}, Algorithm.ML_KEM_768),
    "/signature/verify": ("ERR_SIG_001", {"message": "", "signature": ""}, Algorithm.ML_DSA_65),
    "/signature/verify-hash": (
        "ERR_SIG_001",
        {"hash": _text(bytes(32)), "hash_algorithm": "SHA-256", "signature": ""},
        Algorithm.ML_DSA_65,
    ),
    "/signature/verify-mu": (
        "ERR_SIG_001",
        {"mu": _text(bytes(64)), "signature": ""},
        Algorithm.ML_DSA_65,
    ),
}


@pytest.mark.parametrize("path", TAKES_A_KEY)
def test_a_key_that_cannot_be(path: str, post: Post) -> None:
    """A malformed, mismatched or ambiguous public key is refused with its error code."""
    code, body, algorithm = TAKES_A_KEY[path]
    size = ALGORITHMS[algorithm].public_key_size
    good = bytes(size)
    pem = to_pem(algorithm, good)
    wrong: tuple[object, ...] = (
        *("", "AAAA", _text(bytes(size - 1)), _text(bytes(size + 1)), "x" * 9000, 1, [], {}),
        *(pem[:-40], pem.replace("PUBLIC", "PRIVATE"), pem + pem, pem[27:], "-----BEGIN"),
    )
    for bad in wrong:
        response = post(path, {**body, "public_key": bad})
        assert _refusal(response) == (400, code, "public_key")
    other = Algorithm.X_WING if algorithm is Algorithm.ML_KEM_768 else Algorithm.ML_DSA_87
    foreign = to_pem(other, bytes(ALGORITHMS[other].public_key_size))
    response = post(path, {**body, "public_key": foreign})
    assert _refusal(response) == (400, "ERR_INVALID_001", "algorithm")
    response = post(path, {**body, "public_key": _text(good), "key_version": 1})
    assert _refusal(response) == (400, code, "key_version")
    if path == "/kem/encrypt":
        response = post(path, {**body, "public_key": _text(good), "format": "envelope"})
        assert _refusal(response) == (400, code, "format")


def test_no_answer_repeats_a_key_that_was_refused(post: Post) -> None:
    """A refused key is never quoted."""
    for text in (_text(b"\xff" * 1184), "-----BEGIN CANARY KEY-----"):
        response = post("/kem/encapsulate", {"public_key": text})
        assert response.status_code == 400
        assert text[:20] not in json.dumps(response.json())
