"""Answers that pqkeep would not give, and those it seldom gives, from a server that gives them."""

import json
from collections.abc import Callable

import pytest

from pqkeep import Client, InternalError, InvalidRequestError, PqkeepError, ServiceUnavailableError
from pqkeep.errors import BY_STATUS

API_KEY = "pqk_" + "0" * 49
REQUEST_ID = "2b6c6bd4-2f53-4c0e-9d8f-6a5a3c9f7c11"
Answer = Callable[..., str]


@pytest.mark.parametrize("status", BY_STATUS)
def test_status_decides_the_class(answer: Answer, status: int) -> None:
    """Every status that the specification names has its class, whatever the code."""
    error = {"error_code": "ERR_NEW_001", "message": "no"}
    url = answer(json.dumps({"error": error, "request_id": REQUEST_ID}).encode(), status)
    with Client(url, API_KEY) as client, pytest.raises(PqkeepError) as caught:
        client.keys.list()
    assert type(caught.value) is BY_STATUS[status]
    assert (caught.value.status, caught.value.request_id) == (status, REQUEST_ID)
    assert str(caught.value) == f"no (ERR_NEW_001, request {REQUEST_ID})"


def test_classes() -> None:
    """Both kinds of bad input are one class, and so are all ways of not being there."""
    assert BY_STATUS[400] is BY_STATUS[422] is InvalidRequestError
    assert BY_STATUS[502] is BY_STATUS[503] is BY_STATUS[504] is ServiceUnavailableError


def test_unknown_status(answer: Answer) -> None:
    """An error with a status of no class is a PqkeepError all the same."""
    url = answer(b'{"error": {"error_code": "ERR_TEAPOT_001", "message": "tea"}}', 418)
    with Client(url, API_KEY) as client, pytest.raises(PqkeepError) as caught:
        client.keys.list()
    assert type(caught.value) is PqkeepError


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("-7", None), ("soon", None), ("9" * 5000, None), ("Fri, 13 Nov 2026", None)],
)
def test_retry_after(answer: Answer, header: str, seconds: int | None) -> None:
    """Retry-After counts if it is seconds, and does no harm if it is anything else."""
    body = b'{"error": {"error_code": "ERR_SERVICE_001", "message": "no"}}'
    url = answer(body, 503, (("Retry-After", header),))
    with Client(url, API_KEY) as client, pytest.raises(ServiceUnavailableError) as caught:
        client.keys.list()
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("status", [200, 404, 503])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<h1>It works!</h1>",
        b"\xff\xfe",
        b"[]",
        b'{"data": []}',
        b'{"error": "no"}',
        b'{"error": {"error_code": 1, "message": "no"}}',
        b'{"data": ' + b"[" * 100_000,
    ],
)
def test_no_envelope(answer: Answer, body: bytes, status: int) -> None:
    """An answer that is no envelope is an InternalError that does not hold the answer."""
    with Client(answer(body, status), API_KEY) as client, pytest.raises(InternalError) as caught:
        client.keys.list()
    assert caught.value.status == status
    assert caught.value.__context__ is None


def test_data_with_an_error_status(answer: Answer) -> None:
    """Data does not make a success of an error."""
    url = answer(b'{"data": {"valid": true}}', 500)
    with Client(url, API_KEY) as client, pytest.raises(InternalError):
        client.signatures.verify(b"", b"", key_version=1)


def test_redirect(answer: Answer) -> None:
    """A redirect is not followed: the API key goes nowhere else."""
    elsewhere = answer(b'{"data": {"keys": [], "total": 0}}')
    url = answer(b"", 307, (("Location", elsewhere),))
    with Client(url, API_KEY) as client, pytest.raises(InternalError) as caught:
        client.keys.list()
    assert caught.value.status == 307


def test_broken_compression(answer: Answer) -> None:
    """An answer that does not decompress is an InternalError."""
    url = answer(b"not gzip", 200, (("Content-Encoding", "gzip"),))
    with Client(url, API_KEY) as client, pytest.raises(InternalError):
        client.keys.list()


@pytest.mark.parametrize("valid", ["true", "false", 1, 0, None, []])
def test_only_true_is_true(answer: Answer, valid: object) -> None:
    """A signature is valid if the answer is true, and not if it is anything that counts as true."""
    url = answer(json.dumps({"data": {"valid": valid}}).encode())
    with Client(url, API_KEY) as client, pytest.raises(InternalError) as caught:
        client.signatures.verify(b"", b"", key_version=1)
    assert caught.value.field == "valid"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key_version", True),
        ("key_version", "1"),
        ("algorithm", None),
        ("public_key", "no base64!"),
        ("public_key", "clé="),
        ("public_key", "AAA"),
        ("created_at", "yesterday"),
        ("created_at", 0),
    ],
)
def test_malformed_field(answer: Answer, field: str, value: object) -> None:
    """A field of the wrong type or form is an InternalError that names it and the request."""
    key = {
        "key_version": 1,
        "algorithm": "Kyber768",
        "status": "active",
        "public_key": "AAAA",
        "created_at": "2026-01-01T00:00:00.000Z",
    }
    envelope = {"data": {"keys": [key, key | {field: value}]}, "request_id": REQUEST_ID}
    url = answer(json.dumps(envelope).encode())
    with Client(url, API_KEY) as client, pytest.raises(InternalError) as caught:
        client.keys.list()
    assert (caught.value.field, caught.value.request_id) == (field, REQUEST_ID)


def test_list_of_something_else(answer: Answer) -> None:
    """A list of keys that has something else in it is an InternalError."""
    url = answer(b'{"data": {"keys": ["Kyber768"]}}')
    with Client(url, API_KEY) as client, pytest.raises(InternalError):
        client.keys.list()
