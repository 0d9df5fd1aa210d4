"""Scripts as tasks: where they and their files are found, and what is refused where it is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.loading import definition_of

from retrofill import Pipeline, Table
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
    assert made.needed == (
        *(str(tmp_path / name) for name in ("job.py", "lib.zip")),
        *("s3a://jobs/more.py", str(tmp_path / "x.jar"), "/etc/rules.json"),
    )
    assert (made.env, made.deploy_mode) == ({"STAGE": "{conf[stage]}"}, "cluster")


def test_tables_of_a_script_are_data() -> None:
    flights = pipeline()
    flights.submit("script", "/job.py", args=["{stage_table:a.b}"], tables=[Table("a.b", {"dt": "%Y%m%d"}, zone="UTC")])
    made = definition_of(flights, CodeLocation(file="/flights.py", attribute="flights"))
    (task,) = made.tasks
    assert task.submit is not None and task.submit.stages and not task.bypasses_reviews
    assert made.needs_session and task.needs_session
    (table,) = task.submit.tables
    assert (table.name, table.column, table.zone, table.with_rows) == ("a.b", {"dt": "%Y%m%d"}, "UTC", False)
    with pytest.raises(ValueError, match=r"'a\.c' is not one of the task's tables: they are a\.b"):
        flights.submit("other", "/job.py", args=["{stage_table:a.c}"], tables=[Table("a.b", "day")])


def test_a_redirected_table_needs_no_name_in_the_arguments() -> None:
    flights = pipeline()
    flights.submit("script", "/job.py", tables=[Table("{conf[lake]}.a.b", "day", redirected=True)])
    made = definition_of(flights, CodeLocation(file="/flights.py", attribute="flights"))
    (task,) = made.tasks
    assert task.submit is not None and task.submit.stages and task.needs_session and not task.bypasses_reviews
    # A request without it is refused.
    assert "{conf[lake]}.a.b" in task.texts


@pytest.mark.parametrize(
    ("add", "why"),
    [
        (lambda of: of.submit("s", "/job.py", tables=[Table("a.b", "d", "", True, redirected=True)]), "out with_rows"),
        (
            lambda of: of.submit("s", "/j.py", conf={"spark.wap.id": 1}, tables=[Table("a.b", "d", redirected=True)]),
            r"spark\.wap\.id is set for a\.b, which is redirected: leave it out of conf",
        ),
        (
            lambda of: of.submit("s", "/j.py", args=["{stage_table:a.b}"], tables=[Table("a.b", "d", redirected=True)]),
            r"'a\.b' is not one of the task's tables",
        ),
        (
            lambda of: of.command("s", ["dbt"], tables=[Table("a.b", "d", redirected=True)]),
            r"cannot be redirected: pass \{stage_table:a\.b\}",
        ),
        (
            lambda of: of.sql("s", "/q.sql", into=Table("a.b", "d", redirected=True)),
            "leave out redirected",
        ),
    ],
)
def test_what_cannot_be_redirected_is_refused_at_once(add: Callable[[Pipeline], object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        add(pipeline())


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
        ({"main_class": "org.example.Main"}, "main_class is only for a jar, but the script is 'job.py'"),
        ({"packages": ["org.postgresql"]}, "packages"),
        ({"files": ["a.json#x/y"]}, "'x/y' is not a valid name in a working directory"),
        ({"files": ["a.json#.."]}, "'..' is not a valid name in a working directory"),
        (
            {"files": ["a/x.json", "b/x.json"]},
            "two files of the working directory are named 'x.json': use path#name for one",
        ),
        ({"files": ["a.json"], "archives": ["b.zip#a.json"]}, "two files of the working directory are named 'a.json'"),
        ({"files": ["{interval.strat:%F}.json"]}, "did you mean interval.start?"),
        ({"conf": {"spark.x": '{"a": "{interval.strat:%F}"}'}}, "did you mean interval.start?"),
        ({"templates": ["x.yaml"], "cwd": "/srv"}, "templates go into the run's own working directory: leave out cwd"),
        ({"cwd": "/srv", "deploy_mode": "cluster"}, "cwd: the cluster chooses the working directory"),
        (
            {"env": {"X": "{secret[KEY]}"}, "deploy_mode": "cluster"},
            "the secret 'KEY' would be stored with the application",
        ),
        ({"files": ["/x/{secret[KEY]}"]}, "a path cannot have a secret in it"),
        ({"args": ["{stage:/x/{secret[KEY]}}"]}, "a path that is staged cannot have a secret in it"),
        ({"args": ["{secret[KEY]:.3}"]}, "a secret has no format"),
        (
            {"args": ["{stage:s3a://lake/{conf[city]}/day={interval.start:%F}}"]},
            "s3a://lake/…/day=2000-01-01 cannot be staged: a rename on s3a: does not fail when it must; make a table",
        ),
        ({"env": {"OUT": "{stage_partitions:hdfs://{conf[host]}/x, dt={interval.start:%F}}"}}, "a rename on hdfs:"),
        ({"args": ["{staged:gs://{conf[bucket]}/x}"]}, "a rename on gs:"),
        ({"args": ["{stage:out/{conf[city]}}"]}, "give the absolute path of a directory"),
    ],
)
def test_a_script_that_cannot_be_submitted_is_refused_where_it_is_written(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        pipeline().submit("script", "job.py", **how)


@pytest.mark.parametrize(
    "path",
    [
        "{conf[out]}/x",
        "{conf[fs]}://lake/x",
        "file://{conf[out]}/x",
        "FILE:{conf[out]}",
        "file:///out/x",
        "/{conf[out]}",
    ],
)
def test_a_place_that_a_request_may_make_one_is_not_refused(path: str) -> None:
    pipeline().submit("script", "job.py", args=[f"{{stage:{path}}}"])


@pytest.mark.parametrize(
    ("script", "args"), [("app.jar", ["{secret[KEY]}"]), ("s3a://jobs/x.py", ["--key={secret[KEY]}"])]
)
def test_a_secret_among_arguments_that_others_see_is_refused(script: str, args: list[str]) -> None:
    with pytest.raises(ValueError, match="other users of its host could read the secret 'KEY' among the arguments"):
        pipeline().submit("script", script, args=args)


def test_a_jar_has_a_class_and_packages(tmp_path: Path) -> None:
    flights = pipeline()
    flights.submit("jar", "app.jar", main_class="org.example.Main$", packages=["org.postgresql:postgresql:42.7.7"])
    (made,) = definition_of(flights, CodeLocation(file=str(tmp_path / "flights.py"), attribute="flights")).tasks
    assert made.submit is not None
    assert (made.submit.main_class, made.submit.packages) == (
        "org.example.Main$",
        ("org.postgresql:postgresql:42.7.7",),
    )


def test_paths_with_fields_are_found_beside_the_pipelines_file_and_templates_are_read(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    for name in ("job.py", "rules/2013-01.json", "rules/2013-02.json"):
        (tmp_path / name).touch()
    (tmp_path / "job.yaml").write_text(
        "out: {stage:/out/{conf[name]}}\nn: {a: 1}\nday: {interval.end:%F} {secret[KEY]}"
    )
    flights = pipeline()
    files, templates = ["rules/{interval.start:%Y-%m}.json#rules.json"], ["job.yaml#config.yaml"]
    flights.submit("script", "job.py", files=files, templates=templates, cwd=None)
    (made,) = definition_of(flights, CodeLocation(file=str(tmp_path / "flights.py"), attribute="flights")).tasks
    script = made.submit
    assert script is not None
    assert script.files == (f"{tmp_path}/rules/{{interval.start:%Y-%m}}.json#rules.json",)
    assert script.fields == ("{stage:/out/{conf[name]}}", "{interval.end:%F}", "{secret[KEY]}")
    assert (script.stages, script.secrets, made.bypasses_reviews) == (True, ["KEY"], False)
    (tmp_path / "job.yaml").write_text("day: {interval.strat:%F}")
    with pytest.raises(ValueError, match=r"in '{interval.strat:%F}': .*did you mean"):
        definition_of(flights, CodeLocation(file=str(tmp_path / "flights.py"), attribute="flights"))
    (tmp_path / "job.yaml").write_text("{a: 1}\nday: {interval.start:%F\n}")
    with pytest.raises(
        ValueError, match=r"task 'script': template .*/job.yaml: the field that begins with '{interval.start:%F'"
    ):
        flights.to_data(str(tmp_path / "flights.py"))


@pytest.mark.parametrize(
    ("command", "more", "program"),
    [
        (["dbt", "build"], {}, "dbt"),
        (["load.sh"], {}, "HERE/load.sh"),
        (["./load.sh"], {}, "HERE/load.sh"),
        (["bin/load.sh"], {}, "HERE/bin/load.sh"),
        (["/usr/bin/dbt"], {}, "/usr/bin/dbt"),
        (["folder"], {}, "folder"),
        (["tools/bin/run"], {"archives": ["tools.tar.gz#tools"]}, "./tools/bin/run"),
        (["./tools.zip/run"], {"archives": ["tools.zip"]}, "./tools.zip/run"),
        (["./load.sh"], {"templates": ["load.sh"]}, "./load.sh"),
    ],
)
def test_the_program_of_a_command(tmp_path: Path, command: list[str], more: dict[str, Any], program: str) -> None:
    for name in ("load.sh", "bin/load.sh", "folder/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    flights = pipeline()
    flights.command("load", [*command, "{interval.start:%F}"], **more)
    (made,) = definition_of(flights, CodeLocation(file=str(tmp_path / "flights.py"), attribute="flights")).tasks
    assert made.submit is not None
    assert made.kind == "command"
    assert made.submit.script == program.replace("HERE", str(tmp_path))
    assert made.submit.args == (*command[1:], "{interval.start:%F}")


@pytest.mark.parametrize(
    ("command", "more", "why"),
    [
        ([], {}, "the command is empty"),
        ("dbt build", {}, "command is 'dbt build': give a list"),
        (["dbt", "{interval.strat}"], {}, "did you mean interval.start?"),
        (["dbt", "--password={secret[KEY]}"], {}, "other users of its host could read"),
        (["job.py", "--password={secret[KEY]}"], {}, "other users of its host could read"),
        (["dbt"], {"files": ["s3a://x/y"]}, "a command finds files by their paths, not by addresses as 's3a://x/y'"),
        (["dbt"], {"files": ["x"], "cwd": "/srv"}, "leave out cwd"),
        (["dbt"], {"conf": {"spark.x": "1"}}, "conf"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused_where_it_is_written(
    command: Any, more: dict[str, Any], why: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(why)):
        pipeline().command("load", command, **more)


def test_scripts_and_programs_need_no_warm_driver() -> None:
    alone, mixed, chosen = (Pipeline("p", schedule="@daily", executor=each) for each in (None, None, "pool"))
    for each in (alone, mixed, chosen):
        each.command("load", ["true"])
    mixed.task(name="check")(lambda run: None)
    assert [each.to_data()["executor"] for each in (alone, mixed, chosen)] == ["spark-submit", "pool", "pool"]
