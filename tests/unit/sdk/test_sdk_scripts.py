"""Scripts as tasks: where they and their files are found, and what is refused where it is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.support.loading import definition_of

from retrofill import Pipeline
from retrofill_core.domain.pipeline import CodeLocation


def pipeline() -> Pipeline:
    return Pipeline("flights", schedule="@daily")


def test_a_script_is_found_beside_the_pipelines_file(tmp_path: Path) -> None:
    (tmp_path / "job.py").touch()
    flights = pipeline()
    flights.submit("script", "job.py")
    made = definition_of(flights, CodeLocation(file=str(tmp_path / "flights.py"), attribute="flights"))
    assert made.tasks[0].submit is not None
    assert made.tasks[0].submit.script == str(tmp_path / "job.py")


def test_what_a_script_needs_is_found_like_the_script(tmp_path: Path) -> None:
    for name in ("job.py", "lib.zip", "x.jar"):
        (tmp_path / name).touch()
    flights = pipeline()
    flights.submit(
        "script",
        "job.py",
        py_files=["lib.zip", "s3a://jobs/more.py"],
        jars=["x.jar"],
        files=["/etc/rules.json"],
        env={"STAGE": "{conf[stage]}"},
        deploy_mode="cluster",
    )
    made = definition_of(flights, CodeLocation(file=str(tmp_path / "flights.py"), attribute="flights")).tasks[0].submit
    assert made is not None
    assert made.addresses == (
        *(str(tmp_path / name) for name in ("job.py", "lib.zip")),
        *("s3a://jobs/more.py", str(tmp_path / "x.jar"), "/etc/rules.json"),
    )
    assert (made.env, made.deploy_mode) == ({"STAGE": "{conf[stage]}"}, "cluster")


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"jars": "x.jar"}, "jars is 'x.jar': give a list"),
        ({"jars": ["a.jar,b.jar"]}, "jars"),
        ({"py_files": [""]}, "py_files"),
        ({"files": ["x" * 1001]}, "files"),
        ({"files": ["x"] * 101}, "files"),
        ({"env": {"NO NAME": "x"}}, "env"),
        ({"env": {"X": "x" * 10_001}}, "env"),
        ({"env": {"X": "\0"}}, "env"),
        ({"env": {f"X{n}": "" for n in range(101)}}, "env"),
        ({"deploy_mode": "elsewhere"}, "deploy_mode"),
    ],
)
def test_a_script_that_cannot_be_submitted_is_refused_where_it_is_written(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        pipeline().submit("script", "job.py", **how)
