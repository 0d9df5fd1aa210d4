"""State of a session that runs and tasks use in turn: as it was before the first, what changed, and its tags."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Any, Callable, Mapping

from retrofill.driver.versions import JobTags, settings_of


class Tags(threading.local):
    """The tags of a thread's jobs. A thread of the user's may serve one task after another."""

    task: str | None = None

    def put(self, session: Any, attempt: str, task: str) -> None:
        """Tag the jobs of the calling thread, and no longer with its last task."""
        tags = JobTags(session)
        tags.add(attempt)
        if self.task not in (None, task):
            tags.remove(self.task)
        tags.add(task)
        self.task = task


class CannotClear(Exception):
    """A session has state that cannot be undone."""


@dataclass(frozen=True)
class Fresh:
    """A session's state before the first run of a batch, which every run begins with.

    Cached data is not part of it: clearing the cache would empty everybody's.
    """

    settings: Mapping[str, str]
    catalog: str
    schema: str

    @classmethod
    def of(cls, session: Any) -> Fresh:
        """The state as it is."""
        return cls(settings_of(session), session.catalog.currentCatalog(), session.catalog.currentDatabase())

    def restore(self, session: Any) -> None:
        """Drop temporary views and tags, and restore settings, current catalog and schema."""
        # Lists the session's own views too, and unlike others it asks no metastore.
        for view in session.sql("SHOW VIEWS IN global_temp").collect():
            if not view.namespace:
                session.catalog.dropTempView(view.viewName)
        self.restore_settings(session)
        catalog, schema = session.catalog.currentCatalog(), session.catalog.currentDatabase()
        # A catalog remembers its schema, so each may differ alone.
        if catalog != self.catalog:
            session.catalog.setCurrentCatalog(self.catalog)
        if (catalog, schema) != (self.catalog, self.schema):
            session.catalog.setCurrentDatabase(self.schema)
        JobTags(session).clear()

    def restore_settings(self, session: Any) -> None:
        now = settings_of(session)
        for key in now.keys() - self.settings.keys():
            session.conf.unset(key)
        for key, value in self.settings.items():
            if now.get(key) != value:
                session.conf.set(key, value)


# Commands that leave nothing in a session that another run could meet. Delta's are extensions.
_HARMLESS = {
    *("write_operation", "write_operation_v2", "merge_into_table_command", "checkpoint_command", "extension"),
    *("remove_cached_remote_relation_command", "get_resources_command", "streaming_query_command"),
    *("write_stream_operation_start", "streaming_query_manager_command", "execute_external_command"),
    *("create_resource_profile_command", "ml_command"),
}
_FUNCTIONS = ("register_function", "register_table_function")
# What Spark does not execute in a statement, whatever it contains.
_COMMENT = r"--(?:\\\n|[^\r\n])*|/\*(?!\+).*?\*/"
_IGNORED = re.compile(rf"({_COMMENT})|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.S)
# Statements that leave nothing in a session, and those of which nobody can say what they left.
_READS = re.compile(
    r"[\s(]*(?:(?:select|with|from|values|table|show|desc|describe|explain|insert|merge|delete|update)\b|set(?:\s+-v)?\s*;?\s*$)",
    re.I,
)
_STAYS = re.compile(
    r"\s*(create\s+(?:or\s+replace\s+)?temp(?:orary)?\s+function|add\s+(?:jar|file|archive)s?|declare|execute\s+immediate|(?:[\w`]+\s*:\s*)?begin)\b",
    re.I,
)


class Changes:
    """What user code may have changed in a Connect session, seen from the requests of its client.

    A session that only reads and writes is asked nothing, and nothing is restored. Each execution gets the attempt's
    ``tag``, also in threads of user code, so that it can be interrupted. ``on_use`` is called before each request.
    ``used``: whether anything was executed.
    """

    def __init__(self, session: Any, tag: str, on_use: Callable[[], object], *, restores: bool) -> None:
        """``restores``: the session serves another run afterwards."""
        self.used = False
        self._session = session
        self._tag = tag
        self._on_use = on_use
        self._restores = restores
        self._fresh: Fresh | None = None
        self._settings = self._others = False
        self._functions: set[str] = set()
        self._stays: str | None = None
        self._ours = threading.local()
        # The first of several tasks that change something at once reads what was before.
        self._reading = threading.Lock()
        stub = session.client._stub
        execute, config, analyze = stub.ExecutePlan, stub.Config, stub.AnalyzePlan

        def execute_plan(request: Any, **more: Any) -> Any:
            self._see_plan(request)
            return execute(request, **more)

        def configure(request: Any, **more: Any) -> Any:
            self._see_config(request)
            return config(request, **more)

        def analyze_plan(request: Any, **more: Any) -> Any:
            on_use()
            return analyze(request, **more)

        stub.ExecutePlan, stub.Config, stub.AnalyzePlan = execute_plan, configure, analyze_plan
        # It does not serve local data, which Spark calls artifacts, too.
        artifacts = session.client._artifact_manager
        add = artifacts.add_artifacts

        def add_artifacts(*paths: str, **kinds: bool) -> None:
            on_use()
            self._stays = "what addArtifacts added"
            add(*paths, **kinds)

        artifacts.add_artifacts = add_artifacts

    def clear(self) -> None:
        """Restore what user code may have changed. Raises ``CannotClear``, and what Spark does."""
        if self._stays is not None:
            raise CannotClear(f"{self._stays} stays until the session ends")
        self._ours.now = True
        try:
            self._clear()
        finally:
            self._ours.now = False

    def _clear(self) -> None:
        for name in sorted(self._functions):
            quoted = name.replace("`", "``")
            self._session.sql(f"DROP TEMPORARY FUNCTION IF EXISTS `{quoted}`")
        if self._fresh is not None and self._others:
            self._fresh.restore(self._session)
        elif self._fresh is not None and self._settings:
            self._fresh.restore_settings(self._session)
        self._settings = self._others = False
        self._functions.clear()

    def _see_plan(self, request: Any) -> None:
        if getattr(self._ours, "now", False):
            return
        self._on_use()
        self.used = True
        if self._tag not in request.tags:
            request.tags.append(self._tag)
        operation = request.plan.WhichOneof("op_type")
        if operation == "command":
            self._see_command(request.plan.command)
        elif operation != "root":
            # One that is large is compressed: a relation, or a command, such as a function with much data.
            of_command = request.plan.compressed_operation.op_type != request.plan.compressed_operation.OP_TYPE_RELATION
            self._stays = "what a large command did" if of_command else self._stays
            self._changes(others=True)
        elif request.plan.root.WhichOneof("rel_type") == "catalog":
            self._changes(others=True)

    def _see_command(self, command: Any) -> None:
        kind = command.WhichOneof("command_type")
        if kind in _FUNCTIONS:
            self._functions.add(getattr(command, kind).function_name)
        elif kind == "sql_command":
            self._see_sql(_query_of(command.sql_command))
        elif kind == "create_dataframe_view":
            self._changes(others=True)
        elif kind not in _HARMLESS:
            self._stays = f"what {kind} did"

    def _see_sql(self, query: str) -> None:
        statement = _statement(query)
        if (stays := _STAYS.match(statement)) is not None:
            self._stays = f"what a statement with {stays[1]!r} did"
        # Spark nests comments: what is left of some may hide anything.
        if _READS.match(statement) is None or "*/" in statement:
            self._changes(others=True)

    def _see_config(self, request: Any) -> None:
        if getattr(self._ours, "now", False):
            return
        self._on_use()
        if request.operation.WhichOneof("op_type") in ("set", "unset"):
            self._changes()

    def _changes(self, *, others: bool = False) -> None:
        """State is about to change: remember it, as it was before the first change."""
        with self._reading:
            if self._restores and self._fresh is None:
                self._ours.now = True
                try:
                    self._fresh = Fresh.of(self._session)
                finally:
                    self._ours.now = False
        self._settings = True
        self._others = self._others or others


def _query_of(command: Any) -> str:
    """The text of an SQL command: in a field of its own up to Spark 3.5, in a relation since."""
    if command.sql or not hasattr(command, "input"):
        return str(command.sql)
    relation = command.input
    # With data frames as arguments.
    if relation.WhichOneof("rel_type") == "with_relations":
        relation = relation.with_relations.root
    return str(relation.sql.query)


def _statement(query: str) -> str:
    """The query without comments, and with empty texts and names where they are quoted."""
    return _IGNORED.sub(lambda found: " " if found[1] else found[0][0] * 2, query)
