"""The dashboard uses exactly the metrics that services publish, and the checked-in file is what its
script generates.
"""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

from prometheus_client import REGISTRY

from retrofill_core.bus import metrics

FOLDER = Path(__file__).parents[2] / "deploy" / "grafana"
ROOT = Path(__file__).parents[2]
POLLED = re.compile(r'Polled\(\s*"(retrofill_\w+)"')


def known() -> set[str]:
    """The names of all time series: the module's metrics and the gauges that are read at scrape
    time.
    """
    found = set()
    for family in REGISTRY.collect():
        if family.name.startswith("retrofill_"):
            kinds = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
            found |= {family.name + ending for ending in kinds.get(family.type, [""])}
    for path in [*ROOT.glob("services/**/*.py"), *ROOT.glob("shared/**/*.py")]:
        found |= set(POLLED.findall(path.read_text()))
    return found


def test_the_file_is_what_the_script_makes() -> None:
    made = runpy.run_path(str(FOLDER / "make.py"))["text"]()
    assert (FOLDER / "dashboard.json").read_text() == made


def test_it_asks_for_what_there_is_and_shows_all_of_it() -> None:
    assert metrics.CALLBACKS is not None  # importing registers its counters
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    asked = {name for query in queries for name in re.findall(r"retrofill_\w+", query)}
    assert asked <= known()
    hidden = {re.sub(r"_(sum|count|bucket)$", "", name) for name in known() - asked}
    shown = {re.sub(r"_bucket$", "", name) for name in asked}
    # Metrics for detailed analysis are not on the dashboard.
    assert hidden - shown <= {
        "retrofill_look_duration_seconds",
        "retrofill_publish_duration_seconds",
        "retrofill_runs_planned_total",
        "retrofill_deadlines_armed_total",
    }
