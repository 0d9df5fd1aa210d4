"""A backfill whose definition this release cannot read is reported with the unknown field; others
report nothing.
"""

from datetime import UTC, datetime

from tests.support.definitions import daily
from tests.support.rows import a_stored_backfill

from retrofill_tools.client.backfills import unreadable
from retrofill_tools.client.pipelines import StoredDefinition


def why(definition, ended_at=None):
    return unreadable(a_stored_backfill(ended_at=ended_at, definition=StoredDefinition(definition)))


def test_a_definition_of_a_newer_release_is_named():
    definition = daily().as_json()
    assert why(definition) is None
    newer = {**definition, "schedule": {"every": "blue moon"}}
    said = why(newer)
    assert said is not None
    assert said.startswith("this release cannot read its pipeline definition")
    assert "schedule" in said
    assert "\n" not in said
    assert why(newer, datetime.now(UTC)) is None
