"""``python -m benchmarks [NAME …]``: runs the named benchmarks, or all, and writes the results.

``make bench ONLY=NAME`` does the same.
"""

from __future__ import annotations

import signal
import sys
from importlib import import_module

from benchmarks.core import Benchmark, Figure
from benchmarks.report import OWN

# The last three first fill tables with millions of rows.
NAMES = (
    "accept",
    "start",
    "between",
    "replicas",
    "orchestrate",
    "spark",
    "tables",
    "deadline",
    "bus",
    "idle",
    "progress",
    "console",
    "growth",
    "recover",
    "size",
    "plan",
    "claims_scale",
    "history",
)


def main(names: list[str]) -> int:
    """Run the named benchmarks; each result is written as soon as it is available."""
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        sys.stderr.write(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(NAMES)}\n")
        return 2
    # On SIGTERM, exit normally so that the servers are stopped too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for name in names or NAMES:
        benchmark: Benchmark = import_module(f"benchmarks.{name}").BENCHMARK
        _say(f"{name}: {benchmark.what}")
        figures = benchmark.run()
        for each in figures:
            _say(_line(each))
        OWN.record(benchmark, figures)
    _say(f"written to {OWN.table}")
    return 0


def _line(each: Figure) -> str:
    met = {True: "aim met", False: "AIM NOT MET", None: ""}[each.met]
    return f"  {each.name}: {each.median:,.3g} {each.unit} ({min(each.values):,.3g} – {max(each.values):,.3g}) {met}"


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - progress output


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
