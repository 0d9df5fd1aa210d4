"""Tasks that exceed their timeout, in real drivers on a real Spark Connect server."""

from __future__ import annotations

import pytest
from tests.integration.driver.world import World, world
from tests.support.installation import until

__all__ = ["world"]
pytestmark = pytest.mark.spark
CODE = """
import pathlib, time
from pyspark.sql.functions import udf
from retrofill import Pipeline

p = Pipeline("p", schedule="@daily", retries=1, retry_delay=0.1)

# Time enough for Spark's first Python worker to be at it.
@p.task(timeout=30)
def work(run):
    out = pathlib.Path(run.conf["out"])
    if (out / "once").exists():
        (out / "again").write_text(str(run.spark.range(3).count()))
        return
    (out / "once").touch()
    @udf("int")
    def tick(_):
        while True:
            (out / "beat").write_text(str(time.monotonic()))
            time.sleep(0.05)
    run.spark.range(1).select(tick("id")).collect()
"""


@pytest.mark.long
def test_a_spark_job_that_hangs_is_interrupted_and_tried_again_in_the_same_driver(world: World) -> None:
    launch = world.launch(CODE)
    world.executor().launch(launch)
    assert world.host.ended()[:3] == (launch.attempt_id, launch.runs[0].id, True)
    assert world.fields(launch) == [
        "RunBegan",
        "TaskReported work running",
        "TaskReported work retrying",
        "TaskReported work running",
        "TaskReported work succeeded",
        "RunReported succeeded",
        "AttemptEnded done",
    ]
    assert (world.out / "again").read_text() == "3"
    until(lambda: not world.beats(), "its work on Spark has ended")
