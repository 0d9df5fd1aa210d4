"""The front end's pure modules, run in the browser: where cells are, what requests say."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.sync_api import Page

from retrofill.protocol.table_output import TableOutput
from tests.support.installation import ROOT

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


# As the command line writes them: tests/unit/test_wording.py has the same.
RANGES = json.loads((ROOT / "tests" / "support" / "ranges.json").read_text("utf-8"))


@pytest.mark.parametrize(("start", "end", "zone", "text"), RANGES)
def test_a_range_includes_both_ends(files: Page, start: str, end: str, zone: str, text: str) -> None:
    call = "async ([start, end, zone]) => (await import('/static/lib/format.js')).range(start, end, zone)"
    assert files.evaluate(call, [start, end, zone]) == text


@pytest.mark.parametrize(
    ("at", "text"),
    [
        ("2024-05-10T12:00:00Z", "now"),
        ("2024-05-10T11:59:51Z", "9 s ago"),
        ("2024-05-10T11:55:10Z", "4 min ago"),
        ("2024-05-10T14:00:00Z", "in 2 h"),
        ("2024-05-08T10:00:00Z", "2 d ago"),
        ("2024-03-01T10:00:00Z", "2024-03-01"),
    ],
)
def test_a_moment_is_said_by_its_distance_unless_that_is_long(files: Page, at: str, text: str) -> None:
    call = "async (at) => (await import('/static/lib/format.js')).relative(at, Date.parse('2024-05-10T12:00:00Z'))"
    assert files.evaluate(call, at) == text


def test_what_is_counted_and_what_is_drawn_is_from_one_reading(files: Page) -> None:
    found = files.evaluate(
        """async () => {
            const { GridData } = await import('/static/grid/data.js');
            const { asDrawn } = await import('/static/pages/backfill.js');
            const letters = { s: 'succeeded', f: 'failed', '-': 'already exists' };
            const grid = new GridData({ starts: [0, 1, 2, 3], end: 4, states: 'ssf-', letters, timezone: 'UTC' });
            const facts = { runs: 3, by_state: { succeeded: 1, queued: 2 } };
            return [asDrawn(facts, grid).by_state, asDrawn(facts, null).by_state];
        }"""
    )
    assert found == [{"succeeded": 2, "failed": 1}, {"succeeded": 1, "queued": 2}]


def test_a_search_is_an_address(files: Page) -> None:
    call = """async (wanted) => {
        const { pathOf } = await import('/static/pages/backfills.js');
        return pathOf(wanted, Date.parse('2024-05-10T12:34:56Z'));
    }"""
    wanted = {"text": "a&b", "state": "ended", "requested": "day", "day": "2024-03-05", "pipeline": "", "limit": 50}
    assert files.evaluate(call, wanted) == (
        "/api/v1/backfills?text=a%26b&day=2024-03-05&since=2024-05-09T12%3A00%3A00Z&limit=50"
        "&state=succeeded&state=failed&state=cancelled"
    )
    assert files.evaluate(call, {"state": "paused"}) == "/api/v1/backfills?limit=50&state=paused"


def test_attempts_and_tasks_are_bars_in_the_order_of_their_begins(files: Page) -> None:
    attempt = {"host": "h", "mode": "each", "began_at": None, "ended_at": None, "outcome": None, "state": "starting"}
    task = {"attempt": 1, "try_number": 1, "finished_at": None}
    run = {
        "attempts": [
            {**attempt, "id": 1, "claimed_at": "1970-01-01T00:00:10Z", "began_at": "1970-01-01T00:00:12Z"}
            | {"ended_at": "1970-01-01T00:00:20Z", "outcome": "lost", "state": "ended"},
            {**attempt, "id": 2, "claimed_at": "1970-01-01T00:00:30Z"},
        ],
        "tasks": [
            {**task, "task": "load", "state": "running", "started_at": "1970-01-01T00:00:15Z", "try_number": 2},
            {**task, "task": "later", "state": "none", "started_at": None},
        ],
    }
    found = files.evaluate("async (run) => (await import('/static/pages/timeline.js')).barsOf(run, 40)", run)
    assert [(each["name"], each["from"], each["began"], each["to"], each["state"], each["note"]) for each in found] == [
        ("attempt 1", 10, 12, 20, "lost", "h"),
        ("load", 15, 15, 40, "running", "try 2"),
        ("attempt 2", 30, 40, 40, "starting", "h"),
    ]


@pytest.mark.parametrize(
    ("length", "ticks"),
    [
        (0.5, [0, 0.1, 0.2, 0.3, 0.4, 0.5]),
        (42, [0, 10, 20, 30, 40]),
        (3600, [0, 600, 1200, 1800, 2400, 3000, 3600]),
        (86_400 * 9, [0, 2 * 86_400, 4 * 86_400, 6 * 86_400, 8 * 86_400]),
    ],
)
def test_an_axis_has_a_few_round_ticks(files: Page, length: float, ticks: list[float]) -> None:
    found = files.evaluate("async (length) => (await import('/static/pages/timeline.js')).ticksOf(length)", length)
    assert found == pytest.approx(ticks)


def output(**of: Any) -> dict[str, Any]:
    """A line of a comparison, in which nothing changes."""
    side: dict[str, Any] = {"rows": 3, "bytes": None, "columns": {}}
    same = {"changed_by_others": False, "row_change": 0, "changed_columns": [], "staged": side, "published": side}
    return {"run_id": 1, "interval_start": "2024-01-01T00:00:00+00:00", "output": "t", **same, **of}


def column(**of: Any) -> dict[str, Any]:
    return {"nulls": 0, "total": None, "least": None, "greatest": None, **of}


@pytest.mark.parametrize(
    ("of", "text"),
    [
        ({}, "the same figures"),
        ({"published": None}, "it is new"),
        ({"staged": {"rows": 0, "columns": {}}}, "it becomes empty"),
        (
            {
                "changed_columns": ["price", "note", "gone"],
                "published": {"rows": 1, "columns": {"price": column(total=1.5, least="1"), "gone": column()}},
                "staged": {"rows": 1, "columns": {"price": column(total=20000, least="1", nulls=2), "note": column()}},
            },
            "price: nulls 0 → 2, sum 1.5 → 20,000; note: only staged; gone: only published",
        ),
        (
            {
                "changed_columns": [f"c{n}" for n in range(8)],
                "published": {"rows": 1, "columns": {f"c{n}": column() for n in range(8)}},
                "staged": {"rows": 1, "columns": {}},
            },
            "; ".join([f"c{n}: only published" for n in range(6)]) + "; 2 more columns",
        ),
    ],
)
def test_what_a_review_changes_is_said_in_words(files: Page, of: dict[str, Any], text: str) -> None:
    found = files.evaluate("async (row) => (await import('/static/pages/review.js')).whatOf(row)", output(**of))
    assert found == text


def test_the_largest_changes_of_a_review_are_first(files: Page) -> None:
    rows = [
        output(run_id=1, interval_start="2024-01-02T00:00:00Z"),
        output(run_id=2),
        output(run_id=3, changed_columns=["a"]),
        output(run_id=4, row_change=-5),
        output(run_id=5, row_change=2),
        output(run_id=6, changed_by_others=True),
    ]
    call = "async (rows) => (await import('/static/pages/review.js')).sorted(rows).map((row) => row.run_id)"
    assert files.evaluate(call, rows) == [6, 4, 5, 3, 2, 1]


def test_a_review_is_shown_as_a_table_of_what_changes(files: Page) -> None:
    shown = """async (rows) => {
        const { render, html } = await import('/static/vendor/preact.js');
        const { Changes } = await import('/static/pages/review.js');
        const box = document.createElement('div');
        render(html`<${Changes} rows=${rows} zone="America/New_York" />`, box);
        const text = (each) => each.textContent.trim();
        const cells = [...box.querySelectorAll('tbody tr')].map((row) => [...row.cells].map(text));
        return [text(box.querySelector('.review-head > span')), cells];
    }"""
    more = output(row_change=-2, interval_start="2024-01-01T05:00:00Z", changed_by_others=True)
    head, rows = files.evaluate(shown, [output(), more])
    assert head == "1 of 2 outputs changes, −2 rows"
    said = "the published output has changed since the comparison the same figures"
    assert rows == [["2024-01-01", "t", "3 rows", "3 rows", "−2", said]]


def test_coverage_tells_other_code_apart_and_counts_each(files: Page) -> None:
    sent = {
        "starts": [0, 10, 20, 30, 40],
        "end": 50,
        "states": "ssf.s",
        "letters": {"s": "succeeded", "f": "failed", ".": "never run"},
        "codes": ["new", "old"],
        "code": [1, 0, 1, -1, -1],
        "present_code": "new",
        "finished": [100, 300, 200, 0, 50],
    }
    call = """async (sent) => {
        const { byPresentCode, codesOf } = await import('/static/pages/coverage.js');
        return [byPresentCode(sent).states, byPresentCode({ ...sent, present_code: null }).states, codesOf(sent)];
    }"""
    states, not_shipped, codes = files.evaluate(call, sent)
    assert (states, not_shipped) == ("Osf.s", "ssf.s")
    assert codes == [
        {"code": "new", "present": True, "intervals": 1, "from": 10, "to": 20, "finished": 300},
        {"code": "old", "present": False, "intervals": 2, "from": 0, "to": 30, "finished": 200},
        {"code": None, "present": False, "intervals": 1, "from": 40, "to": 50, "finished": 50},
    ]


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


def test_ranges_are_written_as_by_the_command_line(files: Page) -> None:
    cases = json.loads((ROOT / "tests" / "support" / "ranges.json").read_text("utf-8"))
    written = files.evaluate(
        """async (cases) => {
            const { range } = await import('/static/lib/format.js');
            return cases.map(([start, end, zone]) => range(start, end, zone));
        }""",
        cases,
    )
    assert written == [case[-1] for case in cases]
