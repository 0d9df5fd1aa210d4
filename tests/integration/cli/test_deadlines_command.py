"""``retrofill deadlines``, and the deadline alerts that ``pipelines apply`` refuses, with a real
planner and watcher.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support.definitions import alert, daily
from tests.support.installation import Installation, until
from tests.support.servers import Servers
from tests.support.terminal import point_at

NOTES = "def page(context, team, channel='#data'): ...\n"
SOURCE = """
from datetime import timedelta
from retrofill import Deadline, KafkaTopic, Pipeline, Reference, Webhook
flow = Pipeline("flow", schedule="@daily", deadlines=[{deadline}])
@flow.task
def count(run): ...
"""


@pytest.fixture(scope="module")
def watched(servers: Servers) -> Iterator[Installation]:
    """An installation with deadlines in each state."""
    made = servers.installation()
    made.start("backfill-planner", wait=False)
    made.start("deadline-watcher")
    made.apply(
        daily(
            "watched",
            deadlines=[
                alert("soon", "RUN_QUEUED_AT", 0.3, callback="page", kwargs={"team": "x"}),
                alert("hour", "RUN_QUEUED_AT", 3000),
                alert("week", "RUN_QUEUED_AT", 600_000),
                alert("past", "LOGICAL_DATE", 60),
                alert("all", "BACKFILL_REQUESTED_AT", 2000),
            ],
        )
    )
    made.request("watched", "2020-01-01", "2020-01-02", id="b1")
    until(lambda: made.value("SELECT count(*) FROM deadline WHERE state = 'missed'") == 2, "the near ones are missed")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def here(watched: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the CLI at the installation."""
    point_at(watched, monkeypatch)


def listed(cli, *more):
    return cli("deadlines", "list", "--json", *more).document


def test_deadlines_are_listed_by_state_pipeline_and_moment(cli):
    assert [row["alert"] for row in listed(cli)] == [
        "week",
        "week",
        "hour",
        "hour",
        "all",
        "soon",
        "soon",
        "past",
        "past",
    ]
    assert {row["alert"] for row in listed(cli, "--state", "missed")} == {"soon"}
    assert {row["reason"] for row in listed(cli, "--state", "void")} == {"already past when it was armed"}
    assert [row["alert"] for row in listed(cli, "--due-within", "1h")] == ["all", "hour", "hour"]
    assert listed(cli, "--pipeline", "other") == []
    out = cli("deadlines", "list", "--due-within", "40m").out
    assert "backfill b1" in out
    assert "hour" not in out
    wrong = cli("deadlines", "list", "--due-within", "soon")
    assert (wrong.status, wrong.err.count("\n")) == (2, 1)
    assert "write it like 90s, 5m, 1.5h or 2d" in wrong.err


def test_one_is_shown_with_what_followed(cli):
    (first, _) = listed(cli, "--state", "missed")
    shown = cli("deadlines", "show", str(first["id"]), "--json").document
    assert (shown["callback"], shown["callback_state"], shown["kwargs"]) == ("page", "pending", {"team": "x"})
    out = cli("deadlines", "show", str(first["id"])).out
    assert "RUN_QUEUED_AT +0.3 s" in out
    assert "pending, calls: 0" in out
    missing = cli("deadlines", "show", "999999")
    assert (missing.status, missing.err) == (
        1,
        "retrofill: there is no deadline 999999: see 'retrofill deadlines list'\n",
    )


def test_misses_are_followed_as_they_come(watched):
    run = "from retrofill_tools.cli.main import run; run()"
    command = [sys.executable, "-c", run, "deadlines", "watch", "--from-beginning", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ}, text=True) as process:
        try:
            assert process.stdout is not None
            seen = [json.loads(process.stdout.readline()) for _ in range(2)]
            watched.request("watched", "2021-01-01", "2021-01-01")
            seen.append(json.loads(process.stdout.readline()))
            process.send_signal(signal.SIGINT)
            assert process.wait(20) in (0, 130)
        finally:
            process.kill()
    assert sorted(event["interval_start"][:10] for event in seen) == ["2020-01-01", "2020-01-02", "2021-01-01"]


@pytest.mark.parametrize(
    ("deadline", "why"),
    [
        ("callback='pagge'", "there is no callback 'pagge'; RETROFILL_CALLBACKS has: broken, page"),
        ("callback='broken'", "the callback notes:gone cannot be imported"),
        ("callback='page'", "missing a required argument: 'team'; it takes team, channel='#data'"),
        ("callback='page', kwargs={'team': 1, 'chanel': 2}", "unexpected keyword argument 'chanel'"),
        (
            "callback=Webhook('https://example.org', secret='ops')",
            "no webhook secret 'ops'; RETROFILL_WEBHOOK_SECRETS has: none",
        ),
        ("callback=Webhook('gopher://example.org')", "invalid URL"),
        ("callback=KafkaTopic('{prefix}run-events')", "belongs to Retrofill"),
        ("kwargs={'text': '{run.date}'}", "unknown name 'run.date'; known names: backfill.id"),
    ],
)
def test_what_could_not_be_called_is_refused_when_it_is_applied(cli, watched, monkeypatch, tmp_path, deadline, why):
    (tmp_path / "notes.py").write_text(NOTES)
    monkeypatch.setenv("RETROFILL_CALLBACKS", '{"page": "notes:page", "broken": "notes:gone"}')
    monkeypatch.chdir(tmp_path)
    deadline = deadline.replace("{prefix}", watched.settings.topic_prefix)
    (tmp_path / "flow.py").write_text(
        SOURCE.replace("{deadline}", f"Deadline('slow', Reference.RUN_QUEUED_AT, timedelta(1), {deadline})")
    )
    result = cli("pipelines", "apply", "flow.py")
    assert result.status == 1
    assert result.err.count("\n") == 1
    assert why in result.err
    assert watched.query("SELECT 1 FROM pipeline WHERE name = 'flow'") == []


def test_a_backfill_may_have_a_deadline_of_its_own(cli, watched):
    watched.apply(daily("plain"))
    range_ = ["--from", "2020-01-01", "--to", "2020-01-02"]
    result = cli("backfill", "create", "plain", *range_, "--id", "b2", "--finish-by", "2999-01-01T00:00:00+00:00")
    assert result.status == 0, result.err
    (row,) = listed(cli, "--backfill", "b2")
    assert (row["alert"], row["due_at"], row["run_id"]) == ("finish_by", "2999-01-01T00:00:00+00:00", None)
    naive = cli("backfill", "create", "plain", *range_, "--finish-by", "2999-01-01")
    assert (naive.status, naive.err.count("\n")) == (2, 1)
