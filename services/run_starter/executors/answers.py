"""Answers one attempt's driver, and publishes its reports, which the contract has checked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from retrofill.log import get_log
from retrofill.states import AttemptMode
from retrofill_core.contract.base import explain
from retrofill_core.contract.runs import (
    AttemptEnded,
    AttemptHeartbeat,
    ErrorInfo,
    Report,
    RunBaseChanged,
    RunBegan,
    RunPublicationPutOff,
    RunReport,
    RunReported,
    RunStaged,
    TaskReported,
)
from run_starter.executors import Host, LaunchRequest, OnDelivery, TimedOut

_KINDS: Mapping[str, type[Report]] = {
    each.__name__: each
    for each in (
        *(AttemptHeartbeat, AttemptEnded, RunBegan, TaskReported, RunStaged, RunPublicationPutOff),
        *(RunBaseChanged, RunReported),
    )
}
# Who publishes them, in the messages' headers.
SOURCE = "spark-driver"


class NotAReport(ValueError):
    """A driver sent something that it must not publish. The message is one line."""


def report_of(launch: LaunchRequest, run_ids: Collection[int], fields: Any) -> Report:
    """The report of the attempt's driver, which can be about nothing else. Raises ``NotAReport``."""
    model = _KINDS.get(fields.get("type", "")) if isinstance(fields, dict) else None
    if model is None:
        raise NotAReport("its driver sent an unknown kind of report")
    try:
        report = model.model_validate({**fields, **launch.about})
    except ValidationError as e:
        raise NotAReport(f"its driver sent an invalid {model.__name__}: {explain(e)}") from e
    if isinstance(report, RunReport) and report.run_id not in run_ids:
        raise NotAReport(f"its driver reported on run {report.run_id}, which it was not given")
    own = ("done", "released") if launch.mode == AttemptMode.PUBLISH else ("done", "failed")
    if isinstance(report, AttemptEnded) and report.state not in own:
        raise NotAReport(f"its driver reported that it was {report.state}, which only its host can")
    return report


