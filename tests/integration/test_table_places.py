"""Two pipelines and one table, through the real services: rows of the same time are one pipeline's."""

from __future__ import annotations

import pytest
from tests.support.definitions import daily
from tests.support.installation import Installation

from retrofill_core.contract.backfills import BackfillDiscardRequested, BackfillUndoRequested
from retrofill_core.contract.topics import Topic


@pytest.fixture
def stack(installation: Installation) -> Installation:
    """The pipeline ``p`` has published two days to a table, whose column is ``day``."""
    installation.start("backfill-planner")
    for name in "pq":
        installation.apply(daily(name, max_active_runs=4))
    installation.start("instant-starter")
    assert publish(installation, "p", "2020-01-01", "2020-01-02", id="of p") == {"succeeded": 2}
    return installation


def publish(
    stack: Installation, pipeline: str, first: str, last: str, *, id: str, table: str = "t", column: str = "day"
) -> dict[str, int]:
    """Publish days to a table. Returns the number of runs by state."""
    conf = {"table": table, "column": column}
    stack.request(pipeline, first, last, id=id, conf=conf, reprocess_behavior="completed")
    stack.wait_state(id, "succeeded", "failed")
    return stack.runs_by_state(id)


def errors(stack: Installation, id: str) -> list[str]:
    rows = stack.query("SELECT error FROM run WHERE backfill_id = %s AND state = 'failed' ORDER BY id", id)
    assert {row["error"]["type"] for row in rows} == {"PlaceTaken"}
    return [row["error"]["message"] for row in rows]


# What ``q`` publishes, and how many of its runs may.
CASES = {
    "other days": ({"first": "2020-01-03", "last": "2020-01-04"}, 2, None),
    "another table": ({"first": "2020-01-01", "last": "2020-01-02", "table": "u"}, 2, None),
    "the same days": (
        {"first": "2020-01-02", "last": "2020-01-03"},
        1,
        "of pipeline 'p' has published rows of the same time",
    ),
    "the same day, by the column's other spelling": (
        {"first": "2020-01-01", "last": "2020-01-01", "column": "DAY"},
        0,
        "to lake.t (from 2020-01-01T00:00:00+00:00 on): undo what it has published, or remove pipeline 'p'",
    ),
    "other days by another column": (
        {"first": "2020-01-03", "last": "2020-01-03", "column": "dt"},
        0,
        "of pipeline 'p' has published to lake.t by the column day, not dt: stage by the same column",
    ),
}


def test_another_pipeline_publishes_rows_of_other_times(stack: Installation) -> None:
    for number, (name, (what, succeeded, why)) in enumerate(CASES.items()):
        states = publish(stack, "q", **what, id=f"q{number}")
        assert states.get("succeeded", 0) == succeeded, name
        if why is not None:
            assert all(why in message for message in errors(stack, f"q{number}")), name
    # Its own column may change where nobody else publishes.
    assert publish(stack, "q", "2020-01-05", "2020-01-05", id="q", table="u", column="dt") == {"succeeded": 1}


@pytest.mark.long
def test_rows_are_free_once_they_are_undone_discarded_or_of_a_pipeline_that_was_removed(stack: Installation) -> None:
    assert publish(stack, "q", "2020-01-01", "2020-01-01", id="q1") == {"failed": 1}
    stack.wait_answer(stack.publish(Topic.BACKFILL_REQUESTS, "undo", BackfillUndoRequested(undoes="of p")))
    stack.wait_state("undo", "succeeded")
    assert publish(stack, "q", "2020-01-01", "2020-01-01", id="q2") == {"succeeded": 1}
    assert publish(stack, "p", "2020-01-01", "2020-01-02", id="p2") == {"failed": 1, "succeeded": 1}
    # A review holds rows, too.
    stack.request("p", "2020-02-01", "2020-02-01", id="held", conf={"table": "t", "column": "day"}, publish="review")
    stack.wait_state("held", "in_review")
    assert publish(stack, "q", "2020-02-01", "2020-02-01", id="q3") == {"failed": 1}
    stack.wait_answer(stack.publish(Topic.BACKFILL_REQUESTS, "held", BackfillDiscardRequested()))
    stack.wait_state("held", "cancelled")
    assert publish(stack, "q", "2020-02-01", "2020-02-01", id="q4") == {"succeeded": 1}
    stack.publish(Topic.PIPELINES, "p", None)
    stack.wait_event(Topic.PIPELINE_EVENTS, lambda event: event.body["type"] == "PipelineRemoved", "p is removed")
    assert publish(stack, "q", "2020-01-02", "2020-01-02", id="q5") == {"succeeded": 1}


@pytest.mark.long
def test_of_two_pipelines_at_once_each_day_is_published_by_one(stack: Installation) -> None:
    stack.start("instant-starter")
    ids = ("at once p", "at once q")
    for pipeline, id in zip("pq", ids, strict=True):
        stack.request(pipeline, "2020-03-01", "2020-03-20", id=id, conf={"table": "t", "column": "day"})
    for id in ids:
        stack.wait_state(id, "succeeded", "failed")
    rows = stack.query(
        "SELECT interval_start, array_agg(state ORDER BY state) AS states FROM run WHERE backfill_id LIKE 'at once%%' GROUP BY 1"
    )
    assert [row["states"] for row in rows] == [["failed", "succeeded"]] * 20
