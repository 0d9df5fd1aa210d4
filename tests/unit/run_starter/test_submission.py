"""The spark-submit command line: in client mode, and for drivers inside YARN or Kubernetes."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.definitions import daily

from retrofill.driver.config import Config
from retrofill.driver.preparing import Fields
from retrofill.driver.submit import Submits
from retrofill.outputs.staging import Staging
from retrofill.protocol.launch import Launch, LaunchedRun, Script
from retrofill.spark.home import SparkHome, read_properties
from retrofill.spark.java import spark_submit_command
from retrofill.states import AttemptMode
from retrofill_core.domain.pipeline import SubmitScript, TaskDefinition
from retrofill_core.driver_package import SOURCE, package
from retrofill_core.settings import Settings
from retrofill_tools.stack.spark import connect_command
from run_starter.executors import LaunchRequest, submission
from run_starter.executors.command import told

JAVA = Path("/java")
SECRET = "hunter2-hunter2"


def launch(**conf: str) -> LaunchRequest:
    day = datetime(2020, 1, 1, tzinfo=UTC)
    runs = tuple(LaunchedRun(n, 1, day.replace(day=n), day.replace(day=n + 1)) for n in (1, 2))
    return LaunchRequest("b", 1, AttemptMode.EACH, runs, daily(spark_conf=conf), {}, lease_seconds=60.0)


def script_task() -> TaskDefinition:
    return TaskDefinition(name="a", kind="submit", submit=SubmitScript(script="/a.py"))


def cluster(master: str, **more: Any) -> Settings:
    return Settings.model_validate(
        {
            "spark_submit_master": master,
            "spark_submit_deploy_mode": "cluster",
            "driver_host": "starter.example",
            **more,
        }
    )


def written(home: SparkHome, environment: dict[str, str], folder: Path) -> tuple[list[str], str]:
    """The arguments of spark-submit, and the settings file that they name."""
    command = submission.command(home, launch(), environment, folder)
    file = folder / "spark.properties"
    assert file.stat().st_mode & 0o077 == 0
    return command[command.index("--master") :], file.read_text()


@pytest.fixture(params=["pyspark", "SPARK_HOME"])
def spark_home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where spark-submit is from."""
    if request.param == "SPARK_HOME":
        monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    return str(request.param)


@pytest.mark.usefixtures("spark_home")
def test_secrets_are_in_files_of_the_owner_and_in_no_command_line(tmp_path: Path) -> None:
    """For scripts, the Connect server and submitted drivers."""
    conf = {"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.driver.extraJavaOptions": f"-Dx.password={SECRET}"}
    settings = Settings(home=tmp_path, spark_conf=conf, spark_submit_conf=conf)
    folders = [tmp_path / name for name in ("script", "server", "driver")]
    for folder in folders:
        folder.mkdir()
    given = Launch.of(launch().as_json())
    fields = Fields(given, given.pieces[0], Staging(given, given.pieces[0]), "a")
    commands = [
        Submits(Config.of(told(settings)), given).submission(Script("/a.py"), fields, folders[0]).command,
        connect_command(settings, JAVA, folders[1], "127.0.0.1", 15002),
        submission.command(SparkHome.of(settings), launch(), {}, folders[2]),
    ]
    for command, folder in zip(commands, folders, strict=True):
        assert SECRET not in " ".join(command)
        files = [folder / "spark.properties", folder / "jvm.options"]
        # Spark's launcher reads the name of the second one in the first.
        said = " ".join(command) + files[0].read_text()
        assert all(str(file) in said for file in files)
        assert all(SECRET in file.read_text() and file.stat().st_mode & 0o077 == 0 for file in files)


def test_a_pipelines_settings_win_over_those_of_all_submits() -> None:
    settings = Settings(spark_submit_conf={"spark.executor.memory": "1g", "spark.cores.max": "2"})
    conf = submission.driver_conf(SparkHome.of(settings), launch(**{"spark.executor.memory": "4g"}))
    assert (conf["spark.executor.memory"], conf["spark.cores.max"]) == ("4g", "2")
    assert conf["spark.app.name"] == "retrofill p 2020-01-01T00:00:00+00:00"


def test_what_is_of_the_jvm_in_client_mode_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    conf = {
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": "-Da=b '-Dc=d e'",
        "spark.driver.extraClassPath": "/more.jar",
    }
    options = tmp_path / "jvm.options"
    command = spark_submit_command(JAVA, options, conf=conf)
    assert {"-Xmx3g", f"@{options}"} <= set(command)
    assert options.read_text().splitlines() == ['"-Da=b"', '"-Dc=d e"']
    assert options.stat().st_mode & 0o077 == 0
    assert command[command.index("-cp") + 1].split(":")[:2] == ["/more.jar", "/etc/hadoop"]
    assert command[-1] == "org.apache.spark.deploy.SparkSubmit"


