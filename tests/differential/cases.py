"""Raw requests, ordinary and hostile, to compare two versions of the product."""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

API = "/api/v1"
LAST = b"GET /healthz HTTP/1.1\r\nHost: differential\r\nConnection: close\r\n\r\n"
"""A request after which the gateway closes the connection."""
MESSAGE = b64encode(bytes(range(64))).decode()
HUGE = "9" * 4_301
"""An integer with more digits than Python reads."""
WRONG: Sequence[str] = (
    *("null", "true", "0", "-1", "1.5", "1e400", HUGE, '""', '"x"', "[]", "{}"),
    *(
        f'"{MESSAGE[:-1]}"',
        f'" {MESSAGE}"',
        f'"{urlsafe_b64encode(bytes(range(240, 256))).decode()}"',
    ),
)
"""JSON texts to send as a field."""


class Case(NamedTuple):
    """The pieces to send on a new connection."""

    name: str
    pieces: Sequence[bytes]
    ends: bool = False
    """True if the client then closes its side, in the middle of a request.

    It never closes after a complete request, because the response would be a race. Otherwise the
    gateway closes the connection, after the last request or after invalid bytes."""


@dataclass(frozen=True, slots=True)
class Material:
    """The parts of requests that differ between installations."""

    api_key: str
    operator_key: str
    tenant_id: str
    ciphertext: str
    kem_ciphertext: str
    wrapped_key: str
    signature: str
    hash_signature: str


def bodies(material: Material) -> Mapping[str, Mapping[str, Any]]:
    """Return the fields of an ordinary request, by the path of its operation."""
    digest = b64encode(bytes(32)).decode()
    return {
        "/kem/encrypt": {"plaintext": MESSAGE, "key_version": 1, "algorithm": "Kyber768"},
        "/kem/decrypt": {"ciphertext": material.ciphertext, "key_version": 1},
        "/kem/encapsulate": {"key_version": 1, "algorithm": "Kyber768"},
        "/kem/decapsulate": {"kem_ciphertext": material.kem_ciphertext, "key_version": 1},
        "/kem/key/wrap": {"symmetric_key": digest, "key_version": 1},
        "/kem/key/unwrap": {"wrapped_key": material.wrapped_key, "key_version": 1},
        "/signature/sign": {"message": MESSAGE, "algorithm": "Dilithium3"},
        "/signature/verify": {
            "message": MESSAGE,
            "signature": material.signature,
            "key_version": 1,
        },
        "/signature/sign-hash": {"hash": digest, "hash_algorithm": "SHA-256"},
        "/signature/verify-hash": {
            "hash": digest,
            "hash_algorithm": "SHA-256",
            "signature": material.hash_signature,
            "key_version": 1,
        },
        "/kms/keys/generate": {"algorithm": "Kyber768"},
        "/kms/keys/retire": {"algorithm": "Kyber768", "key_version": 7},
        "/kms/keys/archive": {"algorithm": "Kyber768", "key_version": 1},
    }


def cases(material: Material) -> Iterator[Case]:
    """Yield every case, always in the same order."""
    ordinary = bodies(material)
    for path, fields in ordinary.items():
        yield _case(path, _post(material, path, json.dumps(fields)))
        yield from _changed_fields(material, path, fields)
        yield from _changed_bodies(material, path, json.dumps(fields))
    yield from _reads(material)
    encrypt = _post(material, "/kem/encrypt", json.dumps(ordinary["/kem/encrypt"]))
    decrypt = _post(material, "/kem/decrypt", json.dumps(ordinary["/kem/decrypt"]))
    yield from _credentials(material, json.dumps(ordinary["/kem/encrypt"]))
    yield from _heads(material, json.dumps(ordinary["/kem/encrypt"]))
    yield from _pieces("encrypt", encrypt)
    yield from _pieces("decrypt", decrypt)
    yield from _cut("encrypt", encrypt)
    for count in (2, 3, 20):
        yield _case(f"{count} pipelined", encrypt * count)
    yield _case("pipelined, others", encrypt + decrypt + encrypt)
    yield _case("pipelined, one refused", encrypt + _post(material, "/kem/encrypt", "{}") + decrypt)
    yield Case("pipelined, one malformed", (encrypt + b"GARBAGE\r\n\r\n" + decrypt,))


