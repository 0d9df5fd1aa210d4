"""The services' statements that are written as SQL text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrofill_core.deadlines import RESERVE
from retrofill_core.store.run_commands import NEXT_IDS
from tests.simulation.memory.froms import Outcome
from tests.simulation.memory.rows import Tx

NOTHING = Outcome([], [], -1)


def run_text(tx: Tx, sql: str, parameters: dict[str, Any]) -> Outcome:
    if sql.startswith("SET LOCAL "):
        tx.notes[sql.split()[2]] = sql
        return NOTHING
    made = _KNOWN.get(" ".join(sql.split()))
    if made is None:
        raise NotImplementedError(sql)
    return made(tx, parameters)


def _one(tx: Tx, parameters: dict[str, Any]) -> Outcome:
    return Outcome(["?column?"], [(1,)], 1)


def _advisory(tx: Tx, parameters: dict[str, Any]) -> Outcome:
    key = (parameters["space"], parameters["no"])
    held = tx.database.advisory
    while (holder := held.get(key)) is not None and holder is not tx:
        tx.wait([holder])
    held[key] = tx
    tx.advisory.add(key)
    return Outcome(["pg_advisory_xact_lock"], [("",)], 1)


def _try_advisory(tx: Tx, parameters: dict[str, Any]) -> Outcome:
    key = (parameters["space"], parameters["no"])
    free = tx.database.advisory.setdefault(key, tx) is tx
    if free:
        tx.advisory.add(key)
    return Outcome(["pg_try_advisory_xact_lock"], [(free,)], 1)


def _next_ids(tx: Tx, parameters: dict[str, Any]) -> Outcome:
    table = tx.database.tables["deadline"]
    ids = [(table.default("id"),) for _ in range(parameters["n"])]
    return Outcome(["nextval"], ids, len(ids))


def _next_runs(tx: Tx, parameters: dict[str, Any]) -> Outcome:
    table = tx.database.tables["run"]
    ids = [(table.default("id"),) for _ in range(parameters["n"])]
    return Outcome(["nextval"], ids, len(ids))


def _reserved(tx: Tx, parameters: dict[str, Any]) -> Outcome:
    ids = [id for (id,) in _next_ids(tx, parameters).rows]
    return Outcome(["first", "last"], [(ids[0], ids[-1])], 1)


_KNOWN: dict[str, Callable[[Tx, dict[str, Any]], Outcome]] = {
    "SELECT 1": _one,
    "SELECT pg_advisory_xact_lock(:space, :no)": _advisory,
    "SELECT pg_try_advisory_xact_lock(:space, :no)": _try_advisory,
    "SELECT nextval(pg_get_serial_sequence('retrofill.deadline', 'id')) FROM generate_series(1, :n)": _next_ids,
    " ".join(RESERVE.split()): _reserved,
    NEXT_IDS: _next_runs,
}
