"""User definitions become data, and mistakes are reported where the user wrote them."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.loading import definition_of

from retrofill import Deadline, KafkaTopic, Pipeline, Reference, Webhook
from retrofill_core.domain.pipeline import CodeLocation, PipelineDefinition

CODE = CodeLocation(file="/pipelines/flights.py", attribute="flights")


def pipeline(**more: object) -> Pipeline:
    return Pipeline("flights", schedule="@daily", **more)  # type: ignore[arg-type]


def test_the_whole_of_it() -> None:
    flights = pipeline(
        start="2013-01-01",
        timezone="America/New_York",
        max_active_runs=4,
        batch_size=20,
        deadlines=[Deadline("slow", Reference.RUN_STARTED_AT, timedelta(minutes=10), callback="page", kwargs={"a": 1})],
        retries=2,
        retry_delay=timedelta(minutes=1),
        spark_conf={"spark.sql.ansi.enabled": True},
    )

    @flights.task
    def delays(run: object) -> None: ...

    @flights.branch(after=delays, retries=0)
    def route(run: object) -> str:
        return "publish"

    @flights.task(after=[route, "delays"], trigger_rule="none_failed", retry_delay=3)
    def publish(run: object) -> None: ...

    flights.submit("script", "s3://jobs/delays.py", args=["{run.id}"], conf={"spark.x": 1}, after=publish)
    made = definition_of(flights, CODE)
    assert (made.start, made.executor, made.max_active_runs, made.batch_size, made.spark_conf) == (
        date(2013, 1, 1),
        "pool",
        4,
        20,
        {"spark.sql.ansi.enabled": "true"},
    )
    assert [(t.name, t.kind, t.after, t.retries, t.retry_delay_seconds) for t in made.tasks] == [
        ("delays", "python", (), 2, 60.0),
        ("route", "branch", ("delays",), 0, 60.0),
        ("publish", "python", ("route", "delays"), 2, 3.0),
        ("script", "submit", ("publish",), 2, 60.0),
    ]
    assert made.deadlines[0].interval_seconds == 600
    assert made.tasks[3].submit is not None
    assert made.tasks[3].submit.script == "s3://jobs/delays.py"
    assert PipelineDefinition.model_validate_json(made.model_dump_json()) == made
    assert flights.functions["delays"] is delays


def test_runs_are_executed_one_per_attempt_unless_the_pipeline_says_more() -> None:
    flights = pipeline()
    flights.task(name="a")(lambda run: None)
    assert definition_of(flights, CODE).batch_size == 1


def test_what_is_wrong_is_said_at_once() -> None:
    flights = pipeline()

    @flights.task(name="a")
    def first(run: object) -> None: ...

    with pytest.raises(ValueError, match="already has a task 'a'"):
        flights.task(name="a")(lambda run: None)
    with pytest.raises(ValueError, match="comes after '<lambda>', which is not yet a task of pipeline 'flights'"):
        flights.task(after=lambda run: None, name="b")(lambda run: None)
    with pytest.raises(ValueError, match="not a valid TriggerRule"):
        flights.task(trigger_rule="sometimes", name="b")(lambda run: None)
    with pytest.raises(ValueError, match="invalid name"):
        Pipeline("no name", schedule="@daily")
    with pytest.raises(
        ValueError, match=r"the reference 'SOMETIME': give one of Reference\.RUN_QUEUED_AT, RUN_STARTED_AT"
    ):
        Deadline("slow", "SOMETIME", timedelta(1))  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="unknown reference SOMETIME: use one of RUN_QUEUED_AT"):
        Reference.SOMETIME  # noqa: B018 - a typo
    with pytest.raises(ValueError, match="give a datetime with a time zone"):
        Reference.FIXED_DATETIME(datetime(2030, 1, 1))


WORDS = {"callback": "page"}


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"kwargs": {"text": "{run.nothing}"}}, "unknown name 'run.nothing'; known names: backfill.id, "),
        ({"kwargs": {"text": "{run.id.__class__}"}}, "unknown name 'run.id.__class__'"),
        ({"kwargs": {"deep": [{"x": "{0}"}]}}, "unknown name '0'"),
        ({"kwargs": {"text": "{"}}, "write a literal brace twice"),
        ({"kwargs": {"text": "{pipeline!r}"}}, "has a conversion"),
        ({"kwargs": {"text": "{run.id:%Y}"}}, "the text '{run.id:%Y}'"),
        ({"kwargs": {"text": "{run.id:999999}"}}, "is not allowed"),
        ({"kwargs": {"text": "{run.id:>٩٩٩٩٩٩}"}}, "is not allowed"),
        ({"kwargs": {"text": "{run.attempt:c}"}}, "is not allowed"),
        ({"kwargs": {"text": "{deadline.late_seconds:.999f}"}}, "is not allowed"),
        ({"kwargs": {"text": "{run.id:>{run.id}}"}}, "is not allowed"),
        ({"kwargs": {"text": "{run.id:>200}" * 1000}}, "kwargs would grow beyond"),
        ({"kwargs": {"text": "x" * 20_000}}, "kwargs have 20,"),
        ({"kwargs": "abc"}, "has the kwargs 'abc': give a dict"),
        ({"callback": 123}, "has the callback 123: give a name"),
        ({"kwargs": {"at": float("nan")}}, "not JSON compliant"),
        ({"digest": "soon"}, "invalid duration 'soon': write it like 90s, 5m"),
        ({"callback": "no name"}, "invalid name"),
    ],
)
def test_a_deadline_that_cannot_work_is_refused_where_it_is_written(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        Deadline("slow", Reference.RUN_STARTED_AT, timedelta(1), **WORDS | how)


def test_what_is_of_the_whole_backfill_knows_no_run() -> None:
    with pytest.raises(ValueError, match=r"unknown name 'run.id'"):
        Deadline("all", Reference.BACKFILL_REQUESTED_AT, timedelta(1), kwargs={"text": "{run.id}"})
    with pytest.raises(ValueError, match="nothing to collect"):
        Deadline("all", Reference.BACKFILL_REQUESTED_AT, timedelta(1), digest="5m")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.org", "invalid URL"),
        ("example.org/hook", "invalid URL"),
        ("https://", "invalid URL"),
        ("https://user:pw@example.org", "user or password"),
        ("https://example.org/a b", "percent-encode"),
        ("", "invalid URL"),
        (None, "either a url or a receiver"),
    ],
)
def test_a_webhook_is_an_address_of_the_web(url: str | None, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        Webhook(url)


def test_the_kinds_of_callbacks_and_references_become_data() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    made = [
        Deadline("a", Reference.FIXED_DATETIME(at), callback=Webhook("https://example.org/hook", secret="ops")),
        Deadline(
            "b", Reference.AVERAGE_RUNTIME(5, 2), timedelta(minutes=1), callback=KafkaTopic("mine"), digest="1.5h"
        ),
        Deadline("c", Reference.TASK_STARTED_AT("load"), timedelta(minutes=-1), callback="page", at_most_once=True),
    ]
    flights = pipeline(deadlines=made)
    flights.task(name="load")(lambda run: None)
    data = [alert.model_dump(mode="json", exclude_defaults=True) for alert in definition_of(flights, CODE).deadlines]
    assert data[0]["at"] == "2030-01-01T00:00:00Z"
    assert data[0]["callback"] == {"url": "https://example.org/hook", "secret": "ops"} | data[0]["callback"]
    assert (data[1]["last_n"], data[1]["min_runs"], data[1]["digest_seconds"]) == (5, 2, 5400)
    assert (data[2]["task"], data[2]["interval_seconds"], data[2]["at_most_once"]) == ("load", -60, True)


def test_a_deadline_of_a_task_names_one_that_exists() -> None:
    flights = pipeline(deadlines=[Deadline("slow", Reference.TASK_STARTED_AT("lod"), timedelta(minutes=1))])
    flights.task(name="load")(lambda run: None)
    with pytest.raises(ValidationError, match="is for the task 'lod', which does not exist; tasks: load"):
        definition_of(flights, CODE)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timezone": "Mars"},
        {"max_active_runs": 0},
        {"executor": "magic"},
        {"start": "soon"},
    ],
)
def test_what_only_the_whole_shows_is_said_when_it_is_applied(wrong: dict[str, object]) -> None:
    flights = pipeline(**wrong)
    flights.task(name="a")(lambda run: None)
    with pytest.raises(ValidationError):
        definition_of(flights, CODE)


def test_a_size_that_is_chosen_has_a_target() -> None:
    chosen = [
        pipeline(batch_size="auto", **more) for more in ({}, {"batch_target": 90}, {"batch_target": timedelta(hours=1)})
    ]
    for each in chosen:
        each.task(name="a")(lambda run: None)
    made = [definition_of(each, CODE) for each in chosen]
    assert [(each.batch_size, each.batch_target_seconds) for each in made] == [
        (2_500, 600),
        (2_500, 90),
        (2_500, 3600),
    ]
    # A request lowers it, and cannot raise it.
    assert [made[0].in_batches_of(limit).batch_size for limit in (None, 7, 2_500)] == [2_500, 7, 2_500]
    assert made[0].in_batches_of(7).batch_target_seconds == 600


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"batch_size": 0}, "batch_size is 0: give a number from 1 to 2,500, or 'auto'"),
        ({"batch_size": 2_501}, "batch_size is 2501: give a number from 1 to 2,500, or 'auto'"),
        ({"batch_size": "Auto"}, "batch_size is 'Auto': give a number from 1 to 2,500, or 'auto'"),
        ({"batch_size": True}, "batch_size is True: give a number"),
        ({"batch_size": 2.5}, "batch_size is 2.5: give a number"),
        ({"batch_target": 60}, "batch_target needs batch_size='auto', but it is 1: change it, or remove batch_target"),
        ({"batch_size": "auto", "batch_target": 0}, "batch_target is 0: give a timedelta or a number of seconds"),
        ({"batch_size": "auto", "batch_target": timedelta(seconds=-1)}, "give a timedelta or a number of seconds"),
        ({"batch_size": "auto", "batch_target": timedelta(days=8)}, "0.1 to a week"),
        ({"batch_size": "auto", "batch_target": float("nan")}, "batch_target is nan: give"),
        ({"batch_size": "auto", "batch_target": "10m"}, "batch_target is '10m': give"),
    ],
)
def test_a_wrong_size_is_refused_at_once_in_one_line(wrong: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as refused:
        pipeline(**wrong)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("wrong", [{"batch_size": 0}, {"batch_size": "auto"}, {"batch_target_seconds": 0}])
def test_a_message_with_a_wrong_size_is_refused(wrong: dict[str, object]) -> None:
    flights = pipeline()
    flights.task(name="a")(lambda run: None)
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        PipelineDefinition.model_validate({**definition_of(flights, CODE).as_json(), **wrong})


def test_timeouts_are_read_as_durations() -> None:
    flights = pipeline(run_timeout=timedelta(hours=1))
    flights.task(name="a", timeout="10m")(lambda run: None)
    flights.task(name="b", timeout=90)(lambda run: None)
    flights.submit("c", "s3://jobs/c.py", timeout=timedelta(minutes=1))
    flights.task(name="d")(lambda run: None)
    made = definition_of(flights, CODE)
    assert made.run_timeout_seconds == 3600
    assert [task.timeout_seconds for task in made.tasks] == [600, 90, 60, None]


@pytest.mark.parametrize("wrong", [0, -1, 0.5, True, "soon", "10 minutes", timedelta(days=31), float("nan"), [], "0s"])
def test_a_wrong_timeout_is_refused_at_once_in_one_line(wrong: Any) -> None:
    hint = re.escape(f"is {wrong!r}: give a timedelta, a number of seconds or text like '90s', '10m' or '2h', from one")
    with pytest.raises(ValueError, match=f"^run_timeout {hint}"):
        pipeline(run_timeout=wrong)
    with pytest.raises(ValueError, match=f"^task 'a': timeout {hint}") as refused:
        pipeline().task(name="a", timeout=wrong)(lambda run: None)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("wrong", [0, -5, 3e6])
def test_a_message_with_a_wrong_timeout_is_refused(wrong: float) -> None:
    flights = pipeline()
    flights.task(name="a")(lambda run: None)
    made = definition_of(flights, CODE).as_json()
    with pytest.raises(ValidationError, match="run_timeout_seconds"):
        PipelineDefinition.model_validate({**made, "run_timeout_seconds": wrong})
    with pytest.raises(ValidationError, match="timeout_seconds"):
        PipelineDefinition.model_validate({**made, "tasks": [{"name": "a", "timeout_seconds": wrong}]})


def test_importing_the_sdk_imports_neither_spark_nor_kafka_nor_a_database() -> None:
    check = (
        "import sys, retrofill; print([m for m in ('pyspark', 'confluent_kafka', 'sqlalchemy') if m in sys.modules])"
    )
    fields = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    assert fields.stdout.strip() == "[]"


def test_a_function_that_would_do_nothing_when_called_is_no_task() -> None:
    flights = pipeline()
    with pytest.raises(ValueError, match="'later' is an async function or a generator"):

        @flights.task
        async def later(run: object) -> None: ...

    with pytest.raises(ValueError, match="'rows' is an async function or a generator"):

        @flights.branch
        def rows(run: object) -> Iterator[str]:
            yield "a"


def test_what_is_no_time_is_said_as_such() -> None:
    with pytest.raises(ValueError, match="retry_delay is 'soon': give a timedelta or a number of seconds"):
        pipeline(retry_delay="soon").task(name="a")(lambda run: None)
    with pytest.raises(ValueError, match="deadline 'slow' has the interval 600: give a timedelta"):
        Deadline("slow", Reference.RUN_STARTED_AT, 600)  # type: ignore[arg-type]


def test_what_is_written_without_staging_is_a_list_of_names() -> None:
    made = pipeline(writes=["jdbc:orders"])
    made.task(name="a", writes=("kafka:orders", "jdbc:orders"))(lambda _: None)
    made.task(name="b")(lambda _: None)
    assert definition_of(made, CODE).unstaged == ("jdbc:orders", "kafka:orders")


@pytest.mark.parametrize("where", ["pipeline", "task"])
@pytest.mark.parametrize(
    ("writes", "why"),
    [
        ("jdbc:orders", r"writes is 'jdbc:orders': give a list of names, such as \['jdbc:orders'\]"),
        (["a\nb"], "should match"),
        ([" a"], "should match"),
        ([""], "at least 1 character"),
        (["x" * 201], "at most 200 characters"),
        ([f"{n}" for n in range(21)], "at most 20 items"),
    ],
)
def test_other_names_are_refused(where: str, writes: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        made = pipeline(writes=writes if where == "pipeline" else ())
        made.task(name="a", writes=writes if where == "task" else ())(lambda _: None)
        definition_of(made, CODE)


def test_who_writes_nothing_writes_no_place() -> None:
    with pytest.raises(ValueError, match="writes 'jdbc:orders' and is declared with writes_nothing: remove one"):
        pipeline().task(name="a", writes=["jdbc:orders"], writes_nothing=True)(lambda _: None)
