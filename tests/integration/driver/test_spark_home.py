"""A user's own installation of Spark, with a spark-defaults.conf and a spark-env.sh, on real drivers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.driver.world import World, submitting

from retrofill.spark.java import spark_jars

__all__ = ["submitting"]
pytestmark = pytest.mark.spark
DEFAULTS = """
# Only what nobody else says counts.
spark.master                     local[3]
spark.driver.memory              777m
spark.ui.enabled                 true
spark.ui.port                    0
spark.driver.extraJavaOptions    -Dof.defaults=yes
spark.sql.shuffle.partitions     7
spark.sql.session.timeZone       Asia/Tokyo
"""
ENVIRONMENT = """
FROM_SPARK_ENV=yes
"""
LOOK = """
import json, os, sys
def look(spark, file):
    context = spark.sparkContext
    java = context._jvm.java.lang
    told = {
        "heap": java.Runtime.getRuntime().maxMemory(),
        "property": java.System.getProperty("of.defaults"),
        "of.spark-env.sh": os.environ.get("FROM_SPARK_ENV"),
        "master": context.master,
        "ui": context.uiWebUrl is not None,
        "python": sys.executable,
        "executors'": context.pythonExec,
        "pyspark": __import__("pyspark").__file__,
    }
    told |= {name: spark.conf.get(name) for name in ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")}
    open(file, "w").write(json.dumps(told))
"""
CODE = f"""
{LOOK}
from retrofill import Pipeline
s = Pipeline("s", schedule="@daily", executor="spark-submit", spark_conf={{"spark.sql.session.timeZone": "UTC"}})
@s.task
def driver(run):
    look(run.spark, run.conf["out"] + "/driver.json")
s.submit("script", "job.py", args=["{{conf.out}}"], after="driver")
"""
SCRIPT = f"""
{LOOK}
from pyspark.sql import SparkSession
look(SparkSession.builder.getOrCreate(), sys.argv[1] + "/script.json")
"""


@pytest.fixture
def spark_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything of pyspark's Spark, and a configuration."""
    folder = tmp_path / "spark"
    (folder / "conf").mkdir(parents=True)
    for entry in spark_jars().parent.iterdir():
        (folder / entry.name).symlink_to(entry)
    (folder / "conf" / "spark-defaults.conf").write_text(DEFAULTS)
    (folder / "conf" / "spark-env.sh").write_text(ENVIRONMENT)
    monkeypatch.setenv("SPARK_HOME", str(folder))
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    return folder


@pytest.mark.long
def test_what_the_user_set_reaches_driver_and_scripts(submitting: World, spark_home: Path) -> None:
    (submitting.out / "job.py").write_text(SCRIPT)
    launch = submitting.launch(CODE)
    submitting.executor(script_allow=[str(submitting.out / "job.py")]).launch(launch)
    end = submitting.host.ended(800)
    assert end[:3] == (launch.attempt_id, launch.runs[0].id, True), submitting.log(launch)
    assert submitting.fields(launch)[-2:] == ["RunReported succeeded", "AttemptEnded done"], submitting.log(launch)
    for name in ("driver", "script"):
        told: dict[str, Any] = json.loads((submitting.out / f"{name}.json").read_text())
        # Not exactly -Xmx, depending on the collector. Spark's default is 1 GB.
        assert 600 * 2**20 < told["heap"] < 800 * 2**20, name
        assert (told["property"], told["of.spark-env.sh"], told["ui"]) == ("yes", "yes", True), name
        assert (told["master"], told["spark.sql.shuffle.partitions"]) == ("local[3]", "7"), name
        # The pipeline's own setting takes precedence.
        assert told["spark.sql.session.timeZone"] == "UTC", name
        assert told["pyspark"].startswith(str(spark_home)), name
