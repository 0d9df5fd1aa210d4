"""The Spark settings that a definition may set: none that loads code, unless the operator allows
it.
"""

from __future__ import annotations

import re
import zipfile
from typing import Any

import pytest

from retrofill.spark.java import spark_jars
from retrofill_core.domain.allowed import DEFAULT, refusal, setting_allowed
from retrofill_core.domain.pipeline import PipelineDefinition

SHIPPED = {"file": "/flows/p.py", "attribute": "p", "sha256": "0" * 64, "root": "/flows"}
IN_PLACE = {"file": "/flows/p.py", "attribute": "p"}


def definition(script: str | None = None, code: dict[str, str] | None = None, **more: Any) -> PipelineDefinition:
    task = {"name": "a"} if script is None else {"name": "a", "kind": "submit", "submit": {"script": script}}
    given = {"name": "p", "schedule": "@daily", "tasks": [task], "code": code or SHIPPED, **more}
    return PipelineDefinition.model_validate(given)


LOADS_CODE = [
    *("spark.jars", "spark.jars.packages", "spark.jars.repositories", "spark.plugins", "spark.files", "spark.archives"),
    *("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions", "spark.executor.defaultJavaOptions"),
    *("spark.driver.extraClassPath", "spark.executor.extraClassPath", "spark.executor.extraLibraryPath"),
    *(
        "spark.submit.pyFiles",
        "spark.extraListeners",
        "spark.sql.extensions",
        "spark.sql.catalog.c",
        "spark.sql.catalog.c.uri",
    ),
    *(
        "spark.sql.queryExecutionListeners",
        "spark.sql.streaming.streamingQueryListeners",
        "spark.sql.extendedExplainProviders",
    ),
    *(
        "spark.sql.hive.metastore.jars",
        "spark.sql.sources.commitProtocolClass",
        "spark.sql.parquet.output.committer.class",
    ),
    *("spark.sql.cache.serializer", "spark.sql.execution.pyspark.python", "spark.pyspark.python", "spark.serializer"),
    *(
        "spark.kryo.registrator",
        "spark.kryo.classesToRegister",
        "spark.hadoop.fs.x.impl",
        "spark.hadoop.fs.s3a.secret.key",
    ),
    *("spark.kubernetes.driver.podTemplateFile", "spark.kubernetes.container.image", "spark.executorEnv.PYTHONPATH"),
    *("spark.kubernetes.driverEnv.X", "spark.yarn.appMasterEnv.X", "spark.yarn.dist.files", "spark.redaction.regex"),
    *("spark.executor.resource.gpu.discoveryScript", "spark.master", "spark.remote", "spark.submit.deployMode"),
    *(
        "spark.sql.artifact.copyFromLocalToFs.allowDestLocal",
        "spark.shuffle.manager",
        "spark.sql.maven.additionalRemoteRepositories",
        "spark.sql.warehouse.dir",
        "spark.sql.streaming.checkpointLocation",
        "spark.sql.x.password",
        "spark.sql.x\nspark.jars",
        "",
    ),
]
HARMLESS = [
    *("spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.sql.sources.partitionOverwriteMode"),
    *("spark.executor.memory", "spark.executor.cores", "spark.executor.instances", "spark.driver.memory"),
    *("spark.dynamicAllocation.maxExecutors", "spark.default.parallelism", "spark.sql.ansi.enabled"),
]


@pytest.mark.parametrize("name", LOADS_CODE)
def test_what_may_load_code_is_refused_unless_it_is_allowed_by_name(name: str) -> None:
    message = refusal(definition(spark_conf={name: "x"}), [DEFAULT], [])
    assert message is not None and repr(name) in message and "RETROFILL_SPARK_CONF_ALLOW" in message
    assert "\n" not in message
    task = {"name": "a", "kind": "submit", "submit": {"script": "/flows/a.py", "conf": {name: "x"}}}
    assert (refusal(definition(tasks=[task]), [DEFAULT], []) or "").startswith("conf of task 'a': ")
    if re.fullmatch(r"[\w.]+", name):
        assert refusal(definition(spark_conf={name: "x"}), [DEFAULT, name], []) is None


@pytest.mark.parametrize("name", HARMLESS)
def test_what_loads_none_is_allowed_unless_the_operator_is_stricter(name: str) -> None:
    assert refusal(definition(spark_conf={name: "x"}), [DEFAULT], []) is None
    assert refusal(definition(spark_conf={name: "x"}), ["spark.sql.none.*"], []) is not None


