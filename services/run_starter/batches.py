"""Forms batches: the runs that one attempt executes. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import RowMapping


def batch_limit(batch_size: int, queued: int, parallel: int) -> int:
    """Maximum number of runs of the next attempts.

    ``queued``: the waiting runs; ``parallel``: how many attempts may be live at once. Towards the
    end of a backfill the batches get smaller, so that all drivers work until the end.
    """
    return max(1, min(batch_size, -(-queued // (2 * parallel))))


def batches(runs: Sequence[RowMapping], limit: int, most: int) -> list[list[RowMapping]]:
    """Up to ``most`` batches of at most ``limit`` runs, never across a gap between intervals."""
    found: list[list[RowMapping]] = []
    for row in runs:
        if found and len(found[-1]) < limit and _adjacent(found[-1][-1], row):
            found[-1].append(row)
        elif len(found) < most:
            found.append([row])
        else:
            break
    return found


def _adjacent(one: RowMapping, other: RowMapping) -> bool:
    """Whether one follows the other, in either direction, in intervals and in the order of starts."""
    follows = one["interval_end"] == other["interval_start"] or other["interval_end"] == one["interval_start"]
    return bool(follows and one["position"] + 1 == other["position"])
