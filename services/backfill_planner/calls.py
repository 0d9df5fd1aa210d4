"""Calls what a pipeline lists for the end of a backfill, in the transaction of that end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import ValidationError

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.backfills import BackfillEnded
from retrofill_core.deadlines.calling import Listed, expanded, insert_listed
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.callback import Occasion
from retrofill_core.domain.callback_rule import CallbackRule
from retrofill_core.domain.run import RunState
from retrofill_core.domain.templates import in_zone
from retrofill_core.store.rows import Planned

log = get_log(__name__)
_OCCASIONS = {
    BackfillState.SUCCEEDED: Occasion.BACKFILL_SUCCEEDED,
    BackfillState.FAILED: Occasion.BACKFILL_FAILED,
}


def call_for_end(
    tx: Transaction, row: Planned, state: BackfillState, event: BackfillEnded, now: datetime, partitions: int
) -> None:
    """Insert the callbacks listed for the backfill's end. Nothing is listed for a user's cancel.

    Nor for the success of an undo: the data that was announced before is gone.
    """
    occasion = _OCCASIONS.get(state)
    if occasion == Occasion.BACKFILL_SUCCEEDED and row.undoes is not None:
        return
    rules = [] if occasion is None else _rules(row, occasion)
    if occasion is None or not rules:
        return
    fields = in_zone(_fields(row, state, event), row.definition["timezone"])
    body = event.model_dump(mode="json", by_alias=True, exclude_none=True)
    calls = [
        Listed(
            rule,
            place,
            occasion,
            row.id,
            row.pipeline,
            expanded(rule.kwargs, fields, backfill=row.id),
            {**body, "callback": rule.callback.label},
        )
        for place, rule in enumerate(rules)
    ]
    insert_listed(tx, calls, now, partitions)


def _rules(row: Planned, occasion: Occasion) -> list[CallbackRule]:
    """The list that the backfill was planned with; one planned by an older release has none."""
    try:
        return [CallbackRule.model_validate(each) for each in row.definition.get(f"on_{occasion}", ())]
    except ValidationError as e:
        log.error(
            "callbacks_unreadable",
            backfill=row.id,
            error=first_line(e),
            what_to_do="a newer release planned it: its end is not called; upgrade the planner",
        )
        return []


def _fields(row: Planned, state: BackfillState, event: BackfillEnded) -> dict[str, Any]:
    """The fields that templates may refer to: ``BACKFILL_ENDED_FIELDS``."""
    counts = {
        f"backfill.{end}": event.runs.get(end, 0) for end in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)
    }
    return {
        "pipeline": row.pipeline,
        "backfill.id": row.id,
        "backfill.runs": row.runs,
        "backfill.state": str(state),
        "backfill.ended_at": event.ended_at,
        **counts,
    }
