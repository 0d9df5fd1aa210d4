"""Writes a folder's ``results.json`` and ``RESULTS.md``, with a plot of figures against limits."""

from __future__ import annotations

import json
import os
import platform
import timeit
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from tests.support.git import git

from benchmarks.core import Benchmark, Figure
from benchmarks.plot import bars
from retrofill_tools.stack import kafka

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Pages:
    """Where results are stored and shown. ``command`` is the command that measures them."""

    folder: Path
    command: str

    @property
    def table(self) -> Path:
        """The page for people."""
        return self.folder / "RESULTS.md"

    @property
    def plot(self) -> Path:
        """The plot on that page."""
        return self.folder / "results.svg"

    @property
    def values(self) -> Path:
        """The same data for programs."""
        return self.folder / "results.json"

    def record(self, benchmark: Benchmark, figures: Sequence[Figure]) -> None:
        """Replace the result of one benchmark and rewrite the pages."""
        known: dict[str, Any] = json.loads(self.values.read_text()) if self.values.exists() else {}
        known[benchmark.name] = {
            "what": benchmark.what,
            "against": benchmark.against,
            "aim": benchmark.aim,
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "figures": [asdict(each) for each in figures],
        }
        self.values.write_text(json.dumps(known, indent=1) + "\n")
        write_pages(self, known)


OWN = Pages(FOLDER, "`make bench` (`make bench ONLY=accept`: one of them)")


def machine() -> dict[str, str]:
    """The machine of the measurement."""
    return {
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        # Cores of shared machines are not equally fast every day.
        "speed": f"{min(timeit.repeat('n += 1', 'n = 0', repeat=3, number=10_000_000)):.2f} s for 10 million additions",
        "Python": platform.python_version(),
        "Postgres": "18 (embedded)",
        "Kafka": kafka.VERSION,
        "Spark": version("pyspark-client") if _installed("pyspark-client") else version("pyspark"),
    }


def commit() -> str:
    """The measured commit, with a ``+`` if the code has uncommitted changes."""
    changed = git("status", "--porcelain", "--", "*.py", "*.sql", "requirements.lock")
    return git("rev-parse", "--short=10", "HEAD") + ("+" if changed else "")


def _installed(name: str) -> bool:
    try:
        version(name)
    except ModuleNotFoundError:
        return False
    return True


def write_pages(pages: Pages, known: Mapping[str, Any]) -> None:
    """Write the table and the plot of all known results."""
    lines = [
        "# Results",
        "",
        f"Made by {pages.command}. Median of the repeats, and their range; the load",
        "average is the machine's when the figure was taken: it is shared, so what is measured beside a peer in the same",
        "run says more than a time alone.",
        "",
        "![How far each figure is from its aim](results.svg)",
    ]
    plotted = []
    for name, result in known.items():
        figures = [Figure(**{**each, "values": tuple(each["values"])}) for each in result["figures"]]
        plotted += [(f"{name}: {each.name}", each) for each in figures if each.limit is not None]
        lines += [
            "",
            f"## {name}",
            f"{_sentence(result['what'])} Against {result['against']}. **Aim:** {result['aim']}.",
            "",
            "| figure | aim | median | range | load | met |",
            "|---|---|---|---|---|---|",
            *(_row(each) for each in figures),
            "",
            f"Measured {result['measured_at']}{_of_commit(result)} on "
            + ", ".join(f"{k} {v}" for k, v in result["machine"].items())
            + ".",
        ]
    pages.table.write_text("\n".join(lines) + "\n")
    pages.plot.write_text(bars(plotted))


def _of_commit(result: Mapping[str, Any]) -> str:
    return f" at {result['commit']}" if result.get("commit") else ""


def _row(each: Figure) -> str:
    sign = "≥" if each.at_least else "≤"
    aim = "" if each.limit is None else f"{sign} {_number(each.limit)} {each.unit}"
    met = {True: "yes", False: "**missed**", None: ""}[each.met]
    spread = f"{_number(min(each.values))} – {_number(max(each.values))} ({len(each.values)})"
    return f"| {each.name} | {aim} | {_number(each.median)} {each.unit} | {spread} | {each.load:.1f} | {met} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
