"""Invalid and rare responses, from a test server."""

import gzip
import json
import re
import zlib
from collections.abc import Callable
from typing import Any

import pytest

import pqkeep
from pqkeep import (
    Client,
    DecryptionError,
    InternalError,
    InvalidRequestError,
    MalformedResponseError,
    OutOfServiceError,
    PqkeepError,
    UnavailableError,
    errors,
)
from pqkeep._response import MAX_RESPONSE
from pqkeep.errors import BY_CODE, BY_STATUS, RETRIED

API_KEY = "pqk_" + "0" * 49
REQUEST_ID = "2b6c6bd4-2f53-4c0e-9d8f-6a5a3c9f7c11"
Answer = Callable[..., str]
Connect = Callable[..., Client]


@pytest.mark.parametrize("status", BY_STATUS)
def test_status_decides_the_class(connect: Connect, response: Answer, status: int) -> None:
    """Every status of the specification has its class, with any code."""
    error = {"error_code": "ERR_NEW_001", "message": "no"}
    url = response(json.dumps({"error": error, "request_id": REQUEST_ID}).encode(), status)
    with pytest.raises(PqkeepError) as caught:
        connect(url, API_KEY).keys.list()
    assert type(caught.value) is BY_STATUS[status]
    assert (caught.value.status, caught.value.request_id) == (status, REQUEST_ID)
    assert str(caught.value) == f"no (ERR_NEW_001, request {REQUEST_ID})"


@pytest.mark.parametrize("code", BY_CODE)
def test_code_decides_the_class(connect: Connect, response: Answer, code: str) -> None:
    """A code with its own class has that class under any status, below its family's class."""
    url = response(json.dumps({"error": {"error_code": code, "message": "no"}}).encode(), 400)
    with pytest.raises(PqkeepError) as caught:
        connect(url, API_KEY).keys.list()
    assert type(caught.value) is BY_CODE[code]
    assert not isinstance(caught.value, UnavailableError)


def test_classes() -> None:
    """Families are classes: one except clause catches related errors."""
    assert issubclass(DecryptionError, InvalidRequestError)
    assert BY_STATUS[400] is BY_STATUS[405] is BY_STATUS[422] is InvalidRequestError
    assert all(issubclass(BY_STATUS[status], RETRIED) for status in (429, 500, 502, 503, 504))
    assert not any(issubclass(BY_STATUS[status], RETRIED) for status in BY_STATUS if status < 429)


def test_tree() -> None:
    """The tree in the docstring has every class, with the codes of the tables."""
    classes = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, PqkeepError)
    }
    tree = str(errors.__doc__)
    assert set(re.findall(r"\b\w+Error\b", tree)) == classes
    assert classes <= set(pqkeep.__all__)
    for code, error in BY_CODE.items():
        assert re.search(rf"{error.__name__}\b.*{code}", tree)


def test_unknown_status(connect: Connect, response: Answer) -> None:
    """An error with an unknown status is a PqkeepError."""
    url = response(b'{"error": {"error_code": "ERR_TEAPOT_001", "message": "tea"}}', 418)
    with pytest.raises(PqkeepError) as caught:
        connect(url, API_KEY).keys.list()
    assert type(caught.value) is PqkeepError


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        (" 007 ", 7),
        ("0", 0),
        ("-7", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("9" * 5000, 999_999_999),
        ("0" * 5000, 0),
        ("Fri, 13 Nov 2026 12:00:30 GMT", 30),
        ("Friday, 13-Nov-26 12:00:30 GMT", 30),
        ("Fri Nov 13 12:00:30 2026", 30),
        ("Fri, 13 Nov 2026 13:00:30 +0100", 30),
        ("Fri, 13 Nov 2026 11:00:00 GMT", 0),
        ("Fri, 13 Nov 9999 12:00:00 GMT", 999_999_999),
        ("Fri, 99 Nov 2026 12:00:00 GMT", None),
    ],
)
def test_retry_after(connect: Connect, response: Answer, header: str, seconds: int | None) -> None:
    """Retry-After is read as seconds and as a date by the response's clock; other values are ignored."""
    body = b'{"error": {"error_code": "ERR_SERVICE_001", "message": "no"}}'
    url = response(body, 503, (("Date", "Fri, 13 Nov 2026 12:00:00 GMT"), ("Retry-After", header)))
    with pytest.raises(OutOfServiceError) as caught:
        connect(url, API_KEY).keys.list()
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("status", [200, 404, 418])
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
def test_no_envelope(connect: Connect, response: Answer, body: bytes, status: int) -> None:
    """A response without an envelope raises MalformedResponseError without its content."""
    with pytest.raises(MalformedResponseError) as caught:
        connect(response(body, status), API_KEY).keys.list()
    assert caught.value.status == status
    assert caught.value.__context__ is None


