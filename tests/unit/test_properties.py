"""Java's properties files: what Retrofill writes for Spark, and what it reads of Spark's."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from retrofill.spark.home import read_properties
from retrofill.spark.java import write_properties

DEFAULTS = r"""
# Default system properties
! another comment
spark.master                     yarn
spark.eventLog.enabled=true
  spark.eventLog.dir : hdfs://namenode:8021/directory
spark.driver.memory 5g
spark.executor.extraJavaOptions  -XX:+PrintGCDetails -Dkey=value -Dnumbers="one two three"
spark.jars /a.jar,\
           /b.jar
spark.sql.path C:\\data\u00e9
spark.with\=sign x
spark.empty
spark.driver.memory 6g
"""


def test_spark_defaults_as_java_reads_them() -> None:
    assert read_properties(DEFAULTS) == {
        "spark.master": "yarn",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": "hdfs://namenode:8021/directory",
        "spark.executor.extraJavaOptions": '-XX:+PrintGCDetails -Dkey=value -Dnumbers="one two three"',
        "spark.jars": "/a.jar,/b.jar",
        "spark.sql.path": "C:\\dataé",
        "spark.with=sign": "x",
        "spark.empty": "",
        "spark.driver.memory": "6g",
    }


# No lone surrogates: files are UTF-8. Names are never empty.
TEXT = st.text(st.characters(blacklist_categories=["Cs"]))


@given(st.dictionaries(TEXT.filter(bool), TEXT))
def test_what_is_written_is_read(conf: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spark.properties"
        write_properties(file, conf)
        assert read_properties(file.read_text("utf-8")) == conf
