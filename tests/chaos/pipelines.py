"""The pipelines of the workload."""

from __future__ import annotations

from pathlib import Path

from retrofill.domain.pipeline import PipelineDefinition
from tests.chaos import work
from tests.chaos.workload import Script
from tests.support.definitions import alert, daily


def definitions(script: Script, folder: Path, webhook: str) -> list[PipelineDefinition]:
    """A script's pipelines: deadlines that are missed or met, and every kind of callback."""
    function = {"callback": "note", "kwargs": {"path": str(folder / "calls.log")}}
    alerts = [
        alert("soon", "RUN_QUEUED_AT", 1.5, callback={"kind": "webhook", "url": webhook, "secret": "default"}),
        alert("easy", "RUN_QUEUED_AT", 3600, callback={"kind": "webhook", "url": webhook, "secret": "default"}),
        alert("slow", "RUN_STARTED_AT", 0.25),
        alert("once", "RUN_QUEUED_AT", 2.5, at_most_once=True, **function),
        alert("whole", "BACKFILL_REQUESTED_AT", 2, fire_on_failure=True, **function),
    ]
    return [
        daily(
            f"p{number}",
            max_active_runs=script.limit(number),
            batch_size=script.batch(number),
            batch_mode=script.mode(number),
            deadlines=alerts,
            code={"file": work.__file__, "attribute": "work"},
        )
        for number in range(script.pipelines)
    ]