class Acknowledging:
    """Of one attempt's driver. Reports become durable in the order of their numbers."""

    def __init__(self, send: Callable[[dict[str, Any]], object]) -> None:
        self._send = send
        self._changed = threading.Condition()
        self._durable = self._said = 0
        # The last heartbeats that renewed the lease, though they are not durable.
        self._renewed = self._told = 0
        self._why: str | None = None
        self._stopped = False
        self._thread: threading.Thread | None = None

    def on_delivery(self, number: int) -> Callable[[str | None], None]:
        """Returns what is to be called once the report with this number is durable, or with why it never will be."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._tell, name="acknowledging", daemon=True)
                self._thread.start()

        def delivered(why: str | None) -> None:
            with self._changed:
                if why is None:
                    self._durable = max(self._durable, number)
                self._why = self._why or why
                self._changed.notify_all()

        return delivered

    def wait_until_durable(self, number: int) -> bool:
        """Wait for the report with this number, and so for those before it. Returns whether it is durable.

        It is not if it never will be, or if the driver has ended meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._durable >= number or self._stopped or self._why is not None)
            return self._durable >= number

    def renewed(self, number: int) -> None:
        """The heartbeat with this number, which is not durable, has renewed the lease."""
        with self._changed:
            self._renewed = max(self._renewed, number)
            self._changed.notify_all()

    def undelivered(self, why: str) -> None:
        """A report cannot be published."""
        self.on_delivery(0)(why)

    def stop(self) -> None:
        """The driver exited, or is done with the attempt."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _tell(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(self._has_news)
                if self._stopped:
                    return
                why, said, told = self._why, self._said, self._told
                self._said, self._told = self._durable, self._renewed
                durable, renewed = self._said, self._told
            if why is not None:
                # The driver ends itself: its later reports would follow a gap.
                self._send({"undelivered": why})
                return
            if durable > said:
                self._send({"acknowledged": durable})
            if renewed > told:
                self._send({"renewed": renewed})

    def _has_news(self) -> bool:
        return self._stopped or self._why is not None or self._durable > self._said or self._renewed > self._told


log = get_log(__name__)
Send = Callable[[dict[str, Any]], object]


class Answers:
    """``send`` gets the answers, from any thread. ``begun``: the last run allowed to begin.

    ``over``: whether the driver's report of the attempt's end is durable; ``on_over`` is called then.
    ``remote``: the driver cannot read this machine's files.
    """

    def __init__(
        self,
        host: Host,
        launch: LaunchRequest,
        send: Send,
        *,
        remote: bool = False,
        on_over: Callable[[], object] = lambda: None,
    ) -> None:
        self.launch = launch
        self.begun: int | None = None
        self.over = False
        self._on_over = on_over
        self._timed_out: TimedOut | None = None
        self._host = host
        self._send = send
        self._remote = remote
        self._run_ids = frozenset(run.id for run in launch.runs)
        self._acknowledging = Acknowledging(send)
        # The number of the last report, 0 before the first one.
        self._last = 0
        self._handlers: Mapping[str, Callable[[Any], None]] = {
            "may_begin": self._on_may_begin,
            "may_publish": self._on_may_publish,
            "report": self._on_report,
            "code": self._on_code,
            "timed_out": self._on_timed_out,
        }

    def hear(self, kind: str, fields: Any) -> bool:
        """Handle a message of the driver; never blocks. Returns whether its kind is known.

        Raises ``ValueError``, ``TypeError`` or ``KeyError`` if it is invalid.
        """
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(fields)
        return handler is not None

    def _on_may_begin(self, run_id: int) -> None:
        # Heartbeats go on meanwhile: the answer may wait for one of them.
        _in_thread(self._begin, run_id, self._last)

    def _begin(self, run_id: int, last: int) -> None:
        """Answer once everything about the runs before is durable: while Kafka is away, none begins.

        If the attempt falls silent, only its next run in order counts as begun (``Fold.lose``).
        """
        durable = self._acknowledging.wait_until_durable(last)
        left = self._host.may_begin(self.launch, run_id) if durable else None
        if left is not None:
            self.begun = run_id
        self._send({"begin": left})

    def _on_may_publish(self, run_ids: Sequence[int]) -> None:
        _in_thread(self._publish, run_ids)

    def _publish(self, run_ids: Sequence[int]) -> None:
        self._send({"publish": self._host.may_publish(self.launch, run_ids)})

    def _on_report(self, fields: Mapping[str, Any]) -> None:
        number = int(fields["number"])
        try:
            report = report_of(self.launch, self._run_ids, fields["report"])
        except NotAReport as e:
            log.error("driver_reported_nonsense", attempt=self.launch.attempt_id, error=str(e))
            self._acknowledging.undelivered(str(e))
            return
        self._last = number
        on_delivery: OnDelivery = self._acknowledging.on_delivery(number)
        if isinstance(report, AttemptEnded):
            on_delivery = self._then_over(on_delivery)
        renewed = partial(self._acknowledging.renewed, number)
        self._host.publish(self.launch, report, on_delivery, fields.get("trace"), renewed)

    def _then_over(self, on_delivery: OnDelivery) -> OnDelivery:
        def delivered(why: str | None) -> None:
            if why is None and not self.over:
                self.over = True
                self._on_over()
            on_delivery(why)

        return delivered

    def _on_code(self, sha256: str) -> None:
        if sha256 == self.launch.pipeline.code.sha256:
            _in_thread(self._fetch, sha256)
        else:
            self._send({"code": {"error": f"code {sha256} is not that of pipeline {self.launch.pipeline.name}"}})

    def _fetch(self, sha256: str) -> None:
        self._send({"code": self._host.code(sha256, whole=self._remote)})

    def _on_timed_out(self, fields: dict[str, Any]) -> None:
        """The driver is about to exit because of a task."""
        error = ErrorInfo.model_validate(fields["error"])
        everywhere = bool(fields.get("everywhere"))
        self._timed_out = TimedOut(str(fields["task"]), int(fields["try_number"]), error, everywhere)

    def ended(
        self, *, reported: bool, reason: str, exited: bool = True, unheard: bool = False, shared: bool = False
    ) -> None:
        """The driver exited or is free again, see ``Host.driver_ended``."""
        self._acknowledging.stop()
        if self._timed_out is not None and self.begun is not None and exited and not reported:
            self._host.timed_out(self.launch, self.begun, self._timed_out)
            return
        self._host.driver_ended(
            self.launch,
            reported=reported,
            reason=reason,
            exited=exited,
            begun=self.begun,
            unheard=unheard,
            shared=shared,
        )


def _in_thread(work: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=work, args=arguments, name=work.__name__, daemon=True).start()
