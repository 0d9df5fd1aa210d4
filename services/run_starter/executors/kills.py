"""Requests the ends of applications, and knows which of them outlive that."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

import structlog

from retrofill.spark.clusters import END_SECONDS, Cluster

log = structlog.get_logger(__name__)


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
