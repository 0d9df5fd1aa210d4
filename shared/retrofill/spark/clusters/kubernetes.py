"""Drivers' pods on Kubernetes, by their names. Spark's own client logs in as it does to submit."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Mapping, Sequence

from retrofill.spark.clusters import PREFIX, ask
from retrofill.spark.home import SparkHome

MASTER = "k8s://"
NAMESPACE = "spark.kubernetes.namespace"
POD = "spark.kubernetes.driver.pod.name"
_ENDED = ("Succeeded", "Failed")
# As Spark describes a pod. Neither labels nor names of volumes may contain the words before the colons.
_STATE = re.compile(r"^\s*pod name: (\S+)$.*?^\s*phase: (\S+)$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Kubernetes:
    """Implements ``Cluster``. ``conf``: Spark's settings, with the namespace and the login."""

    home: SparkHome
    environment: Mapping[str, str] = field(repr=False)
    conf: Mapping[str, str] = field(repr=False)

    @property
    def _namespace(self) -> str:
        return self.conf.get(NAMESPACE, "default")

    def settings(self, conf: Mapping[str, str], tags: Sequence[str], *, remote: bool) -> dict[str, str]:  # noqa: ARG002
        if not remote:
            # The driver is our process, and its executors end with their connection to it.
            return {}
        # Where it is looked for, whatever a script's own settings say.
        found = {POD: tags[-1], NAMESPACE: self._namespace}
        return {**found, "spark.kubernetes.submission.waitAppCompletion": "true"}

    def live(self, tags: Sequence[str]) -> list[str]:
        states = _STATE.findall(self._ask("--status", f"{PREFIX}*"))
        return sorted(
            name
            for name, phase in states
            if phase not in _ENDED and any(name == tag or name.startswith(f"{tag}-") for tag in tags)
        )

    def kill(self, ids: Sequence[str]) -> None:
        for id in ids:
            self._ask("--kill", id)

    def _ask(self, what: str, pods: str) -> str:
        return ask(
            self.home,
            self.environment,
            lambda folder: [*self.home.command(self.conf, folder, "cluster"), what, f"{self._namespace}:{pods}"],
        )
