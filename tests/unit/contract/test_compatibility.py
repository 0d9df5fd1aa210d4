"""Compatibility with released messages: they can still be read, and their schemas are honored."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import freeze
from tests.support.compatible import breaks
from tools.schemas import schema_of

from retrofill_core.contract import Undecodable, decode
from retrofill_core.contract.base import REGISTRY, VERSION
from retrofill_core.contract.topics import Topic
from retrofill_core.contract.topics_of import TRAFFIC

RELEASED = range(1, VERSION + 1)
SAMPLES = [path for version in RELEASED for path in sorted(freeze.messages(version).glob("*.json"))]
SCHEMAS = sorted(freeze.schemas().glob("*.json"))
OF_OTHERS = {model.__name__ for traffic in TRAFFIC.values() for model in traffic.of_others}
Body = dict[str, Any]


def read(path: Path) -> Body:
    """An archived file."""
    body: Body = json.loads(path.read_text("utf-8"))
    return body


def lost(sent: Any, kept: Any, place: str = "") -> list[str]:
    """The places in ``sent`` that are missing or different in ``kept``."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        return [found for name in sent for found in lost(sent[name], kept.get(name), f"{place}.{name}")]
    if isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        pairs = zip(sent, kept, strict=True)
        return [found for n, (one, other) in enumerate(pairs) for found in lost(one, other, f"{place}[{n}]")]
    return [] if sent == kept else [place]


# samples


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_a_released_message_is_read_with_all_that_it_says(path: Path) -> None:
    sample = read(path)
    message = decode(json.dumps(sample).encode())
    assert type(message).__name__ == path.name.partition(".")[0]
    assert lost(sample, json.loads(message.encode())) == []


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_fields_that_are_not_known_are_passed_over_but_in_what_users_write(path: Path) -> None:
    sample = read(path)
    newer = json.dumps({**with_more(sample), "later": {"a": [1]}}).encode()
    if REGISTRY[path.name.partition(".")[0]].of_users:
        with pytest.raises(Undecodable, match="unknown field 'later'"):
            decode(newer)
    else:
        assert decode(newer) == decode(json.dumps(sample).encode())


def test_what_users_write_is_what_others_send_but_for_reports() -> None:
    """Reports are excluded: drivers of two releases report to one run-starter, so unknown fields in
    reports are ignored, as in services' messages.
    """
    of_drivers = {model.__name__ for model in TRAFFIC[Topic.RUN_REPORTS].of_others}
    assert {name for name, model in REGISTRY.items() if model.of_users} == OF_OTHERS - of_drivers


def with_more(body: Any) -> Any:
    """The body with an unknown field in each of our objects. Users' own objects are unchanged."""
    if isinstance(body, list):
        return [with_more(each) for each in body]
    if not isinstance(body, dict):
        return body
    free = ("conf", "kwargs", "runs", "runs_by_state", "skipped", "spark_conf")
    return {name: value if name in free else with_more(value) for name, value in body.items()} | {"later": None}


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_message_says_its_version(name: str) -> None:
    sample = read(freeze.messages() / f"{name}.minimal.json")
    assert "version" not in sample
    assert json.loads(decode(json.dumps(sample).encode()).encode())["version"] == VERSION


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_a_newer_version_is_refused_with_that_reason(name: str) -> None:
    newer = read(freeze.messages() / f"{name}.full.json") | {"version": VERSION + 1, "in_reply_to": {"id": "x"}}
    with pytest.raises(Undecodable, match=rf"^{name}: version {VERSION + 1} is newer than what this service knows"):
        decode(json.dumps(newer).encode())


def test_a_type_that_is_not_known_is_refused_with_that_reason() -> None:
    with pytest.raises(Undecodable, match=r"^unknown message type 'BackfillExplained'$"):
        decode(json.dumps({"type": "BackfillExplained", "version": 1}).encode())


def test_every_type_is_kept_and_none_that_was_is_gone() -> None:
    """Run ``python -m tests.support.freeze`` to archive a new type."""
    assert freeze.missing() == {}
    assert {path.name.partition(".")[0] for path in [*SAMPLES, *SCHEMAS]} == set(REGISTRY)


def test_what_the_types_of_others_are() -> None:
    """The compatibility rule is stricter for these types, so services must not start to send one
    unnoticed.
    """
    assert sorted(OF_OTHERS) == [
        "AttemptEnded",
        "AttemptHeartbeat",
        "BackfillCancelRequested",
        "BackfillChangeRequested",
        "BackfillDiscardRequested",
        "BackfillPauseRequested",
        "BackfillPublishRequested",
        "BackfillRequested",
        "BackfillResumeRequested",
        "BackfillUndoRequested",
        "CallbackReplayRequested",
        "PipelineApplied",
        "RunBaseChanged",
        "RunBegan",
        "RunCancelRequested",
        "RunPublicationPutOff",
        "RunReported",
        "RunRetryRequested",
        "RunStaged",
        "TaskReported",
    ]


