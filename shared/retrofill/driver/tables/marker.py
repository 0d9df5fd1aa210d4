"""What a commit of ours says of itself in the table's own metadata."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Mapping

# What tells of which interval a commit is.
OF_AN_INTERVAL = ("installation", "pipeline", "interval_start", "interval_end", "column")
# What tells of which backfill's interval one is.
OF_A_BACKFILLS_INTERVAL = ("installation", "backfill_id", "interval_start")


@dataclass(frozen=True)
class Marker:
    """What a commit says of itself in the table's metadata, by name."""

    values: Mapping[str, str]

    @property
    def identity(self) -> dict[str, str]:
        """What tells the commit of a run, or of an undo of a run, from all others."""
        return self.only("installation", "run_id" if "run_id" in self.values else "undoes")

    def only(self, *names: str) -> dict[str, str]:
        return {name: self.values[name] for name in names}


def of_run(installation: str, run_id: int) -> Marker:
    """The part of a run's marker that identifies the run."""
    return Marker({"installation": installation, "run_id": str(run_id)})


def of_undo(installation: str, run_id: int) -> Marker:
    """The part of the marker of a run's undo that identifies it."""
    return Marker({"installation": installation, "undoes": str(run_id)})


def is_of_another(about: Mapping[str, Any], own: Marker) -> bool:
    """Whether a commit says that it replaced another interval of the same pipeline."""
    if any(about.get(name) != own.values[name] for name in ("installation", "pipeline", "column")):
        return False
    given = (about["interval_start"], about["interval_end"], own.values["interval_start"], own.values["interval_end"])
    start, end, own_start, own_end = map(datetime.fromisoformat, given)
    return end <= own_start or own_end <= start


def expired(table: str, marker: Marker) -> str:
    (run_id,) = (value for name, value in marker.identity.items() if name != "installation")
    return f"the commit of run {run_id} is no longer in the history of {table}: it cannot be undone"
