"""Purges backfills that ended long ago, except rows that later decisions read.

Each kind of row (``KINDS``) of a page of backfills is deleted by itself, children first, so that a
transaction locks rows of one table only. See docs/decisions/purge-keeps-the-last-run.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, Connection, Table, func, select, text
from sqlalchemy.dialects.postgresql import JSONB, TSTZMULTIRANGE, TSTZRANGE

from retrofill_core.domain.backfill import ACTIVE
from retrofill_core.domain.run import RunState
from retrofill_core.store import tables as t

# Key of the advisory lock that the only purge holds.
PURGE_LOCK = 0x52465047
# A stopped purge must not hold locks.
IDLE_SECONDS = 5
# Bounds the rows that each batch of a page reads again.
PAGE_RUNS = 20_000
# Exceeds the longest transaction.
MARGIN_SECONDS = 600

# Deadlines of the backfills :ids, those of runs found by their run. As an array, each is one index
# lookup; with a join, Postgres overestimates the rows and reads the whole table for each batch.
_DEADLINES = """
SELECT d.id FROM retrofill.deadline AS d
WHERE d.run_id = ANY(ARRAY(SELECT x.id FROM retrofill.run AS x WHERE x.backfill_id = ANY(:ids)))
UNION ALL SELECT d.id FROM retrofill.deadline AS d WHERE d.run_id IS NULL AND d.backfill_id = ANY(:ids)
"""


def _span(run: str) -> str:
    return f"tstzrange({run}.interval_start, {run}.interval_end)"


def _number(run: str) -> str:
    return f"int8range({run}.pipeline_no, {run}.pipeline_no, '[]')"


def _kept(run: str) -> str:
    """SQL condition that later decisions read the run.

    Succeeded and failed runs decide on reprocessing where they are the latest of any moment; the
    pipeline's last successes, those since the moment in :since, make the average of AVERAGE_RUNTIME
    deadlines.
    """
    return f"""(
  {run}.finished_at IS NULL
  OR {run}.state IN ('failed', 'succeeded') AND {run}.superseded_by IS NULL
    AND {run}.restores IS NULL AND {run}.undone_by IS NULL AND NOT coalesce({_span(run)} <@ (
    SELECT range_agg({_span("later")}) FROM retrofill.run AS later
    WHERE {_number("later")} && {_number(run)} AND {_span("later")} && {_span(run)}
      AND later.state IN ('failed', 'succeeded') AND later.superseded_by IS NULL
      AND later.restores IS NULL AND later.undone_by IS NULL AND later.id > {run}.id), false)
  OR {run}.state = 'succeeded' AND {run}.finished_at >= coalesce((
    SELECT average.since FROM unnest(CAST(:averaged AS bigint[]), CAST(:since AS timestamptz[])) AS average(no, since)
    WHERE average.no = {run}.pipeline_no), 'infinity'))"""


@dataclass(frozen=True, slots=True)
class PurgedRows:
    """Rows of one table, as SQL conditions on ``this``.

    ``goes``: the rows of the page that may be deleted. ``after``: those of them still referenced.
    """

    table: Table
    goes: str
    after: str = "false"

    @property
    def columns(self) -> list[Column[Any]]:
        """The exported columns."""
        return [column for column in self.table.c if column.name not in ("lock_only", "purged_at")]


# In the order of deletion: referencing rows first.
KINDS = (
    PurgedRows(
        t.callback_run,
        "EXISTS (SELECT FROM retrofill.callback AS x WHERE x.deadline_id = this.callback_id"
        " AND x.finished_at IS NOT NULL AND x.backfill_id = ANY(:ids))",
    ),
    PurgedRows(
        t.callback,
        "this.finished_at IS NOT NULL"
        f" AND (this.deadline_id = ANY(ARRAY({_DEADLINES})) OR this.backfill_id = ANY(:ids))",
        after="EXISTS (SELECT FROM retrofill.callback_run AS x WHERE x.callback_id = this.deadline_id)",
    ),
    PurgedRows(t.deadline_digest, f"this.closed_at IS NOT NULL AND this.id = ANY(ARRAY({_DEADLINES}))"),
    PurgedRows(
        t.deadline,
        f"this.decided_at IS NOT NULL AND this.id = ANY(ARRAY({_DEADLINES}))",
        after="EXISTS (SELECT FROM retrofill.callback AS x WHERE x.deadline_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.deadline_digest AS x WHERE x.id = this.id)",
    ),
    PurgedRows(
        t.task_run, "this.run_id = ANY(ARRAY(SELECT x.id FROM retrofill.run AS x WHERE x.backfill_id = ANY(:ids)))"
    ),
    PurgedRows(t.backfill_interval, "this.backfill_id = ANY(:ids)"),
    PurgedRows(t.backfill_progress, "this.backfill_id = ANY(:ids)"),
    PurgedRows(t.run_cancel, "this.backfill_id = ANY(:ids)"),
    PurgedRows(
        t.run,
        f"this.backfill_id = ANY(:ids) AND NOT {_kept('this')}",
        after="EXISTS (SELECT FROM retrofill.task_run AS x WHERE x.run_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.deadline AS x WHERE x.run_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.callback_run AS x WHERE x.run_id = this.id)",
    ),
    PurgedRows(
        t.attempt,
        # OFFSET 0: each is looked up by an index. As a join, Postgres would read all runs for each batch.
        "this.backfill_id = ANY(:ids) AND NOT EXISTS (SELECT FROM retrofill.run AS x"
        f" WHERE x.attempt_id = this.id AND {_kept('x')} OFFSET 0)",
        after="EXISTS (SELECT FROM retrofill.run AS x WHERE x.attempt_id = this.id OFFSET 0)",
    ),
    PurgedRows(
        t.backfill,
        "this.id = ANY(:ids)"
        f" AND NOT EXISTS (SELECT FROM retrofill.run AS x WHERE x.backfill_id = this.id AND {_kept('x')})",
        after="EXISTS (SELECT FROM retrofill.run AS x WHERE x.backfill_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.attempt AS x WHERE x.backfill_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.backfill_interval AS x WHERE x.backfill_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.backfill_progress AS x WHERE x.backfill_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.run_cancel AS x WHERE x.backfill_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.deadline AS x WHERE x.run_id IS NULL AND x.backfill_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.callback AS x WHERE x.backfill_id = this.id)",
    ),
)

# Backfills with unfinished work, which a purge leaves for later, and the reason.
_HELD = f"""
WITH of_page AS (
  SELECT d.id, d.backfill_id, d.state, d.digest_id FROM retrofill.deadline AS d WHERE d.id = ANY(ARRAY({_DEADLINES})))
