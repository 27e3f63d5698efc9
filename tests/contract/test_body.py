"""A request's body must be a JSON object of at most 4 MiB, or the response is 400."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from tests.contract.conftest import World
from tests.fixtures.caller import Caller, refusal_of
from tests.fixtures.installation import Installation

MAX_BODY = 4 * 1024 * 1024
POST_ENDPOINTS = [
    "/kem/encrypt",
    "/kem/decrypt",
    "/kem/encapsulate",
    "/kem/decapsulate",
    "/kem/key/wrap",
    "/kem/key/unwrap",
    "/kem/wrap",
    "/kem/unwrap",
    "/kem/data-key",
    "/mac/compute",
    "/mac/verify",
    "/signature/sign",
    "/signature/verify",
    "/signature/sign-hash",
    "/signature/verify-hash",
    "/signature/sign-mu",
    "/signature/verify-mu",
    "/kms/keys/generate",
    "/kms/keys/rotate",
    "/kms/keys/retire",
]
INVALID = (400, "ERR_INVALID_001", None)
JSON = {"Content-Type": "application/json"}
NO_OBJECT = [
    pytest.param(b"", id="empty"),
    pytest.param(b"   ", id="blank"),
    pytest.param(b"plaintext=aGVsbG8=", id="form"),
    pytest.param(b'{"plaintext":', id="cut off"),
    pytest.param(b"{'plaintext': 'aGVsbG8='}", id="single quotes"),
    pytest.param(b'{"plaintext":"aGVsbG8=",}', id="trailing comma"),
    pytest.param(b"{} {}", id="two objects"),
    pytest.param(b"[]", id="array"),
    pytest.param(b'[{"plaintext":"aGVsbG8="}]', id="array of an object"),
    pytest.param(b'"aGVsbG8="', id="string"),
    pytest.param(b"1", id="number"),
    pytest.param(b"null", id="null"),
    pytest.param(b'{"plaintext":NaN}', id="NaN"),
    pytest.param(b'{"plaintext":-Infinity}', id="infinity"),
    pytest.param(b'{"plaintext":"\xff\xfe"}', id="not UTF-8"),
    pytest.param(b'{"plaintext":"\xed\xa0\x80"}', id="surrogate in UTF-8"),
    pytest.param(b'{"plaintext":"\\ud800"}', id="surrogate"),
    pytest.param(b'{"plaintext":"\\udc00\\uD800"}', id="surrogates in the wrong order"),
    pytest.param(b'{"\\uDFFF":1}', id="surrogate in a name"),
    pytest.param(b'{"plaintext":{"a":["\\ud800"]}}', id="surrogate in an array"),
    pytest.param('{"plaintext":"aGVsbG8="}'.encode("utf-16"), id="UTF-16"),
    pytest.param(b'\xef\xbb\xbf{"plaintext":"aGVsbG8="}', id="byte order mark"),
    pytest.param(b"[" * 100_000, id="100,000 open arrays"),
    pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, id="100,000 nested objects"),
    pytest.param(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="100,000 nested arrays"),
]


@pytest.mark.parametrize("content", NO_OBJECT)
def test_a_body_that_is_no_json_object(
    demo: Caller,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    content: bytes,
) -> None:
    """A body that is not a JSON object is 400 ERR_INVALID_001 on every endpoint with a body."""
    for path in POST_ENDPOINTS:
        assert refused(demo.ask("POST", path, content=content, headers=JSON)) == INVALID, path


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/jsonp",
        "text/json",
        "",
    ],
)
def test_another_content_type(
    world: World,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    content_type: str,
) -> None:
    """A body of another content type is 400 ERR_INVALID_001, even if it is JSON."""
    response = world.caller.ask(
        "POST",
        "/kem/encrypt",
        content=json.dumps({"plaintext": "aGVsbG8="}).encode(),
        headers={"Content-Type": content_type},
    )
    assert refused(response) == INVALID


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json; charset=utf-8"},
        {"Content-Type": "APPLICATION/JSON"},
        {},
    ],
    ids=["with charset", "upper case", "missing"],
)
def test_json_by_its_content_type(world: World, headers: dict[str, str]) -> None:
    """The content type may have parameters, any case of letters, or be missing."""
    content = json.dumps({"plaintext": "aGVsbG8="}).encode()
    response = world.caller.ask("POST", "/kem/encrypt", content=content, headers=headers)
    assert response.status_code == 200


def test_a_body_of_4_mib_is_read(world: World) -> None:
    """A body of exactly 4 MiB, with white space, is read."""
    start, end = b'{"plaintext":"aGVsbG8="', b"}"
    content = start + b" " * (MAX_BODY - len(start) - len(end)) + end
    assert len(content) == MAX_BODY
    response = world.caller.ask("POST", "/kem/encrypt", content=content, headers=JSON)
    assert response.status_code == 200


@pytest.mark.parametrize("chunked", [False, True], ids=["with its length", "in chunks"])
def test_a_body_of_more_than_4_mib(
    world: World,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    chunked: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    """One byte over 4 MiB is 400 ERR_INVALID_001, and the service continues."""
    start, end = b'{"plaintext":"aGVsbG8=","padding":"', b'"}'
    content = start + b"x" * (MAX_BODY + 1 - len(start) - len(end)) + end

    def chunks() -> Iterator[bytes]:
        yield from (content[i : i + 65_536] for i in range(0, len(content), 65_536))

    sent = chunks() if chunked else content
    response = world.caller.ask("POST", "/kem/encrypt", content=sent, headers=JSON)
    assert refused(response) == INVALID
    assert world.caller.post("/kem/encrypt", {"plaintext": "aGVsbG8="})


@pytest.mark.parametrize(
    "content",
    [
        b'{"plaintext":"Zmlyc3Q=","plaintext":"bGFzdA=="}',
        b'{"plaintext":"c2FtZQ==","plaintext":"c2FtZQ=="}',
        b'{"plaintext":"Zmlyc3Q=","pl\\u0061intext":"bGFzdA=="}',
        b'{"plaintext":"Zmlyc3Q=","unknown":1,"unknown":1}',
    ],
    ids=["two values", "one value", "escaped", "unknown field"],
)
def test_a_name_that_is_there_twice(
    world: World,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    content: bytes,
) -> None:
    """A repeated name is 400, because readers would read different values."""
    response = world.caller.ask("POST", "/kem/encrypt", content=content, headers=JSON)
    twice = "unknown" if b"unknown" in content else "plaintext"
    assert refused(response) == (400, "ERR_KEM_001", twice)
    assert f"{twice} occurs twice" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "content", "expected"),
    [
        (
            "/kem/encrypt/batch",
            b'{"items":[{"plaintext":"","plaintext":"AA=="}]}',
            ("ERR_KEM_001", "plaintext"),
        ),
        ("/kem/encrypt/batch", b'{"items":[{}],"items":[{}]}', ("ERR_KEM_001", "items")),
        ("/signature/sign", b'{"message":"","message":""}', ("ERR_SIG_001", "message")),
        ("/kem/key/unwrap", b'{"wrapped_key":"","wrapped_key":""}', ("ERR_KEM_011", "wrapped_key")),
        (
            "/kms/keys/rotate",
            b'{"algorithm":"a","algorithm":"a"}',
            ("ERR_INVALID_001", "algorithm"),
        ),
        (
            "/kem/re-encrypt",
            b'{"to":{"algorithm":"","algorithm":""}}',
            ("ERR_KEM_002", "algorithm"),
        ),
        ("/kem/encrypt", b'{"\\u003cb\\u003e":1,"<b>":1}', ("ERR_KEM_001", None)),
    ],
)
def test_a_name_that_is_there_twice_has_the_operation_s_code(
    world: World, path: str, content: bytes, expected: tuple[str, str | None]
) -> None:
    """A repeated name at any depth is the error's field, with the operation's code and without markup."""
    response = world.caller.ask("POST", path, content=content, headers=JSON)
    assert refusal_of(response) == (400, *expected)
    assert "occurs twice" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"  \r\n", "it is empty"),
        (b"[]", "it is an array"),
        (b'[{"a":1}]', "it is an array"),
        (b'"text"', "it is a text"),
        (b"1", "it is a number"),
        (b"null", "it is null"),
        (b"plaintext=aGVsbG8=", "syntax error at character 0"),
        (b'{"plaintext":"aGVsbG8=",1}', "syntax error at character 24"),
        (b'{"plaintext":[1,]}', "syntax error at byte 1"),
        (b'{"a":NaN}', "NaN or Infinity"),
        (b'{"a":[-Infinity]}', "NaN or Infinity"),
        (b'{"a":"\xff\xfe"}', "not UTF-8 at byte 6"),
        (b'{"a":"\\ud800"}', "half of a surrogate pair"),
        (b'{"a":["\\ud800x"]}', "half of a surrogate pair"),
        (b'{"a":["\\udc00\\ud800"]}', "half of a surrogate pair"),
        ('{"a":"b"}'.encode("utf-16"), "UTF-16"),
        ('{"a":"b"}'.encode("utf-16-be"), "UTF-16"),
        (b'\xef\xbb\xbf{"a":"b"}', "byte-order mark"),
        pytest.param(
            b'{"a":' * 3_000 + b"1" + b"}" * 3_000,
            "nested too deeply",
            marks=pytest.mark.skipif(
                sys.version_info >= (3, 12), reason="its limit is above that of a body's elements"
            ),
        ),
    ],
)
def test_what_a_body_is_instead_of_an_object_is_said(
    world: World, content: bytes, said: str
) -> None:
    """The message names the kind of the body, or the place of the syntax error.

    It quotes nothing.
    """
    response = world.caller.ask("POST", "/kem/encrypt", content=content, headers=JSON)
    assert refusal_of(response) == INVALID
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("digits", [18, 19, 20, 100, 4300, 4301, 100_000])
@pytest.mark.parametrize("sign", ["", "-"])
def test_an_integer_of_any_length_is_one(world: World, digits: int, sign: str) -> None:
    """A version number of any length that no key has is 404; a negative one is 400."""
    content = f'{{"ciphertext":"","key_version":{sign}{"9" * digits}}}'.encode()
    response = world.caller.ask("POST", "/kem/decrypt", content=content, headers=JSON)
    expected = (400, "ERR_KEM_002") if sign else (404, "ERR_NOT_FOUND_001")
    assert refusal_of(response) == (*expected, "key_version")
    path = f"/kms/keys/{'9' * min(digits, 4301)}"
    refused = world.caller.ask("GET", path, params={"algorithm": "Kyber768"})
    assert refusal_of(refused)[:2] == (404, "ERR_NOT_FOUND_001")


def test_a_huge_integer_with_an_idempotency_key_is_refused(world: World) -> None:
    """A number beyond 64 bits is 400, also with an Idempotency-Key."""
    for number in ("9" * 30, "9" * 5000, "-" + "9" * 30, "1e400"):
        response = world.caller.ask(
            "POST",
            "/kms/keys/generate",
            content=f'{{"algorithm":{number}}}'.encode(),
            headers={**JSON, "Idempotency-Key": "huge"},
        )
        assert refusal_of(response) == (400, "ERR_INVALID_001", "algorithm")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("1.0", "not a number with a fraction or an exponent"),
        ("1e0", "not a number with a fraction or an exponent"),
        ("1e400", "not a number with a fraction or an exponent"),
        ("-0", "must be a positive integer"),
        ("0", "must be a positive integer"),
        ('"1"', "not a text"),
        ("true", "not true or false"),
        ("[]", "not an array"),
        ("{}", "not an object"),
    ],
)
def test_what_is_no_integer_is_named(world: World, value: str, said: str) -> None:
    """The error for a key_version of another JSON type names that type."""
    content = f'{{"ciphertext":"","key_version":{value}}}'.encode()
    response = world.caller.ask("POST", "/kem/decrypt", content=content, headers=JSON)
    assert refusal_of(response) == (400, "ERR_KEM_002", "key_version")
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("nested", ["{}", "[]", '[{"deep":1,"deep":2}]', "[" * 500 + "]" * 500])
def test_an_array_or_an_object_is_refused_with_its_field(
    world: World,
    refused: Callable[[httpx2.Response], tuple[int, str, str | None]],
    nested: str,
) -> None:
    """An array or an object in any field is 400 with the field's name."""
    for name in ("plaintext", "unknown"):
        content = f'{{"algorithm":"Kyber768","{name}":{nested}}}'.encode()
        response = world.caller.ask("POST", "/kem/encrypt", content=content, headers=JSON)
        assert refused(response) == (400, "ERR_KEM_001", name)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        pytest.param("algoritm", "algoritm", id="misspelt"),
        pytest.param("Plaintext", "Plaintext", id="wrong case"),
        pytest.param("aad", "aad", id="binding that is not there"),
        pytest.param("tenant_id", "tenant_id", id="another operation's"),
        pytest.param("", None, id="empty"),
        pytest.param("\0", None, id="null byte"),
        pytest.param("<b>bold</b>", None, id="markup"),
        pytest.param("x" * 100_000, None, id="100,000 characters"),
    ],
)
def test_unknown_fields_are_refused(world: World, name: str, shown: str | None) -> None:
    """An unknown field is 400 with the operation's code, and with its name if it is safe to show."""
    body = {"plaintext": "aGVsbG8=", name: None}
    assert world.caller.refusal("/kem/encrypt", body) == (400, "ERR_KEM_001", shown)


