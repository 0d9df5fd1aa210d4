"""Generate ``dashboard.json`` beside this file: ``python deploy/grafana/make.py`` (a test compares them)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PANEL = {"w": 8, "h": 7}
COLUMNS = 3

# title, unit, (legend, PromQL) …
Panel = tuple[str, str, list[tuple[str, str]]]
ROWS: list[tuple[str, list[Panel]]] = [
    (
        "Backfills and runs",
        [
            ("Unfinished runs", "short", [("{{state}}", "max by (state) (retrofill_runs)")]),
            (
                "Runs ended",
                "ops",
                [("{{state}}", "sum by (state) (rate(retrofill_runs_ended_total[$__rate_interval]))")],
            ),
            ("Runs claimed", "ops", [("claimed", "sum(rate(retrofill_runs_claimed_total[$__rate_interval]))")]),
            ("Drivers", "short", [("{{state}}", "sum by (state) (retrofill_drivers)")]),
            (
                "Attempts lost with their Spark server",
                "short",
                [("{{pool}}", "sum by (pool) (increase(retrofill_spark_lost_total[1m]))")],
            ),
            (
                "Requests",
                "ops",
                [("{{answer}}", "sum by (answer) (rate(retrofill_backfill_requests_total[$__rate_interval]))")],
            ),
            (
                "Checks that started nothing",
                "ops",
                [("{{reason}}", "sum by (reason) (rate(retrofill_claims_put_off_total[$__rate_interval]))")],
            ),
        ],
    ),
    (
        "The bus",
        [
            ("Lag", "short", [("{{job}} {{topic}}", "sum by (job, topic) (retrofill_lag_messages)")]),
            ("Shards", "short", [("{{job}} {{state}}", "sum by (job, state) (retrofill_shards)")]),
            (
                "Oldest unpublished event",
                "s",
                [("{{service}}", "max by (service) (retrofill_outbox_oldest_age_seconds)")],
            ),
            (
                "Unpublished events",
                "short",
                [
                    ("{{service}}", "max by (service) (retrofill_outbox_events)"),
                    ("{{service}}, refused dead letters", "max by (service) (retrofill_outbox_refused_events)"),
                ],
            ),
            (
                "Messages handled",
                "ops",
                [("{{topic}}", "sum by (topic) (rate(retrofill_messages_total[$__rate_interval]))")],
            ),
            (
                "Batch, 99th percentile",
                "s",
                [
                    (
                        "{{job}}",
                        "histogram_quantile(0.99, sum by (job, le) "
                        "(rate(retrofill_batch_duration_seconds_bucket[$__rate_interval])))",
                    )
                ],
            ),
            (
                "Fences, takeovers and retries",
                "ops",
                [
                    ("fences of {{of}}", "sum by (of) (rate(retrofill_fences_total[$__rate_interval]))"),
                    ("takeovers of {{of}}", "sum by (of) (rate(retrofill_takeovers_total[$__rate_interval]))"),
                    ("{{of}} {{fault}}", "sum by (of, fault) (rate(retrofill_retries_total[$__rate_interval]))"),
                ],
            ),
            ("Dead letters", "short", [("{{topic}}", "sum by (topic) (increase(retrofill_dead_letters_total[1h]))")]),
            ("Late reports", "ops", [("ignored", "sum(rate(retrofill_reports_ignored_total[$__rate_interval]))")]),
            (
                "Events published",
                "ops",
                [("{{job}}", "sum by (job) (rate(retrofill_events_published_total[$__rate_interval]))")],
            ),
        ],
    ),
    (
        "Deadlines and callbacks",
        [
            ("Waiting deadlines", "short", [("{{state}}", "max by (state) (retrofill_deadlines)")]),
            (
                "Decided",
                "ops",
                [("{{state}}", "sum by (state) (rate(retrofill_deadlines_decided_total[$__rate_interval]))")],
            ),
            (
                "Detection delay",
                "s",
                [
                    (
                        f"p{q}",
                        f"histogram_quantile(0.{q}, sum by (le) "
                        "(rate(retrofill_deadline_detection_delay_seconds_bucket[$__rate_interval])))",
                    )
                    for q in (50, 99)
                ],
            ),
            (
                "Callbacks",
                "ops",
                [
                    (
                        "{{kind}} {{outcome}}",
                        "sum by (kind, outcome) (rate(retrofill_callbacks_total[$__rate_interval]))",
                    )
                ],
            ),
            (
                "Calls, 99th percentile",
                "s",
                [
                    (
                        "{{kind}}",
                        "histogram_quantile(0.99, sum by (kind, le) "
                        "(rate(retrofill_callback_duration_seconds_bucket[$__rate_interval])))",
                    )
                ],
            ),
            (
                "Recovered deadlines",
                "ops",
                [("recovered", "sum(rate(retrofill_deadlines_recovered_total[$__rate_interval]))")],
            ),
        ],
    ),
]


def dashboard() -> dict[str, Any]:
    """The dashboard in Grafana's import format."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}, "panels": []})
        top += 1
        for n, (name, unit, queries) in enumerate(row):
            place = {"x": n % COLUMNS * PANEL["w"], "y": top + n // COLUMNS * PANEL["h"], **PANEL}
            panels.append(_panel(name, unit, queries, place))
        top += (len(row) + COLUMNS - 1) // COLUMNS * PANEL["h"]
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "title": "Retrofill",
        "uid": "retrofill",
        "schemaVersion": 41,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "tags": ["retrofill"],
        "templating": {
            "list": [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]
        },
        "panels": panels,
    }


def _panel(title: str, unit: str, queries: list[tuple[str, str]], place: dict[str, int]) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${datasource}"}
    return {
        "type": "timeseries",
        "title": title,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + n), "datasource": source, "expr": expr, "legendFormat": legend}
            for n, (legend, expr) in enumerate(queries)
        ],
    }


def text() -> str:
    """The content of ``dashboard.json``."""
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("dashboard.json").write_text(text())
