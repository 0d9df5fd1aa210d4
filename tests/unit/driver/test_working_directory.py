"""The working directory of scripts and programs: what they find there, and that nothing of it stays."""

from __future__ import annotations

import os
import stat
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from tests.unit.driver.launches import launch_of, run_of

from retrofill.driver.config import Config
from retrofill.driver.preparing import Fields, prepared
from retrofill.driver.submit import CommandFailed, Submission, Submits
from retrofill.outputs.staging import Staging
from retrofill.protocol.launch import Launch, Script
from retrofill.protocol.script_texts import BadArgument


def launch(kind: str = "command", **script: Any) -> Launch:
    return launch_of(
        run_of(7, "2013-01-01T05:00:00+00:00", "2013-01-02T05:00:00+00:00"),
        pipeline={"timezone": "America/New_York", "tasks": [{"name": "a", "kind": kind, "submit": script}]},
        conf={"city": "JFK"},
    )


class Plain(Submits):
    """Runs a script without Spark."""

    def submission(self, submit: Script, fields: Fields, folder: Path) -> Submission:
        return Submission([sys.executable, submit.script, *fields.fill(submit.args)], os.environ)


def run(made: Launch) -> None:
    """Run the task, as the driver does with code that was not shipped."""
    (task,) = made.pipeline.tasks
    (piece,) = made.pieces
    fields = Fields(made, piece, Staging(made, piece), "a")
    assert task.submit is not None
    located = fields.located(task.submit, str)
    Plain(Config(), made).run(type(task)(task.name, task.kind, submit=located), fields)


def shell(text: str, **more: Any) -> None:
    run(launch(script="sh", args=["-c", text], **more))


def told(tmp_path: Path, text: str, **more: Any) -> str:
    """What the commands of a shell print."""
    out = tmp_path / "told"
    shell(f"({text}) > {out}", **more)
    return out.read_text().strip()


def test_it_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    first, second = (told(tmp_path, "pwd -P; touch left; ls -ld .") for _ in range(2))
    for each in (first, second):
        path, listed = each.splitlines()
        assert listed.startswith("drwx") and not Path(path).exists()
    assert first.splitlines()[0] != second.splitlines()[0]


def test_another_may_be_named_for_each_interval(tmp_path: Path) -> None:
    (tmp_path / "JFK").mkdir()
    (tmp_path / "JFK" / "rules").write_text("found")
    assert told(tmp_path, "cat rules; touch kept", cwd=f"{tmp_path}/{{conf[city]}}") == "found"
    assert (tmp_path / "JFK" / "kept").exists()
    with pytest.raises(BadArgument, match=r"cwd: there is no directory .*/JFK/none"):
        shell("true", cwd=f"{tmp_path}/JFK/none")


def test_standard_input_is_closed(tmp_path: Path) -> None:
    assert told(tmp_path, "cat; echo end") == "end"


def test_files_of_the_interval_are_there_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "rules-2013-01.json").write_text("of January")
    (tmp_path / "project" / "models").mkdir(parents=True)
    (tmp_path / "project" / "models" / "m.sql").write_text("SELECT 1")
    files = [f"{tmp_path}/rules-{{interval.start:%Y-%m}}.json#rules.json", f"{tmp_path}/project"]
    assert (
        told(tmp_path, "cat rules.json project/models/m.sql; touch project/target", files=files) == "of JanuarySELECT 1"
    )
    assert not (tmp_path / "project" / "target").exists()


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz", "tgz", "tar.bz2"])
def test_archives_are_unpacked(tmp_path: Path, kind: str) -> None:
    program = tmp_path / "say"
    program.write_text("#!/bin/sh\necho from the archive $1")
    program.chmod(0o755)
    packed = tmp_path / f"tools.{kind}"
    if kind == "zip":
        with zipfile.ZipFile(packed, "w") as zipped:
            zipped.write(program, "bin/say")
    else:
        modes = {"tar": "w", "tar.gz": "w:gz", "tgz": "w:gz", "tar.bz2": "w:bz2"}
        with tarfile.open(packed, modes[kind]) as tarred:  # type: ignore[call-overload]
            tarred.add(program, "bin/say")
    assert told(tmp_path, "tools/bin/say 1", archives=[f"{packed}#tools"]) == "from the archive 1"
    run(launch(script=f"./tools.{kind}/bin/say", args=["2"], archives=[str(packed)]))
    with pytest.raises(BadArgument, match=r"there is no program ./tools/bin/none on this host"):
        run(launch(script="./tools/bin/none", archives=[f"{packed}#tools"]))


