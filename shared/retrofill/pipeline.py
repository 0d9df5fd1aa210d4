"""``Pipeline``, the class users define pipelines with.

Services only see its ``PipelineDefinition``. Drivers import this module in the user's Python, so it
needs nothing but the standard library of any Python that Spark supports.
"""

from __future__ import annotations

import inspect
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Iterable,
    Mapping,
    Sequence,
    TypeVar,
    Union,
    overload,
)

from retrofill.alerts import Callback, Deadline, Target, rules_of
from retrofill.sdk.checking import checked, stages
from retrofill.sdk.names import (
    DEFAULT_POOL,
    MAX_BATCH,
    MAX_TARGET_SECONDS,
    MAX_TIMEOUT_SECONDS,
    MIN_TIMEOUT_SECONDS,
    TriggerRule,
    check_name,
    seconds_of,
)
from retrofill.sdk.scripts import as_applied, script_of
from retrofill.sdk.texts import Table

if TYPE_CHECKING:
    from typing import TypedDict, Unpack
else:
    from typing import TypedDict

Function = TypeVar("Function", bound=Callable[..., Any])
Upstream = Union[str, Callable[..., Any]]
After = Union[Upstream, Iterable[Upstream], None]
Delay = Union[timedelta, float, int]
Timeout = Union[timedelta, float, int, str]
OnEvent = Union[str, Target, Callback]
# Of an attempt with batch_size="auto".
TARGET_SECONDS = 600.0


class TaskOptions(TypedDict, total=False):
    """Options of every kind of task.

    ``retries`` and ``retry_delay`` (seconds) default to the pipeline's. A try that takes longer than
    ``timeout`` (a timedelta, seconds, or text like ``"10m"``) is interrupted and fails.
    ``writes_nothing``: nothing that readers see, so a backfill with a review may run it although it
    stages nothing. ``writes``: names of what it writes without staging it, like the pipeline's.
    """

    after: After
    trigger_rule: str
    retries: int | None
    retry_delay: Delay | None
    timeout: Timeout | None
    writes_nothing: bool
    writes: Sequence[str]


class FunctionOptions(TaskOptions, total=False):
    """Options of ``task`` and ``branch``; ``name`` defaults to the function's name.

    ``sparse``: of a range, it may stage output for some intervals and none for others.
    """

    name: str | None
    sparse: bool


