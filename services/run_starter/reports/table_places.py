"""Decides whether staged rows may be published to a table to which other pipelines publish, too.

The rows of a table belong to the interval of one pipeline: two may share a table only if the same columns tell whose a
row is, and their intervals do not overlap. Runs of one pipeline never do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from retrofill.protocol.table_output import TableOutput
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.runs import ErrorInfo, Report, RunStaged
from retrofill_core.domain.run import RunState
from retrofill_core.store import places as store
from retrofill_core.store.places import Published, Use
from retrofill_core.store.rows import Run

# All of a pipeline's runs, where it does not matter which.
ALWAYS = (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))


def refused(tx: Transaction, reports: Sequence[Report], runs: Mapping[int, Run]) -> dict[int, ErrorInfo]:
    """Why the output of runs must not be accepted, by run. The tables of all others are noted as their pipelines'."""
    staged = {report.run_id: tables(report.outputs) for report in reports if isinstance(report, RunStaged)}
    staged = {id: found for id, found in staged.items() if found and runs[id].state in _OPEN}
    identities = {table.identity for found in staged.values() for table in found}
    if not identities:
        return {}
    store.lock_tables(tx.conn, identities)
    uses = store.uses(tx.conn, identities)
    noted = {(each.identity, each.pipeline_no, each.keys) for each in uses}
    # What this transaction accepts is in no row yet.
    accepted: dict[int, list[Published]] = {}
    why: dict[int, ErrorInfo] = {}
    for id, found in staged.items():
        mine = runs[id]
        others = [each for each in uses if each.pipeline_no != mine.pipeline_no]
        message = next(filter(None, (_refusal(tx, mine, table, others, accepted) for table in found)), None)
        if message is not None:
            why[id] = ErrorInfo(type="PlaceTaken", message=message)
            continue
        new = {(each.identity, mine.pipeline_no, each.column) for each in found} - noted
        for identity, pipeline_no, keys in sorted(new):
            store.put(tx.conn, identity, pipeline_no, keys)
        now = Published(id, mine.interval_start, mine.interval_end, tuple(map(str, found)))
        accepted.setdefault(mine.pipeline_no, []).append(now)
        if new:
            noted |= new
            uses = store.uses(tx.conn, identities)
    return why


_OPEN = (RunState.STARTING, RunState.RUNNING)


def tables(outputs: Iterable[str]) -> list[TableOutput]:
    """Those of a run's outputs that are rows of tables whose identity is known."""
    found = (TableOutput.of(output) for output in outputs)
    return [table for table in found if table is not None and table.identity]


def _refusal(
    tx: Transaction,
    mine: Run,
    table: TableOutput,
    others: Sequence[Use],
    accepted: Mapping[int, list[Published]],
) -> str | None:
    for other in others:
        if other.identity != table.identity:
            continue
        same = other.keys.lower() == table.column.lower()
        start, end = (mine.interval_start, mine.interval_end) if same else ALWAYS
        known = [*store.published(tx.conn, other.pipeline_no, start, end), *accepted.get(other.pipeline_no, ())]
        for each in known:
            if each.start < end and start < each.end and table.identity in {to.identity for to in tables(each.outputs)}:
                return refusal(table, other, each, same=same)
    return None


def refusal(table: TableOutput, other: Use, published: Published, *, same: bool) -> str:
    """Why, and what to do."""
    did = f"run {published.run_id} of pipeline {other.pipeline!r} has published"
    cure = f"undo what it has published, or remove pipeline {other.pipeline!r} if it is no longer needed"
    if same:
        return f"{did} rows of the same time to {table.table} (from {published.start.isoformat()} on): {cure}"
    return f"{did} to {table.table} by the column {other.keys}, not {table.column}: stage by the same column, {cure}"
