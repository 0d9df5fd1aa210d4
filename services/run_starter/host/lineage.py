"""OpenLineage run events of the attempts on this host, published to a Kafka topic.

Off unless ``RETROFILL_OPENLINEAGE_TOPIC`` is set. Errors here never fail a run.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from retrofill.log import get_log
from retrofill.protocol.launch import LaunchedRun
from retrofill.states import AttemptMode
from retrofill_core.bus.clients import client_config
from retrofill_core.contract.runs import AttemptEnded, ErrorInfo, PublishedOutput, Report, RunBegan, RunReported
from retrofill_core.domain.undo import CODE as UNDO_CODE
from retrofill_core.settings import Settings
from run_starter.executors import LaunchRequest

log = get_log(__name__)
# OpenLineage run ids are UUIDs, derived from the attempt.
NAMESPACE = uuid.UUID("8d0f3f52-50c5-4b0e-a1c5-0d7b6a2f9c11")
PRODUCER = "https://github.com/retrofill/retrofill"


class Lineage(Protocol):
    def reported(self, launch: LaunchRequest, report: Report) -> None:
        """Publish what a driver's report says: the start or the end of a run. Never raises."""


class NoLineage:
    """Publishes nothing."""

    def reported(self, launch: LaunchRequest, report: Report) -> None:
        pass


class KafkaLineage:
    """Publishes run events with the OpenLineage client."""

    def __init__(self, settings: Settings, topic: str) -> None:
        from openlineage.client import OpenLineageClient
        from openlineage.client.transport.kafka import KafkaConfig, KafkaTransport

        ours = client_config(settings, "openlineage")
        # The logger is the only value that is not text.
        config = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in ours.items()}
        config.pop("logger", None)
        self._client = OpenLineageClient(transport=KafkaTransport(KafkaConfig(config=config, topic=topic, flush=False)))
        self._namespace = settings.openlineage_namespace

    def reported(self, launch: LaunchRequest, report: Report) -> None:
        if isinstance(report, RunBegan) and launch.mode != AttemptMode.PUBLISH:
            self._emit("START", launch, report.run_id)
        elif isinstance(report, RunReported):
            kind = "COMPLETE" if report.state == "succeeded" else "FAIL"
            self._emit(kind, launch, report.run_id, report.error, report.published)
        elif isinstance(report, AttemptEnded) and report.state == "failed":
            # A range, whose runs are tried in smaller ones.
            for run in launch.runs:
                self._emit("FAIL", launch, run.id, report.error and report.error.of_run(run.id, launch.runs[0].id))

    def _emit(
        self,
        kind: str,
        launch: LaunchRequest,
        run_id: int,
        error: ErrorInfo | None = None,
        published: Sequence[PublishedOutput] = (),
    ) -> None:
        run = next(each for each in launch.runs if each.id == run_id)
        try:
            event = event_of(kind, self._namespace, launch, run, error)
            event.outputs = [_dataset(self._namespace, each) for each in published]
            self._client.emit(event)
        except Exception as e:  # noqa: BLE001 - the run continues in any case
            log.warning("lineage_not_told", error=str(e), run=run.id, attempt=run.attempt)


def event_of(kind: str, namespace: str, launch: LaunchRequest, run: LaunchedRun, error: ErrorInfo | None) -> Any:
    """OpenLineage's event about a run, ``kind`` as in its ``RunState``."""
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run, job_type_job, nominal_time_run, parent_run

    facets: dict[str, Any] = {
        "nominalTime": nominal_time_run.NominalTimeRunFacet(
            nominalStartTime=run.interval_start.astimezone(UTC).isoformat(),
            nominalEndTime=run.interval_end.astimezone(UTC).isoformat(),
        ),
        "parent": parent_run.ParentRunFacet(
            run=parent_run.Run(runId=str(uuid.uuid5(NAMESPACE, f"backfill {launch.backfill_id}"))),
            job=parent_run.Job(namespace=namespace, name=f"{launch.pipeline.name}.backfill"),
        ),
    }
    if error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=f"{error.type}: {error.message}", programmingLanguage="python", stackTrace=error.traceback
        )
    undo = launch.pipeline.code == UNDO_CODE
    what = "UNDO" if undo else "RUN"
    job_type = job_type_job.JobTypeJobFacet(processingType="BATCH", integration="RETROFILL", jobType=what)
    return RunEvent(
        eventType=RunState[kind],
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(runId=run_uuid(run.id, run.attempt), facets=facets),
        # A job of its own: that an undo is complete is no success of the pipeline's.
        job=Job(
            namespace=namespace, name=f"{launch.pipeline.name}{'.undo' if undo else ''}", facets={"jobType": job_type}
        ),
        producer=PRODUCER,
    )


def _dataset(namespace: str, output: PublishedOutput) -> Any:
    """A folder has the name that OpenLineage gives to paths; the catalog of a table is known to Spark only."""
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import dataset_version_dataset

    version = output.version and dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=output.version)
    return OutputDataset(
        namespace="file" if output.name.startswith("/") else namespace,
        name=output.name,
        facets={"version": version} if version else {},
    )


def run_uuid(run_id: int, attempt: int) -> str:
    """The OpenLineage run id of an attempt."""
    return str(uuid.uuid5(NAMESPACE, f"run {run_id} attempt {attempt}"))


def lineage_of(settings: Settings) -> Lineage:
    """The lineage that the settings request.

    If the package is missing, logs an error and publishes nothing.
    """
    if settings.openlineage_topic is None:
        return NoLineage()
    try:
        return KafkaLineage(settings, settings.openlineage_topic)
    except ImportError as e:
        log.error(
            "no_lineage", error=str(e), what_to_do="install retrofill[lineage], or unset RETROFILL_OPENLINEAGE_TOPIC"
        )
        return NoLineage()
