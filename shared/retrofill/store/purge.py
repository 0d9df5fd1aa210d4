"""What a purge may delete: ended backfills whose end is long past, but for what later decisions read.

Of a page of backfills each kind of row (``KINDS``) goes by itself, children first, so that a transaction locks rows of one
table only. What stays, and why, is told in docs/decisions/purge-keeps-the-last-run.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Column, Connection, Table, func, select, text
from sqlalchemy.dialects.postgresql import JSONB, TSTZRANGE

from retrofill.domain.backfill import ACTIVE
from retrofill.domain.run import RunState
from retrofill.store import tables as t

# Tells our advisory lock from others'.
ONE_AT_A_TIME = 0x52465047
# A purge that is stopped must not hold locks.
IDLE_SECONDS = 5
# Each batch looks at all rows of its page again.
PAGE_RUNS = 20_000
# More than a transaction may take.
MARGIN_SECONDS = 600

# The deadlines of the backfills :ids; those of runs are found by their run. As an array they are looked up in an index one
# by one: joined, Postgres reads the whole table for each batch of a page, as it takes a part of it for much.
_DEADLINES = """
SELECT d.id FROM retrofill.deadline AS d
WHERE d.run_id = ANY(ARRAY(SELECT x.id FROM retrofill.run AS x WHERE x.backfill_id = ANY(:ids)))
UNION ALL SELECT d.id FROM retrofill.deadline AS d WHERE d.run_id IS NULL AND d.backfill_id = ANY(:ids)
"""


def _kept(run: str) -> str:
    """Whether later decisions read a run: the latest of its interval that succeeded or failed decides on reprocessing,
    and deadlines take the average of the pipeline's last successes, those since the moment in :since."""
    return f"""(
  {run}.finished_at IS NULL
  OR {run}.state IN ('failed', 'succeeded') AND NOT EXISTS (
    SELECT FROM retrofill.run AS later
    WHERE later.pipeline_no = {run}.pipeline_no AND later.interval_start = {run}.interval_start
      AND later.state IN ('failed', 'succeeded') AND later.id > {run}.id)
  OR {run}.state = 'succeeded' AND {run}.finished_at >= coalesce((
    SELECT average.since FROM unnest(CAST(:averaged AS bigint[]), CAST(:since AS timestamptz[])) AS average(no, since)
    WHERE average.no = {run}.pipeline_no), 'infinity'))"""


@dataclass(frozen=True)
class Kind:
    """Rows of one table. Of those of the page (each called ``this``) ``goes`` says which may be deleted, and ``after``
    which of them not yet, as something refers to them."""

    table: Table
    goes: str
    after: str = "false"

    @property
    def columns(self) -> list[Column[Any]]:
        """What an export has of a row."""
        return [column for column in self.table.c if column.name not in ("lock_only", "purged_at")]


# In the order in which they go: what refers to a row before the row.
KINDS = (
    Kind(t.callback, f"this.finished_at IS NOT NULL AND this.deadline_id = ANY(ARRAY({_DEADLINES}))"),
    Kind(t.deadline_digest, f"this.closed_at IS NOT NULL AND this.id = ANY(ARRAY({_DEADLINES}))"),
    Kind(
        t.deadline,
        f"this.decided_at IS NOT NULL AND this.id = ANY(ARRAY({_DEADLINES}))",
        after="EXISTS (SELECT FROM retrofill.callback AS x WHERE x.deadline_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.deadline_digest AS x WHERE x.id = this.id)",
    ),
    Kind(t.task_run, "this.run_id = ANY(ARRAY(SELECT x.id FROM retrofill.run AS x WHERE x.backfill_id = ANY(:ids)))"),
    Kind(t.backfill_interval, "this.backfill_id = ANY(:ids)"),
    Kind(
        t.run,
        f"this.backfill_id = ANY(:ids) AND NOT {_kept('this')}",
        after="EXISTS (SELECT FROM retrofill.task_run AS x WHERE x.run_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.deadline AS x WHERE x.run_id = this.id)",
    ),
    Kind(
        t.backfill,
        "this.id = ANY(:ids)"
        f" AND NOT EXISTS (SELECT FROM retrofill.run AS x WHERE x.backfill_id = this.id AND {_kept('x')})",
        after="EXISTS (SELECT FROM retrofill.run AS x WHERE x.backfill_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.backfill_interval AS x WHERE x.backfill_id = this.id)"
        " OR EXISTS (SELECT FROM retrofill.deadline AS x WHERE x.run_id IS NULL AND x.backfill_id = this.id)",
    ),
)

