"""Network faults: the exceptions, the retries, and that no change is made twice."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from sdk.tests.fault_proxy import (
    Fault,
    FaultProxy,
    answered,
    closed_after,
    half_a_body,
    noise,
    refused,
    reset_after,
    reset_before,
    silence,
    trickle,
    trickled_head,
)
from tests.patience import PATIENCE

from pqkeep import (
    AsyncClient,
    AuthenticationError,
    BadGatewayError,
    Client,
    ConflictError,
    ConnectionFailedError,
    DeadlineExceededError,
    GatewayTimeoutError,
    InternalError,
    InvalidRequestError,
    MalformedResponseError,
    NotFoundError,
    OutOfServiceError,
    PermissionDeniedError,
    PqkeepError,
    RateLimitError,
)
from pqkeep._call import Call
from pqkeep._exchange import Attempts, Exchange

KEM = "Kyber768"
Connect = Callable[..., Client]

PASSING: dict[str, tuple[Fault, type[PqkeepError]]] = {
    "reset before": (reset_before, ConnectionFailedError),
    "reset after": (reset_after, ConnectionFailedError),
    "closed after": (closed_after, ConnectionFailedError),
    "half a body": (half_a_body, ConnectionFailedError),
    "noise": (noise, ConnectionFailedError),
    "ERR_INTERNAL_001": (refused(500, "ERR_INTERNAL_001"), InternalError),
    "ERR_CRYPTO_001": (refused(500, "ERR_CRYPTO_001"), InternalError),
    "ERR_BAD_GATEWAY_001": (refused(502, "ERR_BAD_GATEWAY_001"), BadGatewayError),
    "ERR_SERVICE_001": (refused(503, "ERR_SERVICE_001", "Retry-After: 1"), OutOfServiceError),
    "ERR_TIMEOUT_001": (refused(504, "ERR_TIMEOUT_001"), GatewayTimeoutError),
    "ERR_RATE_LIMIT_001": (refused(429, "ERR_RATE_LIMIT_001", "Retry-After: 1"), RateLimitError),
    "a balancer's 503": (answered(503, b"<h1>No server</h1>"), OutOfServiceError),
}
"""Temporary faults, with the exception without retries."""

LASTING: dict[str, tuple[Fault, type[PqkeepError]]] = {
    "ERR_INVALID_001": (refused(400, "ERR_INVALID_001"), InvalidRequestError),
    "ERR_AUTH_001": (refused(401, "ERR_AUTH_001"), AuthenticationError),
    "ERR_FORBIDDEN_001": (refused(403, "ERR_FORBIDDEN_001"), PermissionDeniedError),
    "ERR_NOT_FOUND_001": (refused(404, "ERR_NOT_FOUND_001"), NotFoundError),
    "ERR_CONFLICT_001": (refused(409, "ERR_CONFLICT_001"), ConflictError),
    "a page": (answered(200, b"<h1>It works!</h1>"), MalformedResponseError),
    "half an envelope": (answered(200, b'{"data": {"keys": ['), MalformedResponseError),
    "a page's 404": (answered(404, b"<h1>Not here</h1>"), MalformedResponseError),
}
"""Permanent faults."""

BROKEN = [reset_before, reset_after, closed_after, half_a_body]
"""Faults after which a change may or may not have been made."""


def in_folder(path: Path) -> list[Path]:
    """Return the names in a folder."""
    return list(path.iterdir())


@pytest.mark.parametrize("name", PASSING | LASTING)
def test_exceptions(connect: Connect, proxy: FaultProxy, idle_api_key: str, name: str) -> None:
    """Each fault has its own exception, with the request id and without secrets.

    Permanent faults are not retried.
    """
    fault, expected = (PASSING | LASTING)[name]
    proxy.faults += [fault] * 2
    client = connect(proxy.url, idle_api_key, retries=5 if name in LASTING else 0)
    with pytest.raises(PqkeepError) as caught:
        client.kem.encrypt(b"a secret")
    assert type(caught.value) is expected
    (seen,) = proxy.seen
    assert caught.value.request_id == seen.headers["x-request-id"]
    assert caught.value.__cause__ is caught.value.__context__ is None
    shown = f"{caught.value!s} {caught.value!r} {vars(caught.value)}"
    assert idle_api_key not in shown
    assert json.loads(seen.raw.partition(b"\r\n\r\n")[2])["plaintext"] not in shown


@pytest.mark.parametrize("name", PASSING)
def test_what_is_asked_again(
    connect: Connect, proxy: FaultProxy, idle_api_key: str, name: str
) -> None:
    """Temporary faults are retried with the same request id until a response arrives."""
    proxy.faults.append(PASSING[name][0])
    assert connect(proxy.url, idle_api_key, retries=5).keys.list() == ()
    assert not proxy.faults
    assert len({seen.headers["x-request-id"] for seen in proxy.seen}) == 1


def test_giving_up(connect: Connect, proxy: FaultProxy, idle_api_key: str) -> None:
    """After the last retry, the last failure is raised."""
    proxy.faults += [*[reset_before] * 2, *[refused(502, "ERR_BAD_GATEWAY_001")] * 9]
    with pytest.raises(BadGatewayError):
        connect(proxy.url, idle_api_key, retries=2).keys.list()
    assert len(proxy.seen) == 3


@pytest.mark.parametrize("fault", BROKEN)
def test_rotations_through_faults(
    connect: Connect, proxy: FaultProxy, api_key: str, fault: Fault
) -> None:
    """Each call of rotate makes one version, with any number of attempts."""
    client = connect(proxy.url, api_key, retries=5)
    proxy.faults.append(fault)
    assert client.keys.generate(KEM).key_version == 1
    for version in (2, 3):
        proxy.faults += [fault, fault]
        assert client.keys.rotate(KEM).key_version == version
    assert [key.key_version for key in client.keys.list()] == [1, 2, 3]
    sent = [seen.headers["idempotency-key"] for seen in proxy.seen if "POST" in seen.line]
    assert [sent.count(key) for key in dict.fromkeys(sent)] == [2, 3, 3]


@pytest.mark.parametrize("fault", BROKEN)
def test_administration_through_faults(
    connect: Connect, proxy: FaultProxy, service: dict[str, str], fault: Fault
) -> None:
    """Each call makes one tenant or one API key; repetitions change nothing more."""
    operator = connect(proxy.url, service["operator_key"], retries=5)
    name = f"test {time.monotonic_ns()}"
    proxy.faults.append(fault)
    tenant = operator.tenants.create(name)
    proxy.faults.append(fault)
    first = operator.api_keys.create(tenant.id)
    proxy.faults.append(fault)
    rotation = operator.api_keys.rotate(tenant.id)
    assert (first.version, rotation.revoked_version, rotation.new_key.version) == (1, 1, 2)
    proxy.faults.append(fault)
    assert operator.api_keys.revoke(tenant.id, version=2).status == "revoked"
    proxy.faults.append(fault)
    assert operator.tenants.suspend(tenant.id).status == "suspended"
    assert [tenant_.name for tenant_ in operator.tenants.list()].count(name) == 1
    assert [key.version for key in operator.api_keys.list(tenant.id)] == [1, 2]


def test_a_rotated_api_key_is_told_once_more(
    connect: Connect, proxy: FaultProxy, api_key: str
) -> None:
    """A client that lost the response to its API key's rotation gets the new key by a retry."""
    client = connect(proxy.url, api_key, retries=5)
    (tenant,) = client.tenants.list()
    proxy.faults.append(reset_after)
    made = client.api_keys.rotate(tenant.id).new_key
    assert connect(proxy.url, made.api_key).keys.list() == ()


