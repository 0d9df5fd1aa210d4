"""One day of the demo without Retrofill: transform, check, and move the result into place.

Runs as one ``spark-submit`` per day: ``plain_day.py DATA DAY``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

FLIGHTS = Path(__file__).parents[2] / "examples" / "flights"


def plain_day(spark: Any, data: str, day: str) -> None:
    """Write the day's figures next to the published ones, check them, and swap the two."""
    sys.path[:0] = [str(FLIGHTS)] if str(FLIGHTS) not in sys.path else []
    from pipeline import check_day, delays_of_day, output  # type: ignore[import-not-found]  # a file of the example

    staged, published = Path(data, "staged", f"day={day}"), Path(output(data, day))
    delays_of_day(spark, data, day, to=str(staged))
    check_day(spark, data, day, written=str(staged))
    published.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(published, ignore_errors=True)
    staged.rename(published)


if __name__ == "__main__":
    from pyspark.sql import SparkSession

    session = SparkSession.builder.getOrCreate()
    plain_day(session, *sys.argv[1:])
    session.stop()
