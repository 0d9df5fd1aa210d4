"""``retrofill backfill dry-run``, ``undo --dry-run`` and ``diff``: the effects of a backfill before it has them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError
from rich.progress import Progress, TextColumn

from retrofill.errors import UserError, WrongUsage
from retrofill.outputs.summary import Column
from retrofill.wording import plural
from retrofill_core.contract.backfills import BackfillUndoRequested
from retrofill_core.contract.base import explain
from retrofill_core.domain.backfill import Publish
from retrofill_core.domain.planning import Plan, Rejection
from retrofill_core.store.undo import find, plan_undo, stored_undo
from retrofill_tools.cli.arguments import read_bound
from retrofill_tools.cli.output import console, counts, moment, print_json, print_table, print_text, range_of
from retrofill_tools.client.backfills import find_backfill
from retrofill_tools.client.comparing import Change, review_of
from retrofill_tools.client.connect import load_settings, local_user, reading
from retrofill_tools.client.previews import DoneByOthers, Preview, stretches, stretches_as_json

WILL_UNDO = "undo"
# Columns of an output that are shown, those with the first names.
MAX_COLUMNS = 6
BY_OTHERS = "the published output has changed since the comparison"


def print_plan(found: Preview) -> None:
    """One line per stretch of adjacent intervals with the same outcome, the totals, and what other intervals' runs did."""
    outcomes, zone = found.outcomes, found.definition.timezone
    print_stretches(found.plan, outcomes, zone)
    print_text(would("create", found.plan))
    for done, what in (
        (found.recognized, "exist already, done"),
        (found.partly_done, "would run although they are done in part"),
    ):
        if done:
            print_text(_by_others(done, what, zone))


def would(verb: str, made: Plan) -> str:
    """``would create 92 runs``, and how many intervals get none, and why."""
    skipped = made.skipped_counts
    rest = f", none for {plural(sum(skipped.values()), 'interval')} ({counts(skipped)})" if skipped else ""
    return f"would {verb} {plural(made.runs, 'run')}{rest}"


def _by_others(done: Sequence[DoneByOthers], what: str, zone: str) -> str:
    """``what`` is true of these intervals, in one line."""
    number = sum(each.intervals for each in done)
    runs = {run.id: run for each in done for run in each.runs}
    first = runs[min(runs)]
    where = range_of(done[0].start, done[-1].end, zone)
    by = f"by {plural(len(runs), 'run')} of other intervals"
    return f"{number:,} ({where}) {what} {by}, like {range_of(first.start, first.end, zone)}"


def print_stretches(made: Plan, outcomes: Sequence[str], zone: str) -> None:
    """One line per stretch of adjacent intervals with the same outcome."""
    starts, ends = made.intervals.starts, made.intervals.ends
    print_table(
        [f"range ({zone})", "intervals", "outcome"],
        [
            [range_of(starts[first], ends[end - 1], zone), end - first, outcome]
            for first, end, outcome in stretches(made, outcomes)
        ],
        empty="no intervals",
    )


def undo_request(id: str, first: str | None, last: str | None, *, review: bool) -> BackfillUndoRequested:
    """The options as a request. Raises ``WrongUsage``."""
    if not id.strip():
        raise WrongUsage("the backfill's id is empty")
    values = {
        "undoes": id,
        "from": None if first is None else read_bound("--from", first),
        "to": None if last is None else read_bound("--to", last),
        "publish": Publish.REVIEW if review else Publish.AT_ONCE,
        "triggered_by": local_user(),
    }
    try:
        return BackfillUndoRequested.model_validate(values)
    except ValidationError as e:
        raise WrongUsage(explain(e)) from e


