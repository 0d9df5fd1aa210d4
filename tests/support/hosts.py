"""Hosts of executors that record what they are told."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import NamedTuple

from retrofill_core.contract.runs import Report
from run_starter.executors import NOT_ALLOWED, Host, LaunchRequest, OnDelivery, TimedOut


class DriverEnd(NamedTuple):
    attempt_id: int
    begun: int | None
    reported: bool
    exited: bool


class Ends(Host):
    """Allows no run to begin, records which drivers ended, and fails if asked for anything else."""

    def __init__(self) -> None:
        self.ended: queue.SimpleQueue[DriverEnd] = queue.SimpleQueue()

    def may_begin(self, launch: LaunchRequest, run_id: int) -> float | None:
        return None

    def may_publish(self, launch: LaunchRequest, run_ids: Sequence[int]) -> bool:
        return False

    def publish(
        self,
        launch: LaunchRequest,
        report: Report,
        on_delivery: OnDelivery,
        trace: str | None,
        renewed: Callable[[], object],
    ) -> None:
        raise AssertionError(f"a driver reported {report}")

    def code(self, sha256: str, *, whole: bool) -> dict[str, str]:
        raise AssertionError(f"a driver asked for the code {sha256}")

    def driver_ended(
        self,
        launch: LaunchRequest,
        *,
        reported: bool,
        reason: str,
        exited: bool = True,
        begun: int | None = None,
        unheard: bool = False,
        shared: bool = False,
    ) -> None:
        self.ended.put(DriverEnd(launch.key, begun, reported, exited))

    def timed_out(self, launch: LaunchRequest, begun: int, over: TimedOut) -> None:
        raise AssertionError(f"a task of run {begun} took too long: {over}")

    def refused(self, launch: LaunchRequest, reason: str, *, kind: str = NOT_ALLOWED) -> None:
        raise AssertionError(f"attempt {launch.key} was refused: {reason}")

    def changed(self) -> None:
        """It asks for the condition when it needs it."""
