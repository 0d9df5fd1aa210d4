"""Chooses the runs of the next attempts: batches of adjacent runs, and suspects, which are retried alone.

A suspect is a queued run with which a driver was lost; the oldest loss goes first. On the Spark server that the warm drivers
of a pool share, at most one suspect is live at a time. So if a run ends that server each time, only its own losses count, and
no other suspect is lost with it. Backfills take turns there: the one that had its turn longest ago is first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from retrofill.states import LAST_RANGE, AttemptMode
from retrofill_core.bus import metrics
from retrofill_core.bus.handler import RECHECK_SECONDS
from retrofill_core.bus.transaction import Transaction
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.store import claims as store
from retrofill_core.store.claims import Waiting
from retrofill_core.store.rows import Run
from run_starter.memory import SUSPECTS_KEY


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


def server_of(definition: PipelineDefinition) -> str | None:
    """The pool whose Spark server the pipeline's drivers share. Those of spark-submit share none."""
    return definition.pool if definition.executor == "pool" else None


def next_attempts(
    tx: Transaction, slots: Mapping[str, int], definitions: Mapping[str, PipelineDefinition]
) -> dict[str, list[list[Run]]]:
    """The runs of the next attempts with suspects, at most ``slots`` by backfill.

    Several runs are together only if they are part of a range that was lost. If another transaction
    is about to start a suspect of a pool, its suspects are passed over and checked again soon.
    """
    servers = {id: server for id in slots if (server := server_of(definitions[id])) is not None}
    busy = {server for server in sorted(set(servers.values())) if not store.lock_suspects(tx.conn, server)}
    if busy:
        metrics.CLAIMS_PUT_OFF.labels("suspect").inc(len(busy))
        tx.schedule_check(SUSPECTS_KEY, RECHECK_SECONDS)
    wanted = {id: most * definitions[id].batch_size for id, most in slots.items() if servers.get(id) not in busy}
    if not wanted:
        return {}
    chosen: dict[str, list[list[Run]]] = {}
    # Those at a server wait for the first of them, whose turn it is.
    for id, runs in store.next_suspects(tx.conn, wanted).items():
        server = servers.get(id)
        if server is None:
            chosen[id] = batches(runs, definitions[id].batch_size, slots[id])
        elif server not in busy:
            chosen[id] = batches(runs, definitions[id].batch_size, 1)
            busy.add(server)
    return chosen
