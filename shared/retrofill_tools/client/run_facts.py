"""All that is known about one run, as data."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping

from retrofill_tools.client import listed, read_runs
from retrofill_tools.client import read as reads
from retrofill_tools.client.interval_facts import history

RUN_FACTS = ("id", "backfill_id", "pipeline", "interval_start", "interval_end", "state", "attempt", "attempt_id")
# Of a task in the pipeline's definition.
TASK = ("name", "kind", "after", "trigger_rule", "retries", "timeout_seconds")
# Deadlines and callbacks of one run.
MOST = 100
# Another interval of the pipeline begins later than that.
_LEAST = timedelta(microseconds=1)
TIMES = ("queued_at", "started_at", "finished_at", "lost_at")
MORE = (
    *("lost_attempts", "range_limit", "superseded_by", "code_sha256", "outputs", "error"),
    *("publish_after", "publish_error"),
)


def describe(conn: Connection, run: RowMapping) -> dict[str, Any]:
    """The run as data, with its ``attempts`` and the ``tasks`` of each time it began.

    ``graph``: the tasks of its pipeline, as defined; ``deadlines`` and ``callbacks``: its own; ``history``: all
    finished runs of its interval; ``replaced_changes``: what somebody changed in the moment of its publication.
    """
    return {
        **{name: run[name] for name in (*RUN_FACTS, *TIMES, *MORE)},
        "timezone": run["definition"].get("timezone", "UTC"),
        "losses": run["losses"].get("last", []),
        "replaced_changes": [
            each["name"] for each in (run["published"] or {}).get("outputs", ()) if each.get("replaced_change")
        ],
        "attempts": [dict(each) for each in read_runs.attempts_of(conn, run)],
        "tasks": [dict(each) for each in read_runs.tasks_of(conn, run["id"])],
        "graph": [{name: task.get(name) for name in TASK} for task in run["definition"].get("tasks", ())],
        "deadlines": listed.deadlines(reads.deadlines(conn, {"run_id": run["id"]}, MOST)),
        "callbacks": listed.callbacks(reads.callbacks(conn, {"run_id": run["id"]}, MOST)),
        "history": history(conn, run["pipeline_no"], run["interval_start"], run["interval_start"] + _LEAST),
    }
