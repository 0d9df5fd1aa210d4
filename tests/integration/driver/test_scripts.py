"""Real spark-submits of scripts: what a script gets beside its arguments, and that it is alone."""

from __future__ import annotations

import json
import zipfile
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.integration.driver.world import World, submitting
from tests.support.tiers import some

__all__ = ["submitting"]
pytestmark = pytest.mark.spark
CODE = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", executor="EXECUTOR")
p.submit(
    "script", "job.py", args=["{conf.out}"],
    py_files=["zipped.zip", "single.py"], jars=["x.jar"], files=["rules.json"],
    env={"STAGE": "of {interval.start:%Y-%m-%d}"},
)
"""
SCRIPT = """
import json, os, sys
from pyspark import SparkFiles
from pyspark.sql import SparkSession
import psutil, single, zipped
spark = SparkSession.builder.getOrCreate()
def by_executor(_):
    import zipped
    return zipped.WHAT
told = {
    "modules": [single.WHAT, zipped.WHAT],
    "executor's": spark.sparkContext.parallelize([1], 1).map(by_executor).collect(),
    "jars": [str(spark.sparkContext._jsc.sc().listJars().apply(0)).split("/")[-1]],
    "rules": json.load(open(SparkFiles.get("rules.json"))),
    "stage": os.environ["STAGE"],
    "parents": [" ".join(each.cmdline()) for each in psutil.Process().parents()],
}
open(sys.argv[1] + "/told.json", "w").write(json.dumps(told))
"""


@pytest.mark.parametrize("executor", some(["pool", "spark-submit"], "pool"))
def test_a_script_gets_its_files_and_variables_and_no_second_application(submitting: World, executor: str) -> None:
    (submitting.out / "job.py").write_text(SCRIPT)
    (submitting.out / "single.py").write_text("WHAT = 'single'")
    (submitting.out / "rules.json").write_text('["a rule"]')
    for name in ("zipped.zip", "x.jar"):
        with zipfile.ZipFile(submitting.out / name, "w") as made:
            made.writestr("zipped.py", "WHAT = 'zipped'")
    launch = submitting.launch(CODE.replace("EXECUTOR", executor))
    starter = submitting.executor(script_allow=[f"{submitting.out}/*"], spark_conf_allow=["default", "env.STAGE"])
    starter.launch(launch)
    assert submitting.host.ended(800)[:3] == (launch.attempt_id, launch.runs[0].id, True), submitting.log(launch)
    assert submitting.fields(launch)[-2:] == ["RunReported succeeded", "AttemptEnded done"], submitting.log(launch)
    told: dict[str, Any] = json.loads((submitting.out / "told.json").read_text())
    # The command line of its guard has the same words.
    jvms = [command for command in told.pop("parents") if command.split()[0].endswith("java")]
    assert len(jvms) == 1, "the driver of the script is the only one"
    assert told == {
        "modules": ["single", "zipped"],
        "executor's": ["zipped"],
        "jars": ["x.jar"],
        "rules": ["a rule"],
        "stage": "of 2013-01-01",
    }


STAGING = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", timezone="America/New_York")
DAY = "{conf[out]}/figures/day={interval.start:%Y-%m-%d}"
p.submit("write", "write.py", args=["{stage:" + DAY + "}"])
p.submit("check", "check.py", args=["{staged:" + DAY + "}", DAY], after="write")
"""
WRITES = """
import sys
from pyspark.sql import SparkSession
SparkSession.builder.getOrCreate().range(3).write.parquet(sys.argv[1])
"""
CHECKS = """
import pathlib, sys
staged, published = map(pathlib.Path, sys.argv[1:])
assert list(staged.glob("*.parquet")) and not published.exists()
"""


