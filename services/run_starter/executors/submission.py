"""The command of spark-submit for one driver: its settings and, in a cluster, its environment."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import retrofill.driver
from retrofill import clusters
from retrofill.clusters import Cluster
from retrofill.clusters.kubernetes import MASTER as KUBERNETES
from retrofill.java import with_jars
from retrofill.settings import Settings
from retrofill.spark_home import SparkHome
from run_starter.executors import LaunchRequest, processes

ENTRY = Path(retrofill.driver.__file__).with_name("once.py")
# Prefixes of a driver's environment variables. Spark's UI masks those whose names look secret.
DRIVER_ENV = {"yarn": "spark.yarn.appMasterEnv.", KUBERNETES: "spark.kubernetes.driverEnv."}
SECRET_REF = "spark.kubernetes.driver.secretKeyRef."
_QUOTED = re.compile(r'["$`\\]')
_TWO_BRACES = re.compile(r"(?<=\{)(?=\{)|(?<=\})(?=\})")
# Folders of this machine do not exist in the cluster. Spark's UI would show the options, with the secrets in them.
_NOT_THERE = (
    "RETROFILL_HOME",
    "RETROFILL_CACHE",
    "RETROFILL_JAVA_HOME",
    "RETROFILL_SPARK_HOME",
    "RETROFILL_CODE_STORE_OPTIONS",
    "SPARK_HOME",
)


def driver_conf(home: SparkHome, launch: LaunchRequest, cluster: Cluster | None = None) -> dict[str, str]:
    """Spark's settings for one driver; the pipeline's take precedence.

    ``cluster``: where its application is found later.
    """
    settings = home.settings
    ours = {**settings.spark_submit_conf, **launch.pipeline.spark_conf}
    conf = {
        "spark.ui.enabled": "false",
        **home.defaults,
        "spark.app.name": f"retrofill {launch.pipeline.name} {launch.runs[0].interval_start.isoformat()}",
        **(home.python_of_driver(ours) if settings.spark_submit_deploy_mode == "client" else {}),
        **ours,
    }
    if cluster is not None:
        tag = clusters.tag_of(launch.installation, launch.attempt_id)
        conf |= cluster.settings(conf, [tag], remote=is_remote(settings, launch))
    return with_jars(conf, settings.spark_jars)


def in_cluster(home: SparkHome, conf: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of a driver in the cluster: ``conf``, and our own variables as settings.

    Variables that come from a Kubernetes secret there are not sent.
    """
    kind = KUBERNETES if home.master.startswith(KUBERNETES) else "yarn"
    ours = {name: value for name, value in processes.inherited(os.environ).items() if name.startswith("RETROFILL_")}
    # It may be known from spark-defaults.conf only, which is not there.
    ours["RETROFILL_SPARK_SUBMIT_MASTER"] = home.master
    quoted = (lambda value: value) if kind == KUBERNETES else for_yarn
    sent = {
        f"{DRIVER_ENV[kind]}{name}": quoted(value)
        for name, value in (ours | dict(environment)).items()
        if name not in _NOT_THERE and not name.endswith("_FILE") and f"{SECRET_REF}{name}" not in conf
    }
    return sent | dict(conf)


def for_yarn(value: str) -> str:
    """The value of a variable, quoted for the script in which YARN writes it between double quotes.

    YARN replaces two braces itself, so they are kept apart by an end and a new beginning of the quotes.
    """
    return _TWO_BRACES.sub('""', _QUOTED.sub(r"\\\g<0>", value))


def is_remote(settings: Settings, launch: LaunchRequest) -> bool:
    """Whether the driver runs in the cluster. One that only runs scripts needs no Spark of its own."""
    return settings.spark_submit_deploy_mode == "cluster" and not launch.pipeline.only_scripts


def command(
    home: SparkHome,
    launch: LaunchRequest,
    environment: Mapping[str, str],
    folder: Path,
    cluster: Cluster | None = None,
) -> list[str]:
    """The command that starts the attempt's driver: spark-submit, if the driver uses Spark.

    Its program is sent to YARN, or at the same path in the image. ``folder``: for Spark's settings.
    """
    if launch.pipeline.only_scripts:
        return [home.python, str(ENTRY)]
    conf = driver_conf(home, launch, cluster)
    if is_remote(home.settings, launch):
        conf = in_cluster(home, conf, environment)
        program = f"local://{ENTRY}" if home.master.startswith(KUBERNETES) else str(ENTRY)
        return [*home.command(conf, folder, "cluster"), program]
    return [*home.command(conf, folder, "client"), str(ENTRY)]


def private_folder() -> Path:
    """A new folder for the files of one submission."""
    return Path(tempfile.mkdtemp(prefix="retrofill-submit-"))


def remove(folder: Path) -> None:
    """Remove the folder of a submission."""
    shutil.rmtree(folder, ignore_errors=True)
