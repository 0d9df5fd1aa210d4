"""The details of one backfill, printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from retrofill_tools.cli import calendar, estimating
from retrofill_tools.cli.output import console, counts, duration, moment, print_facts, print_text
from retrofill_tools.client.backfills import FullBackfill, TimeLeft
from retrofill_tools.client.runs import FailedRun, Suspect

TRACEBACK_LINES = 4
MAX_CHANGED = 10
PURGED = "details and runs were purged, except runs that later backfills depend on"


def print_backfill(facts: FullBackfill) -> None:
    rate, zone = facts.runs_per_second, facts.timezone
    out = console()
    for line in calendar.render(facts.calendar, colored=out.color_system is not None):
        out.print(line)
    if facts.calendar.cells:
        print_text("")
    print_facts(
        {
            "id": facts.id,
            "pipeline": facts.pipeline,
            "state": facts.state,
            "undoes": facts.undoes,
            "held back": facts.held_back,
            "cancelled by": facts.cancel_cause,
            "range": f"{moment(facts.range_start, zone)} – {moment(facts.range_end, zone)} ({zone})",
            "runs": f"{facts.runs:,}: {counts(facts.by_state)}",
            "purged": PURGED if facts.purged else None,
            "skipped": counts(facts.skipped) if facts.skipped else None,
            "started again": facts.runs_started_again or None,
            "at once": facts.max_active_runs,
            "runs per attempt": _runs_per_attempt(facts),
            "order": "backwards" if facts.run_backwards else None,
            "reprocess": facts.reprocess_behavior,
            "on run failure": facts.on_run_failure,
            "conf": json.dumps(facts.conf, ensure_ascii=False) if facts.conf else None,
            "code": _code(facts),
            "triggered by": facts.triggered_by,
            "requested (UTC)": facts.requested_at,
            "first start (UTC)": facts.first_started_at,
            "ended (UTC)": facts.ended_at,
            "took": _took(facts),
            "speed": None if rate is None else f"{rate:,.2f} runs/s",
            "time left": _left(facts.estimate),
            "cost": None if facts.cost is None else estimating.cost(facts.cost),
            "budget": None if facts.budget is None else _limits(facts.budget),
            "changed since": _changed(facts) or None,
        }
    )
    _print_failures(facts)
    _print_suspects(facts)
    _print_attempts(facts)


def _changed(facts: FullBackfill) -> str:
    """The intervals that somebody has changed since they were approved."""
    first = [moment(each, facts.timezone) for each in facts.changed_intervals[:MAX_CHANGED]]
    more = len(facts.changed_intervals) - len(first)
    return ", ".join([*first, *([f"and {more:,} more"] if more else [])])


def _left(found: TimeLeft | None) -> str | None:
    if found is None:
        return None
    return f"{duration(found.seconds)} ({duration(found.low)} to {duration(found.high)})"


def _limits(budget: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={each.isoformat() if name == 'until' else each}" for name, each in budget.items())


def _runs_per_attempt(facts: FullBackfill) -> str | int | None:
    if facts.batch_now is not None:
        return f"now {facts.batch_now.runs:,}: {facts.batch_now.why}"
    return None if facts.batch_size == 1 else facts.batch_size


def _code(facts: FullBackfill) -> str | None:
    """The code archives that its runs used (shortened hashes), or will use."""
    used = {(sha256 or "in place")[:12]: number for sha256, number in facts.runs_by_code.items()}
    if facts.latest_code:
        return f"the latest at each start{f': {counts(used)}' if used else ''}"
    return counts(used) if len(used) > 1 else (facts.code_sha256 or "")[:12] or None


def _took(facts: FullBackfill) -> str | None:
    if facts.ended_at is None:
        return None
    return duration((facts.ended_at - facts.requested_at).total_seconds())


def _print_failures(facts: FullBackfill) -> None:
    zone = facts.timezone
    for run in facts.failed_runs:
        print_text("")
        times = "once" if run.attempt == 1 else f"{run.attempt} times"
        print_text(f"run {run.id} of {moment(run.interval_start, zone)} failed, begun {times}")
        _print_losses(run)
        for task in run.failed_tasks:
            _print_error(f"task {task.task}, try {task.try_number}: ", task.error)
        if not run.failed_tasks:
            _print_error("", run.error)
    hidden = facts.by_state.get("failed", 0) - len(facts.failed_runs)
    if hidden > 0:
        print_text(f"\n… and {hidden:,} more failed runs (--failures)")


def _print_suspects(facts: FullBackfill) -> None:
    """Say what is retried alone and why."""
    for run in facts.suspects:
        print_text("")
        day = moment(run.interval_start, facts.timezone)
        print_text(f"run {run.id} of {day} ({run.state}) is retried alone, because its driver was lost")
        _print_losses(run)


def _print_losses(run: FailedRun | Suspect) -> None:
    for loss in run.losses:
        # Stored by an older release, it counted.
        note = "" if loss.get("counted", True) else " (not counted)"
        print_text(f"  time {loss['attempt']}: the driver was lost: {loss['reason']}{note}")


def _print_attempts(facts: FullBackfill) -> None:
    if facts.attempts:
        print_text("")
    for attempt in facts.attempts:
        first, last = attempt.first_interval, attempt.last_interval
        dates = dict.fromkeys(moment(each, facts.timezone) for each in (first, last) if each is not None)
        of = f" of {' – '.join(dates)}" if dates else ""
        why = f": {attempt.reason}" if attempt.reason else ""
        ended = f"{attempt.outcome} at {moment(attempt.ended_at)} (UTC)"
        print_text(f"attempt {attempt.id}{of} {ended} on {attempt.host}{why}")


def _print_error(what: str, error: Mapping[str, Any] | None) -> None:
    if error is None:
        print_text(f"  {what}no error is recorded")
        return
    print_text(f"  {what}{error.get('type')}: {error.get('message')}")
    for line in (error.get("traceback") or "").rstrip().splitlines()[-TRACEBACK_LINES:]:
        print_text(f"    {line}")
