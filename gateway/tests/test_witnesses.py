"""The carrier between key service and witnesses: bytes there and back, within limits."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import pytest
from tests.fixtures.certificate import new_certificate
from tests.fixtures.witness import Response, serving

from pqkeep_gateway.delivery.witnesses import WitnessCarrier
from pqkeep_gateway.unavailable import UnavailableError
from pqkeep_protocol.audit import (
    MAX_WITNESS_RESPONSE,
    Reported,
    ReportSubmission,
    Submission,
    Submissions,
)
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.messages import Attribution, KeyService

if TYPE_CHECKING:
    from pathlib import Path

BODY = b"old 0\n\npqkeep.example/audit\n1\n"


class Due:
    """A key service with submissions that are due."""

    def __init__(self, *urls: str) -> None:
        self.urls = {uuid4(): url for url in urls}
        self.reports: list[tuple[str, int, bytes, str]] = []
        """The address, status, content and error of each report, in order."""

    async def execute(self, request: Any, _: Attribution, /) -> Any:
        """Return what is due, or take a report."""
        if isinstance(request, ReportSubmission):
            url = self.urls[request.id]
            self.reports.append((url, request.status, request.content, request.error))
            return Reported()
        due = (Submission(name, url, BODY) for name, url in self.urls.items())
        return Submissions(submissions=tuple(due))

    async def carried(self, seconds: float = 5.0) -> tuple[int, bytes, str]:
        """Carry once; return the last report without its address."""
        await WitnessCarrier(cast("KeyService", self), seconds=seconds).carry()
        return self.reports[-1][1:]


@contextmanager
def dripping() -> Iterator[str]:
    """Serve a response byte by byte, without end. Yields the address."""
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            peer, _ = listener.accept()
            with peer:
                try:
                    peer.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                    while not is_over.wait(0.02):
                        peer.sendall(b"x")
                except OSError:
                    pass

        thread = threading.Thread(target=drip)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/log"
        is_over.set()
        thread.join()


def _always(response: Response) -> Callable[[bytes], Response]:
    return lambda _: response


def _noting(seen: list[bytes]) -> Callable[[bytes], Response]:
    def respond(body: bytes) -> Response:
        seen.append(body)
        return Response(200)

    return respond


async def test_a_response_is_brought_back_unchanged() -> None:
    """The body arrives unchanged. The caller gets the response's status and content."""
    seen: list[bytes] = []

    def respond(body: bytes) -> Response:
        seen.append(body)
        return Response(409, b"12\n", "text/x.tlog.size")

    with serving(respond) as url:
        assert await Due(f"{url}/add-checkpoint").carried() == (409, b"12\n", "")
    assert seen == [BODY]
    status, content, error = await Due(f"{url}/add-checkpoint").carried()
    assert (status, content, error) == (0, b"", "Connection refused")


@pytest.mark.threat("hostile-witness")
async def test_a_hostile_response_is_bounded() -> None:
    """A response above the limit is refused, the largest allowed one is accepted, and a redirect is not followed."""
    for size, expected in ((MAX_WITNESS_RESPONSE, 200), (MAX_WITNESS_RESPONSE + 1, 0)):
        with serving(_always(Response(200, b"x" * size))) as url:
            status, content, _ = await Due(f"{url}/add-checkpoint").carried()
        assert (status, len(content)) == (expected, size if expected else 0)
    followed: list[bytes] = []
    with serving(_noting(followed)) as elsewhere:
        there = f"{elsewhere}/add-checkpoint".encode()
        with serving(_always(Response(307, there))) as url:
            assert (await Due(f"{url}/add-checkpoint").carried())[0] == 307
    assert followed == []


@pytest.mark.threat("hostile-witness")
async def test_a_slow_witness_delays_no_other() -> None:
    """A witness that responds byte by byte is given up; another's report does not wait for it."""
    with serving(lambda _: Response(200, b"yes")) as quick, dripping() as slow:
        due = Due(slow, f"{quick}/add-checkpoint")
        status, _, error = await due.carried(1.0)
    assert due.reports[0][1:3] == (200, b"yes")
    assert (due.reports[1][0], status) == (slow, 0)
    assert "1 seconds" in error


@pytest.mark.threat("hostile-witness")
async def test_the_witness_s_certificate_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a certificate that the system trusts, nothing is sent."""
    certificate = new_certificate(tmp_path)
    seen: list[bytes] = []
    with serving(_noting(seen), certificate.context) as url:
        assert (await Due(f"{url}/add-checkpoint").carried())[0] == 0
        assert seen == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.path))
        assert (await Due(f"{url}/add-checkpoint").carried())[0] == 200
    assert seen == [BODY]


async def test_an_unavailable_key_service_is_asked_again() -> None:
    """Without a key service there is nothing to carry, and the task goes on."""

    class Away:
        async def execute(self, *_: object) -> Any:
            await asyncio.sleep(0)
            raise KeyServiceError(ErrorKind.UNAVAILABLE)

    with pytest.raises(UnavailableError):
        await WitnessCarrier(cast("KeyService", Away())).carry()
