"""Suspects: queued runs with which a driver was lost. They are retried alone, oldest loss first.

On a Spark server that drivers share, at most one suspect is live at a time. So if a run ends that
server each time, only its own losses count, and no other suspect is lost with it.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import RowMapping

from retrofill.bus.handler import RECHECK_SECONDS
from retrofill.bus.observability import metrics
from retrofill.bus.transaction import Transaction
from retrofill.domain.pipeline import PipelineDefinition
from retrofill.store import claims as store
from run_starter.batches import batches
from run_starter.memory import SUSPECTS_KEY


def server_of(definition: PipelineDefinition, server: str | None) -> str | None:
    """The Spark server that the pipeline's drivers share. Those of spark-submit share none."""
    return server if definition.executor == "pool" else None


def next_attempts(
    tx: Transaction, slots: Mapping[str, int], definitions: Mapping[str, PipelineDefinition], server: str | None
) -> dict[str, list[list[RowMapping]]]:
    """The runs of the next attempts with suspects, at most ``slots`` by backfill.

    Several runs are together only if they are part of a range that was lost. ``server``: the Spark
    server of this instance's pool. If another transaction is about to start a suspect there, its
    suspects are passed over and checked again soon.
    """
    at_server = {id for id in slots if server_of(definitions[id], server) is not None}
    if server is not None and at_server and not store.lock_suspects(tx.conn, server):
        metrics.CLAIMS_PUT_OFF.labels("suspect").inc()
        tx.schedule_check(SUSPECTS_KEY, RECHECK_SECONDS)
        slots, at_server = {id: most for id, most in slots.items() if id not in at_server}, set()
    if not slots:
        return {}
    wanted = {id: most * definitions[id].batch_size for id, most in slots.items()}
    # Those at the server wait for the first of them, which has the oldest loss.
    found = store.next_suspects(tx.conn, wanted, server)
    first = next((id for id in found if id in at_server), None)
    return {
        id: batches(runs, definitions[id].batch_size, 1 if id == first else slots[id])
        for id, runs in found.items()
        if id == first or id not in at_server
    }
