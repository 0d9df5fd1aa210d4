"""Real spark-submits of scripts: what a script gets beside its arguments, and that it is alone."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.integration.driver.world import World, submitting
from tests.support.tiers import some

from retrofill.spark.java import spark_jars
from retrofill_core.settings import Settings

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


@pytest.mark.long
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


@pytest.mark.long
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
    "of its standard input": (
        "for line in sys.stdin:\n    print(line)",
        "OSError: [Errno 9] Bad file descriptor: a task has no standard input: ",
    ),
    "in its log": (
        "import logging\nlogging.basicConfig(filename='job.log')\ntry:\n    int('many')\nexcept ValueError:\n"
        "    logging.exception('load failed')\n    sys.exit(1)",
        "job.log says: ValueError: invalid literal for int() with base 10: 'many'",
    ),
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


@pytest.mark.long
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


COMMANDS = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily", timezone="America/New_York")
p.command(
    "load", ["./load.sh", "{interval.start:%Y-%m-%d}", "{conf.out}"],
    templates=["job.yaml"], files=["rules-{interval.start:%Y-%m}.json#rules.json"],
    env={"PASSWORD": "{secret[DB_PASSWORD]}"},
)
"""
LOAD = """#!/bin/sh
set -e
ps -o args= $$ > "$2/args"
[ "$PASSWORD" = "hunter2-canary" ]
printf 'hunter2-'; sleep 0.2; echo canary
cat rules.json job.yaml > "$2/told"
pwd -P > "$2/place"
ls "$2/ok" > /dev/null || { echo "ERROR: no rows for $1 with $PASSWORD" >&2; exit 4; }
"""


def test_a_program_runs_without_spark_and_its_secret_shows_nowhere(submitting: World) -> None:
    (submitting.out / "load.sh").write_text(LOAD)
    (submitting.out / "load.sh").chmod(0o755)
    (submitting.out / "rules-2013-01.json").write_text("[1]\n")
    (submitting.out / "job.yaml").write_text("{day: {interval.start:%F}, key: {secret[DB_PASSWORD]}, run: {a: 1}}\n")
    (submitting.out / "secret").write_text("hunter2-canary\n")
    launch = submitting.launch(COMMANDS)
    # Without pyspark, and so without a warm driver.
    python = str(Path(sys.base_prefix) / "bin" / "python3")
    env = {"DB_PASSWORD": {"file": str(submitting.out / "secret")}}
    pools = {"default": {"env": env, "driver_python": python}}
    allowed = {"script_allow": [f"{submitting.out}/*"], "spark_conf_allow": ["env.PASSWORD"]}
    settings = Settings.model_validate({"pools": pools})
    starter = submitting.executor(**allowed, pools=settings.pools)
    starter.launch(launch)
    assert submitting.host.ended(120).reported, submitting.log(launch)
    (failed,) = [each for each in submitting.bodies(launch) if each["type"] == "RunReported"]
    first = failed["error"]["message"].splitlines()[0]
    assert first == f"{submitting.out}/load.sh ended with status 4: ERROR: no rows for 2013-01-01 with ***", failed
    assert failed["error"]["type"] == "CommandFailed"
    (submitting.out / "ok").touch()
    launch = submitting.launch(COMMANDS)
    starter.launch(launch)
    assert submitting.host.ended(120).reported, submitting.log(launch)
    assert submitting.fields(launch)[-2:] == ["RunReported succeeded", "AttemptEnded done"], submitting.log(launch)
    told = (submitting.out / "told").read_text()
    assert told == "[1]\n{day: 2013-01-01, key: hunter2-canary, run: {a: 1}}\n"
    assert not Path((submitting.out / "place").read_text().strip()).exists()
    shown = [
        submitting.log(launch, complete="***"),
        (submitting.out / "args").read_text(),
        str(submitting.bodies(launch)),
    ]
    assert [each for each in shown if "canary" in each] == []


