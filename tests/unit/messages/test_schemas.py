"""The schemas that are checked in are what the models say, and every message that the models write fits its schema."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from retrofill.bus.topics import SERVICES, Topic
from retrofill.domain.bounds import parse_bound
from retrofill.messages import decode
from retrofill.messages.base import REGISTRY
from retrofill.messages.schemas import ASYNCAPI, COMMAND, differing, generate, main, schema_of
from retrofill.messages.topics_of import TRAFFIC

FOLDER = Path(__file__).parents[3] / "schemas"
AT = datetime(2024, 1, 31, 12, tzinfo=UTC)
# A value for every field that some message type needs, by the field's name.
VALUES: dict[str, Any] = {
    "alert": "slow",
    "at": AT,
    "attempt": 2,
    "attempts": 3,
    "backfill_id": "b-1",
    "callback": "page_oncall",
    "changed": True,
    "command": "BackfillPauseRequested",
    "closed_at": AT,
    "count": 1,
    "deadline_id": 7,
    "digest_id": 7,
    "detected_at": AT,
    "due_at": AT,
    "error": {"type": "ValueError", "message": "no rows"},
    "from_": parse_bound("2024-01-01"),
    "interval_end": AT,
    "interval_start": AT,
    "max_active_runs": 4,
    "late_seconds": 1.5,
    "message": "it ended",
    "opened_at": AT,
    "planned_at": AT,
    "range_end": AT,
    "range_start": AT,
    "reason": "overlap",
    "recovered_at": AT,
    "requested_at": AT,
    "reference": "RUN_STARTED_AT",
    "run_attempt": 1,
    "run_id": 8,
    "run_state": "running",
    "runs": 366,
    "state": "succeeded",
    "task": "delays",
    "to": parse_bound("2024-01-31T00:00:00+01:00"),
    "try_number": 1,
}
DEFINITION = {
    "name": "flights_daily",
    "schedule": "@daily",
    "start": "2013-01-01",
    "tasks": [{"name": "delays"}, {"name": "old", "kind": "submit", "submit": {"script": "jobs/old.py"}}],
    "deadlines": [{"name": "slow", "reference": "RUN_QUEUED_AT", "interval_seconds": 60}],
    "code": {"file": "/pipelines/flights.py", "attribute": "flights"},
}


def example(name: str) -> bytes:
    """The bytes of one message of the type, with all fields that it needs and those optional ones that have a value."""
    model = REGISTRY[name]
    values = {field: VALUES[field] for field in model.model_fields if field in VALUES}
    values["pipeline"] = DEFINITION if name == "PipelineApplied" else "flights_daily"
    if name == "DeadlinesMissed":
        values["missed"] = [VALUES | {"pipeline": "flights_daily"}]
    if model.model_fields.get("runs") is not None and model.model_fields["runs"].annotation is not int:
        values["runs"] = {"succeeded": 366}
    return model(**values).encode()


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_the_schema_is_one_and_fits_what_is_written(name: str) -> None:
    schema = schema_of(REGISTRY[name])
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    written = example(name)
    validator.validate(json.loads(written))
    assert decode(written).encode() == written
    assert not validator.is_valid([])
    assert not validator.is_valid({**json.loads(written), "type": "Other"})


def test_what_is_checked_in_is_current() -> None:
    assert differing(FOLDER) == []


def test_the_check_names_what_differs_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (tmp_path / "RunStarted.json").write_text("{}")
    (tmp_path / "Stranger.json").write_text("{}")
    (tmp_path / "RunFailed.json").unlink()
    capsys.readouterr()
    assert main(["--check", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said == f"not current: RunFailed.json, RunStarted.json, Stranger.json; run '{COMMAND} {tmp_path}'\n"
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0


def test_every_type_is_on_exactly_one_topic() -> None:
    placed = [model.__name__ for traffic in TRAFFIC.values() for model in traffic.types]
    assert sorted(placed) == sorted(REGISTRY)
    assert set(TRAFFIC) == set(Topic)


def test_somebody_writes_every_topic_and_each_service_reads_what_others_write() -> None:
    for topic, traffic in TRAFFIC.items():
        assert traffic.writers or traffic.open, topic
        for service in SERVICES.values():
            assert not (service in traffic.writers and topic in service.reads), (service.name, topic)


def test_the_topics_document_hangs_together() -> None:
    document = yaml.safe_load(generate()[ASYNCAPI])
    assert set(document["channels"]) == {str(topic) for topic in Topic}
    for reference in references(document):
        if reference.startswith("#/"):
            found: Any = document
            for step in reference.removeprefix("#/").split("/"):
                found = found[step]
        else:
            assert (FOLDER / reference).is_file()
    for service in SERVICES.values():
        received = {
            name.rpartition(".")[2] for name in document["operations"] if name.startswith(f"{service.name}.receive.")
        }
        assert received == {str(topic) for topic in service.reads}


def references(document: Any) -> list[str]:
    """All ``$ref`` values in a document."""
    if isinstance(document, list):
        return [found for each in document for found in references(each)]
    if not isinstance(document, dict):
        return []
    own = [document["$ref"]] if "$ref" in document else []
    return own + [found for each in document.values() for found in references(each)]
