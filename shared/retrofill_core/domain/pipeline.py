"""A pipeline as data: what ``retrofill pipelines apply`` publishes and services read."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, JsonValue, model_validator

from retrofill.protocol.script_texts import check, secrets_in
from retrofill.sdk.names import (
    DEFAULT_POOL,
    MAX_BATCH,
    MAX_TARGET_SECONDS,
    MAX_TIMEOUT_SECONDS,
    MIN_TIMEOUT_SECONDS,
    TriggerRule,
)
from retrofill.sdk.texts import GIVEN, REDIRECTIONS, BadSql, fields_between, outline, statements
from retrofill_core.domain.callback import CallbackRule, Occasion, Target, check_rules
from retrofill_core.domain.data import SHA256, Data, Name, PackedEnvironment
from retrofill_core.domain.deadline import FINISH_BY, DeadlineAlert
from retrofill_core.domain.schedule import Bound, check_schedule


def check_timezone(name: str) -> str:
    """Check an IANA time zone name. Raises ``ValueError``."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as e:
        raise ValueError(f"unknown time zone {name!r}: use an IANA name like 'Europe/Paris' or 'UTC'") from e
    return name


# Spark separates them by commas.
Address = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^,\s]([^,\r\n]*[^,\s])?$")]
EnvironmentValue = Annotated[str, Field(max_length=10_000, pattern=r"^[^\x00]*$")]
# Of a jar in a Maven repository.
Coordinates = Annotated[str, Field(max_length=500, pattern=r"^[\w.-]+:[\w.-]+:[\w.+-]+$")]
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")


def check_variables(values: dict[str, str]) -> dict[str, str]:
    """Check the names of environment variables. Raises ``ValueError``."""
    for name in values:
        if not _VARIABLE.fullmatch(name):
            raise ValueError(
                f"invalid environment variable {name[:200]!r}: use a letter or _, then letters, digits or _, at most 200"
            )
    return values


# Of something that is written: any text on one line.
Place = Annotated[
    str, Field(min_length=1, max_length=200, pattern=r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]*[^\s\x00-\x1f\x7f])?$")
]
Places = Annotated[tuple[Place, ...], Field(max_length=20)]


class StagedTable(Data):
    """A table of which a script replaces the rows of its interval."""

    name: str = Field(min_length=1, max_length=1000, description="Its name in Spark's SQL")
    column: str | dict[str, str | None] = Field(
        description="What tells to which interval a row belongs: a column, or columns with formats"
    )
    zone: str = Field("", description="Time zone of its dates and formats, if it is not the pipeline's")
    with_rows: bool = Field(
        False, description="Whether what the script writes to has the interval's present rows, as MERGE needs them"
    )
    sparse: bool = Field(False, description="Whether an interval may have no rows")
    redirected: bool = Field(
        False, description="Whether the script writes to it by its own name, and spark.wap.branch redirects its commits"
    )

    @model_validator(mode="after")
    def _has_all_rows(self) -> StagedTable:
        if self.redirected and self.with_rows:
            raise ValueError(
                f"{self.name} is redirected, so the script finds all rows in it anyway: leave out with_rows"
            )
        return self


