"""Traces of launches: the request's context in the reports, and spans under it where an exporter is set."""

from __future__ import annotations

import gzip
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from tests.unit.driver.served import World, world

from retrofill import tracing

__all__ = ["world"]
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(http.server.BaseHTTPRequestHandler):
    """Receives spans as an OpenTelemetry collector does."""

    spans: ClassVar[list[Any]] = []

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.spans.extend(span for scope in resource.scope_spans for span in scope.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    Collector.spans.clear()
    tracing.configure_tracing("spark-driver")
    yield Collector.spans
    tracing.flush()
    monkeypatch.setattr(tracing, "_provider", None)
    server.shutdown()
    server.server_close()


def test_the_context_of_a_request_comes_back_with_the_reports_without_any_exporter(world: World) -> None:
    world.launch(trace=TRACE)
    world.say({"begin": 60.0})
    world.hear()
    assert set(world.reports.traces) == {TRACE}


def test_spans_of_run_and_tasks_are_under_the_requests(world: World, collector: list[Any]) -> None:
    world.launch(trace=TRACE)
    world.say({"begin": 60.0})
    world.hear()
    tracing.flush()
    spans = {span.name: span for span in collector}
    assert set(spans) == {"run", "task a"}
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE.split("-")[1]}
    assert spans["run"].parent_span_id.hex() == TRACE.split("-")[2]
    assert spans["task a"].parent_span_id == spans["run"].span_id
    assert {a.key: a.value.string_value for a in spans["run"].attributes if a.value.string_value} == {
        "retrofill.pipeline": "p",
        "retrofill.backfill": "b",
    }
    fields = {
        (body["type"].startswith("Attempt"), str(trace).split("-")[2])
        for body, trace in zip(world.reports.bodies, world.reports.traces, strict=True)
    }
    assert fields == {(True, TRACE.split("-")[2]), (False, spans["run"].span_id.hex())}


def test_nothing_of_opentelemetry_is_imported_where_no_exporter_is_set() -> None:
    check = (
        "import sys; from retrofill import tracing; tracing.configure_tracing('x')\n"
        "with tracing.span('a', None): pass\n"
        "print([m for m in sys.modules if m.startswith(('opentelemetry', 'openlineage'))])"
    )
    fields = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    assert fields.stdout.strip() == "[]"


@pytest.mark.parametrize("header", ["", "00-0-0-01", TRACE.upper(), f"00-{'0' * 32}-b7ad6b7169203331-01", TRACE + "x"])
def test_a_context_that_is_not_sound_is_as_good_as_none(header: str) -> None:
    assert tracing.parent_of({"traceparent": header}) is None


PRELOADS = """
import sys, threading
from retrofill.tracing import preload
preload()
print("opentelemetry.sdk.trace.export" in sys.modules, threading.active_count())
"""


@pytest.mark.parametrize("address", ["", "http://127.0.0.1:1"])
def test_what_exports_spans_is_imported_before_the_fork_if_at_all(address: str) -> None:
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": address}
    done = subprocess.run([sys.executable, "-c", PRELOADS], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{bool(address)} 1\n"
