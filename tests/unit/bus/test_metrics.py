"""Gauges whose values are read at scrape time."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from retrofill_core.bus.metrics import Polled


def test_a_gauge_that_cannot_be_read_hides_no_other() -> None:
    registry = CollectorRegistry()
    Gauge("known", "Known without asking anybody", registry=registry).set(7)
    answers: list[dict[str, float] | Exception] = [{"b": 2.0}, ConnectionError("Kafka is away"), {"a": 1.0}]

    def read() -> dict[str, float]:
        answer = answers.pop()
        if isinstance(answer, Exception):
            raise answer
        return answer

    registry.register(Polled("asked", "Asked of a server", "of", read, seconds=0))
    scrapes = [generate_latest(registry).decode() for _ in range(3)]
    assert all("known 7.0" in scrape for scrape in scrapes)
    assert ['asked{of="a"} 1.0' in scrape for scrape in scrapes] == [True, False, False]
    # A stale value is not published as the current one.
    assert ["asked{" in scrape for scrape in scrapes] == [True, False, True]