def _changed_fields(material: Material, path: str, fields: Mapping[str, Any]) -> Iterator[Case]:
    for name in fields:
        rest = {other: value for other, value in fields.items() if other != name}
        yield _case(f"{path} without {name}", _post(material, path, json.dumps(rest)))
        for wrong in WRONG:
            body = json.dumps(rest)[:-1] + (", " if rest else "") + f'"{name}": {wrong}}}'
            yield _case(f"{path} {name}={wrong[:20]}", _post(material, path, body))
    twice = json.dumps(fields)[:-1] + f', "{next(iter(fields))}": "x"}}'
    yield _case(f"{path} a field twice", _post(material, path, twice))
    yield _case(f"{path} an unknown field", _post(material, path, json.dumps({**fields, "x": 1})))
    yield _case(f"{path} a keyring", _post(material, path, json.dumps({**fields, "keyring": "a"})))


def _changed_bodies(material: Material, path: str, body: str) -> Iterator[Case]:
    for name, text in {
        "empty": "",
        "an array": f"[{body}]",
        "cut": body[:-1],
        "followed": body + "x",
        "a string": '"x"',
        "a mark before": "\ufeff" + body,
        "deep": '{"a":' * 2_000,
        "space around": f" \r\n{body}\n ",
    }.items():
        yield _case(f"{path} body {name}", _post(material, path, text))
    yield _case(f"{path} not UTF-8", _post(material, path, body.encode("utf-16")))


def _reads(material: Material) -> Iterator[Case]:
    for path in (
        *("/kms/keys", "/kms/keys?algorithm=Kyber768", "/kms/keys?status=active&x=1"),
        *("/kms/keys/active?algorithm=Kyber768", "/kms/keys/active", "/kms/keys/1"),
        *("/kms/keys/1?algorithm=Kyber768", "/kms/keys/9?algorithm=Kyber768"),
        *("/kms/keys/x?algorithm=Kyber768", "/kms/keys/1?algorithm=Kyber768&algorithm=Kyber768"),
        *("/tenants", f"/tenants/{material.tenant_id}", "/tenants/x", "/kms/keyrings", "/nowhere"),
        *("/healthz", "/../healthz", "//healthz", "/kem/encrypt"),
    ):
        for method in ("GET", "HEAD", "OPTIONS", "DELETE", "PUT"):
            name = path.replace(material.tenant_id, "ID")
            yield _case(f"{method} {name}", _request(material, method, path))


def _credentials(material: Material, body: str) -> Iterator[Case]:
    for name, header in {
        "none": "",
        "empty": "X-API-Key: ",
        "unknown": "X-API-Key: pqk_" + "A" * 49,
        "no credential": "X-API-Key: x",
        "the operator's": f"X-API-Key: {material.operator_key}",
        "two": f"X-API-Key: {material.api_key}\r\nX-API-Key: {material.api_key}",
        "bearer": f"Authorization: Bearer {material.api_key}",
        "with a cookie": f"X-API-Key: {material.api_key}\r\nCookie: access_token=x",
        "a cookie alone": "Cookie: access_token=x; refresh_token=y",
    }.items():
        yield _case(f"credential {name}", _with_head(body, header))


