"""``python -m benchmarks.peers FOLDER``: compares Retrofill with the Airflow in ``FOLDER``."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.core import Benchmark, Figure, figure, ratios
from benchmarks.peers import theirs
from benchmarks.peers.airflow import DEADLINE_SECONDS, Airflow, running
from benchmarks.peers.ours import Retrofill, stack
from benchmarks.report import Pages

RUNS = 1096
REPEATS = 3
LATE = 10
TRIVIAL = {"ours": 1096, "theirs": 100}
HERE = Path(__file__).parent
PAGES = Pages(HERE, "`make bench-peers`")


def main(arguments: list[str]) -> int:
    """Measure, and write the results page."""
    (folder,) = arguments
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    figures = measured(Path(folder) / "bin")
    for each in figures:
        print(f"  {each.name}: {each.median:,.3g} {each.unit}", flush=True)  # noqa: T201 - progress output
    PAGES.record(
        Benchmark(
            "airflow",
            f"a backfill of {RUNS:,} daily runs asked for until all of its runs are there; a backfill of one day until "
            "its task runs; runs/s of a task that does nothing; a deadline's moment until its callback is called, the "
            f"last of {LATE} at once",
            "Apache Airflow on the same Postgres, LocalExecutor with as many tasks at once as Retrofill has drivers, "
            f"asked by its API; of runs/s it runs {TRIVIAL['theirs']}, Retrofill {TRIVIAL['ours']:,}",
            "ahead in each",
            lambda: figures,
        ),
        figures,
    )
    return 0


def measured(binaries: Path) -> Sequence[Figure]:
    """Start both systems and measure them alternately."""
    with (
        tempfile.TemporaryDirectory(prefix="retrofill-peers-") as folder,
        stack(Path(folder), DEADLINE_SECONDS) as ours,
        running(
            binaries, Path(folder) / "airflow", ours.settings.dsn_of("owner"), ours.settings.driver_slots
        ) as airflow,
    ):
        return compared(ours, airflow)


def compared(ours: Retrofill, airflow: Airflow) -> Sequence[Figure]:
    """Measure each figure; speedups are computed per repeat."""
    ours.first_run()  # warm up the connections
    theirs.first_run(airflow, 0)
    figures: list[Figure] = []

    def beside(what: str, unit: str, a: Sequence[float], b: Sequence[float], *, more_is_better: bool = False) -> None:
        times = ratios(a, b) if more_is_better else ratios(b, a)
        figures.extend(
            [
                figure(f"{what}: Retrofill", unit, a),
                figure(f"{what}: Airflow", unit, b),
                figure(f"{what}: times ahead", "x", times, at_least=1.0),
            ]
        )

    pairs = [(ours.accept(RUNS, n), theirs.accept(airflow, RUNS, n)) for n in range(REPEATS)]
    beside(f"{RUNS:,} runs there", "s", [a for a, _ in pairs], [b for _, b in pairs])
    pairs = [(ours.first_run(), theirs.first_run(airflow, n + 1)) for n in range(REPEATS)]
    beside("first run runs", "s", [a for a, _ in pairs], [b for _, b in pairs])
    pairs = [
        (ours.runs_a_second(TRIVIAL["ours"], n), theirs.runs_a_second(airflow, TRIVIAL["theirs"], n))
        for n in range(REPEATS)
    ]
    beside("trivial runs", "runs/s", [a for a, _ in pairs], [b for _, b in pairs], more_is_better=True)
    pairs = [(max(ours.deadlines(LATE, n)), max(theirs.deadlines(airflow, LATE))) for n in range(REPEATS)]
    beside("the last callback after its deadline", "s", [a for a, _ in pairs], [b for _, b in pairs])
    return figures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
