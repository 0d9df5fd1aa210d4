"""Pipelines, alerts and keys for tests, in short."""

from __future__ import annotations

from typing import Any

from retrofill_core.contract.topics import partition_of
from retrofill_core.domain.deadline import DeadlineAlert
from retrofill_core.domain.pipeline import CodeLocation, PipelineDefinition, TaskDefinition
from tests.support.installation import PARTITIONS


def daily(name: str = "p", tasks: tuple[str, ...] = ("only",), **more: Any) -> PipelineDefinition:
    """A daily pipeline in UTC whose tasks run one after another."""
    return PipelineDefinition.model_validate(
        {
            "name": name,
            "schedule": "@daily",
            "start": "2000-01-01",
            "tasks": [
                TaskDefinition(name=task, after=tasks[max(0, n - 1) : n]).model_dump() for n, task in enumerate(tasks)
            ],
            "code": CodeLocation(file="/nowhere.py", attribute="p").model_dump(),
            **more,
        }
    )


def alert(name: str, reference: str, seconds: float, **more: Any) -> dict[str, Any]:
    """A pipeline's deadline alert, as JSON."""
    return DeadlineAlert.model_validate(
        {"name": name, "reference": reference, "interval_seconds": seconds, **more}
    ).model_dump(mode="json")


def key_on(partition: int, partitions: int = PARTITIONS) -> str:
    """A key that hashes to ``partition``."""
    return next(key for n in range(1000) if partition_of(key := f"key-{n}", partitions) == partition)
