"""The pipeline of an undo: what it takes over from the undone backfill's, and what it must not."""

from __future__ import annotations

from tests.support.definitions import alert, daily

from retrofill_core.domain.undo import is_undo, undo_of


def test_no_time_limit_of_the_users_tasks_holds_for_an_undo() -> None:
    """It keeps the definition of the undone backfill, so nobody could raise a limit that is too short for it."""
    definition = daily("p", ("a",), run_timeout_seconds=1.0, deadlines=[alert("late", "RUN_QUEUED_AT", 1.0)])
    undo = undo_of(definition)
    assert (undo.run_timeout_seconds, undo.deadlines) == (None, ())
    assert [task.timeout_seconds for task in undo.tasks] == [None]
    assert is_undo(undo.code.model_dump())
    assert (undo.spark_conf, undo.pool, undo.max_active_runs) == (
        definition.spark_conf,
        definition.pool,
        definition.max_active_runs,
    )