SELECT backfill_id, 'deadlines armed' FROM of_page WHERE state = 'armed'
UNION ALL SELECT d.backfill_id, 'callbacks not called yet' FROM of_page AS d
  JOIN retrofill.callback AS c ON c.deadline_id = d.id WHERE c.state IN ('pending', 'running')
UNION ALL SELECT c.backfill_id, 'callbacks not called yet' FROM retrofill.callback AS c
  WHERE c.backfill_id = ANY(:ids) AND c.state IN ('pending', 'running')
UNION ALL SELECT d.backfill_id, 'digests open' FROM of_page AS d
  JOIN retrofill.deadline_digest AS g ON g.id = coalesce(d.digest_id, d.id) WHERE g.closed_at IS NULL
""" + "".join(
    f"""
UNION ALL SELECT b.id, 'events not published yet' FROM unnest(CAST(:ids AS text[])) AS b(id)
  JOIN retrofill.{own.outbox.name} AS o ON o.key = convert_to(b.id, 'UTF8')
UNION ALL SELECT d.backfill_id, 'events not published yet' FROM of_page AS d
  JOIN retrofill.{own.outbox.name} AS o ON o.key = convert_to(CAST(d.id AS text), 'UTF8')
UNION ALL SELECT c.backfill_id, 'events not published yet' FROM retrofill.callback AS c
  JOIN retrofill.{own.outbox.name} AS o ON o.key = convert_to(CAST(c.deadline_id AS text), 'UTF8')
  WHERE c.backfill_id = ANY(:ids)
"""
    for own in t.SERVICE_TABLES.values()
)

# Since when each pipeline's last successes count for the averages of its deadlines.
_AVERAGES = f"""
WITH definitions AS (
  SELECT no, definition FROM retrofill.pipeline WHERE no = ANY(:nos)
  UNION ALL SELECT pipeline_no, definition FROM retrofill.backfill
    WHERE pipeline_no = ANY(:nos) AND state IN ({", ".join(f"'{state}'" for state in sorted(ACTIVE))})),
