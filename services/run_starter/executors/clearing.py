"""Holds attempts back until the applications of earlier ones of their runs have ended in the cluster."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from retrofill.log import get_log
from retrofill.spark import clusters
from retrofill.spark.clusters import END_SECONDS, Cluster, cluster_of
from retrofill.spark.home import SparkHome
from run_starter.executors import Condition, Host, Key, LaunchRequest, processes, submission
from run_starter.executors.command import Drivers

log = get_log(__name__)


def cluster_for(drivers: Drivers, launch: LaunchRequest) -> Cluster | None:
    """The cluster of the attempt's applications, if they may outlive their drivers.

    Raises ``NotConfigured`` or ``ModuleNotFoundError`` if Spark cannot be used.
    """
    home = SparkHome.of(drivers.settings, drivers.python)
    return cluster_of(home, launch.pipeline.spark_conf, {**os.environ, **drivers.environment})


@dataclass(frozen=True)
class Left:
    """What attempts with the same settings still wait for. ``failed``: why that cannot be said."""

    cluster: Cluster | None
    ids: Sequence[str] = ()
    failed: Sequence[str] = ()

    def end(self, kills: Kills) -> Sequence[str]:
        """Request the end of the applications. Returns why some may run on."""
        return kills.request(self.cluster, self.ids) if self.cluster is not None and self.ids else self.failed


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
        # Another one waits, or this is closed.
        self._woken = threading.Event()
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
        self._woken.set()
        if begins:
            self._begin()

    def end(self, key: Key) -> None:
        """End an attempt that waits."""
        with self._lock:
            launch = self._held.pop(key, None)
        if launch is not None:
            reason = self.note or "ended before the applications of earlier attempts had"
            self._host.driver_ended(launch, reported=False, reason=reason)

    def close(self) -> None:
        for launch in self.waiting():
            self.end(launch.key)
        self._woken.set()

    def _begin(self) -> None:
        try:
            threading.Thread(target=self._work, name="clearing", daemon=True).start()
        except RuntimeError as e:
            # Those that wait are cleared with the next one, or given up after ``driver_start_seconds``.
            log.error("clearing_not_started", error=str(e))
            self.note = f"earlier applications may still run: {e}"
            with self._lock:
                self._working = False

    def _work(self) -> None:
        failures = 0
        kills = Kills()
        while held := self._next():
            left = [self._clear(group, kills) for group in held]
            # Not before all groups were asked about: a kill may take as long as a cluster does not answer.
            failed = [why for each in left for why in each.end(kills)]
            note = f"earlier applications may still run: {failed[0]}" if failed else None
            if note != self.note:
                self.note = note
                self._host.changed()
            failures = failures + 1 if failed else 0
            if failed or any(each.ids for each in left):
                self._woken.wait(processes.pause(max(failures, 1)))

    def _next(self) -> list[list[LaunchRequest]]:
        """The attempts that wait now, those together that have the same settings. None: the thread ends."""
        groups: dict[frozenset[tuple[str, str]], list[LaunchRequest]] = {}
        with self._lock:
            self._woken.clear()
            for launch in self._held.values():
                groups.setdefault(frozenset(launch.pipeline.spark_conf.items()), []).append(launch)
            self._working = bool(groups)
        return list(groups.values())

    def _clear(self, held: Sequence[LaunchRequest], kills: Kills) -> Left:
        """Release those of these attempts for which nothing runs that they wait for."""
        cluster = None
        try:
            cluster = cluster_for(self._drivers, held[0])
            return Left(cluster, self._release_free(cluster, held, kills))
        except Exception as e:  # noqa: BLE001 - whatever it is, nothing may begin beside what may still run
            log.warning("applications_not_ended", attempts=[each.attempt_id for each in held], error=str(e))
            return Left(cluster, failed=(str(e),))

    def _release_free(self, cluster: Cluster | None, held: Sequence[LaunchRequest], kills: Kills) -> list[str]:
        """Returns the ids of the applications that the others wait for."""
        ids = [] if cluster is None else cluster.live(_tags(held))
        if not ids:
            self._release_all(held)
        elif len(held) > 1 and kills.outlived(ids):
            # It holds up only those that wait for it. YARN does not say whose it is, but of which half.
            middle = len(held) // 2
            halves = (held[:middle], held[middle:])
            return sorted({id for half in halves for id in self._release_free(cluster, half, kills)})
        return ids

    def _release_all(self, held: Sequence[LaunchRequest]) -> None:
        for each in held:
            with self._lock:
                if each.key in self._held:
                    self._release(each)
                    del self._held[each.key]


def _tags(held: Sequence[LaunchRequest]) -> list[str]:
    return [clusters.tag_of(each.installation, id) for each in held for id in submission.to_clear(each)]


class Kills:
    """The applications whose end was requested, by the time of the first request."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        # Those that outlived it, in turn: the next one first.
        self._turns: list[str] = []

    def outlived(self, ids: Collection[str]) -> bool:
        """Whether one of these, which are live, was to end before."""
        return not self._since.keys().isdisjoint(ids)

    def request(self, cluster: Cluster, ids: Sequence[str]) -> list[str]:
        """Request the end of live applications. Returns why some of them may run on."""
        now = time.monotonic()
        # What outlived a request is named alone: a cluster may refuse all that is named with it. And only one at a time:
        # YARN's client waits for its end, and other attempts wait meanwhile.
        outlived = [id for id in ids if id in self._since]
        self._turns += [id for id in outlived if id not in self._turns]
        alone = next(([id] for id in self._turns if id in outlived), [])
        self._turns = [id for id in self._turns if id not in alone] + alone
        together = [id for id in ids if id not in self._since]
        self._since.update(dict.fromkeys(together, now))
        failed = [why for each in (together, alone) if each and (why := _kill(cluster, each)) is not None]
        late = [id for id in ids if now - self._since[id] > END_SECONDS]
        failed += [f"{id} did not end within {END_SECONDS:g} s" for id in late]
        if failed:
            log.warning("applications_not_ended", applications=list(ids), errors=failed)
        return failed


def _kill(cluster: Cluster, ids: Sequence[str]) -> str | None:
    try:
        cluster.kill(ids)
    except Exception as e:  # noqa: BLE001 - whatever it is, the others are still to end
        return str(e)
    return None
