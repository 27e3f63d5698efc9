"""An interrupted export is a broken transfer, never a file that looks complete."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator

import httpx2
import pytest
from tests.faults.conftest import FakeKeyService, Reply

from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.audit import (
    AuditKeys,
    Checkpoint,
    Checkpoints,
    ListAuditKeys,
    ListCheckpoints,
    ListRecords,
    NewCheckpoint,
    Proof,
    Proofs,
    ProveRecords,
    ProveSuccessions,
    Records,
    SignCheckpoint,
)
from pqkeep_protocol.codec import Answer, Call, Refusal, ToGateway
from pqkeep_protocol.errors import ErrorKind

EXPORT = "/api/v1/audit/export"
SIZE = 2_000
LOG_ID = uuid.UUID(int=7)
CHECKPOINT = Checkpoint(
    log_id=LOG_ID,
    size=SIZE,
    root=bytes(32),
    at_us=1,
    algorithm=Algorithm.ML_DSA_65,
    key_version=1,  # type: ignore[arg-type]
    signature=b"x",
)
LINE = (
    '{{"algorithm":null,"campaign":null,"event_id":null,"format":1,"happened_at":null,"id":{0},"key_version":null,'
    '"keyring":null,"keyring_revision":null,"nonce":"00","number":{0},"operation":"encrypt",'
    '"outcome":"success","policy":"","principal":"p","public_key_sha256":null,'
    '"recorded_at":"2026-01-31T12:00:00.000000Z","request_id":"r","rule":null,"source_address":"a",'
    '"target":null,"tenant_id":"t"}}'
)


def _log(last: Callable[[Call], ToGateway | bytes | None]) -> Reply:
    """Act like a log until two pages of proofs were sent."""

    def reply(call: Call) -> ToGateway | bytes | None:  # noqa: PLR0911 - one for each request
        match call.request:
            case SignCheckpoint():
                return Answer(call.id, NewCheckpoint(checkpoint=CHECKPOINT))
            case ProveSuccessions():
                return Answer(call.id, Proofs(proofs=()))
            case ListAuditKeys():
                return Answer(call.id, AuditKeys(log_id=LOG_ID, keys=()))
            case ListRecords():
                return Answer(call.id, Records(lines=(), next=None))
            case ListCheckpoints():
                return Answer(call.id, Checkpoints(checkpoints=()))
            case ProveRecords(after=after, limit=limit) if after < 2 * limit:
                ids = range(after + 1, after + 1 + limit)
                proofs = tuple(Proof(LINE.format(n).encode(), ()) for n in ids)
                return Answer(call.id, Proofs(proofs=proofs))
            case _:
                return last(call)

    return reply


ENDS: dict[str, Callable[[Call], ToGateway | bytes | None]] = {
    "away": lambda call: Refusal(call.id, ErrorKind.UNAVAILABLE),
    "fault": lambda call: Refusal(call.id, ErrorKind.INTERNAL),
    "hung up": lambda _: b"",
    "nonsense": lambda call: Answer(call.id, AuditKeys(log_id=LOG_ID, keys=())),
}


def _received(client: httpx2.Client, got: list[bytes]) -> Iterator[None]:
    with client.stream("GET", EXPORT, headers={"Accept-Encoding": "identity"}) as response:
        assert response.status_code == 200
        for chunk in response.iter_raw():
            got.append(chunk)
            yield


@pytest.mark.parametrize("last", ENDS.values(), ids=ENDS.keys())
def test_a_key_service_that_fails_half_way_breaks_the_transfer(
    last: Callable[[Call], ToGateway | bytes | None], lie: Callable[[Reply], httpx2.Client]
) -> None:
    """After some pages the client sees a transfer error and no last line."""
    client = lie(_log(last))
    got: list[bytes] = []
    with pytest.raises(httpx2.RemoteProtocolError):
        for _ in _received(client, got):
            pass
    text = b"".join(got)
    assert text.startswith(b'{"type":"export"')
    assert b'"type":"end"' not in text
    assert b"error_code" not in text


def test_an_export_that_ends_is_whole(lie: Callable[[Reply], httpx2.Client]) -> None:
    """The same export without an interruption ends with the line that counts the records."""
    client = lie(_log(lambda call: Answer(call.id, Proofs(proofs=()))))
    lines = client.get(EXPORT).text.splitlines()
    assert lines[-1] == '{"type":"end","records":1000}'


def test_a_key_service_that_is_away_is_an_ordinary_error(
    lie: Callable[[Reply], httpx2.Client],
) -> None:
    """A failure before the first byte is an error in the envelope."""
    response = lie(lambda call: Refusal(call.id, ErrorKind.UNAVAILABLE)).get(EXPORT)
    assert (response.status_code, response.headers["content-type"]) == (503, "application/json")


def test_a_gateway_that_is_killed_breaks_the_transfer(
    own_fake: tuple[httpx2.Client, FakeKeyService],
    child_processes: Callable[[int], dict[str, int]],
) -> None:
    """If the gateway is killed during an export, the client sees an error and no last line."""
    client, fake = own_fake
    fake.reply = _log(lambda _: None)
    got: list[bytes] = []
    pages = _received(client, got)
    next(pages)
    os.kill(child_processes(os.getpid())["pqkeep_gateway"], signal.SIGKILL)
    with pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError)):
        for _ in pages:
            pass
    assert b'"type":"end"' not in b"".join(got)
