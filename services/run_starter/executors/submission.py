"""The arguments of spark-submit for one driver: its settings and, in a cluster, its environment."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import retrofill.driver
from retrofill.java import with_jars, write_properties
from retrofill.settings import Settings
from run_starter.executors import LaunchRequest, processes

ENTRY = Path(retrofill.driver.__file__).with_name("once.py")
KUBERNETES = "k8s://"
# Prefixes of a driver's environment variables. Spark's UI masks those whose names look secret.
DRIVER_ENV = {"yarn": "spark.yarn.appMasterEnv.", KUBERNETES: "spark.kubernetes.driverEnv."}
SECRET_REF = "spark.kubernetes.driver.secretKeyRef."
# Folders of this machine do not exist in the cluster. Spark's UI would show the options, with the secrets in them.
_NOT_THERE = (
    "RETROFILL_HOME",
    "RETROFILL_CACHE",
    "RETROFILL_JAVA_HOME",
    "RETROFILL_SPARK_HOME",
    "RETROFILL_CODE_STORE_OPTIONS",
    "SPARK_HOME",
)


def driver_conf(settings: Settings, launch: LaunchRequest) -> dict[str, str]:
    """Spark's settings for one driver; the pipeline's take precedence."""
    conf = {
        "spark.app.name": f"retrofill {launch.pipeline.name} {launch.runs[0].interval_start.isoformat()}",
        "spark.ui.enabled": "false",
        **settings.spark_submit_conf,
        **launch.pipeline.spark_conf,
    }
    return with_jars(conf, settings.spark_jars)


def in_cluster(settings: Settings, conf: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of a driver in the cluster: ``conf``, and our own variables as settings.

    Variables that come from a Kubernetes secret there are not sent.
    """
    kind = KUBERNETES if settings.spark_submit_master.startswith(KUBERNETES) else "yarn"
    ours = {name: value for name, value in processes.inherited(os.environ).items() if name.startswith("RETROFILL_")}
    sent = {
        f"{DRIVER_ENV[kind]}{name}": value
        for name, value in (ours | dict(environment)).items()
        if name not in _NOT_THERE and not name.endswith("_FILE") and f"{SECRET_REF}{name}" not in conf
    }
    return sent | dict(conf)


def entry(settings: Settings) -> str:
    """Location of the driver's program: sent to YARN, or at the same path in the image."""
    remote = settings.spark_submit_deploy_mode == "cluster" and settings.spark_submit_master.startswith(KUBERNETES)
    return f"local://{ENTRY}" if remote else str(ENTRY)


def arguments(settings: Settings, conf: Mapping[str, str], file: Path) -> Sequence[str]:
    """The arguments of spark-submit. Writes ``conf`` to ``file``, not to the process list."""
    mode = settings.spark_submit_deploy_mode
    return [
        *("--master", settings.spark_submit_master, "--deploy-mode", mode),
        *write_properties(file, conf),
        entry(settings),
    ]


def properties_file() -> Path:
    """A path for the properties file, in a new private folder."""
    return Path(tempfile.mkdtemp(prefix="retrofill-submit-")) / "spark.properties"


def remove(file: Path) -> None:
    """Remove the properties file with its folder."""
    shutil.rmtree(file.parent, ignore_errors=True)