@pytest.mark.parametrize("fault", BROKEN)
def test_retirement_through_faults(
    connect: Connect, proxy: FaultProxy, api_key: str, fault: Fault
) -> None:
    """A key is retired, with any number of attempts."""
    client = connect(proxy.url, api_key, retries=5)
    client.keys.generate(KEM)
    proxy.faults += [fault, fault]
    assert client.keys.retire(KEM, key_version=1).status == "retired"


def test_looking_needs_no_idempotency_key(
    connect: Connect, proxy: FaultProxy, api_key: str
) -> None:
    """Requests without a change carry no Idempotency-Key."""
    client = connect(proxy.url, api_key)
    client.keys.list()
    with pytest.raises(NotFoundError):
        client.signatures.sign(b"")
    assert len(proxy.seen) == 2
    assert all("idempotency-key" not in seen.headers for seen in proxy.seen)


def test_request_id_in_the_log(connect: Connect, proxy: FaultProxy, api_key: str) -> None:
    """Each call has its own request id, and the audit log has it."""
    client = connect(proxy.url, api_key)
    client.keys.generate(KEM)
    client.kem.encrypt(b"")
    sent = [seen.headers["x-request-id"] for seen in proxy.seen]
    logged = [record.request_id for record in client.audit.records()]
    assert logged[-2:] == sent
    assert len(set(sent)) == 2