# schemas


@pytest.mark.parametrize("path", SCHEMAS, ids=lambda path: path.stem)
def test_the_present_schema_keeps_to_the_released_one(path: Path) -> None:
    name = path.stem
    assert breaks(read(path), schema_of(REGISTRY[name]), sent_by_others=name in OF_OTHERS) == []


def changed(name: str, change: Callable[[Body], object]) -> list[str]:
    """The incompatibilities found after a change to a type's released schema."""
    old = read(freeze.schemas() / f"{name}.json")
    new = copy.deepcopy(old)
    change(new)
    assert new != old
    return breaks(old, new, sent_by_others=name in OF_OTHERS)


BREAKING: dict[str, tuple[str, Callable[[Body], object], str]] = {
    "a field is gone": ("RunStarted", lambda s: s["properties"].pop("at"), "at is gone"),
    "an inner field is gone": (
        "DeadlinesMissed",
        lambda s: s["$defs"]["DeadlineFacts"]["properties"].pop("alert"),
        "missed[].alert is gone",
    ),
    "an event's field is optional": ("RunStarted", lambda s: s["required"].remove("at"), "at is not always there"),
    "an event's field has another type": (
        "RunStarted",
        lambda s: s["properties"].update(run_id={"type": "string"}),
        "run_id may be of type string now",
    ),
    "a further field is required": (
        "BackfillRequested",
        lambda s: s["required"].append("triggered_by"),
        "triggered_by is required now",
    ),
    "an event needs a field": ("RunFailed", lambda s: s["required"].append("error"), "error is required now"),
    "an inner field is required": (
        "PipelineApplied",
        lambda s: s["$defs"]["TaskDefinition"]["required"].append("retries"),
        "pipeline.tasks[].retries is required now",
    ),
    "a value is not taken": (
        "BackfillRequested",
        lambda s: s["$defs"]["ReprocessBehavior"]["enum"].remove("failed"),
        "reprocess_behavior does not take 'failed' any more",
    ),
    "a type is narrower": (
        "PipelineApplied",
        lambda s: s["$defs"]["DeadlineAlert"]["properties"]["interval_seconds"].update(type="integer"),
        "pipeline.deadlines[].interval_seconds is integer and was number",
    ),
    "null is not taken": (
        "BackfillRequested",
        lambda s: s["properties"].update(triggered_by={"type": "string", "maxLength": 200}),
        "triggered_by is string and was null",
    ),
    "a limit is lower": (
        "BackfillRequested",
        lambda s: s["properties"]["pipeline"].update(maxLength=100),
        "pipeline has maxLength 100 and had 200",
    ),
    "a limit is new": (
        "RunBegan",
        lambda s: s["properties"]["run_id"].update(minimum=1),
        "run_id has minimum 1 and had None",
    ),
    "an alternative is gone": (
        "PipelineApplied",
        lambda s: s["$defs"]["DeadlineAlert"]["properties"]["callback"]["anyOf"][0]["oneOf"].pop(),
        "pipeline.deadlines[].callback",
    ),
}


@pytest.mark.parametrize(("name", "change", "complaint"), BREAKING.values(), ids=BREAKING.keys())
def test_a_breaking_change_is_named(name: str, change: Callable[[Body], object], complaint: str) -> None:
    assert [found for found in changed(name, change) if found.startswith(complaint)]


HARMLESS: dict[str, tuple[str, Callable[[Body], object]]] = {
    "a further field": ("RunStarted", lambda s: s["properties"].update(host={"type": "string"})),
    "a further optional field": ("BackfillRequested", lambda s: s["properties"].update(note={"type": "string"})),
    "a further value of an event": ("RunAttemptLost", lambda s: s["$defs"]["RunState"]["enum"].append("waiting")),
    "a further value that is taken": (
        "BackfillRequested",
        lambda s: s["$defs"]["OnRunFailure"]["enum"].append("retry"),
    ),
    "a higher limit": ("BackfillRequested", lambda s: s["properties"]["pipeline"].update(maxLength=300)),
    "a field need not be there": ("BackfillRequested", lambda s: s["required"].remove("to")),
    "a further kind of callback": (
        "PipelineApplied",
        lambda s: s["$defs"]["DeadlineAlert"]["properties"]["callback"]["anyOf"].append({"type": "string"}),
    ),
    "other words": ("RunStarted", lambda s: s.update(description="It runs.")),
}


@pytest.mark.parametrize(("name", "change"), HARMLESS.values(), ids=HARMLESS.keys())
def test_a_harmless_change_is_let_through(name: str, change: Callable[[Body], object]) -> None:
    assert changed(name, change) == []
