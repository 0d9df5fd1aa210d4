"""Days of the demo without Retrofill: transform, check, and move the result into place.

Runs as one ``spark-submit`` per day: ``plain_days.py DATA DAY …``.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FLIGHTS = Path(__file__).parents[2] / "examples" / "flights"


def plain_days(spark: Any, data: str, days: Sequence[str]) -> None:
    """Write the days' figures next to the published ones, check them, and swap the two."""
    sys.path[:0] = [str(FLIGHTS)] if str(FLIGHTS) not in sys.path else []
    from pipeline import check_days, delays_of_days, write_days  # type: ignore[import-not-found]  # a file of the example

    staged = Path(data, "staged", days[0])
    write_days(delays_of_days(spark, data, days), to=str(staged))
    check_days(spark, data, days, spark.read.parquet(str(staged)))
    for day in days:
        published = Path(data, "delays", f"day={day}")
        published.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(published, ignore_errors=True)
        (staged / f"day={day}").rename(published)


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    plain_days(session, sys.argv[1], sys.argv[2:])
    session.stop()