@pytest.mark.parametrize("fault", [silence, trickle, trickled_head])
def test_deadline(connect: Connect, proxy: FaultProxy, idle_api_key: str, fault: Fault) -> None:
    """A response that is late or incomplete is not waited for."""
    proxy.faults += [fault] * 9
    client = connect(proxy.url, idle_api_key, timeout=1.5, retries=5)
    began = time.monotonic()
    with pytest.raises(DeadlineExceededError):
        client.audit.keys()
    assert 1.5 <= time.monotonic() - began < PATIENCE
    assert len(proxy.seen) == 1


def test_deadline_of_all_attempts(connect: Connect, proxy: FaultProxy, idle_api_key: str) -> None:
    """All attempts share one deadline. An attempt that would miss it is not begun."""
    proxy.faults += [refused(503, "ERR_SERVICE_001", "Retry-After: 300")] * 9
    client = connect(proxy.url, idle_api_key, timeout=PATIENCE, retries=9)
    began = time.monotonic()
    with pytest.raises(OutOfServiceError) as caught:
        client.keys.list()
    assert time.monotonic() - began < PATIENCE
    assert (caught.value.retry_after, len(proxy.seen)) == (300, 1)


def test_retry_after(connect: Connect, proxy: FaultProxy, idle_api_key: str) -> None:
    """A pause is never shorter than Retry-After."""
    proxy.faults.append(refused(429, "ERR_RATE_LIMIT_001", "Retry-After: 1"))
    began = time.monotonic()
    assert connect(proxy.url, idle_api_key, retries=1).keys.list() == ()
    assert time.monotonic() - began >= 1


def test_pauses() -> None:
    """Pauses double up to five seconds; half of each is random, so clients differ."""
    failure = OutOfServiceError("away")

    def pauses() -> list[float]:
        attempts = Attempts(3600, 8)
        return [attempts.pause_after(failure) or 0 for _ in range(9)]

    for pause, most in zip(pauses(), (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5, 0), strict=True):
        assert most / 2 <= pause <= most
    assert pauses() != pauses()


@pytest.mark.parametrize(
    ("timeout", "read", "connect_in"), [(30.0, 15.0, 5.0), (9.0, 9.0, 5.0), (2.0, 2.0, 2.0)]
)
def test_patience_of_one_attempt(timeout: float, read: float, connect_in: float) -> None:
    """An attempt may wait 15 seconds, and a connection 5. The deadline ends both earlier."""
    with Client("http://127.0.0.1:9", "key", timeout=timeout) as client, httpx2.Client() as http:
        call = Call(method="GET", path="/", read=lambda data: data)
        request = Exchange(call, client._transport._settings).request(http)
    limits = request.extensions["timeout"]
    assert read - 1 < limits["read"] <= read
    assert connect_in - 1 < limits["connect"] <= connect_in


def test_export_through_faults(
    connect: Connect, proxy: FaultProxy, api_key: str, tmp_path: Path
) -> None:
    """A broken export is retried. If it stays broken, no file remains."""
    client = connect(proxy.url, api_key, retries=1)
    exported = 0
    while exported < 2:  # until a checkpoint covers the tenant's first records
        exported = client.audit.export(tmp_path / "export.jsonl")
        (tmp_path / "export.jsonl").unlink()
    proxy.faults += [half_a_body, half_a_body, half_a_body]
    with pytest.raises(ConnectionFailedError):
        client.audit.export(tmp_path / "export.jsonl")
    assert in_folder(tmp_path) == []
    assert client.audit.export(tmp_path / "export.jsonl") == 2


async def test_cancelled(proxy: FaultProxy, idle_api_key: str, tmp_path: Path) -> None:
    """A cancelled call ends at once with CancelledError, and the client stays usable."""
    async with AsyncClient(proxy.url, idle_api_key) as client:
        proxy.faults += [silence, trickle]
        waiting = (client.keys.list(), client.audit.export(tmp_path / "export.jsonl"))
        for number, call in enumerate(waiting, 1):
            task = asyncio.create_task(call)
            while len(proxy.seen) < number:  # noqa: ASYNC110 - a thread of the proxy appends
                await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert in_folder(tmp_path) == []
        proxy.faults.append(silence)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.keys.list(), 1.5)
        assert len(proxy.seen) == 3
        assert await client.keys.list() == ()