def test_endless(connect: Connect, response: Answer) -> None:
    """A response that is too long is not read to its end."""
    with pytest.raises(MalformedResponseError):
        connect(response(b" " * (MAX_RESPONSE + 1)), API_KEY).keys.list()


def test_data_with_an_error_status(connect: Connect, response: Answer) -> None:
    """Data with an error status is not a success."""
    url = response(b'{"data": {"valid": true}}', 500)
    with pytest.raises(InternalError):
        connect(url, API_KEY).signatures.verify(b"", b"", key_version=1)


def test_redirect(connect: Connect, response: Answer) -> None:
    """A redirect is not followed: the API key goes nowhere else."""
    elsewhere = response(b'{"data": {"keys": [], "total": 0}}')
    url = response(b"", 307, (("Location", elsewhere),))
    with pytest.raises(MalformedResponseError, match=f"redirects, to {elsewhere}") as caught:
        connect(url, API_KEY).keys.list()
    assert caught.value.status == 307


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://pqkeep.example/api/v1/kms/keys?a=secret", "to https://pqkeep.example/api/v1"),
        ("https://ada:secret@pqkeep.example/", "to https://pqkeep.example/:"),
        ("/sign-in#secret", "/sign-in:"),
        ("", "redirects: if"),
        ("https://pqkeep.example:port/", "redirects: if"),
        ("https://pqkeep.example/" + "x" * 5000, "to https://pqkeep.example/xxx"),
    ],
)
def test_where_a_redirect_leads(
    connect: Connect, response: Answer, status: int, location: str, shown: str
) -> None:
    """The error names a redirect's target without password and query."""
    url = response(b"<html>", status, (("Location", location),))
    with pytest.raises(MalformedResponseError) as caught:
        connect(url, API_KEY).keys.list()
    assert shown in str(caught.value)
    assert "secret" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("status", [200, 403, 404, 500, 502, 503])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is empty"),
        (b" \r\n", "the body is empty"),
        (b"<!DOCTYPE html><title>Sign in</title>", "it is a web page"),
        (b"\xef\xbb\xbf\n<html>", "it is a web page"),
    ],
)
def test_what_answers_in_the_service_s_place_is_said(
    connect: Connect, response: Answer, status: int, body: bytes, said: str
) -> None:
    """An empty response and a web page, as of a proxy, are named."""
    with pytest.raises(PqkeepError, match=said) as caught:
        connect(response(body, status), API_KEY).keys.list()
    assert "Sign in" not in str(caught.value)


def test_broken_compression(connect: Connect, response: Answer) -> None:
    """A response that does not decompress raises MalformedResponseError."""
    url = response(b"not gzip", 200, (("Content-Encoding", "gzip"),))
    with pytest.raises(MalformedResponseError):
        connect(url, API_KEY).keys.list()


@pytest.mark.parametrize("encoding", ["gzip, gzip", "deflate", "br", "zstd"])
def test_no_other_encoding(connect: Connect, response: Answer, encoding: str) -> None:
    """Encodings that expand without limit are not decoded; gzip is."""
    body = gzip.compress(b'{"data": {"keys": [], "total": 0}}')
    assert (
        list(connect(response(body, 200, (("Content-Encoding", "GZIP"),)), API_KEY).keys.list())
        == []
    )
    doubled = gzip.compress(body) if encoding == "gzip, gzip" else zlib.compress(body)
    with pytest.raises(MalformedResponseError, match="wrong or was not requested"):
        connect(response(doubled, 200, (("Content-Encoding", encoding),)), API_KEY).keys.list()


@pytest.mark.parametrize("valid", ["true", "false", 1, 0, None, []])
def test_only_true_is_true(connect: Connect, response: Answer, valid: object) -> None:
    """A signature is valid only if the field is exactly true."""
    url = response(json.dumps({"data": {"valid": valid}}).encode())
    with pytest.raises(MalformedResponseError) as caught:
        connect(url, API_KEY).signatures.verify(b"", b"", key_version=1)
    assert caught.value.field == "valid"


