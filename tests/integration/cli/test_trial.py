"""``retrofill test``: a day of a pipeline on a local Spark, without any server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.terminal import Cli, cli

__all__ = ["cli"]
PIPELINE = """
import os, sys, time
from datetime import timedelta
from retrofill import Pipeline

OUT = {out!r}
days = Pipeline("days", schedule="@daily", start="2013-01-01", timezone="America/New_York")


@days.task
def delays(run):
    print("the day of", run.interval.start)
    rows = run.spark.range(run.conf["rows"]).selectExpr("id", f"'{{run.interval.start:%Y-%m-%d %H:%M %z}}' AS start")
    rows.write.parquet(run.stage(f"{{OUT}}/delays/day={{run.interval.start:%Y-%m-%d}}"))


@days.branch(after=delays)
def route(run):
    staged = run.staged(f"{{OUT}}/delays/day={{run.interval.start:%Y-%m-%d}}")
    return ["good"] if run.spark.read.parquet(staged).count() else ["bad"]


@days.task(after=route, writes_nothing=True, timeout={timeout})
def good(run):
    {good}


@days.task(after=route, writes_nothing=True)
def bad(run): ...


NOTE = ["sh", "-c", "mkdir -p $2; echo $1 > $2/note.txt", "sh", "{{interval.end:%H:%M %Z}}"]
days.command("note", [*NOTE, "{{stage:{out}/notes/{{interval.start:%Y-%m-%d}}}}"], after=good)
{more}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETROFILL_HOME", str(tmp_path / "home"))
    return tmp_path


def written(here: Path, good: str = "pass", *, more: str = "", timeout: str = "None") -> Path:
    out = here / "out"
    (here / "p.py").write_text(PIPELINE.format(out=str(out), good=good, more=more, timeout=timeout))
    return out


def outcome(cli: Cli, day: str, *more: str) -> tuple[int, str, Any]:
    done = cli("test", "p.py", "--date", day, "--conf", '{"rows": 3}', "--json", *more)
    return done.status, done.err, done.document["runs"][0]


def test_a_day_runs_as_in_a_driver_and_what_it_stages_is_shown_and_not_published(cli: Cli, here: Path) -> None:
    """The day on which the clocks go forward."""
    out = written(here)
    status, err, run = outcome(cli, "2013-03-10")
    assert (status, run["state"], run["error"]) == (0, "succeeded", None), err
    assert (run["interval_start"], run["interval_end"]) == ("2013-03-10T00:00:00-05:00", "2013-03-11T00:00:00-04:00")
    states = {name: task["state"] for name, task in run["tasks"].items()}
    assert states == {**dict.fromkeys(("delays", "route", "good", "note"), "succeeded"), "bad": "skipped"}
    assert "the day of 2013-03-10 00:00:00-05:00" in err
    by_name = {Path(each["output"]).parent.name: each for each in run["outputs"]}
    delays, notes = by_name["delays"], by_name["notes"]
    assert (delays["rows"], delays["schema"]) == (3, [["id", "bigint"], ["start", "string"]])
    assert sorted(delays["first"]) == [[str(n), "2013-03-10 00:00 -0500"] for n in range(3)]
    assert (notes["output"], notes["rows"], notes["bytes"]) == (
        str(out / "notes" / "2013-03-10"),
        None,
        len("00:00 EDT\n"),
    )
    assert [path for path in out.rglob("*") if path.is_file() or path.name.startswith("_")] == []


OWN_SPARK = """
days.submit("copied", "copy_days.py", args=["{interval.start:%Y-%m-%d}", "{stage:OUT/csv/{interval.start:%Y}}"], after=good)
"""
SCRIPT = """
import sys
from pyspark.sql import SparkSession
SparkSession.builder.getOrCreate().sql(f"SELECT DATE'{sys.argv[1]}' AS day").write.csv(sys.argv[2], header=True)
"""
QUERY = """
from retrofill import Table
days.sql("counted", "count.sql", into=Table("lake.db.counted", "day"), after=good)
"""


@pytest.mark.long
def test_a_script_has_a_spark_of_its_own_and_its_output_may_be_kept(cli: Cli, here: Path) -> None:
    out = written(here, more=OWN_SPARK.replace("OUT", str(here / "out")))
    (here / "copy_days.py").write_text(SCRIPT)
    status, err, run = outcome(cli, "2013-01-31", "--keep")
    assert (status, run["tasks"]["copied"]["state"]) == (0, "succeeded"), err
    (csv,) = [each for each in run["outputs"] if each["output"] == str(out / "csv" / "2013")]
    assert (csv["rows"], csv["first"]) == (1, [["2013-01-31"]])
    assert list(Path(csv["staged"]).glob("*.csv"))
    assert not (out / "csv" / "2013").exists()


@pytest.mark.long
def test_rows_of_a_table_are_staged_for_it_and_dropped(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = {
        "lake": "org.apache.iceberg.spark.SparkCatalog",
        "lake.type": "hadoop",
        "lake.warehouse": str(here / "lake"),
    }
    conf = {f"spark.sql.catalog.{name}": value for name, value in catalog.items()}
    monkeypatch.setenv("RETROFILL_SPARK_TABLES", '["iceberg"]')
    monkeypatch.setenv("RETROFILL_SPARK_CONF", json.dumps(conf))
    made = 'run.spark.sql("CREATE TABLE IF NOT EXISTS lake.db.counted (day DATE, n BIGINT) USING iceberg PARTITIONED BY (day)")'
    written(here, made, more=QUERY)
    (here / "count.sql").write_text("SELECT DATE'2013-01-31' AS day, 7L AS n")
    status, err, run = outcome(cli, "2013-01-31")
    assert (status, run["state"]) == (0, "succeeded"), err
    (table,) = [each for each in run["outputs"] if each["output"].endswith("counted")]
    assert (table["rows"], table["first"]) == (1, [["2013-01-31", "7"]])
    assert [each.name for each in (here / "lake" / "db").iterdir()] == ["counted"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("good", "timeout", "kind", "said"),
    [
        ("raise ValueError(f'no {run.conf}')", "None", "ValueError", "no {'rows': 3}"),
        ("run.spark.sql('SELECT nothing').collect()", "None", "AnalysisException", "nothing"),
        ("run.spark.range(1).write.parquet(run.stage('s3a://x/y'))", "None", "CannotStage", "s3a://x/y"),
        ("os._exit(3)", "None", "ProcessEnded", "ended the process with exit status 3"),
        ("time.sleep(600)", "timedelta(seconds=1)", "TaskTimedOut", "timed out after 1s"),
    ],
)
def test_an_error_of_a_task_is_shown_like_a_run_s(
    cli: Cli, here: Path, good: str, timeout: str, kind: str, said: str
) -> None:
    out = written(here, good, timeout=timeout)
    status, err, run = outcome(cli, "2013-01-31")
    assert (status, run["state"], run["error"]["type"]) == (1, "failed", kind), err
    assert said in run["error"]["message"] + err
    assert err.splitlines()[-1].startswith(f"retrofill: days: the run of 2013-01-31T00:00:00-05:00 failed: {kind}: ")
    assert "note" not in run["tasks"] or run["tasks"]["note"]["state"] == "upstream_failed"
    assert kind == "ProcessEnded" or not list(out.rglob("*.parquet"))
