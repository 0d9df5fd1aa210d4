"""Answers the questions of one attempt's driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from retrofill.contract.runs import ErrorInfo
from run_starter.executors import Host, LaunchRequest, TimedOut


class Answers:
    """``send`` gets the answers, from any thread. ``begun``: the last run allowed to begin."""

    def __init__(self, host: Host, launch: LaunchRequest, send: Callable[[dict[str, Any]], object]) -> None:
        self.launch = launch
        self.begun: int | None = None
        self._timed_out: TimedOut | None = None
        self._host = host
        self._send = send

    def may_begin(self, run_id: int) -> None:
        """Answer whether a run may begin, and how much of the lease is left."""
        left = self._host.may_begin(self.launch, run_id)
        if left is not None:
            self.begun = run_id
        self._send({"begin": left})

    def may_publish(self, run_id: int) -> None:
        """Answer, once that is decided, whether the driver may publish. It works meanwhile."""
        threading.Thread(target=self._publish, args=(run_id,), name="may-publish", daemon=True).start()

    def _publish(self, run_id: int) -> None:
        self._send({"publish": self._host.may_publish(self.launch, run_id)})

    def timed_out(self, fields: dict[str, Any]) -> None:
        """The driver is about to exit because of a task. Raises ``ValueError`` or ``KeyError``."""
        error = ErrorInfo.model_validate(fields["error"])
        self._timed_out = TimedOut(str(fields["task"]), int(fields["try_number"]), error)

    def ended(self, *, reported: bool, reason: str, exited: bool = True) -> None:
        """The driver exited or is free again, see ``Host.driver_ended``."""
        if self._timed_out is not None and self.begun is not None and exited and not reported:
            self._host.timed_out(self.launch, self.begun, self._timed_out)
            return
        self._host.driver_ended(self.launch, reported=reported, reason=reason, exited=exited, begun=self.begun)
