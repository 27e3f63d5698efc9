"""Traces by OpenTelemetry: a span for each request, and in it one for each call of the key service.

A span has the request's route, status and request id, which the audit log has, too; nothing of its
body, its query or its headers but the trace that it belongs to. Spans are sent in batches by a
thread of the library's; if the collector does not keep up, they are thrown away.
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
"""Others have the name that OpenTelemetry has for them."""
OTHER_METHOD = "_OTHER"
SERVER_ERROR = 500
EXPORT_SECONDS = 2
"""For one batch, with its repetitions; at the end, too."""


class Tracing:
    """Makes spans and sends them to a collector."""

    def __init__(self, settings: OpenTelemetry) -> None:
        """Start the thread that sends them.

        A caller's traceparent says which trace a request belongs to, and that it is not wanted, but
        not that more than the settings' part of all requests is sent.
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
        """Make a span for a request of a path, as long as a block lasts.

        ``parent`` is its header traceparent. The block gets what is told its answer's status and its
        request id.
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
        """Return a key service, with a span for each call of it."""
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
        """Send what is left, for a moment, and end the thread."""
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
