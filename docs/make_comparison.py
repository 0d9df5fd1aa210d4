"""Computes the table in the README from the benchmarks' results: ``python docs/make_comparison.py``."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

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
    spark, airflow = Figures(RESULTS, "spark"), Figures(PEERS, "airflow")
    loop = spark(r"a day of \d+ in a plain loop.*")
    rows = [
        ("1,096 daily runs planned", *_beside(airflow, "1,096 runs there", "s")),
        ("from the request to the first running run", *_beside(airflow, "first run runs", "s")),
        ("runs that do nothing, one at a time", *_beside(airflow, "trivial runs", "runs/s")),
        (
            f"time per day, backfill of {spark.what.partition(' ')[0]} days of flights, in ranges",
            f"{spark(r'a day of .*, in ranges'):.3f} s",
            f"plain Spark loop: {loop:.3f} s; one job for all: {spark(r'a day of .* in one job'):.3f} s",
        ),
        (
            "the same in batches; one run at a time",
            f"{spark(r'a day of .*, in batches.*'):.2f} s; {spark(r'a day of .*, one by one'):.2f} s",
            f"plain Spark loop: {loop:.2f} s",
        ),
        ("the same, one spark-submit per day", "", f"{spark('a day by spark-submit.*'):.1f} s"),
    ]
    lines = ["| | Retrofill | compared with |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows)]
    return (
        "\n".join(lines)
        + f"\n\nMeasured side by side on {spark.cores} cores shared by all processes, with the same parallelism"
        " ([all results, with the targets that are missed](benchmarks/RESULTS.md),\n"
        "[compared with Airflow](benchmarks/peers/RESULTS.md)).\n"
    )


class Figures:
    """The medians of a benchmark."""

    def __init__(self, results: Path, name: str) -> None:
        found = json.loads(results.read_text("utf-8"))[name]
        self.what, self.cores = str(found["what"]), str(found["machine"]["cores"])
        self._medians = {each["name"]: statistics.median(each["values"]) for each in found["figures"]}

    def __call__(self, pattern: str) -> float:
        """That of the one figure with such a name. Raises ``ValueError`` if there is none, or another one."""
        (found,) = [value for name, value in self._medians.items() if re.fullmatch(pattern, name)]
        return found


def _beside(airflow: Figures, what: str, unit: str) -> tuple[str, str]:
    return f"{airflow(f'{what}: Retrofill'):.3g} {unit}", f"Airflow: {airflow(f'{what}: Airflow'):.3g} {unit}"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
