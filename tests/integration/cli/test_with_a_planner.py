"""CLI commands against real servers and a real planner."""

from __future__ import annotations

import threading
import time

import psycopg
import pytest

from retrofill_core.contract.topics import Topic
from retrofill_core.settings import Settings

pytestmark = pytest.mark.usefixtures("planner", "here")
JANUARY = ["--from", "2024-01-01", "--to", "2024-01-31"]
SOURCE = """
from retrofill import Pipeline
{variable} = Pipeline("{name}", schedule="@daily", start="2013-01-01", timezone="America/New_York", max_active_runs=4)
@{variable}.task
def count(run): ...
"""


@pytest.fixture
def pipeline(cli, tmp_path, request):
    """A pipeline used by this test only."""
    name = request.node.name[:60].replace("[", ".").replace("]", "")
    path = tmp_path / "flow.py"
    path.write_text(SOURCE.format(variable="flow", name=name))
    result = cli("pipelines", "apply", str(path), "--json")
    assert result.status == 0, result.err
    assert [made["accepted"] for made in result.document["pipelines"]] == [True]
    return name


def create(cli, pipeline, id, *more):
    return cli("backfill", "create", pipeline, *JANUARY, "--id", id, "--json", *more)


def test_create_is_answered_and_shown(cli, pipeline):
    answer = create(cli, pipeline, "made", "--conf", '{"a": 1}').document
    assert (answer["type"], answer["runs"], answer["max_active_runs"]) == ("BackfillPlanned", 31, 4)
    shown = cli("backfill", "show", "made", "--json").document
    assert shown["by_state"] == {"queued": 31}
    assert (shown["conf"], shown["failed_runs"], shown["skipped"]) == ({"a": 1}, [], {})
    listed = cli("backfill", "list", "--pipeline", pipeline, "--state", "running", "--json").document
    assert [(each["id"], each["ended_runs"]) for each in listed] == [("made", 0)]
    assert "31 queued" in cli("backfill", "show", "made").out


def test_a_repeat_gets_the_answer_again_and_another_body_does_not(cli, pipeline):
    first = create(cli, pipeline, "again").document
    second = create(cli, pipeline, "again").document
    assert {**first, "in_reply_to": ""} == {**second, "in_reply_to": ""}
    other = create(cli, pipeline, "again", "--backwards")
    assert (other.status, other.out) == (1, "")
    assert "the id 'again' is already used by a request with another body" in other.err


def test_overlap_is_refused_and_foreseen(cli, pipeline):
    create(cli, pipeline, "winner")
    refused = create(cli, pipeline, "loser")
    assert (refused.status, refused.document["reason"]) == (1, "overlap")
    assert refused.document["conflicting_backfill_id"] == "winner"
    assert refused.err.startswith("retrofill: backfill winner of")
    foreseen = cli("backfill", "dry-run", pipeline, *JANUARY, "--json")
    assert (foreseen.status, foreseen.document["reason"]) == (1, "overlap")
    assert "was rejected" in cli("backfill", "show", "loser").err


def test_dry_run_changes_nothing(cli, pipeline):
    document = cli("backfill", "dry-run", pipeline, *JANUARY, "--json").document
    assert (document["runs"], document["skipped"], len(document["intervals"])) == (31, {}, 31)
    assert {each["outcome"] for each in document["intervals"]} == {"run"}
    assert "would create 31 runs\n" in cli("backfill", "dry-run", pipeline, *JANUARY).out
    assert cli("backfill", "list", "--pipeline", pipeline, "--json").document == []


def test_commands_are_followed_or_refused(cli, pipeline):
    create(cli, pipeline, "steered")
    assert cli("backfill", "pause", "steered").out == "backfill steered: paused\n"
    assert cli("backfill", "resume", "steered", "--json").document["type"] == "BackfillResumed"
    unknown = cli("backfill", "cancel", "unheard-of", "--yes")
    assert (unknown.status, unknown.out) == (1, "")
    assert "there is no backfill with this id" in unknown.err


@pytest.mark.parametrize("by", ["--run", "--dates"])
def test_any_number_of_runs_is_cancelled(cli, pipeline, by):
    id = f"many{by.strip('-')}"
    cli("backfill", "create", pipeline, "--from", "2025-01-01", "--to", "2025-10-31", "--id", id)
    runs = cli("runs", "list", id, "--limit", "1000", "--json").document[:250]
    named = [str(each["id"]) if by == "--run" else each["interval_start"][:10] for each in runs]
    done = cli("runs", "cancel", id, "--yes", *(part for name in named for part in (by, name)))
    assert (done.out, done.err) == (f"backfill {id}: canceling 250 runs\n", "")
    answer = cli(
        "runs",
        "cancel",
        id,
        "--yes",
        *(part for name in named for part in (by, name)),
        "--dates",
        "2025-10-31",
        "--json",
    )
    assert (answer.status, len(answer.document["run_ids"]), answer.document["left"]) == (0, 1, {"cancelling": 250})
    cli("backfill", "cancel", id, "--yes")


