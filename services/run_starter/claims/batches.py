"""Forms batches: the runs that one attempt executes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from retrofill.states import LAST_RANGE, AttemptMode
from retrofill_core.store.claims import Waiting
from retrofill_core.store.rows import Run


def batch_limit(batch_size: int, queued: int, parallel: int, batch_mode: str) -> int:
    """Maximum number of runs of the next attempts.

    ``queued``: the waiting runs; ``parallel``: how many attempts may be live at once. Towards the
    end of a backfill batches get smaller, so that all drivers work until the end. Ranges are only
    divided among the drivers, because a range costs about as much as a single run.
    """
    parts = parallel if batch_mode == "range" else 2 * parallel
    return max(1, min(batch_size, -(-queued // parts)))


def how_many(waiting: Waiting, asked: int) -> int:
    """How many runs wait, of which at most the first ``asked`` were read.

    If not all were, those between the first and the last one: a few of them may have ended, which
    makes no difference while so many wait.
    """
    if len(waiting.runs) < asked:
        return len(waiting.runs)
    return waiting.last - waiting.runs[0].position + 1


def batches(runs: Sequence[Run], limit: int, most: int) -> list[list[Run]]:
    """Up to ``most`` batches of at most ``limit`` runs, never across a gap between intervals.

    A batch obeys the smallest ``range_limit`` of its runs. Those that may not be part of a range
    are together in batches of their own. ``runs`` are all suspects or none is.
    """
    found: list[list[Run]] = []
    room = 0  # in the last batch
    for row in runs:
        own = min(limit, LAST_RANGE if _one_by_one(row) else row.range_limit or limit)
        room = min(room, own - len(found[-1])) if found else 0
        if room > 0 and _one_by_one(found[-1][-1]) == _one_by_one(row) and _adjacent(found[-1][-1], row):
            found[-1].append(row)
            room -= 1
        elif len(found) < most:
            found.append([row])
            room = own - 1
        else:
            break
    return found


def mode_of(batch_mode: str, runs: Sequence[Run]) -> AttemptMode:
    """How a batch is executed. A single run is no range."""
    in_one_go = batch_mode == "range" and len(runs) > 1 and not _one_by_one(runs[0])
    return AttemptMode.RANGE if in_one_go else AttemptMode.EACH


def _one_by_one(row: Run) -> bool:
    """Whether a run is left of a small range that failed. A suspect is always alone."""
    return row.range_limit == 1 and row.lost_at is None


def _adjacent(one: Run, other: Run) -> bool:
    """Whether one follows the other, in either direction, in intervals and in the order of starts.

    A suspect only follows one of the same range that was lost. Of a lost batch, two runs may be
    suspects: the one under way, and the next, which may have begun unheard.
    """
    follows = one.interval_end == other.interval_start or other.interval_end == one.interval_start
    together = one.lost_at is None or (one.range_limit is not None and one.attempt_id == other.attempt_id)
    return follows and one.position + 1 == other.position and together
