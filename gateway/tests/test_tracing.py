"""Spans: their content, their traces, and data that they must not contain."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast
from uuid import uuid4

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from tests.fixtures.collector import Collector, running_collector
from tests.fixtures.processes import free_port

from pqkeep_gateway.config import OpenTelemetry
from pqkeep_gateway.tracing import Tracing
from pqkeep_protocol.algorithms import Algorithm
from pqkeep_protocol.errors import ErrorKind, KeyServiceError
from pqkeep_protocol.keys import TenantId
from pqkeep_protocol.messages import Attribution, Encrypt, Encrypted

PATH = "/api/v1/kem/encrypt"
CANARY = "canary-7f3a9c51"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class FakeKeyService:
    """A key service that responds, or refuses."""

    def __init__(self, refusal: ErrorKind | None) -> None:
        self.refusal = refusal

    def call(
        self, request: Any, _: Attribution, placement: Any, then: Callable[[Any], None]
    ) -> None:
        made = Encrypted(ciphertext=CANARY.encode(), version=cast("Any", 1))
        then(made if self.refusal is None else KeyServiceError(self.refusal))


async def spans_of(
    headers: Mapping[str, str], refusal: ErrorKind | None = None, ratio: float = 1.0
) -> Collector:
    """Send one request through a traced application; return the collector's spans."""
    with running_collector() as collector:
        tracing = Tracing(OpenTelemetry(endpoint=collector.endpoint, sample_ratio=ratio))
        keys = tracing.calls(cast("Any", FakeKeyService(refusal)))

        with tracing.request("POST", PATH, headers.get("traceparent", "")) as answered:
            status = 200
            encrypt = Encrypt(
                tenant=TenantId(uuid4()),
                algorithm=Algorithm.ML_KEM_768,
                version=None,
                plaintext=CANARY.encode(),
            )
            try:
                await keys.execute(encrypt, Attribution("request-1", CANARY, CANARY))
            except KeyServiceError:
                status = 503
            answered(status, "request-1")
        tracing.close()
        return collector


def attributes(span: Span) -> dict[str, str | int]:
    """Return a span's attributes."""
    return {name.key: name.value.string_value or name.value.int_value for name in span.attributes}


async def test_a_request_is_a_part_of_its_caller_s_trace() -> None:
    """A request's span has the caller's span as parent, and contains the key service's call."""
    collector = await spans_of({"traceparent": f"00-{TRACE}-{PARENT}-01"})
    call, request = collector.spans
    assert request.trace_id.hex() == call.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == PARENT
    assert call.parent_span_id == request.span_id
    assert (request.name, call.name) == (f"POST {PATH}", "key service Encrypt")
    assert attributes(request) == {
        "http.request.method": "POST",
        "http.route": PATH,
        "http.response.status_code": 200,
        "pqkeep.request_id": "request-1",
    }
    assert attributes(call) == {"pqkeep.request": "Encrypt"}


async def test_a_refusal_is_an_error_by_its_kind() -> None:
    """The call's span has the kind of error, and the request's span with 503 is an error too."""
    call, request = (await spans_of({}, ErrorKind.UNAVAILABLE)).spans
    assert attributes(call)["error.type"] == "unavailable"
    assert call.status.code == request.status.code == Status.STATUS_CODE_ERROR
    assert not call.events


@pytest.mark.parametrize(
    "traceparent", ["", "x", f"00-{TRACE}-{PARENT}", f"00-{'0' * 32}-{PARENT}-01", CANARY * 1000]
)
async def test_a_malformed_trace_is_none(traceparent: str) -> None:
    """A request with a malformed traceparent begins its own trace."""
    _, request = (await spans_of({"traceparent": traceparent})).spans
    assert not request.parent_span_id
    assert request.trace_id.hex() != TRACE


async def test_nobody_has_more_sent_than_the_settings() -> None:
    """A caller's sampled trace does not override the settings; an unsampled one is never sent."""
    assert (await spans_of({"traceparent": f"00-{TRACE}-{PARENT}-01"}, ratio=0.0)).spans == []
    assert (await spans_of({"traceparent": f"00-{TRACE}-{PARENT}-00"})).spans == []


async def test_a_span_has_nothing_of_a_request() -> None:
    """Spans contain no body, query, header, cookie or attribution."""
    headers = {"x-api-key": CANARY, "tracestate": f"a={CANARY}", "baggage": f"a={CANARY}"}
    collector = await spans_of(headers | {"traceparent": f"00-{TRACE}-{PARENT}-01"})
    assert collector.received
    assert not any(CANARY.encode() in request for request in collector.received)


async def test_a_collector_that_is_away_holds_nothing_up() -> None:
    """Without a collector, requests are served and the gateway can end."""
    tracing = Tracing(OpenTelemetry(endpoint=f"http://127.0.0.1:{free_port()}/v1/traces"))
    keys = tracing.calls(cast("Any", FakeKeyService(None)))
    encrypt = Encrypt(
        tenant=TenantId(uuid4()), algorithm=Algorithm.ML_KEM_768, version=None, plaintext=b""
    )
    response = await keys.execute(encrypt, Attribution("", "", ""))
    assert response.ciphertext == CANARY.encode()
    tracing.close()
