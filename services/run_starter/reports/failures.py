"""Calls what pipelines list under ``on_run_failed``: each failed run joins one callback of each.

A callback collects the failures of one backfill. All of them are in its shard, whose transactions
follow one another, so no two open one at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from retrofill_core.bus.transaction import Transaction
from retrofill_core.deadlines.calling import Listed, insert_listed
from retrofill_core.domain.callback import Occasion
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.store import listed


def call_for_failures(
    tx: Transaction,
    failed: Mapping[str, Sequence[int]],
    definitions: Mapping[str, PipelineDefinition],
    now: datetime,
    partitions: int,
) -> None:
    """Add failed runs (ids by backfill) to callbacks that collect them, and insert what is missing."""
    lists = {id: definitions[id].on_run_failed for id in failed if id in definitions}
    places = [(id, place) for id, rules in lists.items() for place in range(len(rules))]
    if not places:
        return
    collecting = listed.collecting(tx.conn, [(id, at) for id, at in places if lists[id][at].window_seconds > 0])
    calls: list[Listed] = []
    # The runs of each new callback.
    runs: list[Sequence[int]] = []
    joining: list[tuple[int, int, int]] = []
    for id, place in places:
        rule, there = lists[id][place], collecting.get((id, place))
        new = Listed(rule, place, Occasion.RUN_FAILED, id, definitions[id].name, rule.kwargs)
        if rule.window_seconds == 0:
            calls += [new] * len(failed[id])
            runs += [[run] for run in failed[id]]
        elif there is None:
            calls.append(new)
            runs.append(failed[id])
        else:
            joining += [(run, place, there) for run in failed[id]]
    ids = insert_listed(tx, calls, now, partitions)
    for call, id_, mine in zip(calls, ids, runs, strict=True):
        joining += [(run, call.place, id_) for run in mine]
    listed.add_runs(tx.conn, joining)
