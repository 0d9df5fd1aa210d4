"""Finds the cluster of spark-submit."""

from __future__ import annotations

from typing import Mapping

from retrofill.spark.clusters import Cluster
from retrofill.spark.clusters.kubernetes import MASTER as KUBERNETES
from retrofill.spark.clusters.kubernetes import Kubernetes
from retrofill.spark.clusters.yarn import MASTER as YARN
from retrofill.spark.clusters.yarn import Yarn
from retrofill.spark.home import SparkHome


def cluster_of(home: SparkHome, conf: Mapping[str, str], environment: Mapping[str, str]) -> Cluster | None:
    """The cluster of spark-submit. ``None``: an application there ends with its driver, which is our process.

    ``conf``: more settings, above those of the host.
    """
    if home.master == YARN:
        return Yarn(home, environment)
    if home.master.startswith(KUBERNETES):
        return Kubernetes(home, environment, {**home.defaults, **home.settings.spark_submit_conf, **conf})
    return None
