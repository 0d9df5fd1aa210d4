"""``retrofill runs show``: all that is known about one run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer

from retrofill.errors import stored_line
from retrofill.protocol.table_output import TableOutput
from retrofill_tools.cli.completion import backfill_ids
from retrofill_tools.cli.finding import find_run
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import duration, moment, print_facts, print_json, print_table, print_text
from retrofill_tools.client.attempts import Attempt
from retrofill_tools.client.connect import load_settings, reading
from retrofill_tools.client.runs import FullRun, TaskRun, describe_run


def show(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="Id of a run, or of a backfill if DATE is given.", autocompletion=backfill_ids
        ),
    ],
    day: Annotated[str | None, typer.Argument(metavar="[DATE]", help="The run's logical date.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show one run: its state, attempts, tasks and error."""
    with reading(load_settings()) as conn:
        facts = describe_run(conn, find_run(conn, run, day))
    if as_json:
        return print_json(facts)
    return print_run(facts)


def print_run(facts: FullRun) -> None:
    zone = facts.timezone
    print_facts(
        {
            "run": str(facts.id),
            "backfill": facts.backfill_id,
            "pipeline": facts.pipeline,
            "interval": f"{moment(facts.interval_start, zone)} – {moment(facts.interval_end, zone)} ({zone})",
            "state": facts.state,
            "begun": _times(facts.attempt),
            "retried alone since (UTC)": facts.lost_at,
            "published again after (UTC)": facts.publish_after,
            "not published yet": facts.publish_error and stored_line(facts.publish_error),
            "queued (UTC)": facts.queued_at,
            "started (UTC)": facts.started_at,
            "finished (UTC)": facts.finished_at,
            "took": _took(facts.started_at, facts.finished_at),
            "code": (facts.code_sha256 or "")[:12] or None,
            "output": "\n".join(map(_named, (facts.outputs or {}).get("folders", []))) or None,
            "replaced, though changed since": ", ".join(facts.replaced_changes) or None,
        }
    )
    for attempt in facts.attempts:
        _print_attempt(attempt)
    _print_tasks(facts.tasks, facts.attempt)
    _print_error(facts)
    if any(each.began_at for each in facts.attempts):
        day = facts.interval_start.isoformat()
        print_text(f"\nlog: retrofill runs logs {facts.attempt_id} {day}")


def _named(output: str) -> str:
    """The path of a folder, or the name of a table."""
    table = TableOutput.of(output)
    return output if table is None else table.table


def _print_attempt(attempt: Attempt) -> None:
    runs = "" if attempt.runs == 1 else f", {attempt.runs:,} runs {attempt.mode}"
    publishes = ", only publishes" if attempt.mode == "publish" else ""
    how = attempt.outcome or attempt.state
    print_text(f"\nattempt {attempt.id}{runs}{publishes} on {attempt.host}: {how}")
    times = {"claimed": attempt.claimed_at, "began": attempt.began_at, "ended": attempt.ended_at}
    said = ", ".join(f"{name} {moment(at)}" for name, at in times.items() if at is not None)
    took = _took(attempt.began_at, attempt.ended_at)
    print_text(f"  {said} (UTC)" + ("" if took is None else f", took {took}"))
    if attempt.spark_app_id is not None:
        print_text(f"  Spark {attempt.spark_app_id}" + (f", {attempt.spark_ui}" if attempt.spark_ui else ""))
    if attempt.reason is not None:
        print_text(f"  why: {attempt.reason}")


def _print_tasks(tasks: Sequence[TaskRun], last: int) -> None:
    """The tasks of the last time; those before are counted."""
    mine = [task for task in tasks if task.attempt == last]
    if not mine:
        return
    print_text("")
    print_table(
        ["task", "state", "tries", "started (UTC)", "took"],
        [
            [
                task.task,
                task.state,
                task.try_number,
                task.started_at,
                _took(task.started_at, task.finished_at) or "–",
            ]
            for task in mine
        ],
        empty="",
        keep=["state", "tries", "took"],
    )
    if last > 1:
        print_text(f"when it began for the {last}th time; --json has the times before")


def _print_error(facts: FullRun) -> None:
    """Its error, and those of its tasks that failed in the end, each once."""
    errors = [(f"task {task.task}: ", task.error) for task in facts.tasks if task.attempt == facts.attempt]
    seen: set[str] = set()
    for what, error in [*errors, ("", facts.error)]:
        if error is not None and str(error) not in seen:
            seen.add(str(error))
            print_text(f"\n{what}{error.get('type')}: {error.get('message')}")
            print_text((error.get("traceback") or "").rstrip() or "(no traceback)")
    for loss in facts.losses:
        note = "" if loss.get("counted", True) else " (not counted)"
        print_text(f"\ntime {loss['attempt']}: the driver was lost: {loss['reason']}{note}")


def _times(number: int) -> str:
    return {0: "not yet", 1: "once"}.get(number, f"{number:,} times")


def _took(started: datetime | None, finished: datetime | None) -> str | None:
    return None if started is None or finished is None else duration((finished - started).total_seconds())
