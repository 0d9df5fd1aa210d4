"""The details of one backfill: collected as data, then printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, RowMapping

from retrofill.cli import calendar, estimating, pools
from retrofill.cli.output import console, counts, duration, moment, print_facts, print_text
from retrofill.client import read as reads
from retrofill.domain.backfill import BackfillState
from retrofill.domain.batch_size import next_size
from retrofill.domain.pipeline import PipelineDefinition
from retrofill.domain.run import MACHINE
from retrofill.store import budgets
from retrofill.store.backfills import run_counts
from retrofill.store.clock import database_now
from retrofill.store.durations import recent
from retrofill.store.pipelines import codes
from retrofill.store.progress import costs, estimates

TRACEBACK_LINES = 4
# At most this many attempts that did not come to their end, and suspects.
ATTEMPTS = SUSPECTS = 10
PURGED = "details and runs were purged, except runs that later backfills depend on"
SETTINGS = ("max_active_runs", "reprocess_behavior", "run_backwards", "on_run_failure", "conf", "triggered_by")


def describe(conn: Connection, row: RowMapping, failures: int) -> dict[str, Any]:
    """The backfill as data, with at most ``failures`` of its failed runs.

    ``attempts``: the last ones that did not come to their end. ``suspects``: runs that are retried
    alone because a driver was lost with them.
    """
    id = row["id"]
    by_state = run_counts(conn, id)
    times = reads.run_times(conn, id)
    until = row["ended_at"] or database_now(conn)
    zone, covers = row["definition"].get("timezone", "UTC"), row["covers"]
    return {
        **{name: row[name] for name in ("id", "pipeline", "state", "cancel_cause", "runs")},
        "held_back": held_back(dict(row))
        or _used_up(conn, row)
        or pools.without_drivers(conn, row, by_state)
        or pools.not_begun(conn, id),
        "by_state": by_state,
        "purged": reads.purged(conn, row),
        "skipped": reads.skipped(conn, id),
        "timezone": zone,
        "range_start": covers.lower,
        "range_end": covers.upper,
        "calendar": calendar.collect(conn, id, zone, covers.lower, covers.upper),
        **{name: row[name] for name in SETTINGS},
        "batch_size": batch_size(row["definition"], row["batch_size"]),
        "batch_mode": row["definition"].get("batch_mode", "each"),
        "batch_now": _batch_now(conn, row),
        "code_sha256": row["definition"].get("code", {}).get("sha256"),
        "latest_code": row["code_follows"],
        "runs_by_code": reads.runs_by_code(conn, id),
        "requested_at": row["requested_at"],
        **times,
        "ended_at": row["ended_at"],
        "runs_per_second": _rate(by_state, times["first_started_at"], until),
        "estimate": estimating.as_json(estimates(conn, [row], {id: by_state}, until).get(id)),
        "cost": costs(conn, [id]).get(id),
        "budget": _budget(row),
        "failed_runs": _failures(conn, id, failures),
        "suspects": [_with_losses(each) for each in reads.suspects(conn, id, SUSPECTS)],
        "attempts": [dict(each) for each in reads.attempts_not_done(conn, id, ATTEMPTS)],
    }


def held_back(row: Mapping[str, Any]) -> str | None:
    """Why no runs of an active backfill start: this release cannot read its pipeline definition."""
    if row["ended_at"] is not None:
        return None
    try:
        PipelineDefinition.model_validate(row["definition"])
    except ValidationError as e:
        return f"this release cannot read its pipeline definition; upgrade the run-starter or cancel it: {_fields(e)}"
    return None


def _budget(row: RowMapping) -> dict[str, Any] | None:
    budget = budgets.of_row(row)
    return None if budget is None else budget.model_dump(exclude_none=True)


def _used_up(conn: Connection, row: RowMapping) -> str | None:
    """Why a resume would be refused."""
    if row["state"] != BackfillState.PAUSED:
        return None
    why = budgets.exceeded(conn, row["id"], budgets.of_row(row))
    return None if why is None else f"its budget is used up: {why}; retrofill backfill resume {row['id']} --budget …"


def batch_size(definition: Mapping[str, Any], limit: int | None = None) -> int | str:
    """The size of a stored definition: ``auto`` if each attempt's is chosen."""
    if definition.get("batch_target_seconds"):
        return "auto"
    size = int(definition.get("batch_size", 1))
    return min(size, limit or size)


def _batch_now(conn: Connection, row: RowMapping) -> dict[str, Any] | None:
    """The chosen size of the next attempt (``runs``), and ``why``. ``None``: none is chosen."""
    if row["ended_at"] is not None or batch_size(row["definition"]) != "auto" or held_back(dict(row)) is not None:
        return None
    definition, no = PipelineDefinition.model_validate(row["definition"]), row["pipeline_no"]
    if row["code_follows"]:
        definition = definition.model_copy(update={"code": codes(conn, [no]).get(no, definition.code)})
    return asdict(next_size(definition.in_batches_of(row["batch_size"]), recent(conn, [no])[no]))


def _fields(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:3])


def _rate(by_state: Mapping[str, int], started: datetime | None, until: datetime) -> float | None:
    """Ended runs per second since the first one started."""
    ended = sum(count for state, count in by_state.items() if state in MACHINE.terminal)
    if started is None or ended == 0 or until <= started:
        return None
    return round(ended / (until - started).total_seconds(), 3)


def _failures(conn: Connection, id: str, limit: int) -> list[dict[str, Any]]:
    runs = reads.failed_runs(conn, id, limit)
    tasks: dict[int, list[dict[str, Any]]] = {}
    for row in reads.failed_tasks(conn, [run["id"] for run in runs]):
        found = {name: row[name] for name in ("task", "try_number", "error")}
        tasks.setdefault(row["run_id"], []).append(found)
    return [{**_with_losses(run), "failed_tasks": tasks.get(run["id"], [])} for run in runs]


