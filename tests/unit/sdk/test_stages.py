"""Whether a task stages what it writes, as its source tells before a review is requested."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from retrofill.pipeline import Pipeline
from retrofill.sdk.checking import stages


def write(run: Any) -> None:
    run.spark.range(3).write.parquet("/data/out")


def by_argument(run: Any) -> None:
    write(run)


def stored(run: Any) -> None:
    it = run
    it.spark.range(3)


def by_name(run: Any) -> None:
    getattr(run, "st" + "age")("/data/out")


def directory(run: Any) -> None:
    run.spark.range(3).write.parquet(run.stage("/data/out"))


def nested(run: Any) -> None:
    def day(n: int) -> None:
        run.stage_table(run.spark.range(n), "t", "day")

    for n in range(3):
        day(n)


def partitions(other_name: Any) -> None:
    other_name.stage_partitions("/data", "day={interval.start:%Y}")


def only_reads(run: Any) -> None:
    run.spark.read.parquet(run.staged("/data/out")).write.mode("append").parquet("/data/total")


def without_argument(*_: Any) -> None:
    pass


def decorated(function: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(function)
    def around(run: Any) -> None:
        run.stage("/data/out")
        function(run)

    return around


class Job:
    def write(self, run: Any) -> None:
        run.stage("/data/out")

    def __call__(self, run: Any) -> None:
        self.write(run)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (write, False),
        (only_reads, False),
        (directory, True),
        (nested, True),
        (partitions, True),
        (by_argument, None),
        (stored, None),
        (by_name, None),
        (without_argument, None),
        (decorated(write), None),
        (lambda run: run.spark, None),
        (functools.partial(write), None),
        (Job().write, True),
        (Job(), None),
        (print, None),
    ],
)
def test_it_is_certain_only_where_the_run_goes_nowhere_else(
    function: Callable[..., Any], expected: bool | None
) -> None:
    assert stages(function) is expected


def test_a_definition_says_it_of_functions_and_not_of_branches() -> None:
    pipeline = Pipeline("p", schedule="@daily")
    pipeline.task(write)
    pipeline.task(name="staged")(directory)
    pipeline.task(name="said", writes_nothing=True)(by_argument)
    pipeline.branch(name="chosen")(only_reads)
    tasks = pipeline.to_data()["tasks"]
    assert {task["name"]: (task["stages"], task["writes_nothing"]) for task in tasks} == {
        "write": (False, False),
        "staged": (True, False),
        "said": (None, True),
        "chosen": (None, False),
    }
