"""A real Spark Connect server for the driver tests, started once per session."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.spark_cluster import connect_process

from retrofill.spark import java
from retrofill_core.settings import Settings

# Close silent sessions soon enough for a test to observe it.
SESSION_SECONDS = 8
CONF = {
    "spark.connect.session.manager.defaultSessionTimeout": f"{SESSION_SECONDS}s",
    "spark.connect.session.manager.maintenanceInterval": "500ms",
}


@pytest.fixture(scope="session")
def spark_remote() -> Iterator[str]:
    """The address of the server."""
    with tempfile.TemporaryDirectory(prefix="retrofill-spark-") as home:
        settings = Settings(home=Path(home), spark_cores=2, spark_conf=CONF)
        with connect_process(settings, java.find(settings)) as (remote, _):
            yield remote
