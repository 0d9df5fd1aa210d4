"""Arguments with secrets in them: a script gets them, and no list of processes has them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.driver.launches import launch_of, run_of

from retrofill.driver.config import Config
from retrofill.driver.preparing import Fields
from retrofill.driver.script_error import explained
from retrofill.driver.submit import Submits
from retrofill.outputs.staging import Staging
from retrofill.protocol.launch import Script
from retrofill.spark.home import read_properties

SECRET = "p4ss w{0}rd'\\n\""


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", SECRET)


def submitted(folder: Path, **script: Any) -> Any:
    folder.mkdir()
    made = launch_of(run_of(7, "2013-01-01T00:00:00+00:00", "2013-01-02T00:00:00+00:00"))
    (piece,) = made.pieces
    return Submits(Config(), made).submission(Script(**script), Fields(made, piece, Staging(made, piece), "a"), folder)


SHOWS = """\"The docs.\"
from __future__ import annotations
import json, sys
from helper import helped
class Row: pass
print(json.dumps([sys.argv, sys.path[0], __name__, __file__, __doc__, Row.__module__, helped]))
if sys.argv[-1] == "fail":
    raise KeyError("amount")
"""


def test_a_script_with_them_runs_as_without(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("helped = 1")
    script = tmp_path / "job.py"
    script.write_text(SHOWS)
    command = submitted(tmp_path / "private", script=str(script), args=("--key={secret[KEY]}", "x")).command
    assert SECRET not in " ".join(command) and [each for each in command if each.endswith("with_arguments.py")]
    told = []
    for start in ([script, f"--key={SECRET}", "x"], command[-2:]):
        done = subprocess.run([sys.executable, *start], capture_output=True, text=True, check=True, cwd=tmp_path.parent)
        told.append(json.loads(done.stdout))
    assert told[0] == told[1]


def test_the_error_of_such_a_script_has_its_own_frames_only(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("helped = 1")
    (tmp_path / "job.py").write_text(SHOWS)
    command = submitted(tmp_path / "private", script=f"{tmp_path}/job.py", args=("{secret[KEY]}", "fail")).command
    done = subprocess.run([sys.executable, *command[-2:]], capture_output=True, text=True, check=False)
    said = explained(done.stderr.splitlines())
    assert said.startswith("KeyError: 'amount'") and "with_arguments" not in said and "job.py" in said


def test_other_arguments_are_as_they_are(tmp_path: Path) -> None:
    command = submitted(tmp_path / "private", script="/a.py", args=("x",)).command
    assert command[-2:] == ["/a.py", "x"]


def test_a_secret_of_a_setting_is_in_a_file_and_a_jar_has_its_class(tmp_path: Path) -> None:
    script = {
        "script": "/app.jar",
        "main_class": "org.example.Main",
        "args": ("{interval.start:%F}",),
        "conf": {"spark.hadoop.key": "{secret[KEY]}", "spark.json": '{"a": {"day": "{interval.start:%F}"}}'},
        "packages": ("org.postgresql:postgresql:42.7.7",),
        "archives": ("/env.tar.gz#env",),
        "env": {"PASSWORD": "{secret[KEY]}"},
    }
    made = submitted(tmp_path / "private", **script)
    assert made.command[-4:] == ["--class", "org.example.Main", "/app.jar", "2013-01-01"]
    assert SECRET not in " ".join(made.command)
    conf = read_properties((tmp_path / "private" / "spark.properties").read_text())
    assert (conf["spark.hadoop.key"], conf["spark.json"]) == (SECRET, '{"a": {"day": "2013-01-01"}}')
    assert (conf["spark.jars.packages"], conf["spark.archives"]) == (
        "org.postgresql:postgresql:42.7.7",
        "/env.tar.gz#env",
    )
    assert made.environment["PASSWORD"] == SECRET
    assert (tmp_path / "private" / "spark.properties").stat().st_mode & 0o077 == 0
