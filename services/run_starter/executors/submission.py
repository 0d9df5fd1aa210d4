"""What spark-submit is told for one driver: its settings, and, for one in the cluster, the environment it is to have there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import retrofill.driver
from retrofill.private import write_properties
from retrofill.settings import Settings
from run_starter.executors import Launch, processes

ENTRY = Path(retrofill.driver.__file__).with_name("once.py")
KUBERNETES = "k8s://"
# How each kind of cluster takes a variable for a driver. Spark masks those in its own UI whose names say that they are secret.
DRIVER_ENV = {"yarn": "spark.yarn.appMasterEnv.", KUBERNETES: "spark.kubernetes.driverEnv."}
SECRET_REF = "spark.kubernetes.driver.secretKeyRef."
# Folders of this machine mean nothing in the cluster, and where the code is comes with its settings.
_NOT_THERE = ("RETROFILL_HOME", "RETROFILL_CACHE", "RETROFILL_JAVA_HOME")


def driver_conf(settings: Settings, launch: Launch) -> dict[str, str]:
    """Spark's settings of one driver, the pipeline's last."""
    return {
        "spark.app.name": f"retrofill {launch.pipeline.name} {launch.interval_start.isoformat()}",
        "spark.ui.enabled": "false",
        **settings.spark_submit_conf,
        **launch.pipeline.spark_conf,
    }


def in_cluster(settings: Settings, conf: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """The settings of a driver that runs in the cluster: ``conf``, and our own variables as that cluster takes them.

    Those that a Kubernetes secret is to give there are not sent.
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
    """Where the driver's program is: YARN gets it from here, and an image for Kubernetes has it at the same place."""
    remote = settings.spark_submit_deploy_mode == "cluster" and settings.spark_submit_master.startswith(KUBERNETES)
    return f"local://{ENTRY}" if remote else str(ENTRY)


def arguments(settings: Settings, conf: Mapping[str, str], file: Path) -> Sequence[str]:
    """The arguments of spark-submit; the settings go into ``file``, which nobody else may read, not into the process list."""
    mode = settings.spark_submit_deploy_mode
    return [
        *("--master", settings.spark_submit_master, "--deploy-mode", mode),
        *write_properties(file, conf),
        entry(settings),
    ]


def properties_file() -> Path:
    """A name for it in a folder of its own."""
    return Path(tempfile.mkdtemp(prefix="retrofill-submit-")) / "spark.properties"


def remove(file: Path) -> None:
    """Remove its folder."""
    shutil.rmtree(file.parent, ignore_errors=True)
