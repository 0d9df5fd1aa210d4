"""Prometheus metrics of the services: base units, no ids in labels, counted after the commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import REGISTRY, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from retrofill.log import get_log

log = get_log(__name__)
# A healthy watcher falls into the first few buckets, one that was down into the last.
DELAY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 3600)
CALL_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60)
BATCH_BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

# the bus
MESSAGES = Counter("retrofill_messages", "Messages handled, by topic", ["topic"])
BATCH_SECONDS = Histogram(
    "retrofill_batch_duration_seconds", "From reading a batch of messages to its commit", buckets=BATCH_BUCKETS
)
CHECK_SECONDS = Histogram("retrofill_look_duration_seconds", "Duration of checks", buckets=BATCH_BUCKETS)
DEAD_LETTERS = Counter("retrofill_dead_letters", "Dead letters, by origin topic", ["topic"])
RETRIES = Counter("retrofill_retries", "Refused batches, checks and relay batches, by consequence", ["of", "fault"])
FENCES = Counter("retrofill_fences", "Times this instance found a newer owner", ["of"])
TAKEOVERS = Counter("retrofill_takeovers", "Takeovers of shards and relays", ["of"])
PUBLISHED = Counter("retrofill_events_published", "Outbox events published")
PUBLISH_SECONDS = Histogram(
    "retrofill_publish_duration_seconds", "Duration of one Kafka transaction of the relay", buckets=BATCH_BUCKETS
)

# runs
RUNS_CLAIMED = Counter("retrofill_runs_claimed", "Runs claimed for drivers")
CLAIMS_PUT_OFF = Counter("retrofill_claims_put_off", "Checks of a backfill that started nothing, by reason", ["reason"])
RUNS_ENDED = Counter("retrofill_runs_ended", "Attempts ended, by the run's next state", ["state"])
SPARK_LOST = Counter("retrofill_spark_lost", "Attempts lost with their whole Spark server, by pool", ["pool"])
REPORTS_IGNORED = Counter("retrofill_reports_ignored", "Reports ignored: from an older attempt, or late")

# backfills
REQUESTS = Counter("retrofill_backfill_requests", "Requests decided, by reply; repeats do not count", ["answer"])
RUNS_PLANNED = Counter("retrofill_runs_planned", "Runs planned")

# deadlines and callbacks
DEADLINES_ARMED = Counter(
    "retrofill_deadlines_armed", "Deadlines created, by reference and initial state", ["reference", "state"]
)
DEADLINES_DECIDED = Counter("retrofill_deadlines_decided", "Deadlines decided, by final state", ["state"])
DEADLINES_RECOVERED = Counter("retrofill_deadlines_recovered", "Missed deadlines whose run was done later")
DETECTION_DELAY = Histogram(
    "retrofill_deadline_detection_delay_seconds",
    "From a deadline's due time to the decision that it was missed, by the database's clock",
    buckets=DELAY_BUCKETS,
)
CALLBACKS = Counter("retrofill_callbacks", "Callback calls, by kind and outcome", ["kind", "outcome"])
CALLBACK_SECONDS = Histogram(
    "retrofill_callback_duration_seconds", "Duration of callback calls", ["kind"], buckets=CALL_BUCKETS
)


class Polled(Collector):
    """A gauge whose values are read on a scrape, at most every ``seconds``.

    Where they cannot be read it has no values, and all other metrics are still exported.
    """

    def __init__(
        self, name: str, text: str, label: str, read: Callable[[], Mapping[str, float]], seconds: float = 15.0
    ) -> None:
        self._name, self._text, self._label = name, text, label
        self._read = read
        self._seconds = seconds
        self._lock = threading.Lock()
        self._known: Mapping[str, float] = {}
        self._read_at = float("-inf")

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """The gauge, with one sample per label value."""
        with self._lock:
            if time.monotonic() - self._read_at >= self._seconds:
                self._known, self._read_at = self._try_to_read(), time.monotonic()
            family = GaugeMetricFamily(self._name, self._text, labels=[self._label])
            for label, value in self._known.items():
                family.add_metric([label], value)
            return [family]

    def _try_to_read(self) -> Mapping[str, float]:
        try:
            return self._read()
        except Exception as e:  # noqa: BLE001 - any error of a server or its client
            log.warning("gauge_not_read", gauge=self._name, error=str(e).splitlines()[:1])
            return {}

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """The gauge without samples, so that registering it reads nothing."""
        return [GaugeMetricFamily(self._name, self._text, labels=[self._label])]


def register(collector: Collector) -> None:
    """Export a collector at /metrics."""
    REGISTRY.register(collector)
