"""Computes the table in the README from the benchmarks' results: ``python docs/make_comparison.py``."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results.json"
PEERS = ROOT / "benchmarks" / "peers" / "results.json"
BEGIN, END = "<!-- comparison -->\n", "<!-- end of comparison -->\n"


def page() -> str:
    """The README with its table made anew."""
    text = PAGE.read_text("utf-8")
    return re.sub(f"{BEGIN}.*?{END}", lambda _: f"{BEGIN}{table()}{END}", text, flags=re.DOTALL)


def table() -> str:
    """The table, and where its figures are from."""
    spark, airflow = _benchmark(RESULTS, "spark"), _benchmark(PEERS, "airflow")
    days, single, batches, loop = _days(spark)
    of = _medians(spark)
    rows = [
        ("1,096 daily runs planned", *_airflow(airflow, "1,096 runs there", "s")),
        ("from the request until the first run runs", *_airflow(airflow, "first run runs", "s")),
        ("runs that do nothing, one by one", *_airflow(airflow, "trivial runs", "runs/s")),
        (
            f"a day of {days} days of flights, in ranges",
            f"{of[f'a day of {days}, in ranges']:.3f} s",
            f"plain Spark loop: {of[loop]:.3f} s; one job for all: {of[f'a day of {days} in one job']:.3f} s",
        ),
        (
            "the same in batches, and one by one",
            f"{of[batches]:.2f} s, {of[single]:.2f} s",
            f"plain Spark loop: {of[loop]:.2f} s",
        ),
        ("the same by a spark-submit each", "", f"{of[next(name for name in of if 'by spark-submit' in name)]:.1f} s"),
    ]
    lines = ["| | Retrofill | beside it |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return (
        "\n".join(lines) + "\n\nMeasured side by side on 2 cores that everything shares, with the same parallelism"
        " ([all figures, and the aims that are missed](benchmarks/RESULTS.md),\n[beside Airflow](benchmarks/peers/RESULTS.md)).\n"
    )


def _benchmark(results: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(results.read_text("utf-8"))[name]
    return found


def _medians(benchmark: dict[str, Any]) -> dict[str, float]:
    return {each["name"]: statistics.median(each["values"]) for each in benchmark["figures"]}


def _days(spark: dict[str, Any]) -> tuple[str, str, str, str]:
    """How many there were, and the names of the figures of single runs, batches and the loop."""
    names = [each["name"] for each in spark["figures"]]
    ((days,),) = [re.findall(r"^a day of (\d+), in ranges$", name) for name in names if name.endswith(", in ranges")]
    batches, loop = (
        next(n for n in names if n.startswith(f"a day of {days}{how}")) for how in (", in batches", " in a plain")
    )
    return days, f"a day of {days}, one by one", batches, loop


def _airflow(airflow: dict[str, Any], what: str, unit: str) -> tuple[str, str]:
    of = _medians(airflow)
    return f"{of[f'{what}: Retrofill']:.3g} {unit}", f"Airflow: {of[f'{what}: Airflow']:.3g} {unit}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