def test_runs_are_listed_and_cancelled(cli, pipeline):
    create(cli, pipeline, "spared")
    listed = cli("runs", "list", "spared", "--limit", "2", "--json").document
    assert [(each["interval_start"], each["state"]) for each in listed] == [
        ("2024-01-01T05:00:00+00:00", "queued"),
        ("2024-01-02T05:00:00+00:00", "queued"),
    ]
    first, second = (each["id"] for each in listed)
    assert cli("runs", "cancel", "spared", "--yes", "--dates", "2024-01-01").out == "backfill spared: canceling 1 run\n"
    answer = cli("runs", "cancel", "spared", "--yes", "--dates", "2024-01-03", "--run", str(second), "--json").document
    assert (answer["type"], len(answer["run_ids"]), second in answer["run_ids"]) == ("RunCancelAccepted", 2, True)
    refused = cli("runs", "cancel", "spared", "--yes", "--run", str(first))
    assert (refused.status, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert "no run was canceled; 1 already being canceled" in refused.err
    unknown = cli("runs", "cancel", "spared", "--yes", "--dates", "2024-01-04", "--run", "999999")
    assert "the backfill has no run of id 999999" in unknown.err
    asked = [each["cancel_requested_at"] is not None for each in cli("runs", "list", "spared", "--json").document]
    assert asked == [True] * 3 + [False] * 28
    mixed = cli("runs", "cancel", "spared", "--yes", "--run", str(first), "--dates", "2024-01-05")
    assert mixed.out == "backfill spared: canceling 1 run; 1 already being canceled\n"
    table = cli("runs", "list", "spared", "--state", "queued").out
    assert "2024-01-31" in table and max(map(len, table.splitlines())) <= 80
    assert cli("runs", "list", "spared", "--state", "failed").out == "no runs\n"
    assert "there is no backfill 'unheard-of'" in cli("runs", "list", "unheard-of").err


def test_single_dates_are_requested_and_foreseen(cli, pipeline, tmp_path):
    dates = tmp_path / "dates.txt"
    dates.write_text("2024-01-03\n2024-02-01 2024-01-04\n")
    foreseen = cli("backfill", "dry-run", pipeline, "--dates-file", str(dates), "--json").document
    assert [each["start"][:10] for each in foreseen["intervals"]] == ["2024-01-03", "2024-01-04", "2024-02-01"]
    table = cli("backfill", "dry-run", pipeline, "--dates-file", str(dates)).out
    assert [line.split()[0] for line in table.splitlines()[1:3]] == ["2024-01-03", "2024-02-01"]
    made = cli("backfill", "create", pipeline, "--dates-file", str(dates), "--id", "dates", "--json").document
    assert (made["type"], made["runs"]) == ("BackfillPlanned", 3)
    between = cli("backfill", "create", pipeline, "--dates", "2024-01-05,2024-01-31", "--json").document
    assert (between["type"], between["runs"]) == ("BackfillPlanned", 2)
    refused = cli("backfill", "create", pipeline, "--dates", "2024-01-02,2024-02-01", "--json")
    assert (refused.status, refused.document["conflicting_backfill_id"]) == (1, "dates")
    unknown = cli("backfill", "create", pipeline, "--dates", "2024-01-10T12:00:00Z")
    assert (unknown.status, unknown.err.count("\n")) == (1, 1)
    assert "starts at 2024-01-10T12:00:00+00:00: request other dates" in unknown.err


def _ended(dsn, id, days, state):
    """End runs as the run-starter would."""
    with psycopg.connect(dsn) as conn:
        conn.execute(
            'UPDATE retrofill.run SET state = %s, finished_at = now(), error = \'{"type": "E"}\''
            " WHERE backfill_id = %s AND position = ANY(%s)",
            (state, id, list(days)),
        )


RETRIED = "backfill retried: retrying {} with the code that the backfill was planned with (not shipped, imported from its path)"


def test_failed_runs_are_retried_and_an_ended_backfill_is_requested_again(cli, pipeline, here):
    dsn = here["RETROFILL_POSTGRES_DSN"]
    create(cli, pipeline, "retried")
    nothing = cli("backfill", "retry", "retried")
    assert (nothing.status, nothing.err.count("\n")) == (1, 1)
    assert "none of its runs is failed: there is nothing to retry" in nothing.err
    _ended(dsn, "retried", range(4), "failed")
    assert cli("runs", "retry", "retried", "--dates", "2024-01-01").out == f"{RETRIED.format('1 run')}\n"
    answer = cli("runs", "retry", "retried", "--dates", "2024-01-02", "--json").document
    assert (answer["type"], answer["runs"], answer["intervals"]) == ("RunsRetried", 1, ["2024-01-02T05:00:00Z"])
    listed = cli("runs", "list", "retried", "--limit", "3", "--json").document
    assert [(each["state"], each["superseded_by"]) for each in listed] == [
        ("failed", listed[1]["id"]),
        ("queued", None),
        ("failed", answer["run_ids"][0]),
    ]
    assert "failed, retried" in cli("runs", "list", "retried").out
    assert cli("backfill", "retry", "retried").out == f"{RETRIED.format('2 runs')}\n"
    shown = cli("backfill", "show", "retried", "--json").document
    assert shown["by_state"] == {"queued": 31}
    assert [each["by_state"] for each in shown["calendar"]["cells"]] == [{"queued": 1}] * 31
    (active,) = (each for each in cli("watch", "--json").document["backfills"] if each["id"] == "retried")
    assert active["by_state"] == {"queued": 31}
    day = cli("runs", "show", "retried", "2024-01-02", "--json").document
    assert (day["id"], day["state"], day["attempts"]) == (answer["run_ids"][0], "queued", [])
    changed = cli("backfill", "change", "retried", "--max-active-runs", "9", "--on-run-failure", "pause").out
    assert "concurrency 4 (9 requested, the pipeline allows 4), batch size 1, on run failure: pause" in changed
    _end_with_failures(cli, dsn, "retried")
    again = cli("backfill", "retry", "retried", "--json").document
    assert (again["type"], again["runs"], again["max_active_runs"]) == ("BackfillPlanned", 2, 9)
    assert again["backfill_id"] != "retried"
    shown = cli("backfill", "show", again["backfill_id"], "--json").document
    assert (shown["on_run_failure"], shown["range_start"][:10], shown["range_end"][:10]) == (
        *("pause", "2024-01-01"),
        "2024-02-01",
    )
    assert cli("runs", "retry", "retried", "--all").err.endswith(
        "'retrofill backfill retry retried' requests a new one\n"
    )


def _end_with_failures(cli, dsn, id):
    """The first and the last run fail or are cancelled, the others succeed."""
    with psycopg.connect(dsn) as conn:
        conn.execute(
            "UPDATE retrofill.run SET state = CASE position WHEN 0 THEN 'failed' WHEN 30 THEN 'cancelled' ELSE 'succeeded'"
            " END, finished_at = now() WHERE backfill_id = %s AND superseded_by IS NULL",
            (id,),
        )
    assert cli("backfill", "cancel", id, "--yes", "--watch").status == 0
    nothing = cli("backfill", "retry", "nobody")
    assert (nothing.status, "there is no backfill 'nobody'" in nothing.err) == (1, True)


def test_tables_fit_80_columns(cli, pipeline):
    create(cli, pipeline, "0a0fd4d0-0000-0000-0000-" + pipeline[-12:])
    for arguments in (["backfill", "list"], ["pipelines", "list"], ["pipelines", "show", pipeline]):
        assert max(map(len, cli(*arguments).out.splitlines())) <= 80


def test_watching_ends_with_the_backfill(cli, pipeline, here):
    create(cli, pipeline, "watched")
    thread = threading.Thread(target=_cancel_all_runs, args=(here["RETROFILL_POSTGRES_DSN"], "watched"))
    thread.start()
    result = cli("backfill", "watch", "watched")
    thread.join()
    assert result.status == 1
    assert "watched cancelled: 31/31 runs ended (31 cancelled)" in result.out
    ended = cli("backfill", "watch", "watched", "--json")
    assert (ended.status, ended.document["by_state"]) == (1, {"cancelled": 31})


def _cancel_all_runs(dsn, id):
    """Cancel as a user and the run-starter would: all runs end first, so the planner ends the
    backfill at once.
    """
    from retrofill_core.contract.backfills import BackfillCancelRequested
    from retrofill_tools.client.kafka import ask

    time.sleep(1)
    with psycopg.connect(dsn) as conn:
        conn.execute("UPDATE retrofill.run SET state = 'cancelled', finished_at = now() WHERE backfill_id = %s", (id,))
    ask(Settings(), Topic.BACKFILL_REQUESTS, id, BackfillCancelRequested(), 20)


def test_no_answer_says_what_to_check(cli, pipeline):
    result = cli("backfill", "pause", "x", "--timeout", "0.1")
    assert result.status == 1
    assert result.err.count("\n") == 1
