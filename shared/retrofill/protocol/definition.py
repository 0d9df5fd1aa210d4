"""A pipeline's definition, as far as drivers need it. The services have checked it by their own models."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Mapping

from retrofill.sdk.names import DEFAULT_POOL, TriggerRule
from retrofill.sdk.tables import Table


def known(model: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given for the fields of a dataclass, with tuples for lists. A newer host may send more."""
    names = {each.name for each in fields(model)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in given.items() if name in names}


@dataclass(frozen=True)
class Script:
    """A script or jar for spark-submit or, as ``script`` of a command, a program."""

    script: str
    main_class: str | None = None
    args: tuple[str, ...] = ()
    conf: Mapping[str, str] = field(default_factory=dict)
    py_files: tuple[str, ...] = ()
    jars: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    archives: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    deploy_mode: str = "client"
    tables: tuple[Table, ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Script:
        values = known(cls, given)
        values["tables"] = tuple(Table(**known(Table, each)) for each in given.get("tables", ()))
        return cls(**values)


@dataclass(frozen=True)
class Sql:
    """Statements that run in the attempt's session. ``into``: the table for the rows of the last one."""

    file: str
    text: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    into: Table | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Sql:
        values = known(cls, given)
        if values.get("into") is not None:
            values["into"] = Table(**known(Table, values["into"]))
        return cls(**values)


@dataclass(frozen=True)
class Task:
    """One step of a run."""

    name: str
    kind: str = "python"
    after: tuple[str, ...] = ()
    trigger_rule: TriggerRule = TriggerRule.ALL_SUCCESS
    retries: int = 0
    retry_delay_seconds: float = 1.0
    timeout_seconds: float | None = None
    submit: Script | None = None
    sql: Sql | None = None
    sparse: bool = False
    writes_nothing: bool = False

    @property
    def needs_session(self) -> bool:
        """Whether it uses the attempt's session of Spark. A script has its own, unless it stages tables."""
        return self.submit is None or bool(self.submit.tables)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Task:
        values = known(cls, given)
        if values.get("submit") is not None:
            values["submit"] = Script.of(values["submit"])
        if values.get("sql") is not None:
            values["sql"] = Sql.of(values["sql"])
        if "trigger_rule" in values:
            values["trigger_rule"] = TriggerRule(values["trigger_rule"])
        return cls(**values)


@dataclass(frozen=True)
class Code:
    """Where the user's code is: in a file or module, and with ``sha256`` in that archive."""

    attribute: str
    file: str | None = None
    module: str | None = None
    sha256: str | None = None
    root: str | None = None


@dataclass(frozen=True)
class Definition:
    """A pipeline."""

    name: str
    tasks: tuple[Task, ...]
    code: Code
    pool: str = DEFAULT_POOL
    timezone: str = "UTC"
    spark_conf: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Definition:
        """From JSON data."""
        values = known(cls, given)
        values["tasks"] = tuple(map(Task.of, values["tasks"]))
        values["code"] = Code(**known(Code, values["code"]))
        return cls(**values)

    @property
    def needs_session(self) -> bool:
        """Whether a task uses the attempt's session of Spark."""
        return any(task.needs_session for task in self.tasks)
