"""Many calls in few requests: the same results in the same order, for any number and size."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, TypeVar, cast

import pytest

from pqkeep import (
    Client,
    DecryptionError,
    EncryptionInputError,
    InvalidRequestError,
    MalformedResponseError,
    NotFoundError,
    PqkeepError,
)
from pqkeep._call import Call, post
from pqkeep._many import MAX_BODY, MAX_ITEMS, batches

R = TypeVar("R")
KEM, SIGNATURE = "Kyber768", "Dilithium3"


def succeeded(results: Iterable[R | PqkeepError]) -> list[R]:
    """Return results. None may be an error."""
    made = list(results)
    assert not [item for item in made if isinstance(item, PqkeepError)]
    return cast("list[R]", made)


def test_every_operation(client: Client) -> None:
    """A batch operation reverses the other. Each result equals the result of a single call."""
    for algorithm in (KEM, SIGNATURE):
        client.keys.generate(algorithm)
    texts = [bytes([number]) * 32 for number in range(3)]

    def items(name: str, values: Any) -> list[dict[str, Any]]:
        return [{name: value} for value in values]

    kem, signatures, one = client.kem, client.signatures, {"key_version": 1}
    sealed = [item.ciphertext for item in succeeded(kem.encrypt_many(items("plaintext", texts)))]
    assert list(kem.decrypt_many(items("ciphertext", sealed), **one)) == texts
    wrapped = [
        item.wrapped_key for item in succeeded(kem.wrap_many(items("symmetric_key", texts), **one))
    ]
    assert list(kem.unwrap_many(items("wrapped_key", wrapped), **one)) == texts
    made = succeeded(kem.encapsulate_many([one] * 3, algorithm=KEM))
    opened = kem.decapsulate_many(
        items("kem_ciphertext", [item.kem_ciphertext for item in made]), **one
    )
    assert list(opened) == [item.shared_secret for item in made]
    for argument, sign, verify, more in (
        ("message", signatures.sign_many, signatures.verify_many, {}),
        (
            "digest",
            signatures.sign_hash_many,
            signatures.verify_hash_many,
            {"hash_algorithm": "SHA-256"},
        ),
    ):
        signed = [
            item.signature for item in succeeded(cast("Any", sign)(items(argument, texts), **more))
        ]
        pairs = [
            {argument: text, "signature": signature}
            for text, signature in zip([*texts[:2], bytes(32)], signed, strict=True)
        ]
        assert list(verify(pairs, **one, **more)) == [True, True, texts[2] == bytes(32)]


def test_re_encryption(client: Client) -> None:
    """Re-encrypted items decrypt with the other algorithm, and only there."""
    for algorithm in (KEM, "X-Wing"):
        client.keys.generate(algorithm)
    sealed = [client.kem.encrypt(plaintext) for plaintext in (b"one", b"two")]
    items = [{"ciphertext": item.ciphertext, "key_version": 1} for item in sealed]
    moved = succeeded(client.kem.re_encrypt_many(items, to_algorithm="X-Wing"))
    assert [(item.algorithm, item.keyring, item.wrapped_key) for item in moved] == [
        ("X-Wing", "default", None)
    ] * 2
    opened = client.kem.decrypt_many(
        [{"ciphertext": item.ciphertext, "key_version": 1} for item in moved], algorithm="X-Wing"
    )
    assert list(opened) == [b"one", b"two"]


def test_re_encryption_after_a_rotation(client: Client) -> None:
    """Without a target, one item and many move to the version after a rotation."""
    client.keys.generate(KEM)
    sealed = client.kem.encrypt(b"one").ciphertext
    client.keys.rotate(KEM)
    moved = [
        client.kem.re_encrypt(sealed, key_version=1),
        *succeeded(client.kem.re_encrypt_many([{"ciphertext": sealed, "key_version": 1}])),
    ]
    assert [(item.algorithm, item.key_version) for item in moved] == [(KEM, 2)] * 2


def test_an_item_that_is_refused(client: Client) -> None:
    """A refused item gives the exception of a single call, with code, field and request id."""
    client.keys.generate(KEM)
    good, bad, late = client.kem.decrypt_many(
        [
            {"ciphertext": client.kem.encrypt(b"a secret").ciphertext, "key_version": 1},
            {"ciphertext": bytes(2000), "key_version": 1},
            {"ciphertext": bytes(2000), "key_version": 2},
        ]
    )
    assert good == b"a secret"
    assert isinstance(bad, DecryptionError)
    assert (bad.error_code, bad.field) == ("ERR_KEM_002", "ciphertext")
    assert bad.request_id
    assert isinstance(late, NotFoundError)


def test_more_than_one_request_takes(client: Client) -> None:
    """300 items need three requests, and results arrive request by request."""
    client.keys.generate(KEM)
    texts = [str(number).encode() for number in range(300)]
    sealed = [
        {"ciphertext": item.ciphertext, "key_version": item.key_version}
        for item in succeeded(client.kem.encrypt_many({"plaintext": text} for text in texts))
    ]
    assert list(client.kem.decrypt_many(sealed)) == texts


def test_what_refuses_a_whole_request_is_raised(client: Client) -> None:
    """An item too large for any request is refused, after the results of the items before it."""
    client.keys.generate(KEM)
    items = [{"plaintext": b"small"}, {"plaintext": bytes(MAX_BODY)}]
    results = iter(client.kem.encrypt_many(items))
    assert succeeded([next(results)])[0].algorithm == KEM
    with pytest.raises((InvalidRequestError, EncryptionInputError)):
        next(results)


def test_nothing_of_nothing(client: Client) -> None:
    """No items make no request and no results."""
    assert list(client.kem.encrypt_many([])) == []


def test_an_argument_for_all_and_for_one(client: Client) -> None:
    """An argument both in an item and for all items is refused before sending."""
    with pytest.raises(TypeError, match="algorithm"):
        list(client.kem.encrypt_many([{"plaintext": b"", "algorithm": KEM}], algorithm=KEM))


@pytest.mark.parametrize(
    "results", [[], [{"data": {}}], [{"data": {"plaintext": "AAAA"}}] * 3, [{}, {}], "AAAA"]
)
def test_an_answer_that_is_none(
    response: Callable[..., str], connect: Callable[..., Client], results: object
) -> None:
    """A wrong number of results, or a result without data and error, is a malformed response."""
    envelope = {"data": {"results": results}, "request_id": "1", "timestamp": ""}
    client = connect(response(json.dumps(envelope).encode()), "key")
    items = [{"ciphertext": b"", "key_version": 1}] * 2
    with pytest.raises(MalformedResponseError):
        list(client.kem.decrypt_many(items))


def _calls(*sizes: int) -> list[Call[Any]]:
    return [post("/kem/encrypt", lambda data: data, {"plaintext": "A" * size}) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1] * MAX_ITEMS, [MAX_ITEMS]),
        ([1] * (MAX_ITEMS + 1), [MAX_ITEMS, 1]),
        ([1] * (3 * MAX_ITEMS), [MAX_ITEMS] * 3),
        ([MAX_BODY // 2] * 2, [1, 1]),
        ([MAX_BODY // 2 - 100] * 3, [2, 1]),
        ([1, MAX_BODY * 2, 1], [1, 1, 1]),
        ([], []),
    ],
)
def test_how_calls_are_split(sizes: list[int], expected: list[int]) -> None:
    """Each request takes as many items as fit, in order; an oversized one goes alone."""
    made = [batch.content or b"" for batch in batches(_calls(*sizes))]
    bodies = [json.loads(body) for body in made]
    assert [len(body["items"]) for body in bodies] == expected
    assert [len(item["plaintext"]) for body in bodies for item in body["items"]] == sizes
    assert all(len(body) <= MAX_BODY for body in made if len(json.loads(body)["items"]) > 1)


def test_items_are_taken_as_they_are_needed() -> None:
    """An endless iterator of items is read only up to the first request."""
    endless = iter(lambda: _calls(1)[0], None)
    bodies = [json.loads(batch.content or b"") for batch in islice(batches(endless), 2)]
    assert [len(body["items"]) for body in bodies] == [MAX_ITEMS] * 2
