"""Suspects: queued runs with which a driver was lost. They are retried alone, oldest loss first.

On the Spark server that the warm drivers of a pool share, at most one suspect is live at a time. So if a run ends that
server each time, only its own losses count, and no other suspect is lost with it. Backfills take turns there: the one that
had its turn longest ago is first.
"""

from __future__ import annotations

from collections.abc import Mapping

from retrofill_core.bus import metrics
from retrofill_core.bus.handler import RECHECK_SECONDS
from retrofill_core.bus.transaction import Transaction
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.store import claims as store
from retrofill_core.store.rows import Run
from run_starter.claims.batches import batches
from run_starter.memory import SUSPECTS_KEY


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