@pytest.mark.parametrize(
    ("master", "prefix", "program"),
    [
        ("yarn", "spark.yarn.appMasterEnv.", "{package}/retrofill/driver/once.py"),
        ("k8s://https://api:6443", "spark.kubernetes.driverEnv.", f"local://{SOURCE}/driver/once.py"),
    ],
)
def test_a_driver_in_the_cluster_gets_its_own_environment_and_none_of_our_settings(
    master: str, prefix: str, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETROFILL_KAFKA_BOOTSTRAP_SERVERS", "kafka:9092")
    monkeypatch.setenv("RETROFILL_POSTGRES_DSN", f"password={SECRET}")
    settings = cluster(master, home=tmp_path, spark_submit_conf={"spark.kubernetes.container.image": "ours:1"})
    environment = {"RETROFILL_DRIVER_SOCKET": "starter.example:1", "PASSWORD": "the driver's", "SPARK_HOME": "/here"}
    arguments, file = written(SparkHome.of(settings), environment, tmp_path)
    assert arguments[:4] == ["--master", master, "--deploy-mode", "cluster"]
    assert arguments[-1] == program.format(package=package(tmp_path))
    assert "driver's" not in " ".join(arguments)
    lines = file.splitlines()
    assert f"{prefix}RETROFILL_DRIVER_SOCKET=starter.example\\:1" in lines
    assert f"{prefix}PASSWORD=the\\ driver's" in lines
    assert "spark.kubernetes.container.image=ours\\:1" in lines
    assert all(absent not in file for absent in (SECRET, "RETROFILL_KAFKA", f"{prefix}SPARK_HOME"))


def test_a_driver_on_yarn_brings_its_package_along(tmp_path: Path) -> None:
    settings = cluster("yarn", home=tmp_path, spark_submit_conf={"spark.submit.pyFiles": "/users.zip"})
    _, file = written(SparkHome.of(settings), {}, tmp_path)
    users, ours = read_properties(file)["spark.submit.pyFiles"].split(",")
    assert users == "/users.zip"
    with zipfile.ZipFile(ours) as zipped:
        names = set(zipped.namelist())
    assert {"retrofill/__init__.py", "retrofill/driver/serve.py", "retrofill/sdk/names.py"} <= names
    assert "retrofill_core/settings.py" not in names


def test_what_a_secret_of_kubernetes_gives_is_not_sent() -> None:
    reference = {f"{submission.SECRET_REF}PASSWORD": "theirs:key"}
    settings = cluster("k8s://https://api:6443", spark_submit_conf=reference)
    home = SparkHome.of(settings)
    conf = submission.driver_conf(home, launch())
    fields = submission.in_cluster(home, conf, {"PASSWORD": SECRET})
    assert SECRET not in str(fields)
    assert reference.items() <= fields.items()


@pytest.mark.parametrize("master", ["spark://host:7077", "local[2]"])
def test_a_python_driver_inside_a_standalone_cluster_is_refused_in_one_line(master: str) -> None:
    with pytest.raises(ValidationError, match="only on YARN and Kubernetes; use client") as refused:
        cluster(master)
    (error,) = refused.value.errors()
    assert "\n" not in error["msg"]


def test_a_driver_in_the_cluster_must_find_us() -> None:
    with pytest.raises(ValidationError, match="RETROFILL_DRIVER_HOST"):
        cluster("yarn", driver_host="127.0.0.1")


def test_a_driver_that_only_runs_scripts_is_no_application(tmp_path: Path) -> None:
    scripts = replace(launch(), pipeline=daily().model_copy(update={"tasks": (script_task(),)}))
    settings = cluster("yarn", home=tmp_path)
    program = f"{package(tmp_path)}/retrofill/driver/once.py"
    assert scripts.needs_no_spark and submission.plain_command(settings, sys.executable) == [sys.executable, program]
    assert not submission.is_remote(settings, scripts)
    assert submission.is_remote(settings, launch())


@pytest.mark.parametrize(
    "value", ["plain", '{"a": {"b": {"c": "d"}}}', "$HOME `id` \\ \\n 'x' \"", "{{HOME}}", "{{{}}}"]
)
def test_a_variable_arrives_in_yarn_as_it_was(value: str) -> None:
    """Through what YARN does with it: it replaces its own marks, and writes it into a shell script."""
    written = submission.for_yarn(value).replace("{{", "$").replace("}}", "")
    script = f'export X="{written}"\nprintf %s "$X"'
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout == value


def by_spark_submit(heap: str, **more: Any) -> LaunchRequest:
    given = launch(**{"spark.driver.memory": heap})
    return replace(given, pipeline=given.pipeline.model_copy(update={"executor": "spark-submit", **more}))


@pytest.mark.parametrize("size", ["2gb", "2 g", "1.5g", "2048", "0g", "", "g", "2g\n", "-1g", "\u0662g"])
def test_a_heap_that_java_does_not_take_is_refused_where_java_gets_it(size: str) -> None:
    message = submission.refusal(Settings(), by_spark_submit(size))
    assert (
        message is not None and message.startswith(f"spark_conf: spark.driver.memory is {size!r}") and "2g" in message
    )
    assert "\n" not in message
    # Elsewhere Spark reads it, or nobody.
    assert submission.refusal(cluster("yarn"), by_spark_submit(size)) is None
    assert submission.refusal(Settings(), by_spark_submit(size, executor="pool")) is None
    assert submission.refusal(Settings(), by_spark_submit(size, tasks=(script_task(),))) is None


@pytest.mark.parametrize("size", ["512m", "2G", "900000k", "1t", "2147483648"])
def test_a_heap_that_java_takes_is_not_refused(size: str) -> None:
    assert submission.refusal(Settings(), by_spark_submit(size)) is None
    assert submission.refusal(Settings(), launch()) is None
