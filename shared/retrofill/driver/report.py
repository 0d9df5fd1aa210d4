"""A driver's reports on ``run-reports``, in order. If one cannot be delivered, the process ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

import structlog
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered

from retrofill.bus.clients import producer
from retrofill.bus.envelope import headers_of, wire_headers
from retrofill.contract.cost import Cost
from retrofill.contract.partitioning import partition_of
from retrofill.contract.runs import (
    AttemptEnded,
    AttemptHeartbeat,
    ErrorInfo,
    Report,
    RunBegan,
    RunReport,
    RunReported,
    RunStaged,
    SparkApplication,
    TaskReported,
)
from retrofill.contract.topics import Topic
from retrofill.domain.task_run import TaskState
from retrofill.driver.execute import OnTaskState
from retrofill.driver.launch import Launch, LaunchedRun, Piece
from retrofill.settings import Settings
from retrofill.tracing import HEADER

log = structlog.get_logger(__name__)
SOURCE = "spark-driver"
POLL_SECONDS = 1.0
AGAIN_SECONDS = 0.2
Acknowledged = Callable[[], object]


class Wire:
    """The process's producer, and the thread that handles its acknowledgements.

    ``on_loss`` is called when a report could not be delivered. It must end the process: the reports
    would have a gap, and only a new attempt can report everything.
    """

    def __init__(self, settings: Settings, on_loss: Callable[[str], object], client: Producer | None = None) -> None:
        self._topic = f"{settings.topic_prefix}{Topic.RUN_REPORTS}"
        self._partitions = settings.partitions
        self._on_loss = on_loss
        # The last task's report travels with the run's, which follows at once.
        self._producer = client or producer(settings, SOURCE, **{"linger.ms": 1})
        self._open = 0
        self._silent = False
        self._changed = threading.Condition()
        threading.Thread(target=self._serve, name="acknowledgements", daemon=True).start()

    def connect(self) -> None:
        """Connect before the first report. If the broker is unreachable, only logs a warning."""
        try:
            self._producer.list_topics(self._topic, timeout=5)
        except Exception as e:  # noqa: BLE001 - the first heartbeat will fail too
            log.warning("kafka_away", error=str(e))

    def send(self, report: Report, acknowledged: Acknowledged | None = None, trace: str | None = None) -> None:
        """Send a report. ``acknowledged`` is called from another thread once it is durable."""

        def delivered(error: KafkaError | None, _: Delivered) -> None:
            if error is not None:
                self._on_loss(f"a {report.type} was not delivered: {error}")
                return
            if acknowledged is not None:
                acknowledged()
            with self._changed:
                self._open -= 1
                self._changed.notify_all()

        with self._changed:
            # While the process is ending, senders block until it exits.
            self._changed.wait_for(lambda: not self._silent)
            self._open += 1
            self._produce(report, trace, delivered)

    def _produce(
        self, report: Report, trace: str | None, delivered: Callable[[KafkaError | None, Delivered], None]
    ) -> None:
        headers = wire_headers(headers_of(report, SOURCE) | ({} if trace is None else {HEADER: trace}))
        while True:
            try:
                self._producer.produce(
                    self._topic,
                    key=report.backfill_id.encode(),
                    partition=partition_of(report.backfill_id, self._partitions),
                    value=report.encode(),
                    headers=headers,
                    on_delivery=delivered,
                )
                return
            except KafkaException as e:
                if e.args[0].code() != KafkaError._UNKNOWN_TOPIC:
                    raise
                # A starting broker reports this for every topic, and the client caches it.
                # If it takes too long, the lease ends the process.
                log.warning("topic_unknown", topic=self._topic)
                self.connect()
                self._changed.wait(AGAIN_SECONDS)

    def silence(self) -> None:
        """Send no more reports; senders block until the process exits."""
        with self._changed:
            self._silent = True

    def flush(self) -> None:
        """Wait until all reports are acknowledged.

        If that takes too long, the lease ends the process.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._open == 0)

    def _serve(self) -> None:
        while True:
            self._producer.poll(POLL_SECONDS)


class Reporter:
    """The reports of one attempt."""

    def __init__(self, wire: Wire, launch: Launch) -> None:
        self._wire = wire
        self._launch = launch
        self._traces: dict[int, str | None] = {}
        # Of each run, if the attempt has one piece and Spark has told by now.
        self.cost_of_run: Callable[[], Cost | None] = lambda: None

    def trace(self, run: LaunchedRun, trace: str | None) -> None:
        """Send the reports of a run with this trace context."""
        self._traces[run.id] = trace

    def trace_of(self, run: LaunchedRun) -> str | None:
        return self._traces.get(run.id, self._launch.trace)

    def heartbeat(self, acknowledged: Acknowledged) -> None:
        """Report that the attempt is alive."""
        self._wire.send(
            AttemptHeartbeat(**self._launch.about, sent_at=datetime.now(UTC)), acknowledged, self._launch.trace
        )

    def began(self, run: LaunchedRun, spark: SparkApplication | None) -> None:
        """Report that a run begins, before its code does."""
        self._send(RunBegan, run, spark=spark)

    def of_tasks(self, piece: Piece) -> OnTaskState:
        """Returns what reports a task's new state, for each of its runs."""

        def report(task: str, state: TaskState, try_number: int = 1, error: ErrorInfo | None = None) -> None:
            for run in piece.runs:
                self._send(TaskReported, run, task=task, state=state, try_number=try_number, error=error)

        return report

    def staged(self, run: LaunchedRun, outputs: tuple[str, ...]) -> None:
        """Report that a run's tasks succeeded and staged ``outputs``."""
        self._send(RunStaged, run, outputs=outputs)

    def ended(self, run: LaunchedRun, succeeded: bool, error: ErrorInfo | None) -> None:
        """Report the end of a run."""
        state = "succeeded" if succeeded else "failed"
        self._send(RunReported, run, state=state, error=error, cost=self.cost_of_run())

    def attempt_ended(self, error: ErrorInfo | None = None, *, stays: bool = False, cost: Cost | None = None) -> None:
        """Report the attempt's end; returns when all its reports are acknowledged.

        ``error``: why its range failed as a whole. ``stays``: the process serves another attempt.
        ``cost``: what Spark used for it.
        """
        how: Literal["done", "failed"] = "done" if error is None else "failed"
        about = {**self._launch.about, "sent_at": datetime.now(UTC)}
        report = AttemptEnded(**about, state=how, error=error, stays=stays, cost=cost)
        self._wire.send(report, trace=self._launch.trace)
        self._wire.flush()

    def _send(self, report: type[RunReport], run: LaunchedRun, **fields: Any) -> None:
        about = self._launch.about_run(run)
        self._wire.send(report(**about, sent_at=datetime.now(UTC), **fields), trace=self.trace_of(run))
