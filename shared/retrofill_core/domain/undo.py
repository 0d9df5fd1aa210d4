"""The pipeline of a backfill that undoes another: its only task restores what was replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from retrofill_core.domain.pipeline import CodeLocation, PipelineDefinition, TaskDefinition

TASK = "restore"
# Nothing is imported; it only tells the attempts from those with the user's code.
UNDO_BATCH = 400
UNDO_MODULE = "retrofill.outputs.restoring"
CODE = CodeLocation(module=UNDO_MODULE, attribute="restore")


def is_undo(code: Mapping[str, Any]) -> bool:
    """Whether an attempt with this code (as stored) undoes others."""
    return code.get("module") == UNDO_MODULE


def undo_of(definition: PipelineDefinition) -> PipelineDefinition:
    """The definition by which a backfill that was planned with ``definition`` is undone.

    Spark, its settings and the limits stay the same. Deadlines and the time limit of runs are for the tasks' work: nobody
    could raise them for an undo.
    """
    return definition.model_copy(
        update={
            "tasks": (TaskDefinition(name=TASK),),
            "code": CODE,
            # Its task restores all intervals of a range in one go, whatever the user's tasks could.
            "batch_mode": "range",
            "batch_size": UNDO_BATCH,
            "batch_target_seconds": None,
            "deadlines": (),
            "run_timeout_seconds": None,
        }
    )


def is_replaced(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether a run that published ``theirs`` later (as stored) has replaced a part of ``mine``.

    Runs of overlapping intervals may publish to different places, as a day's run and an hour's: what
    counts is the same table, or the same directory, or one inside the other.
    """
    names, others = ([f"{output['name'].rstrip('/')}/" for output in each["outputs"]] for each in (mine, theirs))
    return any(name.startswith(other) or other.startswith(name) for name in names for other in others)
