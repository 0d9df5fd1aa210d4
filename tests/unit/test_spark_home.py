"""The spark-submit that is used, and the configuration beside it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from retrofill.spark.home import SparkHome, read_properties
from retrofill.spark.java import spark_jars
from retrofill_core.setting_types import write_endpoints
from retrofill_core.settings import NotConfigured, Settings
from retrofill_tools.stack.maven import Maven
from retrofill_tools.stack.spark import of_scripts
from run_starter.executors.build import check_spark

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Makes a folder with a spark-submit and, if given, a spark-defaults.conf."""

    def made(name: str = "spark", defaults: str | None = None) -> Path:
        program = tmp_path / name / "bin" / "spark-submit"
        program.parent.mkdir(parents=True)
        program.touch(0o755)
        if defaults is not None:
            (tmp_path / name / "conf").mkdir()
            (tmp_path / name / "conf" / "spark-defaults.conf").write_text(defaults)
        return tmp_path / name

    return made


def settings(**given: Any) -> Settings:
    return Settings.model_validate(given)


def test_the_setting_goes_before_the_variable_and_that_before_pyspark(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SparkHome.of(settings()).folder == spark_jars().parent
    monkeypatch.setenv("SPARK_HOME", str(make("theirs")))
    assert SparkHome.of(settings()).folder == make("x").parent / "theirs"
    ours = make("ours")
    assert SparkHome.of(settings(spark_home=ours)).folder == ours


def test_spark_submit_is_of_that_folder_and_gets_complete_settings(make: Make, tmp_path: Path) -> None:
    home = SparkHome.of(settings(spark_home=make()))
    conf = {"spark.executor.memory": "2g", "spark.master": "yarn", "spark.driver.extraJavaOptions": "-Da=b '-Dc=d e'"}
    command = home.command(conf, tmp_path, "client")
    assert command == [
        *(str(tmp_path / "spark" / "bin" / "spark-submit"), "--master", "local[1]", "--deploy-mode", "client"),
        *("--properties-file", str(tmp_path / "spark.properties")),
    ]
    written = read_properties((tmp_path / "spark.properties").read_text())
    assert written == {
        "spark.executor.memory": "2g",
        "spark.driver.extraJavaOptions": f"@{tmp_path / 'jvm.options'}",
    }
    assert (tmp_path / "jvm.options").read_text().splitlines() == ['"-Da=b"', '"-Dc=d e"']
    home.command(conf, tmp_path, "cluster")
    # There the file does not exist.
    assert (
        conf.items() - {("spark.master", "yarn")}
        == read_properties((tmp_path / "spark.properties").read_text()).items()
    )


def test_the_master_is_the_settings_or_that_of_the_defaults(make: Make) -> None:
    folder = make(defaults="spark.master yarn\nhive.x y\nspark.driver.memory  3g ")
    home = SparkHome.of(settings(spark_home=folder))
    assert home.defaults == {"spark.master": "yarn", "spark.driver.memory": "3g"}
    assert home.master == "yarn"
    assert SparkHome.of(settings(spark_home=folder, spark_submit_master="local[2]")).master == "local[2]"
    assert SparkHome.of(settings()).master == "local[1]"


def test_spark_conf_dir_goes_before_the_folders_own(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, other = make(defaults="spark.a 1"), make("other", defaults="spark.a 2")
    monkeypatch.setenv("SPARK_CONF_DIR", str(other / "conf"))
    assert SparkHome.of(settings(spark_home=folder)).defaults == {"spark.a": "2"}
    # Also for pyspark's, whose own script then reads spark-env.sh there.
    home = SparkHome.of(settings())
    assert home.defaults == {"spark.a": "2"}
    assert home.command({}, folder, "client")[0] == str(spark_jars().parent / "bin" / "spark-submit")


def test_what_the_users_environment_says_is_kept(make: Make, tmp_path: Path) -> None:
    home = SparkHome.of(settings(spark_home=make()))
    assert home.environment(tmp_path, {}) == {
        "SPARK_HOME": str(tmp_path / "spark"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    theirs = {"PYSPARK_PYTHON": "/opt/python", "SPARK_LOCAL_IP": "10.0.0.1"}
    assert home.environment(tmp_path, theirs) == {"SPARK_HOME": str(tmp_path / "spark")}


def test_a_driver_here_runs_with_the_pools_python_unless_the_operator_names_one(make: Make, tmp_path: Path) -> None:
    ours, of_pool = SparkHome.of(settings()), SparkHome.of(settings(spark_home=make()), "/opt/pool/python")
    assert ours.python_of_driver({}) == {"spark.pyspark.driver.python": sys.executable}
    assert ours.python_of_driver({"spark.pyspark.python": "/opt/python"}) == {}
    assert of_pool.python_of_driver({}) == {"spark.pyspark.driver.python": "/opt/pool/python"}
    environment = of_pool.environment(tmp_path, {"PYSPARK_PYTHON": "/opt/python"})
    assert environment["PYSPARK_PYTHON"] == "/opt/pool/python"


@pytest.mark.parametrize("how", ["setting", "variable"])
def test_a_folder_without_spark_submit_is_refused_in_one_line(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "variable":
        monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    given = settings(spark_home=tmp_path) if how == "setting" else settings()
    with pytest.raises(
        NotConfigured, match=r"SPARK_HOME: there is no program .*/bin/spark-submit: set it to"
    ) as refused:
        check_spark(given)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith("RETROFILL_SPARK_HOME" if how == "setting" else "SPARK_HOME")


def test_a_configuration_that_cannot_be_used_is_refused_in_one_line(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make(defaults="spark.master spark://host:7077")
    check_spark(settings(spark_home=folder))
    with pytest.raises(NotConfigured, match="only on YARN and Kubernetes; use client"):
        check_spark(settings(spark_home=folder, spark_submit_deploy_mode="cluster", driver_host="starter.example"))
    (folder / "conf" / "spark-defaults.conf").write_bytes(b"spark.x \xff")
    with pytest.raises(NotConfigured, match=r"spark-defaults\.conf cannot be read: it is not UTF-8"):
        check_spark(settings(spark_home=folder))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(NotConfigured, match="SPARK_CONF_DIR: there is no directory"):
        check_spark(settings())


OF_SERVER = {
    "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
    "spark.hadoop.fs.s3a.endpoint": "http://s3",
    "spark.driver.host": "10.0.0.5",
    "spark.executor.memory": "2g",
}


def of_stack(**given: Any) -> dict[str, str]:
    made = settings(spark_conf=OF_SERVER, **given)
    return of_scripts(made, Maven(made, Path("java"), lambda _: None, os.environ))


def test_scripts_of_a_stack_find_the_tables_of_its_server(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {name: value for name, value in OF_SERVER.items() if name.startswith(("spark.sql.", "spark.hadoop."))}
    assert of_stack() == of_stack(spark_submit_master="local[4]") == found
    assert of_stack(spark_submit_master="spark://host:7077") == of_stack(spark_home=make("another")) == {}
    monkeypatch.setenv("SPARK_CONF_DIR", str(make(defaults="spark.sql.extensions theirs") / "conf"))
    assert of_stack() == {}


def test_settings_of_scripts_in_the_environment_go_before_those_of_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_endpoints(tmp_path, {"spark_submit_conf": {"spark.jars": "/ours.jar", "spark.sql.catalog.lake": "ours"}})
    monkeypatch.setenv("RETROFILL_SPARK_SUBMIT_CONF", json.dumps({"spark.sql.catalog.lake": "theirs", "spark.x": "y"}))
    expected = {"spark.jars": "/ours.jar", "spark.sql.catalog.lake": "theirs", "spark.x": "y"}
    assert Settings(home=tmp_path).spark_submit_conf == expected
