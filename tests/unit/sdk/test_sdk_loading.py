"""Loading users' files: the pipelines found, and one line with the location of each mistake."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.support.loading import load_pipelines

from retrofill.user_code.loading import PipelineFileError

GOOD = """
from retrofill import Pipeline
one = Pipeline("one", schedule="@daily")
same = one
two = Pipeline("two", schedule="@hourly")
"""


@pytest.fixture(autouse=True)
def path_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading a file leaves its folder on the path; one of these has a ``json.py``."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_a_file_with_two_pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "two_of_them.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    found = load_pipelines("two_of_them.py")
    assert [(made.name, code.attribute) for made, code in found] == [("one", "one"), ("two", "two")]
    assert {code.file for _, code in found} == {str(tmp_path / "two_of_them.py")}


@pytest.mark.parametrize("source", ["../flows/up.py", "below/../up.py", "link/../flows/up.py"])
def test_the_place_of_a_file_has_no_step_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    for each in ("flows/below", "elsewhere"):
        (tmp_path / each).mkdir(parents=True)
    (tmp_path / "flows" / "up.py").write_text(GOOD)
    (tmp_path / "flows" / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "flows")
    assert {code.file for _, code in load_pipelines(source)} == {str(tmp_path / "flows" / "up.py")}


def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/fl\xe9.py"))
    path.write_text(GOOD)
    with pytest.raises(PipelineFileError, match=r"fl\\udce9\.py': its name is not UTF-8: rename it"):
        load_pipelines(path)


def test_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package_of_them").mkdir()
    (tmp_path / "package_of_them" / "daily.py").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = load_pipelines("package_of_them.daily")
    assert {code.module for _, code in found} == {"package_of_them.daily"}


def test_a_file_that_is_named_like_a_module_of_python(tmp_path: Path) -> None:
    import json

    (tmp_path / "json.py").write_text(GOOD)
    assert len(load_pipelines(tmp_path / "json.py")) == 2
    assert json.loads("1") == 1


def test_helpers_beside_the_file_are_importable(tmp_path: Path) -> None:
    (tmp_path / "helper_beside.py").write_text("RULE = '@daily'\n")
    (tmp_path / "uses_helper.py").write_text(
        "from helper_beside import RULE\nfrom retrofill import Pipeline\np = Pipeline('p', schedule=RULE)\n"
    )
    assert load_pipelines(tmp_path / "uses_helper.py")[0][0].name == "p"


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("\n\nimport nonesuch_at_all\n", "broken.py:3: ModuleNotFoundError: No module named 'nonesuch_at_all'"),
        ("x = (\n", "broken.py:1: SyntaxError: '(' was never closed"),
        ("def f():\n    return 1 / 0\n\nf()\n", "broken.py:2: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)\n", "broken.py:1: SystemExit: 3"),
        ("raise ValueError('one\\ntwo')\n", "broken.py:1: ValueError: one"),
        ("x = 1\n", "no Pipeline at the top level"),
        (
            "from retrofill import Pipeline\np = Pipeline('a b', schedule='@daily')\n",
            "broken.py:2: ValueError: invalid name 'a b'",
        ),
        (
            "from retrofill import Pipeline\np = Pipeline('a', schedule='@daily')\n"
            "@p.task(retries=-1)\ndef b(run): ...\n",
            "broken.py:3: ValidationError: retries: Input should be greater than or equal to 0",
        ),
        (
            "from retrofill import Pipeline\np = Pipeline('a', schedule='@daily')\np.command('b', ['dbt', '{c}'])\n",
            "broken.py:3: ValidationError: in '{c}': unknown field 'c'",
        ),
        (
            "from retrofill import Pipeline\np = Pipeline('a', schedule='@daily')\n"
            "p.submit('b', 'x.py', files=['f' * 1001])\n",
            "broken.py:3: ValidationError: files.0: String should have at most 1000 characters",
        ),
        (
            "from retrofill import Pipeline\np = Pipeline('a', schedule='@daily')\n"
            "p.command('b', ['dbt'], cwd='.', files=['f'])\n",
            "broken.py:3: ValidationError: task 'b': files and archives go into the run's own working directory",
        ),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(tmp_path: Path, text: str, fields: str) -> None:
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(PipelineFileError) as caught:
        load_pipelines(tmp_path / "broken.py")
    assert fields in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError, match=r"nope\.py: no such file"):
        load_pipelines(tmp_path / "nope.py")
    with pytest.raises(PipelineFileError, match="ModuleNotFoundError: No module named 'nonesuch_module'"):
        load_pipelines("nonesuch_module")