def test_what_a_script_writes_to_its_template_is_checked_by_the_next_and_published(submitting: World) -> None:
    (submitting.out / "write.py").write_text(WRITES)
    (submitting.out / "check.py").write_text(CHECKS)
    launch = submitting.launch(STAGING)
    submitting.executor(script_allow=[f"{submitting.out}/*"]).launch(launch)
    assert submitting.host.ended(800).reported, submitting.log(launch)
    last = ["RunStaged", "RunReported succeeded", "AttemptEnded done"]
    assert submitting.fields(launch)[-3:] == last, submitting.log(launch)
    assert pq.read_table(submitting.out / "figures" / "day=2013-01-01").num_rows == 3


PARTITIONED = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", timezone="America/New_York")
HOURS = "dt={interval.each:%Y-%m-%d}/h={interval.each:%H}"
ROOTS = [[each, "{stage_partitions:{conf[out]}/" + each + ", " + HOURS + "}"] for each in FORMATS]
p.submit("write", "write.py", args=sum(ROOTS, []))
"""
# As people write them: with dynamic overwrite of what is below one root, and partitions of their own.
WRITES_PARTITIONS = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.config("spark.sql.sources.partitionOverwriteMode", "dynamic").getOrCreate()
rows = spark.range(4).selectExpr("'2013-01-01' dt", "if(id < 2, '07', '23') h", "string(id) n", "id % 2 own")
for format, root in zip(sys.argv[1::2], sys.argv[2::2]):
    of = rows.where("false") if format == "empty" else rows
    of.write.mode("overwrite").partitionBy("dt", "h", "own").format(format.replace("empty", "parquet")).save(root)
"""


def test_a_script_overwrites_partitions_below_a_root_and_those_of_the_interval_are_published(
    submitting: World,
) -> None:
    formats = ["parquet", "csv", "json", "orc", "text", "empty"]
    (submitting.out / "write.py").write_text(WRITES_PARTITIONS)
    for each in formats:
        for partition in ("dt=2012-12-31/h=23", "dt=2013-01-01/h=05"):
            (submitting.out / each / partition).mkdir(parents=True)
            (submitting.out / each / partition / "part-before").write_text("1")
    launch = submitting.launch(PARTITIONED.replace("FORMATS", repr(formats)))
    submitting.executor(script_allow=[f"{submitting.out}/*"]).launch(launch)
    assert submitting.host.ended(800).reported, submitting.log(launch)
    assert "RunReported succeeded" in submitting.fields(launch), submitting.log(launch)
    for each in formats:
        files = [file.relative_to(submitting.out / each) for file in (submitting.out / each).glob("dt=*/h=*/**/part-*")]
        written = [] if each == "empty" else [f"dt=2013-01-01/h={h}/own={own}" for h in ("07", "23") for own in (0, 1)]
        assert sorted(str(file.parent) for file in files) == ["dt=2012-12-31/h=23", *written], each


FAILING = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")
p.submit("load", "load.py")
"""
FAILS = {
    "its own error": ("sys.exit('no rows for 2013-01-01')", "no rows for 2013-01-01"),
    "of a worker": (
        "spark.sparkContext.parallelize([0], 1).map(lambda n: 1 / n).collect()",
        "ZeroDivisionError: division by zero",
    ),
    "of Spark": (
        "spark.sql('SELECT amount FROM range(1)')",
        "pyspark.errors.exceptions.captured.AnalysisException: [UNRESOLVED_COLUMN",
    ),
}


@pytest.mark.parametrize("name", some(FAILS, "of a worker"))
def test_the_error_of_a_run_begins_with_what_its_script_said_of_the_cause(submitting: World, name: str) -> None:
    text, cause = FAILS[name]
    session = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.getOrCreate()"
    (submitting.out / "load.py").write_text(f"import sys\n{session}\n{text}\n")
    launch = submitting.launch(FAILING)
    submitting.executor(script_allow=[f"{submitting.out}/*"]).launch(launch)
    assert submitting.host.ended(800).reported, submitting.log(launch)
    (ended,) = [each for each in submitting.bodies(launch) if each["type"] == "RunReported"]
    first, *others = ended["error"]["message"].splitlines()
    assert first.startswith(f"{submitting.out}/load.py ended with status 1: {cause}"), ended
    assert not any("site-packages" in line for line in others)
