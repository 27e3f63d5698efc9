"""A gateway with a key service that replies with garbage, late or never, or disconnects."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest
from tests.faults.conftest import Reply
from tests.patience import PATIENCE

from pqkeep_protocol.codec import MAX_FRAME, Answer, Call, Pong, Refusal, ToGateway, encode
from pqkeep_protocol.errors import ErrorKind
from pqkeep_protocol.keys import KeyVersion
from pqkeep_protocol.messages import Decrypted, Encrypted, Signed, Verified

if TYPE_CHECKING:
    import httpx2

ENCRYPT = ("/api/v1/kem/encrypt", {"plaintext": "QUJD"})
SIGN = ("/api/v1/signature/sign", {"message": "QUJD"})
VERIFY = (
    "/api/v1/signature/verify",
    {"message": "QUJD", "signature": "QUJD", "key_version": 1},
)
BAD_GATEWAY = (502, "ERR_BAD_GATEWAY_001")
UNAVAILABLE = (503, "ERR_SERVICE_001")
TIMEOUT = (504, "ERR_TIMEOUT_001")
SIGNED = Signed(signature=b"x", version=KeyVersion(1))


def outcome(response: httpx2.Response) -> tuple[int, str]:
    """Return status and code of an error, which must have the envelope's form."""
    body = response.json()
    assert body.keys() == {"error", "request_id", "timestamp"}
    assert body["request_id"] == response.headers["x-request-id"]
    return response.status_code, body["error"]["error_code"]


def _in_place_of(call: Call, garbage: bytes) -> bytes:
    """Return bytes with a frame's length, so that they are read as one frame."""
    return len(garbage).to_bytes(4, "big") + garbage


def _two(call: Call) -> bytes:
    return bytes(encode(Answer(call.id, SIGNED)) + encode(Answer(call.id, SIGNED)))


NONSENSE: list[object] = [
    pytest.param(lambda _: b"HTTP/1.1 200 OK\r\n\r\n", id="HTTP"),
    pytest.param(
        lambda _: (MAX_FRAME + 1).to_bytes(4, "big"),
        id="a frame too large",
    ),
    pytest.param(lambda call: _in_place_of(call, b"\xc1" * 20), id="no msgpack"),
    pytest.param(
        lambda call: _in_place_of(call, msgspec.msgpack.encode(("answer", call.id, None))),
        id="no result",
    ),
    pytest.param(lambda call: _in_place_of(call, b""), id="an empty frame"),
    pytest.param(lambda call: Pong(call.id), id="a pong"),
    pytest.param(
        lambda call: Answer(call.id, Decrypted(plaintext=b"x")),
        id="another operation's result",
    ),
    pytest.param(lambda call: Answer(call.id, Verified()), id="an empty result"),
    pytest.param(
        lambda call: Refusal(call.id, ErrorKind.VERIFICATION_FAILED),
        id="another operation's refusal",
    ),
]


@pytest.mark.parametrize("reply", NONSENSE)
def test_nonsense_is_502(
    lie: Callable[[Reply], httpx2.Client],
    reply: Callable[[Call], ToGateway | bytes],
) -> None:
    """Any invalid reply of the key service is 502 for the caller, never 500."""
    client = lie(reply)
    path, body = ENCRYPT
    assert outcome(client.post(path, json=body)) == BAD_GATEWAY


def test_no_result_makes_an_answer_of_another_operation(
    lie: Callable[[Reply], httpx2.Client],
) -> None:
    """A result of another operation is not accepted: verify refuses a Signed."""
    client = lie(lambda call: Answer(call.id, SIGNED))
    path, body = VERIFY
    answer = client.post(path, json=body)
    assert answer.status_code >= 500 or answer.json()["data"]["valid"] is False