def _with_losses(run: RowMapping) -> dict[str, Any]:
    return {**run, "losses": run["losses"].get("last", [])}


def print_backfill(facts: Mapping[str, Any]) -> None:
    rate, zone = facts["runs_per_second"], facts["timezone"]
    out = console()
    for line in calendar.render(facts["calendar"], colored=out.color_system is not None):
        out.print(line)
    if facts["calendar"]["cells"]:
        print_text("")
    print_facts(
        {
            "id": facts["id"],
            "pipeline": facts["pipeline"],
            "state": facts["state"],
            "held back": facts["held_back"],
            "cancelled by": facts["cancel_cause"],
            "range": f"{moment(facts['range_start'], zone)} – {moment(facts['range_end'], zone)} ({zone})",
            "runs": f"{facts['runs']:,}: {counts(facts['by_state'])}",
            "purged": PURGED if facts["purged"] else None,
            "skipped": counts(facts["skipped"]) if facts["skipped"] else None,
            "started again": facts["runs_started_again"] or None,
            "at once": facts["max_active_runs"],
            "runs per attempt": _runs_per_attempt(facts),
            "order": "backwards" if facts["run_backwards"] else None,
            "reprocess": facts["reprocess_behavior"],
            "on run failure": facts["on_run_failure"],
            "conf": json.dumps(facts["conf"], ensure_ascii=False) if facts["conf"] else None,
            "code": _code(facts),
            "triggered by": facts["triggered_by"],
            "requested (UTC)": facts["requested_at"],
            "first start (UTC)": facts["first_started_at"],
            "ended (UTC)": facts["ended_at"],
            "took": _took(facts),
            "speed": None if rate is None else f"{rate:,.2f} runs/s",
            "time left": _left(facts["estimate"]),
            "cost": None if facts["cost"] is None else estimating.cost(facts["cost"]),
            "budget": None if facts["budget"] is None else _limits(facts["budget"]),
        }
    )
    _print_failures(facts)
    _print_suspects(facts)
    _print_attempts(facts)


def _left(found: Mapping[str, float] | None) -> str | None:
    if found is None:
        return None
    return f"{duration(found['seconds'])} ({duration(found['low'])} to {duration(found['high'])})"


def _limits(budget: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={each.isoformat() if name == 'until' else each}" for name, each in budget.items())


def _runs_per_attempt(facts: Mapping[str, Any]) -> str | int | None:
    if facts["batch_now"] is not None:
        return f"now {facts['batch_now']['runs']:,}: {facts['batch_now']['why']}"
    return None if facts["batch_size"] == 1 else facts["batch_size"]


def _code(facts: Mapping[str, Any]) -> str | None:
    """The code archives that its runs used (shortened hashes), or will use."""
    used = {(sha256 or "in place")[:12]: number for sha256, number in facts["runs_by_code"].items()}
    if facts["latest_code"]:
        return f"the latest at each start{f': {counts(used)}' if used else ''}"
    return counts(used) if len(used) > 1 else (facts["code_sha256"] or "")[:12] or None


def _took(facts: Mapping[str, Any]) -> str | None:
    if facts["ended_at"] is None:
        return None
    return duration((facts["ended_at"] - facts["requested_at"]).total_seconds())


def _print_failures(facts: Mapping[str, Any]) -> None:
    zone = facts["timezone"]
    for run in facts["failed_runs"]:
        print_text("")
        times = "once" if run["attempt"] == 1 else f"{run['attempt']} times"
        print_text(f"run {run['id']} of {moment(run['interval_start'], zone)} failed, begun {times}")
        _print_losses(run)
        for task in run["failed_tasks"]:
            _print_error(f"task {task['task']}, try {task['try_number']}: ", task["error"])
        if not run["failed_tasks"]:
            _print_error("", run["error"])
    hidden = facts["by_state"].get("failed", 0) - len(facts["failed_runs"])
    if hidden > 0:
        print_text(f"\n… and {hidden:,} more failed runs (--failures)")


def _print_suspects(facts: Mapping[str, Any]) -> None:
    """Say what is retried alone and why."""
    for run in facts["suspects"]:
        print_text("")
        day = moment(run["interval_start"], facts["timezone"])
        print_text(f"run {run['id']} of {day} ({run['state']}) is retried alone, because its driver was lost")
        _print_losses(run)


def _print_losses(run: Mapping[str, Any]) -> None:
    for loss in run["losses"]:
        # Stored by an older release, it counted.
        note = "" if loss.get("counted", True) else " (not counted)"
        print_text(f"  time {loss['attempt']}: the driver was lost: {loss['reason']}{note}")


def _print_attempts(facts: Mapping[str, Any]) -> None:
    if facts["attempts"]:
        print_text("")
    for attempt in facts["attempts"]:
        first, last = attempt["first_interval"], attempt["last_interval"]
        dates = dict.fromkeys(moment(each, facts["timezone"]) for each in (first, last) if each is not None)
        of = f" of {' – '.join(dates)}" if dates else ""
        why = f": {attempt['reason']}" if attempt["reason"] else ""
        ended = f"{attempt['outcome']} at {moment(attempt['ended_at'])} (UTC)"
        print_text(f"attempt {attempt['id']}{of} {ended} on {attempt['host']}{why}")


def _print_error(what: str, error: Mapping[str, Any] | None) -> None:
    if error is None:
        print_text(f"  {what}no error is recorded")
        return
    print_text(f"  {what}{error.get('type')}: {error.get('message')}")
    for line in (error.get("traceback") or "").rstrip().splitlines()[-TRACEBACK_LINES:]:
        print_text(f"    {line}")
