"""``retrofill backfill diff``: what a backfill in review would change."""

from __future__ import annotations

from collections.abc import Sequence

from rich.progress import Progress, TextColumn

from retrofill.outputs.summary import Column
from retrofill_core.store.installation import read_installation
from retrofill_tools.cli.output import console, moment, print_json, print_table, print_text
from retrofill_tools.client.backfills import find_backfill
from retrofill_tools.client.comparing import Change, changes, spark_of, staged_runs
from retrofill_tools.client.connect import load_settings, reading

# Columns of an output that are shown, those with the first names.
MAX_COLUMNS = 6
BY_OTHERS = "somebody has changed the published one since it was compared"


def compare(id: str, limit: int, *, as_json: bool) -> None:
    """Print the largest changes first. Raises ``UserError``."""
    settings = load_settings()
    with reading(settings) as conn:
        of = find_backfill(conn, id)
        runs = staged_runs(conn, of)
        installation = read_installation(conn)
    assert installation is not None  # it has a backfill
    found: list[Change] = []
    with spark_of(settings, of.definition) as session, _progress(quiet=as_json) as progress:
        task = progress.add_task("", total=sum(len(each.outputs["folders"]) for each in runs))
        for change in changes(session, runs, of.definition, installation.id):
            found.append(change)
            progress.advance(task)
    found.sort(key=lambda each: (not each.changed, -abs(each.rows), -len(each.columns), each.start))
    if as_json:
        return print_json([each.as_json() for each in found])
    return _print(found, limit, of.definition.timezone)


def _progress(*, quiet: bool) -> Progress:
    columns = (TextColumn("comparing"), TextColumn("{task.completed}/{task.total} outputs"))
    return Progress(*columns, console=console(), transient=True, disable=quiet or not console().is_terminal)


def _print(found: Sequence[Change], limit: int, zone: str) -> None:
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
    print_text(f"{len(changed):,} of {len(found):,} outputs change{more}")
    if by_others := sum(each.changed for each in found):
        print_text(f"{by_others:,} of them {'was' if by_others == 1 else 'were'} not published, because {BY_OTHERS}")


def _rows(rows: int | None, size: int | None) -> str:
    return f"{rows:,} rows" if rows is not None else f"{size or 0:,} bytes"


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
    return "; ".join([*shown, *([f"{more:,} more columns"] if more else [])])


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
            parts.append(f"{label} {_short(old)} → {_short(new)}")
    return ", ".join(parts)


def _short(value: float | str | None) -> str:
    text = f"{value:,.6g}" if isinstance(value, float) else "none" if value is None else str(value)
    return text if len(text) <= 24 else f"{text[:23]}…"
