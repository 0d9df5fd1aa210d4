"""Options of the Java processes that tests start, and the archive of Spark's classes that spares them most of their start.

A Spark server spends more CPU time on loading and verifying its classes than a test spends on queries. Java can map
classes that an earlier process has loaded (class data sharing). ``python -m tests.support.jvm`` starts one Spark server
to make that archive, once for a Java and a pyspark; ``make test`` does it beside lint and types.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from retrofill.spark import java
from retrofill_core.settings import Settings
from tests.support.spark_cluster import connect_process

# Java processes live for about a minute here. The optimizing JIT would only take CPU from the tests. Without it there is
# a fifth of the room for compiled code: Spark would fill that, and spend more than half of its time on making room in it
# and on compiling the same again.
COMPILER = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
# Other classpaths than Spark's (Kafka's, for example) cannot use the archive, and would say so.
QUIET = "-Xlog:cds*=off"
# Whatever most tests do first: its classes are in the archive.
TRAINING = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
spark.range(100).selectExpr("id", "id % 7 day", "string(id) note").write.partitionBy("day").parquet(sys.argv[2])
read = spark.read.parquet(sys.argv[2])
read.createOrReplaceTempView("days")
print(spark.sql("SELECT d.day, count(*) FROM days d JOIN days USING (id) GROUP BY d.day ORDER BY 1").collect())
"""


def options() -> str:
    """The value of ``JDK_JAVA_OPTIONS``; with the archive, if that was made."""
    archive = _archive()
    # Naming one that does not exist would also turn off the archive of Java's own classes.
    return f"{COMPILER} -XX:SharedArchiveFile={archive} {QUIET}" if archive and archive.exists() else COMPILER


def make() -> None:
    """Make the archive, unless it exists or another process makes it."""
    archive = _archive()
    if archive is None or archive.exists():
        return
    with (archive.parent / "archive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            draft = archive.with_suffix(".part")
            draft.unlink(missing_ok=True)
            _train(draft)
            draft.rename(archive)


def _train(draft: Path) -> None:
    os.environ["JDK_JAVA_OPTIONS"] = COMPILER
    with tempfile.TemporaryDirectory(prefix="retrofill-archive-") as home:
        conf = {"spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={draft} {QUIET}"}
        settings = Settings(home=Path(home), spark_cores=2, spark_conf=conf)
        with connect_process(settings, java.find(settings)) as (remote, process):
            subprocess.run([sys.executable, "-c", TRAINING, remote, f"{home}/days"], check=True, capture_output=True)
            # It writes the archive as it ends.
            process.terminate()
            process.wait(300)


def _archive() -> Path | None:
    """Where the archive is; ``None`` where Spark cannot run."""
    settings = Settings()
    try:
        found, jars = java.find(settings), java.spark_jars()
    except (java.NoJava, ModuleNotFoundError):
        return None
    # Java checks that the jars are the same; a name of its own avoids one that is never used. It goes with the environment.
    release = (found.resolve().parent.parent / "release").read_text()
    of = hashlib.sha256(f"{release}{jars}{jars.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    return Path(sys.prefix, f"spark-classes-{of}.jsa")


if __name__ == "__main__":
    make()
