"""Wrong arguments and missing stacks produce one line on stderr and an exit status."""

from __future__ import annotations

from pathlib import Path

import pytest

RANGE = ["--from", "2024-01-01", "--to", "2024-01-31"]


def test_version(cli):
    result = cli("--version")
    assert (result.status, result.out.split()[0]) == (0, "retrofill")


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
    ],
)
@pytest.mark.usefixtures("nowhere")
def test_dates_that_cannot_be_meant(cli, command, arguments, said):
    result = cli("backfill", command, "flights", *arguments)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert said in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["runs", "retry", "x"], "name the runs: either --dates DATE,… or --all"),
        (["runs", "retry", "x", "--all", "--dates", "2024-01-01"], "name the runs: either"),
        (["runs", "retry", " ", "--all"], "the backfill's id is empty"),
        (["runs", "retry", "x", "--dates", "2024-01-01," * 101], "intervals: "),
        (["backfill", "change", "x"], "give what to change: --max-active-runs, --batch-size or --on-run-failure"),
    ],
)
@pytest.mark.usefixtures("nowhere")
def test_commands_that_cannot_be_meant(cli, arguments, said):
    result = cli(*arguments)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert said in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
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
@pytest.mark.parametrize("command", ["create", "dry-run"])
@pytest.mark.usefixtures("nowhere")
def test_arguments_that_cannot_be_meant(cli, command, arguments, said):
    result = cli("backfill", command, "flights", *arguments)
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith("retrofill: ")
    assert result.err.count("\n") == 1
    assert said in result.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x"], "name the runs: --interval DATE or --run ID"),
        ([" ", "--run", "7"], "the backfill's id is empty"),
        (["x", "--interval", "2024-02-30"], "--interval 2024-02-30: day is out of range"),
        (["x", "--interval", "yesterday"], "neither a date like 2024-01-31"),
        (["x", *["--run", "7"] * 101], "run_ids: "),
    ],
)
@pytest.mark.usefixtures("nowhere")
def test_runs_that_cannot_be_meant(cli, arguments, said):
    result = cli("runs", "cancel", *arguments)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
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
        ["runs", "cancel", "x", "--interval", "2024-01-01"],
        ["pipelines", "list"],
        ["deadlines", "list"],
        ["callbacks", "list"],
        ["dead-letters", "list"],
    ],
)
@pytest.mark.usefixtures("nowhere")
def test_no_stack_is_one_line(cli, arguments):
    result = cli(*arguments)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith("retrofill: no stack is running in this folder")
    assert result.err.count("\n") == 1


@pytest.mark.usefixtures("nowhere")
def test_unreachable_postgres_is_one_line(cli, monkeypatch):
    monkeypatch.setenv("RETROFILL_POSTGRES_DSN", "postgresql://nobody@127.0.0.1:1/x")
    result = cli("backfill", "list")
    assert result.status == 1
    assert result.err.startswith("retrofill: Postgres cannot be reached: ")
    assert result.err.count("\n") == 1


@pytest.mark.usefixtures("nowhere")
def test_unreachable_kafka_is_one_line(cli, monkeypatch):
    monkeypatch.setenv("RETROFILL_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    result = cli("backfill", "pause", "x", "--timeout", "1")
    assert result.status == 1
    assert result.err.startswith("retrofill: Kafka cannot be used: ")
    assert result.err.count("\n") == 1


@pytest.mark.usefixtures("nowhere")
def test_a_wrong_setting_is_one_line(cli, monkeypatch):
    monkeypatch.setenv("RETROFILL_PARTITIONS", "many")
    result = cli("backfill", "list")
    assert result.status == 1
    assert result.err.startswith("retrofill: the setting RETROFILL_PARTITIONS is wrong: ")


@pytest.mark.usefixtures("nowhere")
def test_a_pipeline_file_that_is_not_there(cli):
    result = cli("pipelines", "apply", str(Path("nowhere.py").absolute()))
    assert (result.status, result.err.count("\n")) == (1, 1)
    assert "nowhere.py" in result.err


def test_conf_from_a_file(tmp_path):
    from retrofill_tools.cli.arguments import read_conf

    path = tmp_path / "conf.json"
    path.write_text('{"a": [1, {"b": null}]}')
    assert read_conf(f"@{path}") == {"a": [1, {"b": None}]}
    assert read_conf(None) == {}


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("place", ["x", "1", "1:", "-1:2", "1:2:3"])
def test_a_dead_letter_is_named_by_its_place(cli, place):
    result = cli("dead-letters", "replay", "--", place)
    assert result.status == 2
    assert "PARTITION:OFFSET" in result.err
