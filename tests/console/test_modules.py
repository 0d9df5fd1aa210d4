"""The front end's pure modules, run in the browser: where cells are, what requests say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page

from retrofill.protocol.table_output import TableOutput

ARRANGE = """async ([starts, zone]) => {
    const { arrange } = await import('/static/grid/layout.js');
    const { kind, rows, columns, column, row, half, rowLabels, columnLabels } = arrange(starts, zone);
    return { kind, rows, columns, column: [...column], row: [...row], half: [...half], rowLabels, columnLabels };
}"""


def starts(first: datetime, count: int, step: timedelta) -> list[int]:
    return [int((first + n * step).timestamp()) for n in range(count)]


def local_days(first: datetime, count: int, zone: str) -> list[int]:
    """Midnights of a zone, which are not always 24 hours apart."""
    there = [
        datetime(first.year, first.month, first.day, tzinfo=ZoneInfo(zone)) + timedelta(days=n) for n in range(count)
    ]
    return [int(each.timestamp()) for each in there]


def test_days_are_weeks_in_columns(files: Page) -> None:
    found = files.evaluate(ARRANGE, [local_days(datetime(2013, 1, 1), 365, "America/New_York"), "America/New_York"])
    assert (found["kind"], found["rows"], found["columns"]) == ("weeks", 7, 53)
    assert (found["column"][0], found["row"][0]) == (0, 1), "2013 began on a Tuesday"
    for n in range(365):
        assert found["row"][n] == (1 + n) % 7
        assert found["column"][n] == (1 + n) // 7
    months = [label["text"] for label in found["columnLabels"]]
    assert months[0] == "Jan 2013" and months[-1] == "Dec" and len(months) == 12


def test_hours_are_days_in_columns_and_the_repeated_hour_is_halved(files: Page) -> None:
    zone = "Europe/Berlin"
    first = datetime(2024, 10, 26, tzinfo=ZoneInfo(zone)).astimezone(UTC)
    found = files.evaluate(ARRANGE, [starts(first, 24 + 25 + 24, timedelta(hours=1)), zone])
    assert (found["kind"], found["rows"], found["columns"]) == ("days", 24, 3)
    halves = [n for n, half in enumerate(found["half"]) if half]
    assert halves == [26, 27], "two o'clock, twice"
    assert [found["row"][n] for n in halves] == [2, 2]
    assert found["row"][24:49] == [0, 1, 2, 2, *range(3, 24)]


def test_minutes_are_hours_in_columns(files: Page) -> None:
    found = files.evaluate(ARRANGE, [starts(datetime(2024, 1, 1, tzinfo=UTC), 240, timedelta(minutes=1)), "UTC"])
    assert (found["kind"], found["rows"], found["columns"]) == ("hours", 60, 4)
    assert found["column"] == [n // 60 for n in range(240)] and found["row"] == [n % 60 for n in range(240)]


def test_rare_intervals_have_a_row_a_year(files: Page) -> None:
    months = [int(datetime(2020 + n // 12, n % 12 + 1, 1, tzinfo=UTC).timestamp()) for n in range(30)]
    found = files.evaluate(ARRANGE, [months, "UTC"])
    assert (found["kind"], found["rows"], found["columns"]) == ("years", 3, 12)
    assert [label["text"] for label in found["rowLabels"]] == ["2020", "2021", "2022"]


@pytest.mark.parametrize(
    "zone", ["UTC", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Asia/Kathmandu"]
)
def test_local_time_is_the_zones(files: Page, zone: str) -> None:
    """Casablanca's clocks change twice within six weeks; Lord Howe's by half an hour."""
    moments = starts(datetime(2022, 1, 1, tzinfo=UTC), 3000, timedelta(hours=5, minutes=17))
    found = files.evaluate(
        """async ([moments, zone]) => {
            const { localClock } = await import('/static/grid/zone.js');
            return moments.map(localClock(zone, moments[0], moments[moments.length - 1]));
        }""",
        [moments, zone],
    )
    offsets = [datetime.fromtimestamp(at, ZoneInfo(zone)).utcoffset() for at in moments]
    assert found == [
        at + offset.total_seconds() for at, offset in zip(moments, offsets, strict=True) if offset is not None
    ]


def test_keys_reach_every_interval(files: Page) -> None:
    found = files.evaluate(
        """async (starts) => {
            const { arrange, neighbor } = await import('/static/grid/layout.js');
            const layout = arrange(starts, 'UTC');
            const down = [0];
            while (down.length < starts.length) down.push(neighbor(layout, down[down.length - 1], 'down'));
            const to = (index, direction) => neighbor(layout, index, direction);
            return { down, right: to(3, 'right'), left: to(3, 'left'), end: to(starts.length - 1, 'down') };
        }""",
        local_days(datetime(2024, 1, 1), 60, "UTC"),
    )
    assert found == {"down": list(range(60)), "right": 10, "left": 3, "end": 59}


def test_events_change_the_grid_in_place(files: Page) -> None:
    found = files.evaluate(
        """async () => {
            const { GridData } = await import('/static/grid/data.js');
            const letters = { q: 'queued', r: 'running', s: 'succeeded', '-': 'already exists' };
            const none = () => [0, 0, 0];
            const sent = { starts: [0, 1, 2], end: 3, states: 'q-q', letters, runs: [7, 0, 9], attempts: none(), batches: none() };
            const data = new GridData({ ...sent, timezone: 'UTC' });
            const changed = data.apply({ type: 'RunStarted', run_id: 9, run_state: 'running', attempt: 2, attempt_id: 5 });
            const other = data.apply({ type: 'RunStarted', run_id: 8, run_state: 'running' });
            const task = data.apply({ type: 'TaskStateChanged', run_id: 7, state: 'succeeded' });
            const run = { attempt: data.attempts[2], batch: data.batches[2], end: data.endOf(2) };
            return { changed, other, task, counts: data.counts(), ...run };
        }"""
    )
    assert found == {
        "changed": True,
        "other": False,
        "task": False,
        "attempt": 2,
        "batch": 5,
        "end": 3,
        "counts": {"queued": 1, "already exists": 1, "running": 1},
    }


@pytest.mark.parametrize(
    ("typed", "body", "error"),
    [
        ({"from": "2024-01-01"}, None, "Choose the first and the last logical date."),
        ({"from": "2024-01-01", "to": " 2024-01-02 "}, {"from": "2024-01-01", "to": "2024-01-02"}, None),
        (
            {
                "from": "a",
                "to": "b",
                "max_active_runs": "3",
                "run_backwards": True,
                "conf": '{"out": "/x"}',
                "budget_failed_runs": "2",
            },
            {
                "from": "a",
                "to": "b",
                "max_active_runs": 3,
                "run_backwards": True,
                "conf": {"out": "/x"},
                "budget": {"failed_runs": 2},
            },
            None,
        ),
        ({"from": "a", "to": "b", "conf": "[1]"}, None, 'Conf must be a JSON object like {"key": 1}.'),
    ],
)
def test_the_form_says_only_what_is_not_default(
    files: Page, typed: dict[str, Any], body: dict[str, Any] | None, error: str | None
) -> None:
    found = files.evaluate(
        """async (typed) => {
            const { EMPTY, requestOf } = await import('/static/pages/request.js');
            return requestOf({ ...EMPTY, pipeline: 'p', ...typed });
        }""",
        typed,
    )
    assert found == {"body": body and {"pipeline": "p", **body}, "error": error}


def test_tasks_are_right_of_what_they_come_after(files: Page) -> None:
    graph = [
        {"name": "d", "after": ["b", "c"]},
        {"name": "a", "after": []},
        {"name": "b", "after": ["a"]},
        {"name": "c", "after": ["b"]},
    ]
    found = files.evaluate(
        "async (graph) => { const { layers } = await import('/static/pages/graph.js'); return Object.fromEntries(layers(graph)); }",
        graph,
    )
    assert {name: place["column"] for name, place in found.items()} == {"a": 0, "b": 1, "c": 2, "d": 3}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.42, "420 ms"),
        (2.34, "2.3 s"),
        (42, "42 s"),
        (60, "1 min"),
        (250, "4 min 10 s"),
        (11520, "3 h 12 min"),
        (187200, "2 d 4 h"),
    ],
)
def test_durations_are_short(files: Page, seconds: float, text: str) -> None:
    assert files.evaluate("async (s) => (await import('/static/lib/format.js')).duration(s)", seconds) == text


@pytest.mark.parametrize(
    ("start", "end", "text"),
    [
        ("2024-02-29T23:00Z", "2024-03-31T22:00Z", "2024-03-01 – 2024-03-31"),
        ("2024-03-30T23:00Z", "2024-03-31T22:00Z", "2024-03-31"),
        ("2024-03-01T05:00Z", "2024-03-01T07:00Z", "2024-03-01 06:00 – 2024-03-01 08:00"),
    ],
)
def test_a_range_of_whole_days_is_named_as_requests_name_it(files: Page, start: str, end: str, text: str) -> None:
    call = "async ([start, end]) => (await import('/static/lib/format.js')).range(start, end, 'Europe/Berlin')"
    assert files.evaluate(call, [start, end]) == text


def test_outputs_are_named_and_tables_say_where_rows_are_staged(files: Page) -> None:
    table = TableOutput("lake.sales.orders", "lake.sales.`orders staged 7`", "day", "date", "iceberg")
    shown = """async (outputs) => {
        const { render, html } = await import('/static/vendor/preact.js');
        const { outputOf } = await import('/static/pages/run.js');
        const said = (output) => {
            const box = document.createElement('p');
            render(html`<span>${outputOf(output)}</span>`, box);
            return box.textContent;
        };
        return outputs.map(said);
    }"""
    assert files.evaluate(shown, ["/data/out/day=1", str(table)]) == [
        "/data/out/day=1",
        "lake.sales.orders iceberg, staged in lake.sales.`orders staged 7`",
    ]


def test_of_a_message_with_a_java_trace_its_first_line_and_its_cause_are_said(files: Page) -> None:
    call = "async (text) => (await import('/static/parts/parts.js')).gist(text)"
    trace = "Job aborted: Lost task 0.0: \n\tat a.b(C.scala:1)\nCaused by: X: between\n\tat d.e\nCaused by: Y: no file\n\tat g"
    assert files.evaluate(call, trace) == "Job aborted: Lost task 0.0: … Caused by: Y: no file"
    assert files.evaluate(call, "only this") == "only this"
    assert files.evaluate(call, None) == ""


def test_the_overview_counts_every_interval(files: Page) -> None:
    """Four weeks in two slices, of which the second has the only failed day."""
    found = files.evaluate(
        """async (starts) => {
            const { arrange } = await import('/static/grid/layout.js');
            const { GridData } = await import('/static/grid/data.js');
            const { slices } = await import('/static/grid/overview.js');
            const sent = { starts, states: 's'.repeat(20) + 'f' + 's'.repeat(7), letters: { s: 'succeeded', f: 'failed' } };
            const counts = slices(new GridData({ ...sent, timezone: 'UTC' }), arrange(starts, 'UTC'), 2);
            return { succeeded: [...counts.succeeded], failed: [...counts.failed] };
        }""",
        local_days(datetime(2024, 1, 1), 28, "UTC"),
    )
    assert found == {"succeeded": [14, 13], "failed": [0, 1]}
