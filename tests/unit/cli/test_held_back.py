"""A backfill whose definition this release cannot read is reported with the unknown field; others
report nothing.
"""

from datetime import UTC, datetime

from tests.support.definitions import daily

from retrofill_tools.client.backfill_facts import held_back


def test_a_definition_of_a_newer_release_is_named():
    definition = daily().as_json()
    assert held_back({"ended_at": None, "definition": definition}) is None
    newer = {**definition, "schedule": {"every": "blue moon"}}
    said = held_back({"ended_at": None, "definition": newer})
    assert said is not None
    assert said.startswith("this release cannot read its pipeline definition")
    assert "schedule" in said
    assert "\n" not in said
    assert held_back({"ended_at": datetime.now(UTC), "definition": newer}) is None
