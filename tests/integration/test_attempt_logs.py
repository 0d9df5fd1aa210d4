"""Logs of attempts by real drivers: theirs alone, complete, and found wherever they are."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from tests.support.installation import Installation, until
from tests.support.loading import definition_of, load_pipelines
from tests.support.terminal import Cli, cli, point_at

__all__ = ["cli"]
CODE = """
import logging, os, pathlib, subprocess, sys, time
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", start="2020-01-01", max_active_runs={limit}, batch_size={batch})

@p.task
def work(run):
    day = run.interval.start.date()
    print("printed on", day)
    print("to stderr on", day, file=sys.stderr)
    run.log.info("logged", day=str(day), dsn="postgresql://me:geheim@db")
    logging.getLogger("theirs").warning("by a library on %s, password=geheim", day)
    subprocess.run(["echo", f"by a child on {{day}}"], check=True)
    out = pathlib.Path(run.conf["out"])
    if run.conf.get("dies") and not (out / "died").exists():
        (out / "died").touch()
        for n in range(5000):
            print("line", n)
        os.kill(os.getpid(), 9)
    if run.conf.get("waits"):
        (out / "waits").touch()
        while not (out / "go").exists():
            time.sleep(0.05)
        print("after the wait")
    if run.conf.get("fails"):
        raise ValueError("no luck, token=geheim")
"""
WORDS = ("printed on", "to stderr on", '"event": "logged"', "by a library on", "by a child on")


@pytest.fixture
def stack(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Installation:
    point_at(installation, monkeypatch)
    installation.start("backfill-planner")
    return installation


def apply(stack: Installation, limit: int = 1, batch: int = 1) -> None:
    file = stack.settings.home / "p.py"
    file.write_text(CODE.format(limit=limit, batch=batch))
    ((pipeline, location),) = load_pipelines(file)
    stack.apply(definition_of(pipeline, location))


def attempts(stack: Installation) -> list[int]:
    return [row["id"] for row in stack.query("SELECT id FROM attempt ORDER BY id")]


def done(stack: Installation, *, days: str = "2020-01-01", state: str = "succeeded", **conf: object) -> str:
    """Run a backfill to its end."""
    id = stack.request("p", "2020-01-01", days, conf={"out": str(stack.settings.home), **conf})
    assert stack.wait_state(id, "succeeded", "failed") == state
    return id


@pytest.mark.long
def test_a_run_is_shown_with_its_attempts_tasks_and_error(stack: Installation, cli: Cli) -> None:
    apply(stack)
    stack.start("light-starter", RETROFILL_DRIVER_SLOTS="1")
    id = done(stack, state="failed", fails=True)
    shown = cli("runs", "show", id, "2020-01-01", "--json").document
    (attempt,) = shown["attempts"]
    assert (attempt["outcome"], attempt["spark_app_id"], attempt["spark_ui"]) == (
        *("done", "local-1"),
        "http://127.0.0.1:4040",
    )
    assert [(task["task"], task["state"], task["try_number"]) for task in shown["tasks"]] == [("work", "failed", 1)]
    assert shown["error"]["traceback"].count('File "') == 1
    assert cli("runs", "show", str(shown["id"]), "--json").document == shown
    text = cli("runs", "show", str(shown["id"])).out
    for said in (
        "state           failed",
        "Spark local-1, http://127.0.0.1:4040",
        "task work: ValueError: no luck, token=***",
    ):
        assert said in text
    # The log has the frames that the report omits.
    log = cli("runs", "logs", f"attempt:{attempt['id']}").out
    assert log.count('File "') > 1
    assert "geheim" not in log


def test_nothing_is_lost_of_a_driver_that_is_killed_and_the_reason_is_shown(stack: Installation, cli: Cli) -> None:
    apply(stack)
    stack.start("light-starter", RETROFILL_DRIVER_SLOTS="1", RETROFILL_LOG_FILE_BYTES="10000")
    id = done(stack, dies=True)
    first, second = attempts(stack)
    folder = stack.settings.home / "logs" / "attempts"
    assert len(list(folder.glob(f"*/{first}.*.log"))) > 3
    killed = cli("runs", "logs", f"attempt:{first}")
    assert [line for line in killed.out.splitlines() if line.startswith("line ")] == [f"line {n}" for n in range(5000)]
    assert "ended by signal 9" in killed.err
    again = cli("runs", "logs", f"attempt:{second}")
    assert "begun 2 times" in again.out
    assert "line 0" not in again.out
    assert again.err == ""
    assert "why: the driver process was ended by signal 9" in cli("runs", "show", id, "2020-01-01").out


@pytest.mark.long
def test_a_log_is_fetched_from_the_host_that_has_it(
    stack: Installation, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(stack, limit=2)
    stores = [tmp_path / "a", tmp_path / "b"]
    starters = [
        stack.start("light-starter", RETROFILL_DRIVER_SLOTS="1", RETROFILL_LOG_STORE=str(store)) for store in stores
    ]
    until(lambda: stack.value("SELECT count(*) FROM seat WHERE warm") == 2, "both hosts are warm")
    done(stack, days="2020-01-10")
    hosts = {row["id"]: row["host"] for row in stack.query("SELECT id, host FROM attempt")}
    assert len(set(hosts.values())) == 2
    for id in hosts:
        assert cli("runs", "logs", f"attempt:{id}").out.count("printed on") == 1
    url = stack.value("SELECT logs FROM host ORDER BY id LIMIT 1")
    base = url.rsplit("/", 3)[0]
    assert httpx.get(f"{base}/logs/{'0' * 32}/{min(hosts)}").status_code == 404
    assert httpx.get(f"{url}..%2f..%2fp.py").status_code == 404
    assert url not in cli("hosts", "--json").out
    # One host goes, with its disk.
    starters[0].stop()
    gone = f"-{starters[0].process.pid}"
    lost = next(id for id, host in hosts.items() if host.endswith(gone))
    refused = cli("runs", "logs", f"attempt:{lost}")
    assert (refused.status, refused.out, refused.err.count("\n")) == (1, "", 1)
    assert "is gone" in refused.err or "has no log of it" in refused.err
    assert "RETROFILL_LOG_STORE" in refused.err
    monkeypatch.setenv("RETROFILL_LOG_STORE", str(stores[0]))
    assert cli("runs", "logs", f"attempt:{lost}").out.count("printed on") == 1


def test_what_is_asked_for_wrongly_is_explained(stack: Installation, cli: Cli) -> None:
    for words, status, said in (
        (
            ("logs", "99"),
            1,
            "shows those of a backfill; an attempt is attempt:99",
        ),
        (("logs", "b"), 2, "'b' is not the id of a run: add the DATE if it is a backfill"),
        (("logs", "b", "2020-01-01"), 1, "there is no backfill 'b'"),
        (("logs", "1", "-f", "--json"), 2, "cannot be combined"),
        (("show", "99"), 1, "there is no run 99"),
        (("show", "b"), 2, "'b' is not the id of a run"),
    ):
        refused = cli("runs", *words)
        assert (refused.status, refused.out, refused.err.count("\n")) == (status, "", 1), refused.err
        assert said in refused.err