def test_a_body_where_none_is_taken_is_not_read(
    demo: Caller, refused: Callable[[httpx2.Response], tuple[int, str, str | None]]
) -> None:
    """GET ignores a body; archive is refused with any body."""
    assert demo.ask("GET", "/kms/keys", content=b"not JSON").status_code == 200
    archive = demo.ask("POST", "/kms/keys/archive", content=b"not JSON")
    assert refused(archive) == (403, "ERR_KMS_020", None)


def _resident_bytes(pid: int) -> int:
    """Return a process's memory in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


SENT = base64.b64encode(bytes(700_000)).decode()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/kem/encrypt", {"plaintext": SENT, "key_version": 77}),
        ("/kem/encrypt", {"plaintext": f"{SENT}%"}),
        ("/signature/sign", {"message": SENT, "key_version": 77}),
    ],
)
def test_nothing_is_left_of_a_refused_body(
    installation: Installation, nobody: Caller, path: str, body: object
) -> None:
    """The memory of a refused body is freed at once, before garbage collection."""
    gateway = installation.children()["pqkeep_gateway"]
    resident = []
    for _ in range(2):
        for _ in range(15):
            nobody.ask("POST", path, body)
        resident.append(_resident_bytes(gateway))
    assert resident[1] - resident[0] < 8 * len(SENT)
