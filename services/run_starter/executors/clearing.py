"""Holds attempts back until the applications of earlier ones of their runs have ended in the cluster."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

import structlog

from retrofill import clusters
from retrofill.clusters import Cluster
from retrofill.clusters.find import cluster_of
from retrofill.spark_home import SparkHome
from run_starter.executors import Condition, Host, Key, LaunchRequest, processes
from run_starter.executors.command import Drivers

log = structlog.get_logger(__name__)


def cluster_for(drivers: Drivers, launch: LaunchRequest) -> Cluster | None:
    """The cluster of the attempt's applications, if they may outlive their drivers.

    Raises ``NotConfigured`` or ``ModuleNotFoundError`` if Spark cannot be used.
    """
    home = SparkHome.of(drivers.settings, drivers.python)
    return cluster_of(home, launch.pipeline.spark_conf, {**os.environ, **drivers.environment})


class Clearing:
    """Implements ``Executor`` for attempts that wait for the end of earlier ones.

    One thread asks the cluster about all of them.
    """

    def __init__(self, drivers: Drivers, host: Host, release: Callable[[LaunchRequest], None]) -> None:
        """``release`` gets each attempt that need not wait any more. It must not call this object."""
        self._drivers = drivers
        self._host = host
        self._release = release
        self._lock = threading.Lock()
        self._held: dict[Key, LaunchRequest] = {}
        self._working = False
        self._closed = threading.Event()
        # Why the attempts still wait.
        self.note: str | None = None

    def condition(self) -> Condition:
        return Condition(0, note=self.note or "")

    def waiting(self) -> list[LaunchRequest]:
        with self._lock:
            return list(self._held.values())

    def hosted(self) -> set[Key]:
        return {launch.key for launch in self.waiting()}

    def launch(self, launch: LaunchRequest) -> None:
        """Hold the attempt back. It is released from another thread."""
        with self._lock:
            self._held[launch.key] = launch
            begins, self._working = not self._working, True
        if begins:
            threading.Thread(target=self._work, name="clearing", daemon=True).start()

    def end(self, key: Key) -> None:
        """End an attempt that waits."""
        with self._lock:
            launch = self._held.pop(key, None)
        if launch is not None:
            reason = self.note or "ended before the applications of earlier attempts had"
            self._host.driver_ended(launch, reported=False, reason=reason)

    def close(self) -> None:
        self._closed.set()
        for launch in self.waiting():
            self.end(launch.key)

    def _work(self) -> None:
        failures = 0
        while held := self._next():
            failed = [why for group in held if (why := self._clear(group)) is not None]
            note = f"earlier applications may still run: {failed[0]}" if failed else None
            if note != self.note:
                self.note = note
                self._host.changed()
            failures = failures + 1 if failed else 0
            if failures:
                self._closed.wait(processes.pause(failures))

    def _next(self) -> list[list[LaunchRequest]]:
        """The attempts that wait now, those together that have the same settings. None: the thread ends."""
        groups: dict[frozenset[tuple[str, str]], list[LaunchRequest]] = {}
        with self._lock:
            for launch in self._held.values():
                groups.setdefault(frozenset(launch.pipeline.spark_conf.items()), []).append(launch)
            self._working = bool(groups)
        return list(groups.values())

    def _clear(self, held: Sequence[LaunchRequest]) -> str | None:
        """Release these attempts once nothing runs that they wait for. Returns why that cannot be said."""
        tags = [clusters.tag_of(each.installation, id) for each in held for id in each.earlier]
        try:
            cluster = cluster_for(self._drivers, held[0])
            if cluster is not None:
                clusters.end(cluster, tags)
        except Exception as e:  # noqa: BLE001 - whatever it is, nothing may begin beside what may still run
            log.warning("applications_not_ended", attempts=[each.attempt_id for each in held], error=str(e))
            return str(e)
        for each in held:
            with self._lock:
                if each.key in self._held:
                    self._release(each)
                    del self._held[each.key]
        return None