class SubmitScript(Data):
    """A PySpark script or a jar for spark-submit, or a program.

    ``args``, the values of ``env`` and ``conf``, ``cwd`` and the paths of ``files``, ``archives`` and ``templates`` may use
    ``interval``, ``run`` and ``conf``.
    """

    script: str = Field(description="Path of the script or jar; of a command, path or name of its program")
    main_class: str | None = Field(None, max_length=500, pattern=r"^[\w$.]+$", description="Of a jar: the class to run")
    args: tuple[str, ...] = Field((), description="Its arguments, as in --day {interval.start:%Y-%m-%d}")
    conf: dict[str, str] = Field(default_factory=dict, description="Spark settings for this task")
    py_files: tuple[Address, ...] = Field(
        (), max_length=100, description="Paths or addresses of .py, .zip and .egg files that it imports"
    )
    jars: tuple[Address, ...] = Field(
        (), max_length=100, description="Paths or addresses of jars for its driver and executors"
    )
    files: tuple[Address, ...] = Field(
        (),
        max_length=100,
        description="Paths or addresses, also as path#name, of files that it finds in its working directory and by "
        "SparkFiles.get; of a command, also directories",
    )
    packages: tuple[Coordinates, ...] = Field(
        (), max_length=100, description="Maven coordinates of jars, like org.postgresql:postgresql:42.7.7"
    )
    archives: tuple[Address, ...] = Field(
        (),
        max_length=100,
        description="Paths or addresses, also as path#name, of archives that are unpacked into its working directory",
    )
    templates: tuple[Address, ...] = Field(
        (),
        max_length=100,
        description="Paths, also as path#name, of files that are filled in for each run, into its working directory",
    )
    fields: tuple[EnvironmentValue, ...] = Field(
        (), max_length=1000, description="The fields of its templates, as they were when it was applied"
    )
    env: Annotated[dict[str, EnvironmentValue], AfterValidator(check_variables)] = Field(
        default_factory=dict, max_length=100, description="Environment variables of its driver"
    )
    cwd: str | None = Field(
        None,
        min_length=1,
        max_length=1000,
        description="Its working directory; without, one of its own, which is removed afterwards",
    )
    deploy_mode: Literal["client", "cluster"] = Field(
        "client", description="Where its driver runs: beside the run's driver, or in the cluster (YARN, Kubernetes)"
    )

    tables: tuple[StagedTable, ...] = Field(
        (), max_length=100, description="Tables that it writes, each to the name that {stage_table:NAME} becomes"
    )

    @model_validator(mode="after")
    def _texts_can_be_filled_in(self) -> SubmitScript:
        check(self.texts, [table.name for table in self.tables if not table.redirected])
        return self

    @model_validator(mode="after")
    def _fits_together(self) -> SubmitScript:
        if self.main_class is not None and not self.is_jar:
            raise ValueError(f"main_class is only for a jar, but the script is {self.script!r}")
        names = [placed_name(outline(each)) for each in (*self.files, *self.archives, *self.templates)]
        for name in names:
            if name in ("", ".", "..") or "/" in name:
                raise ValueError(
                    f"{name!r} is not a valid name in a working directory: use path#name, without any slash in the name"
                )
        if twice := _repeated(names):
            raise ValueError(f"two files of the working directory are named {twice[0]!r}: use path#name for one")
        if self.cwd is not None and self.templates:
            raise ValueError("templates go into the run's own working directory: leave out cwd")
        if self.cwd is not None and self.deploy_mode == "cluster":
            raise ValueError("cwd: the cluster chooses the working directory: use deploy_mode='client'")
        if self.redirected and (set_twice := self.conf.keys() & {*REDIRECTIONS}):
            raise ValueError(
                f"{min(set_twice)} is set for {self.redirected[0]}, which is redirected: leave it out of conf"
            )
        self._check_secrets()
        return self

    def _check_secrets(self) -> None:
        if secrets_in([*self.paths, self.cwd or ""]):
            raise ValueError("a path cannot have a secret in it: others see paths")
        if self.deploy_mode == "cluster" and (names := self.secrets):
            raise ValueError(
                f"the secret {names[0]!r} would be stored with the application, where others can read it: use the cluster's own "
                "secrets, or deploy_mode='client'"
            )
        is_script = self.script.endswith(".py") and "://" not in self.script
        if not is_script and (names := secrets_in(self.args)):
            raise ValueError(
                f"other users of its host could read the secret {names[0]!r} among the arguments of a program: pass it in env, or "
                "in a file of templates"
            )

    @property
    def is_jar(self) -> bool:
        """Whether it is an application in Java or Scala."""
        return self.script.endswith(".jar")

    @property
    def paths(self) -> tuple[str, ...]:
        """Where its files are, perhaps another one for each interval."""
        return tuple(each.partition("#")[0] for each in (*self.files, *self.archives, *self.templates))

    @property
    def needed(self) -> tuple[str, ...]:
        """The paths and addresses of the script and all that it needs, some with fields."""
        # Or it is in a file of its working directory.
        script = () if self.script.startswith("./") else (self.script,)
        return (*script, *self.py_files, *self.jars, *self.paths, *filter(None, [self.cwd]))

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that are filled in for each run."""
        of_conf = [field for text in self.conf.values() for field in fields_between(text)]
        places = (*self.paths, *filter(None, [self.cwd]))
        return (*self.args, *self.env.values(), *of_conf, *places, *self.fields, *self.redirected)

    @property
    def redirected(self) -> tuple[str, ...]:
        """The names of the tables that it writes by their names."""
        return tuple(table.name for table in self.tables if table.redirected)

    @property
    def secrets(self) -> list[str]:
        """The names of the secrets that it gets."""
        return secrets_in(self.texts)

    @property
    def stages(self) -> bool:
        """Whether it writes to directories or tables that are staged."""
        return bool(self.tables) or _stage_directories(self.texts)


def _stage_directories(texts: Iterable[str]) -> bool:
    return any("{stage:" in text or "{stage_partitions:" in text for text in texts)


def placed_name(address: str) -> str:
    """The name of a file in the working directory."""
    path, mark, name = address.partition("#")
    return name if mark else path.rstrip("/").rpartition("/")[2]


class SqlFile(Data):
    """Statements of SQL. ``parameters`` and the name of ``into`` may use ``interval``, ``run`` and ``conf``."""

    file: str = Field(min_length=1, max_length=1000, description="The file, for people")
    text: str = Field("", max_length=100_000, description="The statements, as they were when the pipeline was applied")
    parameters: dict[str, JsonValue] = Field(
        default_factory=dict, max_length=100, description="Its own parameters: values, or texts with fields"
    )
    into: StagedTable | None = Field(None, description="The table for the rows of its last statement")

    @model_validator(mode="after")
    def _can_be_executed(self) -> SqlFile:
        check(self.texts)
        if self.into is not None and self.into.redirected:
            raise ValueError(f"{self.file}: rows that a query returns are staged, not redirected: leave out redirected")
        if secrets_in(self.texts):
            raise ValueError(f"{self.file}: Spark shows the text of statements, so no parameter may be a secret")
        for name in self.parameters:
            if not _VARIABLE.fullmatch(name) or name in GIVEN:
                raise ValueError(f"parameter {name[:200]!r}: use another name, of letters, digits and _")
        try:
            found = statements(self.text)
        except BadSql as e:
            raise ValueError(f"{self.file}, {e}") from e
        known = [*GIVEN, *self.parameters]
        all_known = ", ".join(f":{each}" for each in known)
        for name, line in (each for statement in found for each in statement.parameters):
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean :{near[0]}? " if near else ""
                raise ValueError(
                    f"{self.file}, line {line}: there is no parameter :{name}: {hint}Use {all_known}, "
                    "or add it to the task's parameters"
                )
        if self.into is not None and found and not found[-1].is_query:
            raise ValueError(
                f"{self.file}, line {found[-1].line}: the last statement must be a query, whose rows are staged for "
                f"{self.into.name}"
            )
        return self

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts that are filled in for each run."""
        own = tuple(each for each in self.parameters.values() if isinstance(each, str))
        return own if self.into is None else (*own, self.into.name)

    @property
    def to_the_end(self) -> bool:
        """Whether it knows where the interval ends."""
        names = {name for statement in statements(self.text) for name, _ in statement.parameters}
        return bool(names & {"end", "last_day"}) or _to_the_end(self.texts)