def _heads(material: Material, body: str) -> Iterator[Case]:
    key = f"X-API-Key: {material.api_key}"
    for name, header in {
        "request id": "X-Request-ID: my-own-id",
        "long request id": "X-Request-ID: " + "x" * 129,
        "odd request id": "X-Request-ID: a\tb",
        "idempotency key": "Idempotency-Key: abc",
        "compliance": "X-Compliance-Profile: cnsa",
        "many headers": "\r\n".join(f"X-{number}: {number}" for number in range(90)),
        "too many headers": "\r\n".join(f"X-{number}: {number}" for number in range(2_000)),
        "expect": "Expect: 100-continue",
        "gzip": "Accept-Encoding: gzip",
        "forwarded": "X-Forwarded-For: 192.0.2.7",
        "close": "Connection: close",
        "upgrade": "Connection: upgrade\r\nUpgrade: websocket",
    }.items():
        yield _case(f"header {name}", _with_head(body, f"{key}\r\n{header}"))
    for name, line in {
        "HTTP/1.0": "POST /api/v1/kem/encrypt HTTP/1.0",
        "no version": "POST /api/v1/kem/encrypt",
        "lower case": "post /api/v1/kem/encrypt HTTP/1.1",
        "a fragment": "POST /api/v1/kem/encrypt#x HTTP/1.1",
        "percent": "POST /api/v1/kem/%65ncrypt HTTP/1.1",
        "a query": "POST /api/v1/kem/encrypt?x=1 HTTP/1.1",
        "absolute": "POST http://differential/api/v1/kem/encrypt HTTP/1.1",
        "long": "POST /api/v1/kem/encrypt?" + "x" * 70_000 + " HTTP/1.1",
    }.items():
        yield Case(f"line {name}", (_with_head(body, key, line) + LAST,))
    for name, headers, sent in (
        ("chunked", "Transfer-Encoding: chunked", _chunks(body)),
        ("chunked badly", "Transfer-Encoding: chunked", "zz\r\n\r\n"),
        ("two lengths", "Content-Length: 5\r\nContent-Length: 6", body),
        ("length of letters", "Content-Length: five", body),
        ("a length too great", f"Content-Length: {5 * 1024 * 1024}", body),
        ("no length", "X-Nothing: 1", body),
        ("another type", f"Content-Length: {len(body)}\r\nContent-Type: text/plain", body),
    ):
        head = (
            f"POST {API}/kem/encrypt HTTP/1.1\r\nHost: differential\r\n{key}\r\n{headers}\r\n\r\n"
        )
        yield Case(f"body {name}", ((head + sent).encode() + LAST,))


def _pieces(name: str, request: bytes) -> Iterator[Case]:
    end = request.index(b"\r\n\r\n") + 4
    for place in (1, 5, end - 2, end - 1, end, end + 1, len(request) - 1):
        pieces = (request[:place], request[place:] + LAST)
        yield Case(f"{name} in two pieces at {place}", pieces)
    yield Case(
        f"{name} byte by byte",
        [bytes((byte,)) for byte in request[: end + 20]] + [request[end + 20 :] + LAST],
    )


def _cut(name: str, request: bytes) -> Iterator[Case]:
    for place in range(0, len(request), max(1, len(request) // 40)):
        yield Case(f"{name} cut at {place}", (request[:place],), ends=True)


def _case(name: str, request: bytes) -> Case:
    return Case(name, (request, LAST))


def _post(material: Material, path: str, body: str | bytes) -> bytes:
    return _request(material, "POST", path, body)


def _request(material: Material, method: str, path: str, body: str | bytes = b"") -> bytes:
    data = body.encode() if isinstance(body, str) else body
    lines = [
        f"{method} {API}{path} HTTP/1.1",
        "Host: differential",
        f"X-API-Key: {material.api_key}",
    ]
    if data or method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join((*lines, "", "")).encode() + data


def _with_head(body: str, headers: str, line: str = "POST /api/v1/kem/encrypt HTTP/1.1") -> bytes:
    lines = [line, "Host: differential", "Content-Type: application/json"]
    lines += [f"Content-Length: {len(body)}", *([headers] if headers else [])]
    return "\r\n".join((*lines, "", body)).encode()


def _chunks(body: str) -> str:
    return "".join(f"{len(part):x}\r\n{part}\r\n" for part in (body[:9], body[9:])) + "0\r\n\r\n"