averaged AS (
  SELECT no, max(CAST(alert ->> 'last_n' AS integer)) AS n
  FROM definitions, jsonb_array_elements(definition -> 'deadlines') AS alert
  WHERE alert ->> 'last_n' IS NOT NULL GROUP BY no)
SELECT a.no, CAST(coalesce(
  (SELECT r.finished_at FROM retrofill.run AS r
   WHERE r.pipeline_no = a.no AND r.state = '{RunState.SUCCEEDED}' AND r.started_at IS NOT NULL AND r.restores IS NULL
   ORDER BY r.finished_at DESC OFFSET a.n - 1 LIMIT 1), '-infinity') AS text) AS since
FROM averaged AS a
"""

# The next backfills that ended before :cutoff, in that order: one, or more with at most :runs runs.
_PAGE = """
SELECT id, pipeline_no, CAST(ended_at AS text) AS ended_at FROM (
  SELECT id, pipeline_no, ended_at, row_number() OVER in_order AS no, sum(runs) OVER in_order AS runs FROM (
    SELECT id, pipeline_no, ended_at, runs FROM retrofill.backfill
    WHERE ended_at < :cutoff AND (ended_at, id) > (CAST(:ended_at AS timestamptz), :id) AND {which}
    ORDER BY ended_at, id LIMIT :size
  ) AS first WINDOW in_order AS (ORDER BY ended_at, id)
) AS counted WHERE no = 1 OR runs <= :runs ORDER BY counted.ended_at, id
"""
_NEW_PAGE, _ANY_PAGE = text(_PAGE.format(which="purged_at IS NULL")), text(_PAGE.format(which="true"))

# A later run of an interval replaces one that was kept, so backfills that overlap one ended since
# the last purge are purged again. The margin covers transactions that began before that purge.
_REOPEN = f"""
WITH newer AS MATERIALIZED (
  SELECT pipeline_no, covers FROM retrofill.backfill
  WHERE purged_at IS NULL AND ended_at >= (SELECT max(purged_at) FROM retrofill.backfill) - interval '{MARGIN_SECONDS} seconds')
UPDATE retrofill.backfill AS old SET purged_at = NULL FROM newer
WHERE old.purged_at IS NOT NULL AND old.covers && newer.covers
  AND int8range(old.pipeline_no, old.pipeline_no, '[]') && int8range(newer.pipeline_no, newer.pipeline_no, '[]')
"""
# Only a backfill that ended before the averages of its pipeline keeps no run for them.
_DONE = """
UPDATE retrofill.backfill AS this SET purged_at = :at WHERE id = ANY(:ids) AND ended_at < coalesce((
  SELECT average.since FROM unnest(CAST(:averaged AS bigint[]), CAST(:since AS timestamptz[])) AS average(no, since)
  WHERE average.no = this.pipeline_no), 'infinity')
"""


@dataclass(frozen=True, slots=True)
class PurgePosition:
    """Position of a purge: after the backfill ``id`` that ended at ``ended_at`` (Postgres text)."""

    ended_at: str = "-infinity"
    id: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """Backfills to purge, and the position after them.

    ``averages``: since when the averages of a pipeline, by number, need its successes.
    """

    ids: Sequence[str]
    last: PurgePosition
    averages: Mapping[int, str] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of the statements."""
        return {"ids": list(self.ids), "averaged": list(self.averages), "since": list(self.averages.values())}


@dataclass(frozen=True, slots=True)
class Rows:
    """Locked rows as exported (JSON and ranges as text), and their ctids."""

    values: list[tuple[Any, ...]]
    ctids: list[str]


def cutoff(conn: Connection, age: timedelta) -> datetime:
    """The time ``age`` ago, by the database's clock."""
    moment: datetime = conn.execute(select(func.clock_timestamp() - age)).scalar_one()
    return moment


def may_delete(conn: Connection) -> bool:
    """Whether this role may delete from all tables of ``KINDS``."""
    names = ", ".join(f"'retrofill.{kind.table.name}'" for kind in KINDS)
    statement = f"SELECT bool_and(has_table_privilege(name, 'DELETE')) FROM unnest(ARRAY[{names}]) AS name"
    return bool(conn.execute(text(statement)).scalar_one())


