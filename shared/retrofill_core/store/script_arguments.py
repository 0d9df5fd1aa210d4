"""Fills in the arguments of a pipeline's scripts before any run exists: what cannot be filled in fails every run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from retrofill.outputs.file_uri import local_path
from retrofill.protocol.script_texts import AnySecret, Values, fill
from retrofill_core.domain.pipeline import PipelineDefinition, TaskDefinition
from retrofill_core.domain.planning import Intervals, Reason, Rejection

# To find two intervals that stage one directory takes about 20 microseconds an interval.
MOST_COMPARED = 10_000


def unfillable(pipeline: PipelineDefinition, conf: Mapping[str, Any], found: Intervals | Rejection) -> Rejection | None:
    """The rejection of a request whose ``conf`` has no value for a field of a script, or makes a path that cannot be staged."""
    if isinstance(found, Rejection):
        return None
    for task in pipeline.tasks:
        try:
            _staged_by(pipeline, task, conf, found.starts[0], found.ends[0])
        except ValueError as e:
            return Rejection(Reason.BAD_ARGUMENTS, f"task {task.name!r}: {e}")
    return None


def shared_places(pipeline: PipelineDefinition, conf: Mapping[str, Any], found: Intervals) -> Iterator[str]:
    """A line for each script of which two intervals stage one directory."""
    zone = ZoneInfo(pipeline.timezone)
    for task in pipeline.tasks:
        if not task.stages_directories:
            continue
        owners: dict[Path, datetime] = {}
        for start, end in zip(found.starts[:MOST_COMPARED], found.ends, strict=False):
            staged = _staged_by(pipeline, task, conf, start, end)
            taken = next((each for each in staged if owners.setdefault(each, start) != start), None)
            if taken is not None:
                first, other = owners[taken].astimezone(zone), start.astimezone(zone)
                yield (
                    f"task {task.name!r}: the intervals {first.isoformat()} and {other.isoformat()} stage one directory, "
                    f"{taken}, so only the first of them will be published: name it by the whole interval"
                )
                break


def _staged_by(
    pipeline: PipelineDefinition, task: TaskDefinition, conf: Mapping[str, Any], start: datetime, end: datetime
) -> Sequence[Path]:
    """The directories that a script or a file of SQL stages for an interval. Raises ``BadArgument`` or ``CannotStage``."""
    staged: list[Path] = []

    def stage(path: str) -> str:
        staged.append(local_path(path))
        return path

    def partitions(path: str, names: Sequence[str]) -> str:
        staged.extend(local_path(f"{local_path(path)}/{name}") for name in names)
        return path

    zone = ZoneInfo(pipeline.timezone)
    run = {"id": 1, "attempt": 1, "backfill_id": "b"}
    tables = [table.name for table in task.tables]
    ends = start.astimezone(zone), end.astimezone(zone)
    # Which secrets there are, only the hosts of its pool know.
    fill(task.texts, Values(*ends, run, conf, stage, str, partitions, AnySecret(), tables))
    return list(dict.fromkeys(staged))
