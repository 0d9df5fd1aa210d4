"""Trace context (W3C ``traceparent``) from request to driver, and optional OpenTelemetry spans.

Without ``OTEL_EXPORTER_OTLP_ENDPOINT``, OpenTelemetry is not imported and a request's context is
passed on unchanged. OpenTelemetry's own variables configure the exporter
(``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_SERVICE_NAME``, …).
"""

from __future__ import annotations

import logging
import os
import re
from contextlib import contextmanager, suppress
from typing import Any, Iterator

log = logging.getLogger(__name__)
HEADER = "traceparent"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
# https://www.w3.org/TR/trace-context/#traceparent-header; other values are ignored.
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
FLUSH_MILLISECONDS = 2000

_provider: Any = None


def configure_tracing(service: str) -> None:
    """Export this process's spans if an exporter is configured.

    Call once, before the first span.
    """
    global _provider
    if not _is_configured():
        return
    try:
        OTLPSpanExporter, Resource, TracerProvider, BatchSpanProcessor = _classes()
    except ImportError as e:
        log.error(
            "no_tracing: %s: install opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http here (for services: "
            "retrofill[otel]), or unset OTEL_EXPORTER_OTLP_ENDPOINT",
            e,
        )
        return
    name = os.environ.get("OTEL_SERVICE_NAME", service)
    _provider = TracerProvider(resource=Resource.create({"service.name": name, "service.namespace": "retrofill"}))
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))


def preload() -> None:
    """Import what an exporter needs, if one is configured. Starts no threads, so the process can still fork."""
    if _is_configured():
        with suppress(ImportError):  # ``configure_tracing`` says so
            _classes()


def _is_configured() -> bool:
    return any(os.environ.get(name) for name in ENDPOINTS)


def _classes() -> tuple[Any, Any, Any, Any]:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return OTLPSpanExporter, Resource, TracerProvider, BatchSpanProcessor


def parent_of(headers: dict[str, str]) -> str | None:
    """The trace context of a message, or ``None`` if it has no valid one."""
    value = headers.get(HEADER)
    return value if value is not None and _TRACEPARENT.fullmatch(value) else None


@contextmanager
def span(name: str, parent: str | None, **attributes: str | int) -> Iterator[str | None]:
    """A span under ``parent``. Yields its context to pass on, or ``parent`` without an exporter.

    An exception that leaves the block is recorded on the span.
    """
    if _provider is None:
        yield parent
        return
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    context = TraceContextTextMapPropagator()
    above = context.extract({HEADER: parent}) if parent else None
    about = {f"retrofill.{key}": value for key, value in attributes.items()}
    with _provider.get_tracer("retrofill").start_as_current_span(name, context=above, attributes=about):
        carrier: dict[str, str] = {}
        context.inject(carrier)
        yield carrier.get(HEADER, parent)


def fail_span(message: str) -> None:
    """Mark the current span as failed."""
    if _provider is not None:
        from opentelemetry.trace import Status, StatusCode, get_current_span

        get_current_span().set_status(Status(StatusCode.ERROR, message))


def flush() -> None:
    """Export buffered spans, before the process exits without cleanup."""
    if _provider is not None:
        _provider.force_flush(FLUSH_MILLISECONDS)
