"""``retrofill backfill undo``: its request, and what it would restore."""

from __future__ import annotations

from collections import Counter

from pydantic import ValidationError

from retrofill.errors import UserError, WrongUsage
from retrofill_core.contract.backfills import BackfillUndoRequested
from retrofill_core.contract.explain import explain
from retrofill_core.domain.backfill import Publish
from retrofill_core.domain.planning import Rejection
from retrofill_core.store.undo import find
from retrofill_core.store.undo_plans import plan_undo, stored_undo
from retrofill_tools.cli.arguments import read_bound
from retrofill_tools.cli.output import counts, print_json, print_text
from retrofill_tools.cli.previewing import print_stretches
from retrofill_tools.client.connect import load_settings, local_user, reading
from retrofill_tools.client.previews import stretches_as_json

WILL_UNDO = "undo"


def undo_request(id: str, first: str | None, last: str | None, *, review: bool) -> BackfillUndoRequested:
    """The options as a request. Raises ``WrongUsage``."""
    if not id.strip():
        raise WrongUsage("the backfill's id is empty")
    values = {
        "undoes": id,
        "from": None if first is None else read_bound("--from", first),
        "to": None if last is None else read_bound("--to", last),
        "publish": Publish.REVIEW if review else Publish.AT_ONCE,
        "triggered_by": local_user(),
    }
    try:
        return BackfillUndoRequested.model_validate(values)
    except ValidationError as e:
        raise WrongUsage(explain(e)) from e


def preview_undo(request: BackfillUndoRequested, *, as_json: bool) -> None:
    """Print which intervals would be undone. Raises ``UserError`` if the request would be rejected."""
    settings = load_settings()
    with reading(settings) as conn:
        undone = find(conn, [request.undoes]).get(request.undoes)
        stored = None if undone is None else stored_undo(undone)
        made = plan_undo(conn, request, undone, stored, settings.max_plan_runs)
    if isinstance(made, Rejection):
        if as_json:
            print_json({"accepted": False, "reason": made.reason, "message": made.message})
        raise UserError(made.message)
    assert stored is not None
    outcomes = [WILL_UNDO if reason is None else str(reason) for reason in made.skipped]
    zone = stored.definition.timezone
    if not as_json:
        print_stretches(made, outcomes, zone)
        return print_text(f"would undo {made.runs:,} of {len(outcomes):,} intervals ({counts(Counter(outcomes))})")
    return print_json(
        {
            "accepted": True,
            "undoes": request.undoes,
            "pipeline": stored.definition.name,
            "timezone": zone,
            "runs": made.runs,
            "skipped": made.skipped_counts,
            "stretches": stretches_as_json(made, outcomes),
        }
    )
