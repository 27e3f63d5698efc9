"""OpenTelemetry traces: a span for each request, with a child span for each key service call.

A span has the request's route, status and request id, which is also in the audit log. It has
nothing from the body, the query or the headers, except the trace. The library's thread sends spans
in batches; if the collector is too slow, spans are dropped.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import TypeVar

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from pqkeep_gateway.config import OpenTelemetry
from pqkeep_gateway.shards import Placement, TenantKeyService, Then, awaited
from pqkeep_protocol.errors import KeyServiceError
from pqkeep_protocol.messages import Attribution, Request

R = TypeVar("R")

SERVICE = "pqkeep-gateway"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
"""Other methods get OpenTelemetry's name for them."""
OTHER_METHOD = "_OTHER"
SERVER_ERROR = 500
EXPORT_SECONDS = 2
"""The time limit for one batch with its retries, and for the last one."""


class Tracing:
    """Creates spans and sends them to a collector."""

    def __init__(self, settings: OpenTelemetry) -> None:
        """Start the sending thread.

        A caller's traceparent sets the trace of a request, and can turn sampling off. It cannot
        exceed the sample ratio in the settings.
        """
        ratio = TraceIdRatioBased(settings.sample_ratio)
        self._provider = TracerProvider(
            sampler=ParentBased(
                ratio, remote_parent_sampled=ratio, remote_parent_not_sampled=ALWAYS_OFF
            ),
            resource=Resource.create(
                {"service.name": SERVICE, "service.version": version(SERVICE)}
            ),
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.endpoint, timeout=EXPORT_SECONDS))
        )
        self._tracer = self._provider.get_tracer(SERVICE)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def request(self, method: str, path: str, parent: str) -> Iterator[Callable[[int, str], None]]:
        """Create a span for a request while a block runs.

        ``parent``: the traceparent header. The block gets a function that takes the response's
        status and the request id.
        """
        named = method if method in METHODS else OTHER_METHOD
        with self._tracer.start_as_current_span(
            f"{named} {path}",
            context=self._propagator.extract({"traceparent": parent}),
            kind=SpanKind.SERVER,
            attributes={"http.request.method": named, "http.route": path},
            record_exception=False,
        ) as span:

            def answered(status: int, request_id: str) -> None:
                span.set_attribute("http.response.status_code", status)
                span.set_attribute("pqkeep.request_id", request_id)
                if status >= SERVER_ERROR:
                    span.set_status(Status(StatusCode.ERROR))

            yield answered

    def calls(self, keys: TenantKeyService) -> TenantKeyService:
        """Return a key service with a span for each call."""
        return _TracedKeyService(keys, self)

    def call(
        self,
        keys: TenantKeyService,
        request: Request[R],
        attribution: Attribution,
        placement: Placement | None,
        then: Then[R],
    ) -> None:
        """Send a request to a key service, in a span that ends with the outcome."""
        name = type(request).__name__
        span = self._tracer.start_span(
            f"key service {name}", kind=SpanKind.CLIENT, attributes={"pqkeep.request": name}
        )

        def told(outcome: R | KeyServiceError) -> None:
            if isinstance(outcome, KeyServiceError):
                span.set_attribute("error.type", outcome.kind.value)
                span.set_status(Status(StatusCode.ERROR))
            span.end()
            then(outcome)

        keys.call(request, attribution, placement, told)

    def close(self) -> None:
        """Send the remaining spans, within the time limit, and end the thread."""
        self._provider.shutdown()


class _TracedKeyService:
    def __init__(self, keys: TenantKeyService, tracing: Tracing) -> None:
        self._keys = keys
        self._tracing = tracing

    def call(
        self,
        request: Request[R],
        attribution: Attribution,
        placement: Placement | None,
        then: Then[R],
        /,
    ) -> None:
        self._tracing.call(self._keys, request, attribution, placement, then)

    async def execute(
        self,
        request: Request[R],
        attribution: Attribution,
        placement: Placement | None = None,
        /,
    ) -> R:
        return await awaited(self, request, attribution, placement)
