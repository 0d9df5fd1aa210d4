"""``Pipeline``: what users write; services only ever see the ``PipelineDefinition`` that it becomes."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, overload

from retrofill.deadline import Deadline
from retrofill.domain.data import check_name
from retrofill.domain.pipeline import (
    CodeLocation,
    PipelineDefinition,
    SubmitScript,
    TaskDefinition,
    TriggerRule,
)

Function = TypeVar("Function", bound=Callable[..., Any])
Upstream = str | Callable[..., Any]
After = Upstream | Iterable[Upstream] | None
Delay = timedelta | float | int


class Pipeline:
    """A named, scheduled PySpark job of tasks. ``retries`` and ``retry_delay`` hold for tasks that say nothing else."""

    def __init__(
        self,
        name: str,
        *,
        schedule: str,
        start: str | date | datetime | None = None,
        end: str | date | datetime | None = None,
        timezone: str = "UTC",
        max_active_runs: int = 16,
        deadlines: Sequence[Deadline] = (),
        retries: int = 0,
        retry_delay: Delay = 1.0,
        executor: str = "pool",
        spark_conf: Mapping[str, object] | None = None,
    ) -> None:
        self.name = check_name(name)
        self.functions: dict[str, Callable[..., Any]] = {}
        self._retries = retries
        self._retry_delay = retry_delay
        self._tasks: list[TaskDefinition] = []
        self._settings: dict[str, Any] = {
            "schedule": schedule,
            "start": _moment(start),
            "end": _moment(end),
            "timezone": timezone,
            "max_active_runs": max_active_runs,
            "deadlines": [deadline.to_alert() for deadline in deadlines],
            "executor": executor,
            "spark_conf": _conf(spark_conf),
        }

    def __repr__(self) -> str:
        """Its name."""
        return f"Pipeline({self.name!r})"

    @overload
    def task(self, function: Function, /) -> Function: ...
    @overload
    def task(
        self,
        *,
        after: After = None,
        trigger_rule: str = "all_success",
        retries: int | None = None,
        retry_delay: Delay | None = None,
        name: str | None = None,
    ) -> Callable[[Function], Function]: ...
    def task(self, *function: Any, **how: Any) -> Any:
        """Make a function of one argument, the run, a task. The function stays as it is."""
        return self._decorate("python", *function, **how)

    @overload
    def branch(self, function: Function, /) -> Function: ...
    @overload
    def branch(
        self,
        *,
        after: After = None,
        trigger_rule: str = "all_success",
        retries: int | None = None,
        retry_delay: Delay | None = None,
        name: str | None = None,
    ) -> Callable[[Function], Function]: ...
    def branch(self, *function: Any, **how: Any) -> Any:
        """Make a function a task that returns the names of the tasks after it to go on with; the others are skipped."""
        return self._decorate("branch", *function, **how)

    def submit(
        self,
        name: str,
        script: str,
        *,
        args: Sequence[str] = (),
        conf: Mapping[str, object] | None = None,
        after: After = None,
        trigger_rule: str = "all_success",
        retries: int | None = None,
        retry_delay: Delay | None = None,
    ) -> str:
        """Make a PySpark script a task, as it is.

        ``args`` may name ``{interval.start:%Y-%m-%d}``, ``{run.id}`` or ``{conf[key]}``.
        Returns the task's name, for others to come ``after``.
        """
        submit = SubmitScript(script=script, args=tuple(args), conf=_conf(conf))
        self._add(name, "submit", submit, after, trigger_rule, retries, retry_delay)
        return name

    def to_definition(self, code: CodeLocation) -> PipelineDefinition:
        """The pipeline as data. Raises ``pydantic.ValidationError``, a ``ValueError``, where it is not one."""
        folder = Path(code.file).parent if code.file else None
        tasks = tuple(_with_script_path(task, folder) for task in self._tasks)
        return PipelineDefinition(name=self.name, tasks=tasks, code=code, **self._settings)

    def _decorate(self, kind: str, function: Any = None, /, **how: Any) -> Any:
        if function is not None:
            return self._register(kind, function)
        return lambda decorated: self._register(kind, decorated, **how)

    def _register(
        self,
        kind: str,
        function: Function,
        *,
        after: After = None,
        trigger_rule: str = "all_success",
        retries: int | None = None,
        retry_delay: Delay | None = None,
        name: str | None = None,
    ) -> Function:
        named = name or function.__name__
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            # Calling it would do nothing of what it says, and the run would succeed.
            raise ValueError(f"task {named!r} is an async function or a generator: make it a plain function")
        self._add(named, kind, None, after, trigger_rule, retries, retry_delay)
        self.functions[named] = function
        return function

    def _add(
        self,
        name: str,
        kind: str,
        submit: SubmitScript | None,
        after: After,
        trigger_rule: str,
        retries: int | None,
        retry_delay: Delay | None,
    ) -> None:
        if any(task.name == name for task in self._tasks):
            raise ValueError(f"task {name!r} is there twice: give each task a name of its own")
        given = {
            "name": name,
            "kind": kind,
            "after": tuple(self._name_of(upstream, name) for upstream in _listed(after)),
            "trigger_rule": TriggerRule(trigger_rule),
            "retries": self._retries if retries is None else retries,
            "retry_delay_seconds": _seconds(self._retry_delay if retry_delay is None else retry_delay),
            "submit": submit,
        }
        self._tasks.append(TaskDefinition.model_validate(given))

    def _name_of(self, upstream: Upstream, task: str) -> str:
        if isinstance(upstream, str):
            return upstream
        for name, function in self.functions.items():
            if function is upstream:
                return name
        called = getattr(upstream, "__name__", repr(upstream))
        raise ValueError(f"task {task!r} comes after {called!r}, which is no task of pipeline {self.name!r} yet")


def _listed(after: After) -> list[Upstream]:
    if after is None:
        return []
    if isinstance(after, str) or callable(after):
        return [after]
    return list(after)


def _seconds(delay: Delay) -> float:
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, int | float):
        return float(delay)
    raise ValueError(f"retry_delay is {delay!r}: give a timedelta or a number of seconds")


def _moment(given: str | date | datetime | None) -> str | date | datetime | None:
    """A text that is a bare date means that day, not a midnight without a zone."""
    try:
        return date.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        return given


def _conf(conf: Mapping[str, object] | None) -> dict[str, str]:
    """Spark's spelling: a Python ``True`` is its ``true``."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (conf or {}).items()}


def _with_script_path(task: TaskDefinition, folder: Path | None) -> TaskDefinition:
    if task.submit is None:
        return task
    script = _script_path(task.submit.script, folder)
    return task.model_copy(update={"submit": task.submit.model_copy(update={"script": script})})


def _script_path(script: str, folder: Path | None) -> str:
    """A script's path made absolute, beside the pipeline's file first; addresses of other file systems stay."""
    if "://" in script:
        return script
    beside = folder / script if folder else None
    # Without "..", which would hide where it is.
    return os.path.normpath(beside if beside is not None and beside.exists() else Path(script).absolute())
