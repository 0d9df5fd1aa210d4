"""Batches whose size is chosen from how long attempts took: the run-starter as a real process with
Spark-free drivers, on a real Kafka and Postgres.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.definitions import alert, daily
from tests.support.installation import Installation, until
from tests.support.servers import Servers
from tests.support.stacks import shared_stack
from tests.support.terminal import Cli, cli, point_at

from retrofill.sdk.names import MAX_BATCH
from retrofill_core.contract.backfills import BackfillPauseRequested
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.pipeline import PipelineDefinition

__all__ = ["cli"]
RUN_SECONDS = 0.1
TARGET = 2.0


@pytest.fixture(scope="module")
def stack(servers: Servers) -> Iterator[Installation]:
    """One in which the days of a month fail."""
    failing = ",".join(f"1999-01-{day:02}" for day in range(1, 32))
    with shared_stack(servers, INSTANT_SECONDS=str(RUN_SECONDS), INSTANT_FAIL=failing) as made:
        yield made


def chosen(name: str, **more: Any) -> PipelineDefinition:
    return daily(name, max_active_runs=1, batch_size=MAX_BATCH, **{"batch_target_seconds": TARGET, **more})


def sizes(stack: Installation, id: str) -> list[int]:
    """The sizes of a backfill's attempts in the order of their claims, once none is live."""
    live = "SELECT count(*) FROM attempt WHERE backfill_id = %s AND slot IS NOT NULL"
    until(lambda: stack.value(live, id) == 0, "its drivers are free")
    return [row["runs"] for row in stack.query("SELECT runs FROM attempt WHERE backfill_id = %s ORDER BY id", id)]


def done(stack: Installation, name: str, first: str, last: str, **more: Any) -> list[int]:
    id = stack.request(name, first, last, **more)
    assert stack.wait_state(id, "succeeded", "failed") == "succeeded"
    return sizes(stack, id)


@pytest.mark.long
def test_attempts_grow_until_they_take_about_as_long_as_they_should(stack: Installation) -> None:
    stack.apply(chosen("grows"))
    found = done(stack, "grows", "2020-01-01", "2020-04-09")
    assert found[:2] == [1, 4]
    assert all(size <= 4 * max(found[:n]) for n, size in enumerate(found) if n)
    # Each run takes a tenth of a second, and some time passes between two.
    assert 4 < max(found) <= 20
    assert found[-1] == 1
    # The next backfill begins with what is known, and a request may lower it.
    assert done(stack, "grows", "2020-05-01", "2020-06-30")[0] > 4
    assert max(done(stack, "grows", "2020-07-01", "2020-07-20", batch_size=2)) == 2


@pytest.mark.long
def test_new_code_begins_again_with_one_run(stack: Installation) -> None:
    stack.apply(chosen("coded", batch_target_seconds=600))
    assert done(stack, "coded", "2020-01-01", "2020-01-31")[:2] == [1, 4]
    code = {"file": "/nowhere.py", "attribute": "p", "sha256": "a" * 64, "root": "/"}
    stack.apply(chosen("coded", batch_target_seconds=600, code=code))
    assert done(stack, "coded", "2020-02-01", "2020-02-29", latest_code=True)[:2] == [1, 4]


@pytest.mark.long
def test_a_deadline_keeps_attempts_short(stack: Installation) -> None:
    stack.apply(chosen("timed", batch_target_seconds=600, deadlines=[alert("slow", "RUN_STARTED_AT", 1.0)]))
    # Five, by the clock of a quiet machine; for ten minutes it would be 1, 4, 16.
    assert max(done(stack, "timed", "2020-01-01", "2020-01-31")) <= 8


@pytest.mark.long
def test_failed_runs_make_no_batch_larger(stack: Installation) -> None:
    """A run that fails at once ends its attempt: by its duration, the next one could be huge."""
    stack.apply(chosen("bad", start="1990-01-01"))
    id = stack.request("bad", "1999-01-01", "1999-01-31")
    assert stack.wait_state(id, "succeeded", "failed") == "failed"
    assert set(sizes(stack, id)) == {1}


def test_what_is_chosen_now_is_shown_with_the_reason(
    stack: Installation, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_at(stack, monkeypatch)
    stack.apply(chosen("shown", batch_target_seconds=600, batch_mode="range"))
    (listed,) = [each for each in cli("pipelines", "list", "--json").document if each["name"] == "shown"]
    assert (listed["batch_size"], listed["batch_mode"]) == ("auto", "range")
    assert "auto, range" in cli("pipelines", "list").out
    assert "auto: attempts of about 0:10:00" in cli("pipelines", "show", "shown").out
    stack.request("shown", "2020-01-01", "2020-12-31", id="b")
    until(lambda: stack.runs_by_state("b").get("succeeded", 0) > 0, "it has begun")
    stack.publish(Topic.BACKFILL_REQUESTS, "b", BackfillPauseRequested())
    stack.wait_state("b", "paused")
    found = sizes(stack, "b")
    shown = cli("backfill", "show", "b", "--json").document
    assert shown["batch_size"] == "auto"
    assert shown["batch_now"]["runs"] in {4 * size for size in found}
    assert "the largest size that succeeded recently" in shown["batch_now"]["why"]
    assert f"now {shown['batch_now']['runs']}: at most 4 × " in " ".join(cli("backfill", "show", "b").out.split())
