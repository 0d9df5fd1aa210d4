"""The places where runs publish: one for each interval, which others change too, and which a later publisher fences."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from retrofill.protocol.launch import LaunchedRun
from run_starter.executors import LaunchRequest

if TYPE_CHECKING:
    from tests.simulation.world import World

NOTHING = "nothing"


class Ended(Enum):
    """How a publication ended. ``CHANGED``: by somebody else, since the review. ``PUBLISHED_AGAIN``: since what is undone."""

    PUBLISHED = auto()
    CHANGED = auto()
    PUBLISHED_AGAIN = auto()


class Places:
    """The content of each place, by its path. All pipelines publish to the same places."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._content: dict[str, str] = {}
        # By run, what its publication replaced.
        self._replaced: dict[int, str] = {}
        self._changes = 0

    @staticmethod
    def of(run: LaunchedRun) -> str:
        return f"/table/{run.interval_start.isoformat()}"

    def base(self, path: str) -> str:
        return self._content.get(path, NOTHING)

    def change(self, path: str) -> None:
        """Somebody else writes there."""
        self._changes += 1
        self._content[path] = f"somebody's {self._changes}"
        self._world.injected["a place is changed by somebody"] += 1

    def publish(self, launch: LaunchRequest, run: LaunchedRun) -> Ended:
        """Publish there in one step, as Iceberg does. An undo puts back what was replaced."""
        path, before = self.of(run), self.base(self.of(run))
        if run.id in self._replaced:
            return Ended.PUBLISHED
        if run.bases and run.bases != (before,):
            return Ended.CHANGED
        if run.restores is not None and before != _by(run.restores) and not run.over_changes:
            return Ended.PUBLISHED_AGAIN
        row = self._world.oracle.reviews.row("run", "id", run.id)
        # The place refuses a publisher that was replaced.
        if (row["attempt_id"], row["state"]) == (launch.attempt_id, "publishing"):
            self._world.oracle.reviews.published(run, before)
            self._content[path] = _by(run.id) if run.restores is None else self._replaced[run.restores]
            self._world.injected["a run undoes another"] += run.restores is not None
            self._replaced[run.id] = before
        return Ended.PUBLISHED


def _by(run_id: int) -> str:
    return f"run {run_id}"
