"""``retrofill purge``: deletes what ended long ago, keeps what later decisions read, and says what
it does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.integration.cli.purging import TABLES, age, execute, exported, here, old, purge, rows
from tests.support.definitions import alert, daily
from tests.support.history import finished
from tests.support.installation import Installation
from tests.support.servers import Servers

from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.topics import Topic
from retrofill_core.store.purge import PURGE_LOCK

__all__ = ["here", "old"]


@pytest.mark.long
def test_a_later_request_is_answered_as_if_nothing_had_been_purged(cli: Any, here: Installation) -> None:
    here.start("backfill-planner")
    here.start("instant-starter", INSTANT_FAIL="2020-01-07")
    here.apply(daily())
    first = here.request("p", "2020-01-01", "2020-01-10", id="first")
    assert here.wait_state(first, "succeeded", "failed") == "failed"
    second = here.request("p", "2020-01-01", "2020-01-04", id="second", reprocess_behavior="completed")
    assert here.wait_state(second, "succeeded", "failed") == "succeeded"
    third = here.request("p", "2020-01-01", "2020-01-04", id="third", reprocess_behavior="completed")
    assert here.wait_state(third, "succeeded", "failed") == "succeeded"
    # Recently ended backfills are not touched.
    assert purge(cli)["rows"] == {}
    age(here)
    foreseen = purge(cli, "--dry-run")["rows"]
    done = purge(cli)["rows"]
    assert done == {name: number for name, number in foreseen.items() if number}
    # What remains: the first backfill's days that ran only once, nothing of the second, all of the
    # third.
    for table in ("run", "attempt"):
        assert here.query(f"SELECT backfill_id AS id, count(*) AS n FROM {table} GROUP BY 1 ORDER BY 1") == [
            {"id": "first", "n": 6},
            {"id": "third", "n": 4},
        ]
    assert [row["id"] for row in here.query("SELECT id FROM backfill ORDER BY id")] == ["first", "third"]
    nothing = here.outcome(here.request("p", "2020-01-01", "2020-01-10")).body
    assert (nothing["type"], nothing["reason"]) == ("BackfillRejected", "nothing_to_run")
    failed = here.outcome(here.request("p", "2020-01-01", "2020-01-10", reprocess_behavior="failed")).body
    assert (failed["runs"], failed["skipped"]) == (1, {"already exists": 9})


@pytest.mark.long
def test_a_repeated_request_gets_its_recorded_answer_and_people_are_told(cli: Any, here: Installation) -> None:
    here.start("backfill-planner")
    here.start("instant-starter")
    here.apply(daily())
    body = BackfillRequested.model_validate({"pipeline": "p", "from": "2020-01-01", "to": "2020-01-03"})
    here.publish(Topic.BACKFILL_REQUESTS, "gone", body)
    assert here.wait_state("gone", "succeeded") == "succeeded"
    here.request("p", "2020-01-01", "2020-01-02", id="later", reprocess_behavior="completed")
    assert here.wait_state("later", "succeeded") == "succeeded"
    age(here)
    purge(cli)
    shown = cli("backfill", "show", "gone", "--json").document
    assert (shown["purged"], shown["runs"], shown["by_state"]) == (True, 3, {"succeeded": 1})
    assert "were purged" in " ".join(cli("backfill", "show", "gone").out.split())
    assert [each["ended_runs"] for each in cli("backfill", "list", "--json").document] == [2, 3]
    here.request("p", "2020-01-03", "2020-01-03", id="last", reprocess_behavior="completed")
    assert here.wait_state("last", "succeeded") == "succeeded"
    assert purge(cli)["rows"] == {"run": 1, "attempt": 1, "backfill": 1}
    assert "ended long ago and was purged" in cli("backfill", "show", "gone").err
    again = here.publish(Topic.BACKFILL_REQUESTS, "gone", body)
    answer = here.wait_answer(again).body
    assert (answer["type"], answer["runs"]) == ("BackfillPlanned", 3)
    assert here.query("SELECT id FROM backfill WHERE id = 'gone'") == []


HOURS = "SELECT '2000-01-01Z'::timestamptz + n * interval '1 hour' AS start FROM generate_series(0, {last}) AS n"


@pytest.mark.parametrize(("last", "left"), [(23, 0), (22, 1), (0, 1)], ids=["each hour", "all but one", "the first"])
def test_a_day_goes_once_later_runs_cover_all_of_it(cli: Any, here: Installation, last: int, left: int) -> None:
    finished(here, 2, 3)
    execute(
        here,
        "INSERT INTO backfill (id, pipeline_no, pipeline, shard, state, covers, runs, max_active_runs, reprocess_behavior,"
        " run_backwards, on_run_failure, conf, definition, ended_at) SELECT 'hours', pipeline_no, pipeline, shard, state,"
        " tstzrange('2000-01-01Z', '2000-01-02Z'), 24, 1, 'completed', false, 'continue', '{}', definition, ended_at"
        " FROM backfill WHERE id = 'old-1'",
        "INSERT INTO run (backfill_id, pipeline_no, interval_start, interval_end, position, state, attempt, started_at,"
        " finished_at) SELECT 'hours', pipeline_no, start, start + interval '1 hour', row_number() OVER (), 'succeeded', 1,"
        f" now(), now() FROM ({HOURS.format(last=last)}) AS hours, backfill WHERE id = 'old-1'",
    )
    age(here)
    purge(cli)
    kept = here.query("SELECT backfill_id AS id, count(*) AS n FROM run GROUP BY 1 ORDER BY 1")
    assert {row["id"]: row["n"] for row in kept} == {"old-1": 2 + left, "old-2": 3, "hours": last + 1}
    # What later runs undo counts again, as long as it is there.
    execute(here, "UPDATE run SET undone_by = 1 WHERE backfill_id = 'hours'", "UPDATE backfill SET purged_at = NULL")
    purge(cli)
    kept = here.query("SELECT backfill_id AS id, count(*) AS n FROM run GROUP BY 1 ORDER BY 1")
    assert {row["id"]: row["n"] for row in kept} == {"old-1": 2 + left, "old-2": 3}


def test_each_row_is_in_postgres_or_in_one_file(cli: Any, old: Installation, tmp_path: Path) -> None:
    execute(old, "INSERT INTO run_cancel SELECT backfill_id, id FROM run WHERE position = 3")
    before = rows(old)
    done = purge(cli, "--export", str(tmp_path / "history"))
    # Of each pipeline one attempt with superseded runs only, and those that no run refers to.
    attempts = 3 + 6
    gone = {"deadline": 30, "task_run": 30, "backfill_interval": 42, "run_cancel": 6, "run": 12, "attempt": attempts}
    assert done["rows"] == gone
    left, files = rows(old), exported(tmp_path / "history")
    for table in TABLES:
        assert len(files[table]) == done["rows"].get(table, 0)
        assert not left[table] & set(files[table])
        assert left[table] | set(files[table]) == before[table]
    # Rows that stay are not visited again by the next purge, however many there are.
    again = purge(cli, "--export", str(tmp_path / "history"))
    assert (done["backfills"], again["backfills"], again["rows"]) == (6, 0, {})
    assert exported(tmp_path / "history") == files


OF_EACH_BACKFILL = (
    "INSERT INTO callback (deadline_id, shard, name, kwargs, state, finished_at, backfill_id, occasion, place)"
    " SELECT 100000 + row_number() OVER (), 0, 'page', '{}', 'succeeded', now(), id, 'run_failed', 0 FROM backfill",
    "INSERT INTO callback_run SELECT (SELECT min(id) FROM run WHERE backfill_id = c.backfill_id), 0, c.deadline_id"
    " FROM callback AS c",
)


def test_callbacks_of_runs_and_ends_are_purged_with_them(cli: Any, old: Installation, tmp_path: Path) -> None:
    execute(old, *OF_EACH_BACKFILL)
    done = purge(cli, "--export", str(tmp_path / "history"))
    assert (done["rows"]["callback_run"], done["rows"]["callback"], done["rows"]["run"]) == (6, 6, 12)
    files = exported(tmp_path / "history")
    assert (len(files["callback_run"]), len(files["callback"])) == (6, 6)
    assert old.value("SELECT count(*) FROM callback") == 0


def test_a_callback_of_a_run_that_is_to_be_called_holds_its_backfill(cli: Any, old: Installation) -> None:
    execute(old, *OF_EACH_BACKFILL)
    first = "SELECT min(deadline_id) FROM callback"
    execute(old, f"UPDATE callback SET state = 'pending', finished_at = NULL WHERE deadline_id = ({first})")
    done = purge(cli)
    assert (done["held_back"], done["rows"]["callback"]) == ({"callbacks not called yet": 1}, 5)


HELD = {
    "deadlines armed": "UPDATE deadline SET state = 'armed', decided_at = NULL WHERE id = (SELECT min(id) FROM deadline)",
    "callbacks not called yet": "INSERT INTO callback (deadline_id, shard, name, kwargs, state)"
    " SELECT min(id), 0, 'page', '{}', 'pending' FROM deadline",
    "digests open": "INSERT INTO deadline_digest (id, shard, pipeline, alert, target, opened_at, closes_at)"
    " SELECT min(id), 0, 'p', 'late', '', now(), now() FROM deadline",
    "events not published yet": "INSERT INTO callback_runner_outbox (topic, key, headers)"
    " SELECT 'callback-events', convert_to(min(id)::text, 'UTF8'), '{}' FROM deadline",
}


@pytest.mark.parametrize("reason", list(HELD))
def test_what_has_something_to_be_done_or_told_waits(cli: Any, old: Installation, reason: str) -> None:
    execute(old, HELD[reason])
    id = old.value("SELECT backfill_id FROM deadline ORDER BY id LIMIT 1")
    before = {
        table: old.value(f"SELECT count(*) FROM {table} WHERE backfill_id = %s", id)
        for table in ("run", "attempt", "deadline", "backfill_interval")
    }
    done = purge(cli)
    assert done["held_back"] == {reason: 1}
    assert done["backfills"] == 5
    for table, number in before.items():
        assert old.value(f"SELECT count(*) FROM {table} WHERE backfill_id = %s", id) == number


def test_active_and_recent_backfills_are_left_alone(cli: Any, old: Installation) -> None:
    execute(
        old,
        "UPDATE backfill SET ended_at = clock_timestamp() - interval '89 days' WHERE id = 'old-1'",
        "UPDATE backfill SET state = 'paused', ended_at = NULL WHERE id = 'old-2'",
    )
    before = rows(old)
    purge(cli)
    for table in ("run", "attempt", "backfill_interval", "backfill"):
        mine = {row for row in before[table] if "old-1" in row or "old-2" in row}
        assert mine
        assert mine <= rows(old)[table]


def test_runs_that_an_average_is_taken_of_stay(cli: Any, old: Installation) -> None:
    definition = daily("old-1", deadlines=[alert("slow", "AVERAGE_RUNTIME", 60, last_n=7, min_runs=1)])
    with old.session() as conn:
        conn.execute("UPDATE pipeline SET definition = %s WHERE name = 'old-1'", [definition.model_dump_json()])
        # The superseded runs are the ones that succeeded last.
        conn.execute(
            "UPDATE run SET finished_at = finished_at + interval '1 minute' * id WHERE backfill_id = 'old-1' AND position < 4"
        )
        conn.commit()
    purge(cli)
    by_pipeline = old.query(
        "SELECT p.name, count(*) AS n FROM run JOIN pipeline AS p ON p.no = pipeline_no GROUP BY 1 ORDER BY 1"
    )
    assert [each["n"] for each in by_pipeline] == [14, 10, 10]


@pytest.mark.usefixtures("old")
class TestRefusals:
    """Each refusal is one line, and nothing is deleted."""

    @pytest.fixture(autouse=True)
    def unchanged(self, old: Installation) -> Iterator[None]:
        before = rows(old)
        yield
        assert rows(old) == before

    @pytest.mark.parametrize("given", ["90", "soon", "-1d", "1h", "99999999999d", ""])
    def test_an_age_that_cannot_be_meant(self, cli: Any, given: str) -> None:
        result = cli("purge", f"--older-than={given}")
        assert (result.status, result.err.count("\n")) == (2, 1)
        assert result.err.startswith("retrofill: --older-than")

    def test_a_folder_that_takes_no_files(self, cli: Any, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        result = cli("purge", "--yes", "--older-than", "90d", "--export", str(tmp_path / "file"))
        assert (result.status, result.err.count("\n")) == (1, 1)
        assert "cannot be written" in result.err

    def test_an_export_without_what_writes_it(self, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        result = cli("purge", "--yes", "--older-than", "90d", "--export", str(tmp_path))
        assert (result.status, result.err.count("\n")) == (1, 1)
        assert "retrofill[spark]" in result.err

    def test_a_role_that_is_not_the_owner(self, cli: Any, old: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
        for role in ("reader", "backfill-planner", "run-starter", "deadline-watcher", "callback-runner"):
            monkeypatch.setenv("RETROFILL_POSTGRES_DSN", old.settings.dsn_of(role))
            result = cli("purge", "--yes", "--older-than", "90d")
            assert (result.status, result.err.count("\n")) == (1, 1)
            assert "to the owner's" in result.err

    def test_a_purge_beside_another(self, cli: Any, old: Installation) -> None:
        with psycopg.connect(old.settings.dsn_of("owner")) as conn:
            conn.execute("SELECT pg_advisory_lock(%s)", [PURGE_LOCK])
            result = cli("purge", "--yes", "--older-than", "90d")
        assert (result.status, result.err.count("\n")) == (1, 1)
        assert "another purge is running" in result.err


def test_a_dry_run_and_a_full_one_say_what_they_do(cli: Any, old: Installation, servers: Servers) -> None:
    before = rows(old)
    foreseen = cli("purge", "--older-than", "90d", "--dry-run")
    assert rows(old) == before
    assert "rows would be deleted" in foreseen.out
    fields = cli("purge", "--yes", "--older-than", "90d")
    lines = [line.split() for line in fields.out.splitlines()]
    assert ["run", "12"] in lines and ["attempt", "9"] in lines
    assert "nothing to purge that ended before" in cli("purge", "--yes", "--older-than", "90d").out
