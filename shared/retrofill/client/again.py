"""The request that runs again what an ended backfill left undone."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, RowMapping

from retrofill.client import read as reads
from retrofill.contract.backfills import MAX_DATES, BackfillRequested
from retrofill.domain.backfill import ReprocessBehavior
from retrofill.errors import UserError
from retrofill.store.retries import not_done

# What the new backfill has in common with the ended one.
SAME = ("pipeline", "max_active_runs", "batch_size", "run_backwards", "on_run_failure", "conf")


def requested_again(conn: Connection, row: RowMapping, user: str | None) -> BackfillRequested:
    """A request by ``user`` for the intervals of an ended backfill whose runs failed or were cancelled.

    Those that succeeded in another backfill since are left out. Raises ``UserError`` if there are
    none, or too many for a request.
    """
    id = row["id"]
    if row["undoes"] is not None:
        raise UserError(
            f"backfill {id} is an undo: request it again with 'retrofill backfill undo {row['undoes']}', which leaves out "
            "what is undone"
        )
    left = not_done(conn, id)
    dates = left.starts
    if not dates and reads.purged(conn, row):
        raise UserError(f"backfill {id} was purged: request its range again with 'retrofill backfill create'")
    if not dates:
        raise UserError(
            f"nothing to retry: backfill {id} {row['state']}, and the intervals of all its runs have succeeded, in it or "
            "in another backfill since"
        )
    if len(dates) > MAX_DATES:
        first, last = (each.isoformat() for each in (row["covers"].lower, row["covers"].upper))
        raise UserError(
            f"backfill {id} has more than {MAX_DATES:,} failed or cancelled runs, too many for one request: request "
            f"parts of its range from {first} to {last} with 'retrofill backfill create --reprocess failed'"
        )
    # What was to replace an earlier success still is: the runs named here have no later one.
    completed = row["reprocess_behavior"] == ReprocessBehavior.COMPLETED
    fields: dict[str, Any] = {name: row[name] for name in SAME}
    return BackfillRequested(
        **fields,
        intervals=tuple(dates),
        interval_ends=tuple(left.ends),
        latest_code=row["code_follows"],
        reprocess_behavior=ReprocessBehavior.COMPLETED if completed else ReprocessBehavior.FAILED,
        triggered_by=user,
    )