def begin(conn: Connection) -> bool:
    """Become the only purge until ``end`` or disconnect; false if another is running."""
    return bool(conn.execute(select(func.pg_try_advisory_lock(PURGE_LOCK))).scalar_one())


def end(conn: Connection) -> None:
    """Release what ``begin`` acquired."""
    conn.execute(select(func.pg_advisory_unlock(PURGE_LOCK)))


def reopen(conn: Connection) -> int:
    """Unmark purged backfills whose kept runs later runs may replace; returns their number."""
    return conn.execute(text(_REOPEN)).rowcount


def mark_purged(conn: Connection, page: Page, at: datetime) -> None:
    """Mark the page's backfills as purged by the purge that began ``at``."""
    conn.execute(text(_DONE), {**page.parameters, "at": at})


def next_page(
    conn: Connection, before: datetime, after: PurgePosition, size: int, *, again: bool = False
) -> Page | None:
    """Up to ``size`` backfills after ``after`` that ended before ``before``; ``None`` if none left.

    Backfills marked as purged are skipped, unless ``again`` is set.
    """
    given = {"cutoff": before, "ended_at": after.ended_at, "id": after.id, "size": size, "runs": PAGE_RUNS}
    found = conn.execute(_ANY_PAGE if again else _NEW_PAGE, given).all()
    if not found:
        return None
    averages = conn.execute(text(_AVERAGES), {"nos": sorted({row.pipeline_no for row in found})}).all()
    last = PurgePosition(found[-1].ended_at, found[-1].id)
    return Page([row.id for row in found], last, {row.no: row.since for row in averages})


_FOLDERS = """
SELECT DISTINCT regexp_replace(output ->> 'name', '/[^/]*$', '')
FROM retrofill.run AS r, jsonb_array_elements(r.published -> 'outputs') AS output
WHERE r.backfill_id = ANY(:ids) AND output ->> 'name' LIKE '/%'
"""


def folders(conn: Connection, page: Page) -> list[str]:
    """The directories in which the page's runs have published directories."""
    return list(conn.execute(text(_FOLDERS), {"ids": list(page.ids)}).scalars())


def held(conn: Connection, ids: Collection[str]) -> dict[str, str]:
    """The backfills that cannot be purged yet, with a reason."""
    return {row[0]: row[1] for row in conn.execute(text(_HELD), {"ids": list(ids)})}


def count(conn: Connection, kind: PurgedRows, page: Page) -> int:
    """Number of rows of a kind that may be deleted, referenced or not."""
    statement = text(f"SELECT count(*) FROM retrofill.{kind.table.name} AS this WHERE {kind.goes}")
    return int(conn.execute(statement, page.parameters).scalar_one())


def lock(conn: Connection, kind: PurgedRows, page: Page, limit: int) -> Rows:
    """The first deletable rows of a kind, by key, locked. Locked ones are skipped."""
    columns = ", ".join(_shown(column) for column in kind.columns)
    keys = ", ".join(f"this.{column.name}" for column in kind.table.primary_key)
    statement = text(
        f"SELECT CAST(this.ctid AS text), {columns} FROM retrofill.{kind.table.name} AS this"
        f" WHERE {kind.goes} AND NOT ({kind.after}) ORDER BY {keys} LIMIT :rows FOR UPDATE OF this SKIP LOCKED"
    )
    conn.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"))
    found = conn.execute(statement, {**page.parameters, "rows": limit}).all()
    return Rows([tuple(row[1:]) for row in found], [row[0] for row in found])


def delete(conn: Connection, kind: PurgedRows, rows: Rows) -> int:
    """Delete rows that this transaction has locked, as ctids need; returns their number."""
    statement = text(f"DELETE FROM retrofill.{kind.table.name} WHERE ctid = ANY(CAST(:ctids AS tid[]))")
    return conn.execute(statement, {"ctids": rows.ctids}).rowcount


def _shown(column: Column[Any]) -> str:
    if isinstance(column.type, JSONB | TSTZRANGE | TSTZMULTIRANGE):
        return f"CAST(this.{column.name} AS text) AS {column.name}"
    return f"this.{column.name}"