# Why a backfill has to wait: something of it is still to be done or told.
_HELD = f"""
WITH of_page AS (
  SELECT d.id, d.backfill_id, d.state, d.digest_id FROM retrofill.deadline AS d WHERE d.id = ANY(ARRAY({_DEADLINES})))
SELECT backfill_id, 'deadlines armed' FROM of_page WHERE state = 'armed'
UNION ALL SELECT d.backfill_id, 'callbacks not called yet' FROM of_page AS d
  JOIN retrofill.callback AS c ON c.deadline_id = d.id WHERE c.state IN ('pending', 'running')
UNION ALL SELECT d.backfill_id, 'digests open' FROM of_page AS d
  JOIN retrofill.deadline_digest AS g ON g.id = coalesce(d.digest_id, d.id) WHERE g.closed_at IS NULL
""" + "".join(
    f"""
UNION ALL SELECT b.id, 'events not published yet' FROM unnest(CAST(:ids AS text[])) AS b(id)
  JOIN retrofill.{own.outbox.name} AS o ON o.key = convert_to(b.id, 'UTF8')
UNION ALL SELECT d.backfill_id, 'events not published yet' FROM of_page AS d
  JOIN retrofill.{own.outbox.name} AS o ON o.key = convert_to(CAST(d.id AS text), 'UTF8')
"""
    for own in t.SERVICE_TABLES.values()
)

# Since when the last successes of each pipeline are that one of its deadlines takes the average of.
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
   WHERE r.pipeline_no = a.no AND r.state = '{RunState.SUCCEEDED}' AND r.started_at IS NOT NULL
   ORDER BY r.finished_at DESC OFFSET a.n - 1 LIMIT 1), '-infinity') AS text) AS since
FROM averaged AS a
"""

# The next backfills in the order of their ends, before :cutoff; all but the first one together with no more than :runs runs.
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

# A later run of an interval takes the place of one that was kept, so backfills that ended since the last purge say which
# others are to be looked at again. A transaction that ends one may have begun a while before it was there to see.
_LOOK_AGAIN = f"""
WITH newer AS MATERIALIZED (
  SELECT pipeline_no, covers FROM retrofill.backfill
  WHERE purged_at IS NULL AND ended_at >= (SELECT max(purged_at) FROM retrofill.backfill) - interval '{MARGIN_SECONDS} seconds')
UPDATE retrofill.backfill AS old SET purged_at = NULL FROM newer
WHERE old.purged_at IS NOT NULL AND old.covers && newer.covers
  AND int8range(old.pipeline_no, old.pipeline_no, '[]') && int8range(newer.pipeline_no, newer.pipeline_no, '[]')
"""
# Of the averages of its pipeline nothing is kept of a backfill that ended before them.
_DONE = """
UPDATE retrofill.backfill AS this SET purged_at = :at WHERE id = ANY(:ids) AND ended_at < coalesce((
  SELECT average.since FROM unnest(CAST(:averaged AS bigint[]), CAST(:since AS timestamptz[])) AS average(no, since)
  WHERE average.no = this.pipeline_no), 'infinity')
"""


@dataclass(frozen=True)
class Place:
    """Where a purge is: after the backfill ``id`` that ended at ``ended_at`` (as Postgres writes it)."""

    ended_at: str = "-infinity"
    id: str = ""


@dataclass(frozen=True)
class Page:
    """Backfills that ended before the cut-off, with what their pipelines' averages need; ``last`` is where it ends."""

    ids: Sequence[str]
    last: Place
    averages: Mapping[int, str] = field(default_factory=dict)

    @property
    def parameters(self) -> dict[str, Any]:
        """As the statements name it."""
        return {"ids": list(self.ids), "averaged": list(self.averages), "since": list(self.averages.values())}


@dataclass(frozen=True)
class Rows:
    """Locked rows as an export has them (JSON and ranges as text), and where they are in their table."""

    values: list[tuple[Any, ...]]
    places: list[str]