HIDDEN = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")
p.submit(
    "script", "job.py", args=["{conf.out}", "--key={secret[KEY]}"], conf={"spark.hadoop.my.key": "{secret[KEY]}"},
    files=["rules-{interval.start:%Y-%m}.json#rules.json"], archives=["tools.zip#tools"], templates=["job.json"],
)
"""
FINDS = """
import json, os, psutil, sys
from pyspark import SparkFiles
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
def by_executor(_):
    return [open(SparkFiles.get("rules.json")).read(), open(SparkFiles.get("tools") + "/x").read()]
class Doubled:
    def __call__(self, n): return 2 * n
told = {
    "executor's": spark.sparkContext.parallelize([1], 1).map(by_executor).collect()[0],
    "own": [open("rules.json").read(), open("tools/x").read(), json.load(open("job.json"))],
    "pickled": spark.sparkContext.parallelize([1], 1).map(Doubled()).collect(),
    "argument": sys.argv[2] == "--key=hunter2 canary", "setting": spark.conf.get("spark.hadoop.my.key") == "hunter2 canary",
    "commands": [" ".join(each.cmdline()) for each in [psutil.Process(), *psutil.Process().parents()]],
}
print(sys.argv[2], spark.sparkContext.getConf().toDebugString())
open(sys.argv[1] + "/told.json", "w").write(json.dumps(told))
"""


@pytest.mark.long
def test_a_script_has_files_of_its_interval_and_a_secret_that_no_list_of_processes_shows(submitting: World) -> None:
    (submitting.out / "job.py").write_text(FINDS)
    (submitting.out / "rules-2013-01.json").write_text("[1]")
    (submitting.out / "job.json").write_text('{"days": {"first": "{interval.start:%F}"}}')
    with zipfile.ZipFile(submitting.out / "tools.zip", "w") as made:
        made.writestr("x", "unpacked")
    (submitting.out / "secret").write_text("hunter2 canary")
    launch = submitting.launch(HIDDEN)
    pools = Settings.model_validate(
        {"pools": {"default": {"env": {"KEY": {"file": str(submitting.out / "secret")}}}}}
    ).pools
    allowed = {"script_allow": [f"{submitting.out}/*"], "spark_conf_allow": ["spark.hadoop.my.key"]}
    submitting.executor(**allowed, pools=pools).launch(launch)
    assert submitting.host.ended(800).reported, submitting.log(launch)
    assert submitting.fields(launch)[-2:] == ["RunReported succeeded", "AttemptEnded done"], submitting.log(launch)
    told: dict[str, Any] = json.loads((submitting.out / "told.json").read_text())
    assert [command for command in told.pop("commands") if "canary" in command] == []
    assert told == {
        "executor's": ["[1]", "unpacked"],
        "own": ["[1]", "unpacked", {"days": {"first": "2013-01-01"}}],
        "pickled": [2],
        "argument": True,
        "setting": True,
    }
    assert "canary" not in submitting.log(launch, complete="--key=***")


JAR = """
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")
p.submit("version", "JAR", main_class="MAIN", args=["{interval.start:%F}"])
"""


@pytest.mark.parametrize("main", some(["VersionInfo", "None"], "VersionInfo"))
def test_the_class_of_a_jar_is_run(submitting: World, main: str) -> None:
    (jar,) = spark_jars().glob("hadoop-client-api-*.jar")
    launch = submitting.launch(JAR.replace("JAR", str(jar)).replace("MAIN", f"org.apache.hadoop.util.{main}"))
    submitting.executor(script_allow=[str(jar)]).launch(launch)
    assert submitting.host.ended(800).reported, submitting.log(launch)
    (ended,) = [each for each in submitting.bodies(launch) if each["type"] == "RunReported"]
    if main == "None":
        cause = "Error: Failed to load class org.apache.hadoop.util.None."
        assert ended["error"]["message"].splitlines()[0].endswith(cause), ended
    else:
        assert ended["state"] == "succeeded", submitting.log(launch)
        assert "Hadoop 3." in submitting.log(launch, complete="Hadoop 3.")