def test_re_encrypted_to_another_key(connect: Connect, response: Answer) -> None:
    """Target fields that a re-encryption's response leaves out are the source's; others are checked."""
    data = {"ciphertext": "AAAA", "key_version": 2, "algorithm": "X-Wing", "keyring": "a"}
    data |= {"moved": True}
    client = connect(response(json.dumps({"data": data}).encode()), API_KEY)
    source: dict[str, Any] = {"key_version": 1, "algorithm": "X-Wing", "keyring": "a"}
    assert client.kem.re_encrypt(b"", **source).key_version == 2
    for field, wrong in (("algorithm", "Kyber768"), ("keyring", "b")):
        for asked in (source | {field: wrong}, source | {f"to_{field}": wrong}):
            with pytest.raises(MalformedResponseError) as caught:
                client.kem.re_encrypt(b"", **asked)
            assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("key_version", True),
        ("key_version", "1"),
        ("algorithm", None),
        ("public_key", "no base64!"),
        ("public_key", "clé="),
        ("public_key", "AAA"),
        ("public_key", "AB=="),  # canonical is AA==
        ("created_at", "yesterday"),
        ("created_at", "2026-01-01T00:00:00"),
        ("created_at", 0),
    ],
)
def test_malformed_field(connect: Connect, response: Answer, field: str, value: object) -> None:
    """A malformed field raises MalformedResponseError with its name and the request id."""
    key = {
        "key_version": 1,
        "algorithm": "Kyber768",
        "status": "active",
        "public_key": "AAAA",
        "created_at": "2026-01-01T00:00:00.000Z",
    }
    envelope = {"data": {"keys": [key, key | {field: value}]}, "request_id": REQUEST_ID}
    url = response(json.dumps(envelope).encode())
    with pytest.raises(MalformedResponseError) as caught:
        connect(url, API_KEY).keys.list()
    assert (caught.value.field, caught.value.request_id) == (field, REQUEST_ID)


def test_list_of_something_else(connect: Connect, response: Answer) -> None:
    """A list of keys with another object in it raises MalformedResponseError."""
    url = response(b'{"data": {"keys": ["Kyber768"]}}')
    with pytest.raises(MalformedResponseError):
        connect(url, API_KEY).keys.list()


KEY = {
    "key_version": 1,
    "algorithm": "Kyber768",
    "status": "active",
    "public_key": "AAA=",
    "created_at": "2026-01-01T00:00:00Z",
}
USAGE = {"key_version": 1, "algorithm": "Kyber768", "uses": 1, "last_used_at": None}
TENANT = {
    "id": "00000000-0000-4000-8000-000000000000",
    "name": "x",
    "plan": "free",
    "status": "active",
    "created_at": "2026-01-01T00:00:00Z",
    "updated_at": "2026-01-01T00:00:00Z",
}
LISTS = [
    pytest.param("/kms/keys", "keys", KEY, lambda client: client.keys.list(), id="keys"),
    pytest.param(
        "/kms/keys/usage", "usage", USAGE, lambda client: client.keys.list_usage(), id="usage"
    ),
    pytest.param("/tenants", "tenants", TENANT, lambda client: client.tenants.list(), id="tenants"),
]
"""Each list: its path, its field, a member, and the method that requests it."""


@pytest.mark.parametrize(("path", "field", "member", "whole"), LISTS)
def test_a_list_has_all_pages(
    connect: Connect,
    response: Answer,
    path: str,
    field: str,
    member: dict[str, object],
    whole: Callable[[Client], tuple[object, ...]],
) -> None:
    """A paged list is read until the page without a next position."""
    pages = {"": "x.1", "?after=x.1": "x.2", "?after=x.2": None}
    url = response(
        {
            f"/api/v1{path}{query}": json.dumps({"data": {field: [member], "next": after}}).encode()
            for query, after in pages.items()
        }
    )
    assert len(whole(connect(url, API_KEY))) == len(pages)


@pytest.mark.parametrize(("path", "field", "member", "whole"), LISTS)
def test_a_list_that_never_ends(
    connect: Connect,
    response: Answer,
    path: str,
    field: str,
    member: dict[str, object],
    whole: Callable[[Client], tuple[object, ...]],
) -> None:
    """A page that leads to itself is malformed."""
    url = response(json.dumps({"data": {field: [member], "next": path}}).encode())
    with pytest.raises(MalformedResponseError):
        whole(connect(url, API_KEY))