def preview_undo(request: BackfillUndoRequested, *, as_json: bool) -> None:
    """Print which intervals would be undone. Raises ``UserError`` if the request would be rejected."""
    settings = load_settings()
    with reading(settings) as conn:
        undone = find(conn, [request.undoes]).get(request.undoes)
        stored = None if undone is None else stored_undo(undone)
        made = plan_undo(conn, request, undone, stored, settings.max_plan_runs)
    if isinstance(made, Rejection):
        if as_json:
            print_json({"accepted": False, "reason": made.reason, "message": made.message})
        raise UserError(made.message)
    assert stored is not None
    outcomes = [WILL_UNDO if reason is None else str(reason) for reason in made.skipped]
    zone = stored.definition.timezone
    if not as_json:
        print_stretches(made, outcomes, zone)
        return print_text(would("undo", made))
    return print_json(
        {
            "accepted": True,
            "undoes": request.undoes,
            "pipeline": stored.definition.name,
            "timezone": zone,
            "runs": made.runs,
            "skipped": made.skipped_counts,
            "stretches": stretches_as_json(made, outcomes),
        }
    )


def compare(id: str, limit: int, *, as_json: bool) -> None:
    """Print the largest changes first. Raises ``UserError``."""
    settings = load_settings()
    with reading(settings) as conn:
        review = review_of(conn, find_backfill(conn, id))
    found: list[Change] = []
    with review.changes(settings) as changes, _progress(quiet=as_json) as progress:
        task = progress.add_task("", total=review.outputs)
        for change in changes:
            found.append(change)
            progress.advance(task)
    found.sort(key=lambda each: (not each.changed, -abs(each.rows), -len(each.columns), each.start))
    if as_json:
        return print_json([each.as_json() for each in found])
    return _print_changes(found, limit, review.of.definition.timezone)


def _progress(*, quiet: bool) -> Progress:
    columns = (TextColumn("comparing"), TextColumn("{task.completed}/{task.total} outputs"))
    return Progress(*columns, console=console(), transient=True, disable=quiet or not console().is_terminal)


def _print_changes(found: Sequence[Change], limit: int, zone: str) -> None:
    changed = [each for each in found if each.rows or each.columns or each.before is None or each.changed]
    print_table(
        ["interval", "output", "published", "staged", "what changes"],
        [
            [
                moment(each.start, zone),
                each.output,
                "nothing" if each.before is None else _rows(each.before.rows, each.before.bytes),
                _rows(each.after.rows, each.after.bytes),
                _what(each),
            ]
            for each in changed[:limit]
        ],
        empty="what is staged has the same figures as what is published",
        keep=["interval", "published", "staged"],
    )
    more = f" (the {limit:,} largest are shown; --limit shows more)" if len(changed) > limit else ""
    print_text(f"{len(changed):,} of {plural(len(found), 'output')} would change{more}")
    if by_others := sum(each.changed for each in found):
        print_text(f"not published: {plural(by_others, 'output')}, because {BY_OTHERS}")


def _rows(rows: int | None, size: int | None) -> str:
    return plural(rows, "row") if rows is not None else plural(size or 0, "byte")


def _what(change: Change) -> str:
    return f"{BY_OTHERS}; {_figures_of(change)}" if change.changed else _figures_of(change)


def _figures_of(change: Change) -> str:
    if change.before is None:
        return "it is new"
    if change.before.rows == 0 or change.after.rows == 0:
        return "it was empty" if change.before.rows == 0 else "it becomes empty"
    shown = [
        f"{name}: {_figures(change.before.columns.get(name), change.after.columns.get(name))}"
        for name in change.columns[:MAX_COLUMNS]
    ]
    more = len(change.columns) - len(shown)
    return "; ".join([*shown, *([plural(more, "more column")] if more else [])])


def _figures(before: Column | None, after: Column | None) -> str:
    if before is None or after is None:
        return "only published" if after is None else "only staged"
    parts = []
    for label, old, new in (
        ("nulls", before.nulls, after.nulls),
        ("sum", before.total, after.total),
        ("min", before.least, after.least),
        ("max", before.greatest, after.greatest),
    ):
        if old != new:
            parts.append(f"{label} {_shortened(old)} → {_shortened(new)}")
    return ", ".join(parts)


def _shortened(value: float | str | None) -> str:
    text = f"{value:,.6g}" if isinstance(value, float) else "none" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