def test_an_answer_twice_is_an_answer(
    lie: Callable[[Reply], httpx2.Client],
) -> None:
    """A second reply to a call is ignored, and the next call gets its own reply."""
    client = lie(_two)
    path, body = SIGN
    for _ in range(3):
        assert client.post(path, json=body).json()["data"]["signature"] == "eA=="


def test_slh_dsa_has_more_time(lie: Callable[[Reply], httpx2.Client]) -> None:
    """A call's deadline in milliseconds is 9,000, for SLH-DSA 14,000."""
    told = []

    def reply(call: Call) -> Answer:
        told.append(call.timeout_ms)
        return Answer(call.id, SIGNED)

    client = lie(reply)
    path, body = SIGN
    for algorithm in ("ML-DSA-87", "SLH-DSA-SHA2-256s"):
        assert client.post(path, json={**body, "algorithm": algorithm}).is_success
    assert told == [9_000, 14_000]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (ErrorKind.OVERLOADED, UNAVAILABLE),
        (ErrorKind.UNAVAILABLE, UNAVAILABLE),
        (ErrorKind.DEADLINE_EXCEEDED, TIMEOUT),
        (ErrorKind.BAD_RESPONSE, BAD_GATEWAY),
        (ErrorKind.KEY_NOT_FOUND, (404, "ERR_NOT_FOUND_001")),
        (ErrorKind.INTERNAL, (500, "ERR_INTERNAL_001")),
    ],
    ids=lambda value: str(value) if isinstance(value, ErrorKind) else "",
)
def test_refusals(
    lie: Callable[[Reply], httpx2.Client],
    kind: ErrorKind,
    expected: tuple[int, str],
) -> None:
    """Each refusal has its status. It has Retry-After if a retry can succeed."""
    client = lie(lambda call: Refusal(call.id, kind))
    for path, body in (ENCRYPT, SIGN, VERIFY):
        answer = client.post(path, json=body)
        assert outcome(answer) == expected
        assert ("retry-after" in answer.headers) is (expected == UNAVAILABLE)


def test_a_hang_up_is_503_and_the_gateway_connects_again(
    lie: Callable[[Reply], httpx2.Client],
) -> None:
    """A call on a broken connection is 503 with Retry-After; the next one uses a new connection."""
    calls = []

    def reply(call: Call) -> Answer | bytes:
        calls.append(call.id)
        return b"" if len(calls) == 1 else Answer(call.id, SIGNED)

    client = lie(reply)
    path, body = SIGN
    answer = client.post(path, json=body)
    assert outcome(answer) == UNAVAILABLE
    assert int(answer.headers["retry-after"]) >= 1
    deadline = time.monotonic() + PATIENCE
    while not client.post(path, json=body).is_success:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_without_a_key_service(gateway_left_alone: tuple[httpx2.Client, str]) -> None:
    """Without a key service, requests that need it are 503. Other changes and reads work."""
    client, operator_key = gateway_left_alone
    for path, body in (ENCRYPT, SIGN, VERIFY):
        assert outcome(client.post(path, json=body)) == UNAVAILABLE
    assert outcome(client.get("/healthz")) == UNAVAILABLE
    operator = {"X-API-Key": operator_key}
    made = client.post("/api/v1/tenants", json={"name": "another"}, headers=operator)
    assert made.status_code == 201
    assert client.get("/api/v1/tenants", headers=operator).status_code == 200
    assert outcome(client.post("/api/v1/kem/encrypt", json={})) == (400, "ERR_KEM_001")


def test_an_answer_in_pieces_is_an_answer(
    lie: Callable[[Reply], httpx2.Client],
) -> None:
    """The largest response, much larger than a socket's buffer, arrives complete."""
    blob = bytes(range(256)) * 4096
    client = lie(lambda call: Answer(call.id, Encrypted(ciphertext=blob, version=KeyVersion(1))))
    path, body = ENCRYPT
    answer = client.post(path, json=body)
    assert answer.status_code == 200
    assert len(answer.json()["data"]["ciphertext"]) == 4 * -(-len(blob) // 3)
