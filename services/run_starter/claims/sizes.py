"""The number of runs that the next attempts of backfills may have."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import RowMapping

from retrofill_core.bus.transaction import Transaction
from retrofill_core.domain.batch_size import next_size
from retrofill_core.store import durations
from run_starter.host.launching import Launching


def batch_sizes(tx: Transaction, launching: Launching, backfills: Sequence[RowMapping]) -> dict[str, int]:
    """The most runs of an attempt, by backfill. One statement more if any size is chosen here.

    The definitions of ``backfills`` are readable.
    """
    planned = launching.definitions.of(tx.conn, [row["id"] for row in backfills])
    sizes = {row["id"]: planned[row["id"]].in_batches_of(row["batch_size"]).batch_size for row in backfills}
    adapting = [row for row in backfills if planned[row["id"]].batch_target_seconds is not None]
    if adapting:
        # With the code of the next attempt: what another one took says nothing about it.
        definitions = launching.definitions_now(tx, adapting)
        history = durations.recent(tx.conn, {row["pipeline_no"] for row in adapting})
        for row in adapting:
            definition = definitions[row["id"]].in_batches_of(row["batch_size"])
            sizes[row["id"]] = next_size(definition, history[row["pipeline_no"]]).runs
    return sizes
