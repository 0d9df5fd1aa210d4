"""The pipelines of the workload."""

from __future__ import annotations

from pathlib import Path

from retrofill_core.domain.pipeline import PipelineDefinition
from tests.chaos import work
from tests.chaos.workload import Script
from tests.support.definitions import alert, daily

# No fault lasts that long, so nothing may time out.
RUN_TIMEOUT_SECONDS = 3600.0


def definitions(script: Script, folder: Path, webhook: str) -> list[PipelineDefinition]:
    """A script's pipelines: deadlines that are missed or met, and callbacks of all kinds for all occasions."""
    function = {"callback": "note", "kwargs": {"path": str(folder / "calls.log")}}
    alerts = [
        alert("soon", "RUN_QUEUED_AT", 1.5, callback={"kind": "webhook", "url": webhook, "secret": "default"}),
        alert("easy", "RUN_QUEUED_AT", 3600, callback={"kind": "webhook", "url": webhook, "secret": "default"}),
        alert("slow", "RUN_STARTED_AT", 0.25),
        alert("once", "RUN_QUEUED_AT", 2.5, at_most_once=True, **function),
        alert("whole", "BACKFILL_REQUESTED_AT", 2, fire_on_failure=True, **function),
    ]
    hook = {"callback": {"kind": "webhook", "url": webhook, "secret": "default"}}
    return [
        daily(
            f"p{number}",
            max_active_runs=script.limit(number),
            batch_size=script.batch(number),
            batch_mode=script.mode(number),
            run_timeout_seconds=RUN_TIMEOUT_SECONDS,
            deadlines=alerts,
            on_run_failed=[{**function, "digest_seconds": 1}, {**hook, "digest_seconds": 0}],
            on_backfill_succeeded=[function],
            on_backfill_failed=[hook, function],
            code={"file": work.__file__, "attribute": "work"},
        )
        for number in range(script.pipelines)
    ]
