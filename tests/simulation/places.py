"""Where runs publish: one place for each interval, which others change too, and which a later publisher fences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from run_starter.executors import LaunchRequest, RunToDo

if TYPE_CHECKING:
    from tests.simulation.world import World

NOTHING = "nothing"


class Places:
    """The content of each place, by its path. All pipelines publish to the same places."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._content: dict[str, str] = {}
        self._changes = 0

    @staticmethod
    def of(run: RunToDo) -> str:
        return f"/table/{run.interval_start.isoformat()}"

    def base(self, path: str) -> str:
        return self._content.get(path, NOTHING)

    def change(self, path: str) -> None:
        """Somebody else writes there."""
        self._changes += 1
        self._content[path] = f"somebody's {self._changes}"
        self._world.injected["a place is changed by somebody"] += 1

    def publish(self, launch: LaunchRequest, run: RunToDo) -> bool:
        """Publish there in one step, as Iceberg does. Returns whether it is as approved, or is the run's already."""
        path, before = self.of(run), self.base(self.of(run))
        own = f"run {run.id}"
        if run.bases and run.bases != (before,) and before != own:
            return False
        row = self._world.oracle.reviews.row("run", "id", run.id)
        # The place refuses a publisher that was replaced.
        if (row["attempt_id"], row["state"]) == (launch.attempt_id, "publishing") and before != own:
            self._world.oracle.reviews.published(run, before)
            self._content[path] = own
        return True
