"""``retrofill test`` refuses what cannot be tested in one line, before it starts Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.terminal import Cli, cli

__all__ = ["cli"]
PIPELINES = """
from retrofill import Pipeline
one = Pipeline("one", schedule="0 5 * * 1", start="2013-01-01")
two = Pipeline("two", schedule="@daily", start="2013-01-01")
for each in (one, two):
    @each.task
    def only(run): ...
two.submit("late", "missing.py", after=only)
"""


@pytest.mark.parametrize(
    ("words", "environment", "said"),
    [
        ([], {}, "p.py has one, two: choose one with --name"),
        (["--name", "three"], {}, "p.py has no pipeline 'three'; it has: one, two"),
        (["--name", "two"], {}, "missing.py does not exist"),
        (["--name", "one", "--date", "2013-01-08"], {}, "no data interval"),
        (["--name", "one", "--date", "yesterday"], {}, "--date: 'yesterday' is neither a date like"),
        (["--name", "one", "--conf", "[1]"], {}, "--conf must be a JSON object"),
        (
            ["--name", "one"],
            {"RETROFILL_SPARK_SUBMIT_MASTER": "yarn"},
            "RETROFILL_SPARK_SUBMIT_MASTER is yarn, but a test",
        ),
    ],
)
def test_what_cannot_be_tested_is_refused(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], environment: dict[str, str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETROFILL_HOME", str(tmp_path / "home"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    Path("p.py").write_text(PIPELINES)
    done = cli("test", "p.py", *([] if "--date" in words else ["--date", "2013-01-07"]), *words)
    assert done.status in (1, 2)
    assert said in done.err.splitlines()[-1]