class TaskDefinition(Data):
    """One step of a run."""

    name: Name = Field(description="Unique in the pipeline")
    kind: Literal["python", "branch", "submit", "command", "sql"] = Field(
        "python",
        description="A function, a function that chooses the tasks to follow, a script, any program, or a file of SQL",
    )
    after: tuple[str, ...] = Field((), description="Names of its upstream tasks")
    trigger_rule: TriggerRule = Field(
        TriggerRule.ALL_SUCCESS, description="When it starts, given how its upstream tasks ended"
    )
    retries: int = Field(0, ge=0, le=100, description="Maximum retries within one attempt of the run")
    retry_delay_seconds: float = Field(1.0, ge=0, le=86_400, description="Seconds between two tries")
    timeout_seconds: float | None = Field(
        None,
        ge=MIN_TIMEOUT_SECONDS,
        le=MAX_TIMEOUT_SECONDS,
        description="Longest duration of a try; of a range, times its number of runs. A longer one fails",
    )
    submit: SubmitScript | None = Field(None, description="For kinds submit and command: the script or program")
    sql: SqlFile | None = Field(None, description="For kind sql: the file")
    sparse: bool = Field(
        False, description="Whether it may stage output for some intervals of a range and none for others"
    )
    writes_nothing: bool = Field(
        False, description="Whether it writes nothing that readers see, so it stages nothing for a review either"
    )
    writes: Places = Field(
        (),
        description="Names of what it writes without staging it: of all runs that write one of them, one at a time runs",
    )
    stages: bool | None = Field(
        None, description="Of a function: whether its source stages what it writes; null if only a run can tell"
    )

    @property
    def needs_session(self) -> bool:
        """Whether it uses the attempt's session of Spark. A script has its own, unless it stages tables."""
        return self.submit is None or bool(self.submit.tables)

    @property
    def bypasses_reviews(self) -> bool:
        """Whether all that it writes would be seen at once, although a review was asked for."""
        if self.writes_nothing or self.kind == "branch":
            return False
        if self.writes:
            return True
        if self.submit is not None:
            return not self.submit.stages
        if self.sql is not None:
            return self.sql.into is None and not self.stages_directories
        return self.stages is False

    @property
    def texts(self) -> tuple[str, ...]:
        """Those that are filled in for each run."""
        of = self.submit or self.sql
        return () if of is None else of.texts

    @property
    def tables(self) -> tuple[StagedTable, ...]:
        """Those that it writes to names of its own."""
        return () if self.submit is None else self.submit.tables

    @property
    def stages_directories(self) -> bool:
        return _stage_directories(self.texts)

    @model_validator(mode="after")
    def _writes_or_not(self) -> TaskDefinition:
        if self.writes_nothing and self.writes:
            raise ValueError(
                f"task {self.name!r} writes {self.writes[0]!r} and is declared with writes_nothing: remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> TaskDefinition:
        if (self.kind in ("submit", "command")) != (self.submit is not None):
            raise ValueError(f"task {self.name!r}: give it a script if its kind is submit or command, and only then")
        if (self.kind == "sql") != (self.sql is not None):
            raise ValueError(f"task {self.name!r}: give it a file of SQL if its kind is sql, and only then")
        if self.kind == "command" and self.submit is not None and (why := _not_a_command(self.submit)):
            raise ValueError(f"task {self.name!r}: {why}")
        return self


def _not_a_command(given: SubmitScript) -> str | None:
    if given.cwd is not None and (given.files or given.archives):
        return "files and archives go into the run's own working directory: leave out cwd"
    if remote := [each for each in given.needed if "://" in each]:
        return f"a command finds files by their paths, not by addresses as {remote[0]!r}"
    if secrets_in(given.args):
        return "other users of its host could read a secret in its arguments: pass it in env, or in a file of templates"
    of_spark = given.model_dump(include={"conf", "py_files", "jars", "packages", "main_class"}, exclude_defaults=True)
    if of_spark or given.deploy_mode != "client":
        return "a command has no Spark of its own: leave out Spark's options"
    if given.redirected:
        return f"the commits of a command cannot be redirected: pass {{stage_table:{given.redirected[0]}}}"
    return None


class CodeLocation(Data):
    """Where the user's code is: a ``file`` or ``module``, and its Pipeline's ``attribute``.

    With ``sha256``, it is in that archive of the code store; without, drivers import it in place.
    """

    file: str | None = Field(None, description="Absolute path of a Python file")
    module: str | None = Field(None, description="Name of a module that drivers can import")
    attribute: str = Field(description="Name of the Pipeline object in it")
    sha256: str | None = Field(None, pattern=SHA256, description="Hash of the code's archive in the code store")
    root: str | None = Field(None, description="With sha256: the archived folder, as a path where it was applied")
    environment: PackedEnvironment | None = Field(
        None, description="The packages of its drivers and executors; without, those of the pool"
    )

    @model_validator(mode="after")
    def _file_or_module(self) -> CodeLocation:
        if (self.file is None) == (self.module is None):
            raise ValueError("the code is in a file or in a module: name exactly one")
        if (self.sha256 is None) != (self.root is None):
            raise ValueError("code in an archive needs both sha256 and root")
        return self


class PipelineDefinition(Data):
    """Everything services know about a pipeline."""

    name: Name = Field(description="Name of the pipeline; the key")
    schedule: str = Field(description="A preset like @daily, or a cron expression of five fields")
    start: Bound | None = Field(None, description="First logical date; a bare date means that whole day")
    end: Bound | None = Field(None, description="Last logical date, inclusive; a bare date means that whole day")
    timezone: Annotated[str, AfterValidator(check_timezone)] = Field(
        "UTC", description="IANA time zone of the schedule and of bare dates"
    )
    max_active_runs: int = Field(
        16, ge=1, le=10_000, description="Maximum number of live attempts of all its backfills together"
    )
    executor: Literal["pool", "spark-submit"] = Field(
        "pool", description="A warm driver with one Spark Connect session per run, or one spark-submit per run"
    )
    pool: Name = Field(DEFAULT_POOL, description="The pool of drivers that executes its runs")
    batch_size: int = Field(
        1, ge=1, le=MAX_BATCH, description="Maximum number of runs with adjacent intervals that one attempt executes"
    )
    batch_target_seconds: float | None = Field(
        None,
        ge=0.1,
        le=MAX_TARGET_SECONDS,
        description="How long an attempt should take: its number of runs is chosen accordingly, up to batch_size",
    )
    batch_mode: Literal["each", "range"] = Field(
        "each", description="Whether the tasks process the runs of a batch one by one or, as one range, all at once"
    )
    run_timeout_seconds: float | None = Field(
        None,
        ge=MIN_TIMEOUT_SECONDS,
        le=MAX_TIMEOUT_SECONDS,
        description="Longest time from a run's begin to the acceptance of its output; of a range, times its number of "
        "runs. A longer run fails",
    )
    writes: Places = Field(
        (),
        description="Names of what its tasks write without staging it. Of all runs of all pipelines that write one of them, "
        "one attempt at a time runs",
    )
    tasks: tuple[TaskDefinition, ...] = Field(min_length=1, description="The steps of a run")
    deadlines: tuple[DeadlineAlert, ...] = Field((), description="Its deadline alerts")
    on_run_failed: tuple[CallbackRule, ...] = Field((), description="Called when runs failed permanently")
    on_backfill_succeeded: tuple[CallbackRule, ...] = Field((), description="Called when a backfill succeeded")
    on_backfill_failed: tuple[CallbackRule, ...] = Field((), description="Called when a backfill failed")
    code: CodeLocation = Field(description="Where the user's code is")
    spark_conf: dict[str, str] = Field(default_factory=dict, description="Spark settings for all its runs")

    @model_validator(mode="after")
    def _consistent(self) -> PipelineDefinition:
        check_schedule(self.schedule, self.timezone)
        check_tasks(self.tasks)
        for task in self.tasks:
            if task.sql is not None and not statements(task.sql.text):
                raise ValueError(f"task {task.name!r}: {task.sql.file} has no statement")
        check_rules(self.rules)
        if self.batch_mode == "range":
            check_scripts_of_ranges(self.tasks)
        names = {alert.name for alert in self.deadlines}
        twice = _repeated(alert.name for alert in self.deadlines)
        if twice:
            raise ValueError(f"two deadlines are named {twice[0]!r}: rename one")
        if FINISH_BY in names:
            raise ValueError(f"the deadline name {FINISH_BY!r} is reserved for requests: choose another name")
        tasks = dict.fromkeys(task.name for task in self.tasks)
        for alert in self.deadlines:
            if alert.task is not None and alert.task not in tasks:
                raise ValueError(
                    f"deadline {alert.name!r} is for the task {alert.task!r}, which does not exist; tasks: {', '.join(tasks)}"
                )
        return self

    @property
    def needs_session(self) -> bool:
        """Whether a task uses the attempt's session of Spark."""
        return any(task.needs_session for task in self.tasks)

    @property
    def unstaged(self) -> tuple[str, ...]:
        """What the pipeline and its tasks declare to write without staging it, each once, in order."""
        return tuple(sorted({*self.writes, *(name for task in self.tasks for name in task.writes)}))

    @property
    def rules(self) -> dict[Occasion, tuple[CallbackRule, ...]]:
        """The callbacks to call on each occasion."""
        return {
            Occasion.RUN_FAILED: self.on_run_failed,
            Occasion.BACKFILL_SUCCEEDED: self.on_backfill_succeeded,
            Occasion.BACKFILL_FAILED: self.on_backfill_failed,
        }

    def calls(self) -> Iterator[tuple[str, Target, Mapping[str, Any]]]:
        """All its callbacks: where it says so, what is called, and the kwargs."""
        for alert in self.deadlines:
            if alert.callback is not None:
                yield f"deadline {alert.name!r}", alert.callback, alert.kwargs
        for occasion, rules in self.rules.items():
            for rule in rules:
                yield f"on_{occasion}", rule.callback, rule.kwargs

    def in_batches_of(self, limit: int | None) -> PipelineDefinition:
        """The definition with at most ``limit`` runs in a batch."""
        return self if limit is None else self.model_copy(update={"batch_size": min(limit, self.batch_size)})

    def as_json(self) -> dict[str, Any]:
        """The definition as JSON data, as stored and published."""
        return self.model_dump(mode="json")


def check_scripts_of_ranges(tasks: tuple[TaskDefinition, ...]) -> None:
    """Check that scripts of ranges get the end of the interval, and stage no directories. Raises ``ValueError``."""
    for task in tasks:
        if task.stages_directories:
            raise ValueError(
                f"task {task.name!r}: with batch_mode='range', a script cannot stage directories, as each interval has an output "
                "of its own: use batch_mode='each', or a task that is a function"
            )
        if task.sql is not None and not task.sql.to_the_end:
            raise ValueError(
                f"task {task.name!r}: with batch_mode='range', a file of SQL must process up to the end of the range: use :end or "
                ":last_day in it"
            )
        if task.submit is not None and not _to_the_end(task.texts):
            raise ValueError(
                f"task {task.name!r}: with batch_mode='range', a script must process up to the end of the range: "
                "pass {interval.end} or {interval.last_day} in its args or env"
            )


def _to_the_end(texts: Iterable[str]) -> bool:
    return any(name in text for text in texts for name in ("{interval.end", "{interval.last_day"))


def check_tasks(tasks: tuple[TaskDefinition, ...]) -> None:
    """Check that names are unique, upstream tasks exist and no cycle exists.

    Raises ``ValueError``.
    """
    names = {task.name for task in tasks}
    if twice := _repeated(task.name for task in tasks):
        raise ValueError(f"two tasks are named {twice[0]!r}: rename one")
    for task in tasks:
        for upstream in task.after:
            if upstream not in names:
                raise ValueError(f"task {task.name!r} comes after {upstream!r}, which is not a task of this pipeline")
    try:
        TopologicalSorter({task.name: task.after for task in tasks}).prepare()
    except CycleError as e:
        raise ValueError(f"tasks wait for each other: {' → '.join(e.args[1])}") from e


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
