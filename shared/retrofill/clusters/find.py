"""``python -m retrofill.clusters.find TAG [NAMESPACE]``: ends the applications with a tag.

A process of its own does so for a driver that has just been killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from retrofill.clusters import CannotKill, Cluster, end
from retrofill.clusters.kubernetes import MASTER as KUBERNETES
from retrofill.clusters.kubernetes import NAMESPACE, Kubernetes
from retrofill.clusters.yarn import MASTER as YARN
from retrofill.clusters.yarn import Yarn
from retrofill.domain.pipeline import PipelineDefinition
from retrofill.settings import Settings
from retrofill.spark_home import SparkHome


def cluster_of(home: SparkHome, conf: Mapping[str, str], environment: Mapping[str, str]) -> Cluster | None:
    """The cluster of spark-submit. ``None``: an application there ends with its driver, which is our process.

    ``conf``: more settings, above those of the host.
    """
    if home.master == YARN:
        return Yarn(home, environment)
    if home.master.startswith(KUBERNETES):
        return Kubernetes(home, environment, {**home.defaults, **home.settings.spark_submit_conf, **conf})
    return None


def has_applications(pipeline: PipelineDefinition) -> bool:
    """Whether its attempts may start applications by spark-submit."""
    return pipeline.executor == "spark-submit" or any(task.submit is not None for task in pipeline.tasks)


def ending(cluster: Cluster, tag: str) -> list[str]:
    """The command of a process that ends what has this tag."""
    return [sys.executable, "-m", "retrofill.clusters.find", tag, *([cluster.place] if cluster.place else [])]


def main(tag: str, namespace: str = "") -> None:
    """End what has this tag. Exits with one line if that cannot be done."""
    conf = {NAMESPACE: namespace} if namespace else {}
    try:
        if (cluster := cluster_of(SparkHome.of(Settings()), conf, os.environ)) is not None:
            end(cluster, [tag])
    except CannotKill as e:
        sys.exit(str(e))


if __name__ == "__main__":
    main(*sys.argv[1:])
