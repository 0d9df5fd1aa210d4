"""The session of a process that spark-submit started."""

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

def lost(why, shared):
    print("lost:", why, shared)
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


ADDS = """
import sys, zipfile
from dataclasses import replace
from tests.unit.driver.test_driver_submit import launch

from retrofill.driver.classic_session import ClassicSession
from retrofill.driver.session_state import CannotClear

made = launch()
sessions = ClassicSession(replace(made, runs=made.runs * 2))
sessions.open()
for kind in ("file", "jar", "archive"):
    path = f"{sys.argv[1]}/{kind}.zip"
    zipfile.ZipFile(path, "w").close()
    sessions.open()
    sessions.clear()
    sessions.use("t").sql(f"ADD {kind} {path}")
    try:
        sessions.clear()
    except CannotClear:
        print(kind, end=" ")
"""


@pytest.mark.long
def test_an_accepted_table_whose_session_the_user_stopped_is_for_another_attempt_to_publish(tmp_path: Path) -> None:
    assert said(PROGRAM, tmp_path) == "lost: Spark lost the session: a task stopped it False\n"


@pytest.mark.long
def test_a_run_does_not_get_the_session_to_which_another_added_files(tmp_path: Path) -> None:
    assert said(ADDS, tmp_path) == "file jar archive "


def said(program: str, folder: Path) -> str:
    """What a program with a session of its own prints."""
    home = java.java_home(java.find(Settings(home=folder)), folder)
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": str(home)}
    options = "--master local[1] --conf spark.ui.enabled=false pyspark-shell"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env={**environment, "PYSPARK_SUBMIT_ARGS": options},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