class Pipeline:
    """A named, scheduled PySpark job of tasks.

    ``retries`` and ``retry_delay`` are the tasks' defaults. ``batch_size``: a driver executes up to
    so many runs with adjacent intervals in one Spark session, which saves its start. With
    ``batch_mode="each"`` it calls the tasks for each of them, with ``"range"`` once for all. With
    ``batch_size="auto"`` it gets as many as recently took ``batch_target`` (default: ten minutes).
    ``pool`` names where its drivers run, and with which Spark and Python.
    ``writes`` names what its tasks write without staging it, such as ``["jdbc:orders"]``: of all runs
    of all pipelines that write one of them, one attempt at a time runs.
    A run that takes longer than ``run_timeout`` is interrupted and fails; of a range, times its
    number of runs.

    ``on_run_failed``, ``on_backfill_succeeded`` and ``on_backfill_failed`` list what to call then:
    names from the allow-list, a ``Webhook``, a ``KafkaTopic``, or one of them in a ``Callback``.
    """

    def __init__(
        self,
        name: str,
        *,
        schedule: str,
        start: str | date | datetime | None = None,
        end: str | date | datetime | None = None,
        timezone: str = "UTC",
        max_active_runs: int = 16,
        batch_size: int | str = 1,
        batch_mode: str = "each",
        batch_target: Delay | None = None,
        deadlines: Sequence[Deadline] = (),
        on_run_failed: Sequence[OnEvent] = (),
        on_backfill_succeeded: Sequence[OnEvent] = (),
        on_backfill_failed: Sequence[OnEvent] = (),
        retries: int = 0,
        retry_delay: Delay = 1.0,
        run_timeout: Timeout | None = None,
        executor: str | None = None,
        pool: str = DEFAULT_POOL,
        writes: Sequence[str] = (),
        spark_conf: Mapping[str, object] | None = None,
    ) -> None:
        self.name = check_name(name)
        self.functions: dict[str, Callable[..., Any]] = {}
        self._retries = retries
        self._retry_delay = retry_delay
        self._tasks: list[dict[str, Any]] = []
        self._settings: dict[str, Any] = {
            "schedule": schedule,
            "start": _moment(start),
            "end": _moment(end),
            "timezone": timezone,
            "max_active_runs": max_active_runs,
            **_batches(batch_size, batch_target),
            "batch_mode": batch_mode,
            "run_timeout_seconds": _timeout("run_timeout", run_timeout),
            "deadlines": [deadline.to_alert() for deadline in deadlines],
            "on_run_failed": rules_of(on_run_failed, "on_run_failed"),
            "on_backfill_succeeded": rules_of(on_backfill_succeeded, "on_backfill_succeeded"),
            "on_backfill_failed": rules_of(on_backfill_failed, "on_backfill_failed"),
            "executor": executor,
            "pool": pool,
            "writes": _names("writes", writes),
            "spark_conf": _conf(spark_conf),
        }

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r})"

    @overload
    def task(self, function: Function, /) -> Function: ...
    @overload
    def task(self, **options: Unpack[FunctionOptions]) -> Callable[[Function], Function]: ...
    def task(self, *function: Any, **options: Unpack[FunctionOptions]) -> Any:
        """Register a function as a task.

        It is called with one argument, the run, and returned unchanged.
        """
        return self._decorate("python", options, *function)

    @overload
    def branch(self, function: Function, /) -> Function: ...
    @overload
    def branch(self, **options: Unpack[FunctionOptions]) -> Callable[[Function], Function]: ...
    def branch(self, *function: Any, **options: Unpack[FunctionOptions]) -> Any:
        """Register a function that returns the names of the next tasks; others are skipped."""
        return self._decorate("branch", options, *function)

    def submit(
        self,
        name: str,
        script: str,
        *,
        args: Sequence[str] = (),
        main_class: str | None = None,
        conf: Mapping[str, object] | None = None,
        py_files: Sequence[str] = (),
        jars: Sequence[str] = (),
        packages: Sequence[str] = (),
        files: Sequence[str] = (),
        archives: Sequence[str] = (),
        templates: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        deploy_mode: str = "client",
        tables: Sequence[Table] = (),
        **options: Unpack[TaskOptions],
    ) -> str:
        """Register an existing PySpark script as a task, or a jar with its ``main_class``.

        ``args`` and the values of ``env`` may contain ``{interval.start:%Y-%m-%d}``, ``{run.id}`` or
        ``{conf[key]}``. ``tables``: those that it writes, each to the name that ``{stage_table:NAME}`` becomes.
        Returns the task's name, for use in ``after``.
        """
        lists = {
            "args": args,
            "py_files": py_files,
            "jars": jars,
            "packages": packages,
            "files": files,
            "archives": archives,
            "templates": templates,
        }
        of_spark = {"main_class": main_class, "conf": _conf(conf), "deploy_mode": deploy_mode}
        made = script_of(script, lists=lists, env=dict(env or {}), cwd=cwd, tables=tables, **of_spark)
        self._add(name, "submit", options, made)
        return name

    def command(
        self,
        name: str,
        command: Sequence[str],
        *,
        files: Sequence[str] = (),
        archives: Sequence[str] = (),
        templates: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        tables: Sequence[Table] = (),
        **options: Unpack[TaskOptions],
    ) -> str:
        """Register any program with its arguments as a task, such as ``["dbt", "build"]`` or ``["./load.sh"]``.

        The arguments and the values of ``env`` may contain ``{interval.start:%Y-%m-%d}``, ``{run.id}`` or
        ``{conf[key]}``. Returns the task's name, for use in ``after``.
        """
        lists = {"command": command, "files": files, "archives": archives, "templates": templates}
        made = script_of("", lists=lists, env=dict(env or {}), cwd=cwd, tables=tables)
        if not command:
            raise ValueError("the command is empty: give a program and its arguments")
        script, *args = made.pop("command")
        self._add(name, "command", options, {**made, "script": script, "args": args})
        return name

    def sql(
        self,
        name: str,
        file: str,
        *,
        parameters: Mapping[str, object] | None = None,
        into: Table | None = None,
        **options: Unpack[TaskOptions],
    ) -> str:
        """Register the statements of a file of SQL as a task, as they are when the pipeline is applied.

        They may have the parameters ``:start``, ``:end``, ``:first_day``, ``:last_day``, ``:run_id``, ``:run_attempt``,
        ``:backfill_id`` and their own ``parameters``: values, or texts with the fields of ``submit``'s ``args``. The rows
        of the last one, a query, replace those of the interval in the table ``into``. Returns the task's name.
        """
        made = {"file": file, "parameters": dict(parameters or {}), "into": None if into is None else into.to_data()}
        self._add(name, "sql", options, sql=made)
        return name

    def to_data(self, file: str | None = None) -> dict[str, Any]:
        """The fields of the definition, without ``code``, as JSON data that is not checked as a whole yet.

        ``file``: the pipeline's own, next to which the files of its scripts are looked for.
        """
        folder = None if file is None else Path(file).parent
        tasks = [
            {
                **as_applied(task, folder),
                "stages": stages(self.functions[task["name"]]) if task["kind"] == "python" else None,
            }
            for task in self._tasks
        ]
        settings = {**self._settings, "executor": self._settings["executor"] or _executor(tasks)}
        return {"name": self.name, "tasks": tasks, **settings}

    def _decorate(self, kind: str, options: FunctionOptions, function: Any = None) -> Any:
        def register(function: Function) -> Function:
            name = options.get("name") or function.__name__
            if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
                # Calling it would only create a coroutine or generator, and the run would succeed.
                raise ValueError(f"task {name!r} is an async function or a generator: make it a plain function")
            self._add(name, kind, options)
            self.functions[name] = function
            return function

        return register if function is None else register(function)

    def _add(
        self,
        name: str,
        kind: str,
        options: TaskOptions,
        submit: dict[str, Any] | None = None,
        sql: dict[str, Any] | None = None,
    ) -> None:
        known = FunctionOptions.__annotations__
        unknown = sorted(options.keys() - known.keys())
        if unknown:
            raise TypeError(f"task {name!r} has no option {unknown[0]!r}: use {', '.join(known)}")
        if any(task["name"] == name for task in self._tasks):
            raise ValueError(f"pipeline {self.name!r} already has a task {name!r}: give each task its own name")
        retries, retry_delay = options.get("retries"), options.get("retry_delay")
        given = {
            "name": name,
            "kind": kind,
            "after": [self._name_of(upstream, name) for upstream in _listed(options.get("after"))],
            "trigger_rule": str(TriggerRule(options.get("trigger_rule", "all_success"))),
            "retries": self._retries if retries is None else retries,
            "retry_delay_seconds": _seconds(self._retry_delay if retry_delay is None else retry_delay),
            "timeout_seconds": _timeout(f"task {name!r}: timeout", options.get("timeout")),
            "submit": submit,
            "sql": sql,
            "sparse": options.get("sparse", False),
            "writes_nothing": options.get("writes_nothing", False),
            "writes": _names(f"task {name!r}: writes", options.get("writes", ())),
        }
        self._tasks.append(checked("task", given))

    def _name_of(self, upstream: Upstream, task: str) -> str:
        if isinstance(upstream, str):
            return upstream
        for name, function in self.functions.items():
            if function is upstream:
                return name
        called = getattr(upstream, "__name__", repr(upstream))
        raise ValueError(f"task {task!r} comes after {called!r}, which is not yet a task of pipeline {self.name!r}")


