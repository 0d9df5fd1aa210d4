"""Pipelines that are read by another interpreter, which has the packages they import and nothing of Retrofill."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from retrofill.errors import UserError
from retrofill.user_code.loading import PipelineFileError
from retrofill_core.driver_package import inspecting
from retrofill_core.settings import Settings
from retrofill_core.user_code.source import Source, read_here, read_with
from retrofill_tools.cli.pipelines import read_source

FLOW = """
import beside
print("printed by the user")
from retrofill import Deadline, Pipeline, Reference
from datetime import timedelta
p = Pipeline("p", schedule="@daily", timezone="America/New_York", retries=3, tags=["a"],
             deadlines=[Deadline("late", Reference.RUN_STARTED_AT, timedelta(hours=1), callback="page")])
@p.task
def work(run): ...
p.submit("script", "job.py", args=["{interval.start}"], after=work)
q = Pipeline("q", schedule="@hourly", executor="spark-submit")
@q.task
def work(run): ...
"""


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bare interpreter with a package that this one does not have."""
    folder = tmp_path_factory.mktemp("other")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python3.*/site-packages")
    (site / "only_there.py").write_text("SCHEDULE = '@weekly'")
    return folder / "bin" / "python"


def write(folder: Path, text: str) -> str:
    (folder / "flow.py").write_text(text)
    (folder / "beside.py").write_text("import deep.er")
    (folder / "deep").mkdir(exist_ok=True)
    (folder / "deep" / "er.py").touch()
    (folder / "job.py").touch()
    return str(folder / "flow.py")


def read(other: Path, home: Path, source: str) -> Source:
    return read_with(str(other), inspecting(home), source)


def test_it_says_what_this_one_would(other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, FLOW.replace(', tags=["a"]', ""))
    there = read(other, tmp_path / "home", file)
    monkeypatch.syspath_prepend(str(tmp_path))
    here = read_here(file)
    try:
        assert there.definitions == here.definitions
        assert [each.name for each in there.definitions] == ["p", "q"]
        assert there.root == here.root == tmp_path
        ours = {str(tmp_path / name) for name in ("beside.py", "deep/er.py")}
        assert ours <= set(there.imported) and ours <= set(here.imported)
        assert not [each for each in there.imported if "/driver-package/" in each], "Retrofill's own are not the user's"
    finally:
        for name in ("flow", "beside", "deep.er", "deep"):
            sys.modules.pop(name, None)


def test_it_has_the_packages_that_this_one_has_not(other: Path, tmp_path: Path) -> None:
    text = "import only_there\nfrom retrofill import Pipeline\np = Pipeline('p', schedule=only_there.SCHEDULE)\n"
    file = write(tmp_path, text + "@p.task\ndef work(run): ...\n")
    found = read(other, tmp_path / "home", file)
    assert found.definitions[0].schedule == "@weekly"
    assert not [each for each in found.imported if "site-packages" in each]
    with pytest.raises(PipelineFileError, match=r"^flow.py:1: ModuleNotFoundError: No module named 'only_there'$"):
        read_here(file)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("import pydantic", r"^flow.py:1: ModuleNotFoundError: No module named 'pydantic'$"),
        ("x = 1", r"/flow.py: no Pipeline at the top level$"),
        ("def", r"^flow.py:1: SyntaxError: "),
        (
            "import os\nos._exit(7)",
            r"^--python .* could not read .*flow.py \(exit status 7\): it must be Python 3.8 or newer$",
        ),
    ],
)
def test_what_is_wrong_is_one_line(text: str, why: str, other: Path, tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError, match=why) as refused:
        read(other, tmp_path / "home", write(tmp_path, text))
    assert "\n" not in str(refused.value)


def test_a_pipeline_that_the_services_refuse_is_refused(other: Path, tmp_path: Path) -> None:
    text = "from retrofill import Pipeline\np = Pipeline('p', schedule='@never')\n@p.task\ndef work(run): ...\n"
    settings = Settings(home=tmp_path)
    with pytest.raises(UserError, match=r"flow.py: .*schedule '@never' is neither one of") as refused:
        read_source(write(tmp_path, text), settings, str(other))
    assert "\n" not in str(refused.value)


def test_an_interpreter_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineFileError, match=r"^--python /nowhere/python cannot be executed: No such file"):
        read(Path("/nowhere/python"), tmp_path / "home", write(tmp_path, FLOW))