# Reviewed one by one: numbers, flags and format names.
LOOKED_AT = {
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype", "spark.sql.legacy.useV1Command", "spark.sql.orc.impl",
    "spark.sql.classic.shuffleDependency.fileCleanup.enabled",
    "spark.sql.codegen.useIdInClassName", "spark.sql.legacy.raiseErrorWithoutErrorClass",
    "spark.sql.optimizer.serializer.nestedSchemaPruning.enabled", "spark.sql.function.protobufExtensions.enabled",
    "spark.sql.sources.disabledJdbcConnProviderList", "spark.sql.legacy.blockCreateTempTableUsingProvider",
    "spark.sql.defaultColumn.allowedProviders", "spark.sql.execution.pythonUDF",
    "spark.sql.execution.columnar.ArrowCachedBatchSerializer", "spark.sql.execution.columnar.DefaultCachedBatchSerializer",
    "spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "spark.sql.parquet.compression.codec", "spark.sql.orc.compression.codec", "spark.sql.avro.compression.codec",
    "spark.sql.execution.arrow.compression.codec", "spark.sql.legacy.allowCreatingManagedTableUsingNonemptyLocation",
    "spark.sql.legacy.createHiveTableByDefault", "spark.sql.streaming.forceDeleteTempCheckpointLocation",
    "spark.sql.sources.default",
}  # fmt: skip


def test_no_setting_of_this_spark_that_sounds_like_code_is_allowed_unseen() -> None:
    """A new Spark release may add settings that load classes. Review those that this test finds
    when upgrading.
    """
    (jar,) = spark_jars().glob("spark-catalyst_*.jar")
    with zipfile.ZipFile(jar) as classes:
        texts = b"".join(classes.read(name) for name in classes.namelist() if "internal/" in name and "SQLConf" in name)
    names = {found.decode().rstrip(".") for found in re.findall(rb"spark\.sql\.[A-Za-z0-9_.]+", texts)}
    assert len(names) > 500
    suspicious = re.compile(
        r"class|provider|listener|plugin|extension|jar|serializer|maven|repositor|python$|command$|impl$|"
        r"codec$|default$|dir$|location$|path$|url$|uri$|host$|address$|factory$|manager$",
        re.IGNORECASE,
    )
    assert {name for name in names if suspicious.search(name) and setting_allowed(name, [DEFAULT])} <= LOOKED_AT


@pytest.mark.parametrize("script", ["/flows/job.py", "/flows/jobs/report.py"])
def test_a_script_that_was_shipped_may_run(script: str) -> None:
    assert refusal(definition(script), [DEFAULT], []) is None


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("/tmp/evil.py", SHIPPED),
        ("/flows/../tmp/evil.py", SHIPPED),
        ("https://evil.example/x.py", SHIPPED),
        ("s3a://bucket/x.py", SHIPPED),
        ("job.py", SHIPPED),
        ("--jars=https://evil.example/x.jar", SHIPPED),
        ("/flows/job.py", IN_PLACE),
    ],
)
def test_a_script_from_elsewhere_may_not(script: str, code: dict[str, str]) -> None:
    message = refusal(definition(script, code), [DEFAULT], ["/opt/jobs/*", "s3a://jobs/*"])
    assert message is not None and repr(script) in message and "RETROFILL_SCRIPT_ALLOW" in message
    assert "\n" not in message


def test_a_script_may_be_where_the_operator_allows_it() -> None:
    allowed = ["/opt/jobs/*", "s3a://jobs/*.py"]
    for script in ("/opt/jobs/a.py", "s3a://jobs/x/b.py"):
        assert refusal(definition(script, IN_PLACE), [DEFAULT], allowed) is None
    for script in ("/opt/jobs/../../tmp/evil.py", "s3a://jobs/%2e%2e/evil.py", "/opt/jobs2/a.py"):
        assert refusal(definition(script, IN_PLACE), [DEFAULT], allowed) is not None
    assert refusal(definition("--jars=/x.jar"), [DEFAULT], ["*"]) is not None


@pytest.mark.parametrize("kind", ["py_files", "jars", "files"])
def test_what_a_script_loads_comes_from_where_scripts_may_come(kind: str) -> None:
    def made(address: str, code: dict[str, str] | None = None) -> PipelineDefinition:
        task = {"name": "a", "kind": "submit", "submit": {"script": "/flows/a.py", kind: [address]}}
        return definition(code=code, tasks=[task])

    assert refusal(made("/flows/lib/x.zip"), [DEFAULT], []) is None
    for address in ("/opt/x.jar", "/flows/../x.jar", "https://evil.example/x.jar", "x.jar", "s3a://jobs/%2e%2e/x.jar"):
        message = refusal(made(address), [DEFAULT], ["s3a://jobs/*"])
        assert message is not None and f"may not use the file {address!r}" in message and "\n" not in message
        assert "RETROFILL_SCRIPT_ALLOW" in message
    assert refusal(made("s3a://jobs/x.jar"), [DEFAULT], ["s3a://jobs/*"]) is None
    # No setting allows it by the back door.
    assert refusal(made("/opt/x.jar"), [DEFAULT, "spark.jars"], []) is not None


