"""A pipeline as data: what ``retrofill pipelines apply`` makes of the user's Python and all that services ever see."""

from __future__ import annotations

from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator

from retrofill.domain.alert import FINISH_BY, DeadlineAlert
from retrofill.domain.bounds import Bound
from retrofill.domain.data import Data, Name
from retrofill.domain.schedule import check_schedule


def check_timezone(name: str) -> str:
    """A key of the IANA time zone database. Raises ``ValueError``."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as e:
        raise ValueError(f"{name!r} is no time zone of the IANA database, like 'Europe/Paris' or 'UTC'") from e
    return name


class TriggerRule(StrEnum):
    """When a task starts, given the ends of those before it."""

    ALL_SUCCESS = "all_success"
    ONE_SUCCESS = "one_success"
    NONE_FAILED = "none_failed"
    ALL_DONE = "all_done"
    NONE_FAILED_MIN_ONE_SUCCESS = "none_failed_min_one_success"


class SubmitScript(Data):
    """An existing PySpark script run by spark-submit; ``args`` are format strings over ``interval``, ``run``, ``conf``."""

    script: str
    args: tuple[str, ...] = ()
    conf: dict[str, str] = Field(default_factory=dict)


class TaskDefinition(Data):
    """One step of a run. ``retries`` and ``retry_delay_seconds`` default to the pipeline's."""

    name: Name
    kind: Literal["python", "branch", "submit"] = "python"
    after: tuple[str, ...] = ()
    trigger_rule: TriggerRule = TriggerRule.ALL_SUCCESS
    retries: int = Field(0, ge=0, le=100)
    retry_delay_seconds: float = Field(1.0, ge=0, le=86_400)
    submit: SubmitScript | None = None

    @model_validator(mode="after")
    def _submit_has_a_script(self) -> TaskDefinition:
        if (self.kind == "submit") != (self.submit is not None):
            raise ValueError(f"task {self.name!r}: a task of kind submit has a script, and only such a one")
        return self


class CodeLocation(Data):
    """Where the user's code is: ``file`` (absolute path) or ``module``, and the attribute that is the Pipeline."""

    file: str | None = None
    module: str | None = None
    attribute: str

    @model_validator(mode="after")
    def _file_or_module(self) -> CodeLocation:
        if (self.file is None) == (self.module is None):
            raise ValueError("code is in a file or in a module: name one of the two")
        return self


class PipelineDefinition(Data):
    """Everything the services know of a pipeline."""

    name: Name
    schedule: str
    start: Bound | None = None
    end: Bound | None = None
    timezone: Annotated[str, AfterValidator(check_timezone)] = "UTC"
    max_active_runs: int = Field(16, ge=1, le=10_000)
    executor: Literal["pool", "spark-submit"] = "pool"
    tasks: tuple[TaskDefinition, ...] = Field(min_length=1)
    deadlines: tuple[DeadlineAlert, ...] = ()
    code: CodeLocation
    spark_conf: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> PipelineDefinition:
        check_schedule(self.schedule, self.timezone)
        check_tasks(self.tasks)
        names = [alert.name for alert in self.deadlines]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"deadline {twice[0]!r} is there twice: give each deadline a name of its own")
        if FINISH_BY in names:
            raise ValueError(f"a deadline is named {FINISH_BY!r}, as those of requests are: give it another name")
        tasks = [task.name for task in self.tasks]
        for alert in self.deadlines:
            if alert.task is not None and alert.task not in tasks:
                raise ValueError(
                    f"deadline {alert.name!r} is of the task {alert.task!r}, which does not exist; tasks: {', '.join(tasks)}"
                )
        return self

    def as_json(self) -> dict[str, Any]:
        """The definition as JSON data, as stored and sent."""
        return self.model_dump(mode="json")


def check_tasks(tasks: tuple[TaskDefinition, ...]) -> None:
    """Names are unique, ``after`` names tasks that exist, nothing waits for itself. Raises ``ValueError``."""
    names = [task.name for task in tasks]
    for task in tasks:
        if names.count(task.name) > 1:
            raise ValueError(f"task {task.name!r} is there twice: give each task a name of its own")
        for upstream in task.after:
            if upstream not in names:
                raise ValueError(f"task {task.name!r} comes after {upstream!r}, which is no task of this pipeline")
    try:
        TopologicalSorter({task.name: task.after for task in tasks}).prepare()
    except CycleError as e:
        raise ValueError(f"tasks wait for each other: {' → '.join(e.args[1])}") from e
