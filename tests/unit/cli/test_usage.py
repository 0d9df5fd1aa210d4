"""Wrong arguments and missing stacks produce one line on stderr and an exit status."""

from __future__ import annotations

import pytest

RANGE = ["--from", "2024-01-01", "--to", "2024-01-31"]


@pytest.mark.parametrize("command", ["create", "dry-run"])
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either --from and --to, or --dates DATE"),
        (["--to", "2024-01-01"], "give either --from and --to"),
        (["--from", "2024-01-01", "--dates", "2024-01-01"], "give either --from and --to"),
        (["--dates", ","], "--dates has no date"),
        (["--dates", "2024-01-01,2024-13-01"], "--dates 2024-13-01: month must be in 1..12"),
        (["--dates-file", "/nowhere"], "--dates-file: [Errno 2] No such file"),
        (["--dates-file", "/dev/null"], "--dates-file has no date"),
        (["--dates", "2024-01-01 " * 10_001], "intervals: "),
        (["--from", "2024-13-01", "--to", "2024-01-31"], "--from 2024-13-01: month must be in 1..12"),
        (["--from", "yesterday", "--to", "2024-01-31"], "neither a date like 2024-01-31"),
        (["--from", "2024-01-01", "--to", "2024-01-31T00:00"], "no UTC offset"),
        ([*RANGE, "--conf", "[1]"], "not an object"),
        ([*RANGE, "--conf", "{"], "not JSON"),
        ([*RANGE, "--conf", '{"a": NaN}'], "NaN is not JSON"),
        ([*RANGE, "--conf", "@nowhere.json"], "nowhere.json"),
        ([*RANGE, "--id", " "], "--id is empty"),
    ],
)
@pytest.mark.usefixtures("nowhere")
def test_backfills_that_cannot_be_meant(cli, command, arguments, said):
    is_refused(cli("backfill", command, "flights", *arguments), 2, said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs", "retry", "x"], "name the runs: either --dates DATE,… or --all"),
        (["runs", "retry", "x", "--all", "--dates", "2024-01-01"], "name the runs: either"),
        (["runs", "retry", " ", "--all"], "the backfill's id is empty"),
        (
            ["runs", "retry", "x", "--dates", ",".join(f"{year}-01-01" for year in range(1900, 2001))],
            "names 101 dates, and the limit is 100",
        ),
        (["runs", "cancel", "x"], "name the runs: --dates DATE,… or --run ID"),
        (["runs", "cancel", " ", "--run", "7", "--yes"], "the backfill's id is empty"),
        (["runs", "cancel", "x", "--dates", "2024-02-30"], "--dates 2024-02-30: day is out of range"),
        (["runs", "cancel", "x", "--dates", "yesterday"], "neither a date like 2024-01-31"),
        (["backfill", "list", "--since", "yesterday"], "--since yesterday: use an age like 12h or 7d, a day like"),
        (["backfill", "list", "--since", "2024-02-30"], "--since 2024-02-30: use an age"),
        (["backfill", "list", "--since", "99999999d"], "--since 99999999d: use an age"),
        (["backfill", "list", "--json", "-o", "yaml"], "--json is -o json: it cannot be combined with -o yaml"),
        (["backfill", "change", "x"], "nothing to change: give --max-active-runs, --batch-size or --on-run-failure"),
        *((["dead-letters", "replay", "--", each], "PARTITION:OFFSET") for each in ("x", "1", "1:", "-1:2", "1:2:3")),
    ],
)
@pytest.mark.usefixtures("nowhere")
def test_commands_that_cannot_be_meant(cli, arguments, said):
    is_refused(cli(*arguments), 2, said)


def is_refused(result, status, said):
    """In one line on stderr, and nothing on stdout."""
    assert (result.status, result.out, result.err.count("\n")) == (status, "", 1)
    assert result.err.startswith("retrofill: ")
    assert said in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["backfill", "create"],
        ["backfill", "create", "flights", *RANGE, "--max-active-runs", "0"],
        ["backfill", "create", "flights", *RANGE, "--reprocess", "all"],
        ["backfill", "list", "--limit", "0"],
        ["nonsense"],
    ],
)
def test_wrong_usage(cli, arguments):
    result = cli(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["backfill", "list"],
        ["backfill", "show", "x"],
        ["backfill", "watch", "x"],
        ["backfill", "pause", "x"],
        ["backfill", "retry", "x"],
        ["backfill", "change", "x", "--max-active-runs", "2"],
        ["runs", "retry", "x", "--all"],
        ["runs", "list", "x"],
        ["runs", "cancel", "x", "--dates", "2024-01-01", "--yes"],
        ["pipelines", "list"],
        ["pipelines", "delete", "x", "--yes"],
        ["deadlines", "list"],
        ["callbacks", "list"],
        ["dead-letters", "list"],
    ],
)
@pytest.mark.usefixtures("nowhere")
def test_no_stack_is_one_line(cli, arguments):
    is_refused(cli(*arguments), 1, "retrofill: no stack is running in this folder")


@pytest.mark.parametrize(
    ("setting", "value", "arguments", "said"),
    [
        ("POSTGRES_DSN", "postgresql://nobody@127.0.0.1:1/x", ["backfill", "list"], "Postgres cannot be reached: "),
        (
            *("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1"),
            *(["backfill", "pause", "x", "--timeout", "1"], "Kafka cannot be used: "),
        ),
        ("PARTITIONS", "many", ["backfill", "list"], "the setting RETROFILL_PARTITIONS is wrong: "),
        ("HOME", ".", ["pipelines", "apply", "/nowhere/nowhere.py"], "/nowhere/nowhere.py"),
    ],
)
@pytest.mark.usefixtures("nowhere")
def test_what_is_not_there_or_wrong_is_one_line(cli, monkeypatch, setting, value, arguments, said):
    monkeypatch.setenv(f"RETROFILL_{setting}", value)
    is_refused(cli(*arguments), 1, said)


def test_conf_from_a_file(tmp_path):
    from retrofill_tools.cli.arguments import read_conf

    path = tmp_path / "conf.json"
    path.write_text('{"a": [1, {"b": null}]}')
    assert read_conf(f"@{path}") == {"a": [1, {"b": None}]}
    assert read_conf(None) == {}