def cutoff(conn: Connection, age: timedelta) -> datetime:
    """The moment that is ``age`` ago, by the database's clock."""
    moment: datetime = conn.execute(select(func.clock_timestamp() - age)).scalar_one()
    return moment


def may_delete(conn: Connection) -> bool:
    """Whether this role may delete from all the tables."""
    names = ", ".join(f"'retrofill.{kind.table.name}'" for kind in KINDS)
    statement = f"SELECT bool_and(has_table_privilege(name, 'DELETE')) FROM unnest(ARRAY[{names}]) AS name"
    return bool(conn.execute(text(statement)).scalar_one())


def begin(conn: Connection) -> bool:
    """Be the only purge, until ``end`` or the connection's end; False where there is another."""
    return bool(conn.execute(select(func.pg_try_advisory_lock(ONE_AT_A_TIME))).scalar_one())


def end(conn: Connection) -> None:
    """Let others purge."""
    conn.execute(select(func.pg_advisory_unlock(ONE_AT_A_TIME)))


def look_again(conn: Connection) -> int:
    """Forget of which backfills nothing more could go, where something can since; of how many."""
    return conn.execute(text(_LOOK_AGAIN)).rowcount


def done(conn: Connection, page: Page, at: datetime) -> None:
    """Remember that of these backfills nothing more can go, as a purge that began ``at`` found."""
    conn.execute(text(_DONE), {**page.parameters, "at": at})


def next_page(conn: Connection, before: datetime, after: Place, size: int, *, again: bool = False) -> Page | None:
    """Up to ``size`` backfills after ``after`` that ended before ``before``; ``None`` where there are no more.

    Those of which a purge took all that can go are passed over, but for ``again``.
    """
    given = {"cutoff": before, "ended_at": after.ended_at, "id": after.id, "size": size, "runs": PAGE_RUNS}
    found = conn.execute(_ANY_PAGE if again else _NEW_PAGE, given).all()
    if not found:
        return None
    averages = conn.execute(text(_AVERAGES), {"nos": sorted({row.pipeline_no for row in found})}).all()
    last = Place(found[-1].ended_at, found[-1].id)
    return Page([row.id for row in found], last, {row.no: row.since for row in averages})


def held(conn: Connection, ids: Collection[str]) -> dict[str, str]:
    """Those of the backfills that have to wait, with a reason."""
    return {row[0]: row[1] for row in conn.execute(text(_HELD), {"ids": list(ids)})}


def count(conn: Connection, kind: Kind, page: Page) -> int:
    """How many rows of a kind would go."""
    statement = text(f"SELECT count(*) FROM retrofill.{kind.table.name} AS this WHERE {kind.goes}")
    return int(conn.execute(statement, page.parameters).scalar_one())


def lock(conn: Connection, kind: Kind, page: Page, limit: int) -> Rows:
    """The first rows of a kind that may go now, by key, locked; those that somebody else has locked are left out."""
    columns = ", ".join(_shown(column) for column in kind.columns)
    keys = ", ".join(f"this.{column.name}" for column in kind.table.primary_key)
    statement = text(
        f"SELECT CAST(this.ctid AS text), {columns} FROM retrofill.{kind.table.name} AS this"
        f" WHERE {kind.goes} AND NOT ({kind.after}) ORDER BY {keys} LIMIT :rows FOR UPDATE OF this SKIP LOCKED"
    )
    conn.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"))
    found = conn.execute(statement, {**page.parameters, "rows": limit}).all()
    return Rows([tuple(row[1:]) for row in found], [row[0] for row in found])


def delete(conn: Connection, kind: Kind, rows: Rows) -> int:
    """Delete rows that this transaction has locked, so that their places are theirs; how many were."""
    statement = text(f"DELETE FROM retrofill.{kind.table.name} WHERE ctid = ANY(CAST(:places AS tid[]))")
    return conn.execute(statement, {"places": rows.places}).rowcount


def _shown(column: Column[Any]) -> str:
    if isinstance(column.type, JSONB | TSTZRANGE):
        return f"CAST(this.{column.name} AS text) AS {column.name}"
    return f"this.{column.name}"