@pytest.mark.parametrize(
    "name", ["LD_PRELOAD", "PYTHONPATH", "JAVA_TOOL_OPTIONS", "BASH_ENV", "PYSPARK_PYTHON", "STAGE"]
)
def test_no_environment_variable_may_be_set_unless_it_is_allowed_by_name(name: str) -> None:
    task = {"name": "a", "kind": "submit", "submit": {"script": "/flows/a.py", "env": {name: "x"}}}
    message = refusal(definition(tasks=[task]), [DEFAULT, "spark.*"], ["*"])
    assert message is not None and repr(name) in message and "RETROFILL_SPARK_CONF_ALLOW" in message
    assert "\n" not in message
    assert refusal(definition(tasks=[task]), [DEFAULT, f"env.{name}"], []) is None


def with_task(kind: str = "submit", code: dict[str, str] | None = None, **script: Any) -> PipelineDefinition:
    tasks = [{"name": "a", "kind": kind, "submit": script}]
    return PipelineDefinition.model_validate(
        {"name": "p", "schedule": "@daily", "tasks": tasks, "code": code or SHIPPED}
    )


@pytest.mark.parametrize(
    ("task", "allowed", "what"),
    [
        ({"kind": "command", "script": "dbt"}, ["dbt"], "run the program 'dbt', which is not shipped"),
        ({"kind": "command", "script": "/usr/bin/dbt"}, ["/usr/bin/*"], "run the program '/usr/bin/dbt'"),
        ({"script": "/flows/a.py", "files": ["/etc/{conf[x]}#x"]}, ["/etc/*"], "use the file '/etc/*'"),
        ({"script": "/flows/a.py", "files": ["s3a://b/%41/x"]}, [], "use the file 's3a://b/%41/x'"),
        (
            {"script": "/flows/a.py", "archives": ["/opt/env.tar.gz#env"]},
            ["/opt/env.tar.gz"],
            "use the file '/opt/env.tar.gz'",
        ),
        ({"script": "/flows/a.py", "templates": ["/opt/x.yaml"]}, ["/opt/x.yaml"], "use the file '/opt/x.yaml'"),
        ({"script": "/flows/a.py", "cwd": "/srv/{run.id}"}, ["/srv/*"], "use the file '/srv/*'"),
        (
            {"script": "/flows/app.jar", "main_class": "A", "jars": ["/opt/b.jar"]},
            ["/opt/*"],
            "use the file '/opt/b.jar'",
        ),
        ({"script": "/flows/a.py", "files": ["/flows/../etc/x"]}, [], "use the file '/flows/../etc/x'"),
    ],
)
def test_what_a_task_uses_is_shipped_or_listed(task: dict[str, Any], allowed: list[str], what: str) -> None:
    made = with_task(**task)
    message = refusal(made, [DEFAULT], [])
    assert message is not None and what in message and "RETROFILL_SCRIPT_ALLOW" in message and "\n" not in message
    assert allowed == [] or refusal(made, [DEFAULT], allowed) is None


def test_what_is_shipped_is_allowed_with_fields_in_its_path_and_in_the_working_directory() -> None:
    shipped: dict[str, Any] = {
        "script": "/flows/a.py",
        "files": ["/flows/{interval.start:%Y/%m}.json#x", "/flows/b"],
        "templates": ["/flows/t"],
    }
    assert refusal(with_task(**shipped), [DEFAULT], []) is None
    for cwd in ("/flows", "/flows/jobs"):
        assert refusal(with_task(script="/flows/a.py", cwd=cwd), [DEFAULT], []) is None
    in_archive = with_task("command", script="./tools/run", archives=["/flows/tools.zip#tools"])
    assert refusal(in_archive, [DEFAULT], []) is None


def test_packages_are_permitted_like_the_setting() -> None:
    made = with_task(script="/flows/a.py", packages=["org.postgresql:postgresql:42.7.7"])
    assert "packages of task 'a': a definition may not set 'spark.jars.packages'" in str(refusal(made, [DEFAULT], []))
    assert refusal(made, [DEFAULT, "spark.jars.packages"], []) is None
