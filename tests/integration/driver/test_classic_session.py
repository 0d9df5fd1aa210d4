"""Publications of tables in the session of a process that spark-submit started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrofill.spark import java
from retrofill_core.settings import Settings

pytestmark = pytest.mark.spark
# In a process of its own, because one has only one context.
PROGRAM = """
from tests.unit.driver.test_driver_loss import raised
from tests.unit.driver.test_driver_submit import launch

from retrofill.driver.classic_session import ClassicSession
from retrofill.outputs import patience
from retrofill.outputs.tables import publication
from retrofill.outputs.tables.group import Group, Member
from retrofill.protocol.table_output import TableOutput

patience.SECONDS = 0.0
made = launch()
sessions = ClassicSession(made)
sessions.open()
session = sessions.use("t")
assert sessions.publisher().range(3).count() == 3
table = TableOutput("t", "staged", "day", "date", "iceberg")

def lost(why):
    print("lost:", why)
    raise SystemExit

def publish():
    group = Group(made, 25, (Member(made.runs[0], table),))
    tables.publish(publication.TablePublication(group, lambda _: True, {made.runs[0].id}), again=False)

tables = publication.Tables(made, sessions, lambda _: True, lost)
error = raised(publish)
assert sessions.lost(error) is None, "as long as it is not stopped"
session.stop()
assert sessions.lost(raised(lambda: session.range(1).count())) is None, "of a task, it is the user's"
publish()
"""


def test_an_accepted_table_whose_session_the_user_stopped_is_for_another_attempt_to_publish(tmp_path: Path) -> None:
    home = java.java_home(java.find(Settings(home=tmp_path)), tmp_path)
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": str(home)}
    options = "--master local[1] --conf spark.ui.enabled=false pyspark-shell"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, "PYSPARK_SUBMIT_ARGS": options},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "lost: Spark lost the session: a task stopped it\n"), done.stderr
