"""Real runs with a secret in every setting that may hold one: the secret appears in no command
line, log, table, topic or output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.support.installation import ROOT, Installation, until
from tests.support.loading import definition_of, load_pipelines
from tests.support.shown import everything
from tests.support.spark_cluster import connect_process

from retrofill.spark import java
from retrofill_core.settings import Settings

pytestmark = [pytest.mark.spark, pytest.mark.long]
CANARY = "hunter2-canary"
# These options have no effect here because nothing uses them.
SPARK = {
    "spark.hadoop.fs.s3a.secret.key": CANARY,
    "spark.hadoop.fs.azure.account.key.x": CANARY,
    "spark.driver.extraJavaOptions": f"-Dx.keyStorePassword={CANARY} '-Dx.note=a b'",
}
CODE = """
import os, pathlib, time
from retrofill import Pipeline
p = Pipeline("p", schedule="@daily")
s = Pipeline("s", schedule="@daily", executor="spark-submit")

@p.task
def connected(run):
    assert run.spark.range(5).count() == 5
    print(os.environ["KEY_FROM_FILE"], os.environ["KEY_FROM_HOST"])
    assert "HOSTS_KEY" not in os.environ
    assert not [name for name in os.environ if name.startswith("RETROFILL_")]

p.submit("script", "job.py", args=["{conf.out}"], after=connected)

@s.task
def submitted(run):
    print(os.environ["KEY_FROM_FILE"], os.environ["KEY_FROM_HOST"])
    assert not [name for name in os.environ if name.startswith("RETROFILL_")]
    conf = run.spark.sparkContext.getConf()
    assert conf.get("spark.hadoop.fs.s3a.secret.key").startswith("hunter2")
    assert run.spark.sparkContext._jvm.java.lang.System.getProperty("x.note") == "a b"
    out = pathlib.Path(run.conf["out"])
    (out / "submitted").touch()
    while not (out / "go").exists() and out.exists():
        time.sleep(0.05)
"""
# The script needs no Spark; it only has to be launched by a driver.
SCRIPT = """
import pathlib, sys, time
out = pathlib.Path(sys.argv[1])
(out / "script").touch()
while not (out / "go").exists() and out.exists():
    time.sleep(0.05)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, list[psutil.Process]]]:
    """A Connect server that requires a token: its address with the token, its home and its
    processes.
    """
    home = tmp_path_factory.mktemp("connect")
    settings = Settings(home=home, spark_cores=2, spark_conf={**SPARK, "spark.connect.authenticate.token": CANARY})
    with connect_process(settings, java.find(settings)) as (remote, process):
        address = remote.replace("127.0.0.1", "localhost")
        yield f"{address}/;token={CANARY};user_id=somebody", home, [psutil.Process(process.pid)]


def secrets(remote: str, out: Path) -> dict[str, str]:
    """A run-starter's settings, with a secret in each setting that may hold one."""
    (out / "key").write_text(CANARY)
    sources = {"KEY_FROM_FILE": {"file": str(out / "key")}, "KEY_FROM_HOST": {"variable": "HOSTS_KEY"}}
    return {
        "RETROFILL_POOLS": json.dumps({"default": {"spark_remote": remote, "env": {**sources, "LITERAL": CANARY}}}),
        "HOSTS_KEY": CANARY,
        "RETROFILL_SPARK_REMOTE": remote,
        "RETROFILL_SPARK_CONF": json.dumps(SPARK),
        "RETROFILL_SPARK_SUBMIT_CONF": json.dumps(SPARK),
        # spark-submit may be slow to start on a busy machine.
        "RETROFILL_LEASE_SECONDS": "600",
        "RETROFILL_SCRIPT_ALLOW": json.dumps([str(out / "job.py")]),
        "RETROFILL_KAFKA_PASSWORD": CANARY,
        "RETROFILL_KAFKA_PASSWORDS": json.dumps({"run-starter": CANARY, "operator": CANARY}),
        "RETROFILL_KAFKA_SSL_KEY_PASSWORD": CANARY,
        "RETROFILL_KAFKA_CONFIG": json.dumps({"ssl.key.password": CANARY}),
        "RETROFILL_CODE_STORE_OPTIONS": json.dumps({"secret": CANARY}),
        "RETROFILL_RECEIVERS": json.dumps({"team": f"https://hooks.example/{CANARY}", "applied": None}),
        "RETROFILL_WEBHOOK_SECRETS": json.dumps({"default": ["whsec_aHVudGVyMi1jYW5hcnktaHVudGVyMi1jYW5hcnk="]}),
    }


def families(roots: list[psutil.Process]) -> list[psutil.Process]:
    return [each for root in roots for each in (root, *root.children(recursive=True))]


def test_no_secret_shows(
    installation: Installation, server: tuple[str, Path, list[psutil.Process]], tmp_path: Path
) -> None:
    remote, spark_home, processes = server
    given = secrets(remote, tmp_path)
    (tmp_path / "pipeline.py").write_text(CODE)
    (tmp_path / "job.py").write_text(SCRIPT)
    # As users start them: the command lines are looked at.
    installation.nursery = None
    installation.start("backfill-planner", given)
    starter = installation.start("run-starter", given, RETROFILL_DRIVER_SLOTS="2")
    for pipeline, location in load_pipelines(tmp_path / "pipeline.py"):
        installation.apply(definition_of(pipeline, location))
    ids = [installation.request(name, "2020-01-01", "2020-01-01", conf={"out": str(tmp_path)}) for name in "ps"]
    for name in ("script", "submitted"):
        until((tmp_path / name).exists, f"{name} is at work", starter.said, 300)
    commands = {each.pid: each.cmdline() for each in families([*processes, psutil.Process(starter.process.pid)])}
    (tmp_path / "go").touch()
    assert [installation.wait_state(id, "succeeded", "failed") for id in ids] == ["succeeded", "succeeded"]
    # The server, the starter, warm drivers, a submitted driver and a script with their Python
    # processes, and their guards.
    assert len(commands) >= 8
    assert [command for command in commands.values() if CANARY in " ".join(command)] == []
    shown = {"a setting": repr(Settings.model_validate({"spark_remote": remote, "spark_conf": SPARK}))}
    for command in (["config"], ["config", "--json"], ["status"], ["status", "--json"], ["pipelines", "show", "s"]):
        shown[" ".join(command)] = output(installation, given, command)
    assert "user_id=somebody" in shown["config"]
    shown |= {str(log): log.read_text(errors="replace") for log in spark_home.rglob("*.log*")}
    shown |= everything(installation)
    assert str(installation.settings.home / "logs" / "drivers.log") in shown
    assert [place for place, text in shown.items() if CANARY in text or "aHVudGVy" in text] == []


def output(installation: Installation, given: dict[str, str], command: list[str]) -> str:
    """A command's stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-c", "from retrofill_tools.cli.main import run; run()", *command],
        cwd=ROOT,
        env={**os.environ, **installation.environment(), **given},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