def _executor(tasks: Sequence[Mapping[str, Any]]) -> str:
    """Scripts and programs do without the session of a warm driver, unless they stage tables."""
    by_itself = all(task["submit"] is not None and not task["submit"]["tables"] for task in tasks)
    return "spark-submit" if tasks and by_itself else "pool"


def _listed(after: After) -> list[Upstream]:
    if after is None:
        return []
    if isinstance(after, str) or callable(after):
        return [after]
    return list(after)


def _names(what: str, given: Sequence[str]) -> list[str]:
    # A text is a sequence of texts, too.
    if isinstance(given, str):
        raise ValueError(f"{what} is {given!r}: give a list of names, such as [{given!r}]")
    return list(given)


def _seconds(delay: Delay) -> float:
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    if isinstance(delay, (int, float)):
        return float(delay)
    raise ValueError(f"retry_delay is {delay!r}: give a timedelta or a number of seconds")


def _timeout(what: str, given: Timeout | None) -> float | None:
    if given is None:
        return None
    try:
        seconds = seconds_of(given) if isinstance(given, (str, timedelta)) else given
    except ValueError:
        seconds = 0.0
    number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not number or not MIN_TIMEOUT_SECONDS <= seconds <= MAX_TIMEOUT_SECONDS:
        raise ValueError(
            f"{what} is {given!r}: give a timedelta, a number of seconds or text like '90s', '10m' or '2h', "
            "from one second to 30 days"
        )
    return float(seconds)


def _batches(size: int | str, target: Delay | None) -> dict[str, Any]:
    """The largest batch, and how long an attempt should take if the size is chosen by that."""
    number = isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= MAX_BATCH
    if size != "auto" and not number:
        raise ValueError(f"batch_size is {size!r}: give a number from 1 to {MAX_BATCH:,}, or 'auto'")
    if target is None:
        return (
            {"batch_size": MAX_BATCH, "batch_target_seconds": TARGET_SECONDS}
            if size == "auto"
            else {"batch_size": size}
        )
    if size != "auto":
        raise ValueError(f"batch_target needs batch_size='auto', but it is {size}: change it, or remove batch_target")
    seconds = target.total_seconds() if isinstance(target, timedelta) else target
    if not isinstance(seconds, (int, float)) or not 0.1 <= seconds <= MAX_TARGET_SECONDS:
        raise ValueError(f"batch_target is {target!r}: give a timedelta or a number of seconds, 0.1 to a week")
    return {"batch_size": MAX_BATCH, "batch_target_seconds": float(seconds)}


def _moment(given: str | date | datetime | None) -> str | None:
    """As text, of which a bare date means that day, not midnight without a time zone."""
    try:
        if isinstance(given, str):
            return date.fromisoformat(given).isoformat()
    except ValueError:
        return str(given)
    return None if given is None else given.isoformat()


def _conf(conf: Mapping[str, object] | None) -> dict[str, str]:
    """Values as text. Spark spells booleans in lower case."""
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in (conf or {}).items()}