def test_templates_are_filled_in_for_the_interval(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("day: {interval.start:%F}\ncity: {conf[city]}\nmore: {a: {b: 1}}\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\necho {run.id}")
    (tmp_path / "run.sh").chmod(0o555)
    templates = [f"{tmp_path}/job.yaml#config.yaml", f"{tmp_path}/run.sh"]
    found = told(tmp_path, "cat config.yaml; ./run.sh; ls -l config.yaml", templates=templates)
    assert found.startswith("day: 2013-01-01\ncity: JFK\nmore: {a: {b: 1}}\n7\n-rw")


def test_a_secret_in_a_template_is_in_a_private_directory_and_spark_is_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "hunter2")
    (tmp_path / "job.yaml").write_text("key: {secret[KEY]}")
    made = launch("submit", script="x.py", templates=[f"{tmp_path}/job.yaml"])
    (task,), (piece,) = made.pipeline.tasks, made.pieces
    assert task.submit is not None
    folder = tmp_path / "private"
    folder.mkdir(0o700)
    script, directory = prepared(task.submit, Fields(made, piece, Staging(made, piece), "a"), folder)
    assert (directory.path / "job.yaml").read_text() == "key: hunter2"
    assert script.files == ()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"files": ["TMP/none.json"]}, "file TMP/none.json: No such file or directory"),
        ({"archives": ["TMP/none.zip"]}, "archive TMP/none.zip: No such file or directory"),
        ({"archives": ["TMP/broken.zip"]}, "archive TMP/broken.zip cannot be unpacked: .*: give a zip or tar file"),
        ({"templates": ["TMP/none.yaml"]}, "template TMP/none.yaml: No such file or directory"),
        ({"templates": ["TMP/lacks.yaml"]}, "template TMP/lacks.yaml: in '{conf\\[town\\]}': conf has no key 'town'"),
        ({"templates": ["TMP/binary"]}, "template TMP/binary: it is no text in UTF-8"),
        (
            {"files": ["TMP/broken.zip", "TMP/sub/broken.zip"]},
            "the working directory has another broken.zip: use path#name",
        ),
        (
            {"script": "no-such-program"},
            "there is no program no-such-program on this host: install it for the drivers of pool",
        ),
        ({"script": "TMP/lacks.yaml"}, "TMP/lacks.yaml is not executable: begin it with a line like #!/bin/sh"),
        (
            {"script": "TMP/sub/run"},
            "TMP/sub/run begins with #!/no/such/shell, but this host has no /no/such/shell",
        ),
    ],
)
def test_what_is_missing_is_named_in_one_line(tmp_path: Path, more: dict[str, Any], why: str) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "run").write_text("#!/no/such/shell -e\n")
    (tmp_path / "sub" / "run").chmod(0o755)
    for name in ("broken.zip", "sub/broken.zip"):
        (tmp_path / name).write_text("no archive")
    (tmp_path / "lacks.yaml").write_text("a: {conf[town]}")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    given: dict[str, Any] = {
        name: str(value).replace("TMP", str(tmp_path))
        if name == "script"
        else [each.replace("TMP", str(tmp_path)) for each in value]
        for name, value in more.items()
    }
    with pytest.raises(BadArgument, match=why.replace("TMP", str(tmp_path))) as refused:
        run(launch(**{"script": "true"} | given))
    assert "\n" not in str(refused.value)


def test_tables_that_would_be_removed_with_it_fail_the_task_and_other_files_are_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(
        BadArgument, match="it wrote tables into spark-warehouse of its working directory, which is removed"
    ):
        shell("mkdir -p spark-warehouse/t")
    shell("touch a b; mkdir metastore_db spark-warehouse")
    assert "removed with the working directory: a, b, metastore_db, spark-warehouse" in capfd.readouterr().err
    shell("mkdir -p spark-warehouse/t", cwd=str(tmp_path))


def test_a_program_ends_as_it_says(tmp_path: Path) -> None:
    shell("exit 0")
    with pytest.raises(CommandFailed, match=r"^sh ended with status 3: ERROR: no rows\nbegins\n"):
        shell("echo begins; echo 'ERROR: no rows' >&2; echo ends; exit 3")
    with pytest.raises(CommandFailed, match=r"^sh ended with (status 143|signal 15): it said nothing"):
        shell("kill $$")
    program = tmp_path / "no_interpreter"
    program.write_text("echo x")
    program.chmod(0o755)
    with pytest.raises(CommandFailed, match=r"status 1: OSError: .*Exec format error"):
        run(launch(script=str(program)))


def test_a_program_has_its_variables_and_the_programs_beside_its_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "hunter2")
    env = {"DAY": "{interval.start:%F}", "PASSWORD": "{secret[KEY]}"}
    assert told(tmp_path, "echo $DAY $PASSWORD", env=env) == "2013-01-01 hunter2"
    assert str(Path(sys.executable).parent) in told(tmp_path, "echo $PATH").split(":")


def test_a_script_works_in_it_too(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("import sys; open(sys.argv[1], 'w').write(open('rules.json').read())")
    (tmp_path / "r.json").write_text("[]")
    out = tmp_path / "out"
    run(launch("submit", script=f"{tmp_path}/job.py", args=[str(out)], files=[f"{tmp_path}/r.json#rules.json"]))
    assert out.read_text() == "[]"
    assert stat.S_ISREG(out.stat().st_mode)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "mkdir logs; echo old > logs/old.log; touch -d 2020-01-01 logs/old.log; echo 'ERROR: no rows' > logs/job.log; exit 3",
            "logs/job.log says: ERROR: no rows",
        ),
        ("echo 'ERROR: no rows' > job.log; echo 'cannot connect'; exit 3", "cannot connect"),
        ("touch job.log; exit 3", "it said nothing"),
    ],
)
def test_of_a_program_that_said_nothing_its_log_tells_the_cause(text: str, why: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        shell(text)
    assert str(failed.value).splitlines()[0].endswith(f"ended with status 3: {why}")
