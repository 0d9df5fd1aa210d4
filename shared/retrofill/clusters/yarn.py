"""Applications on YARN, by their tags. Hadoop's own client knows the cluster from ``HADOOP_CONF_DIR``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Mapping, Sequence

from retrofill.clusters import ask
from retrofill.spark_home import SparkHome

MASTER = "yarn"
TAGS = "spark.yarn.tags"
_CLIENT = ("org.apache.hadoop.yarn.client.cli.ApplicationCLI", "application")
# All states before the end: one that is being submitted will run.
_LIVE = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
# The first column of its table; names of applications may be anything.
_ID = re.compile(r"^\s*(application_\d+_\d+)\s", re.MULTILINE)


@dataclass(frozen=True)
class Yarn:
    """Implements ``Cluster``. ``environment``: of Hadoop's client."""

    home: SparkHome
    environment: Mapping[str, str] = field(repr=False)

    def settings(self, conf: Mapping[str, str], tags: Sequence[str], *, remote: bool) -> dict[str, str]:
        theirs = [tag for tag in conf.get(TAGS, "").split(",") if tag]
        once = {"spark.yarn.maxAppAttempts": "1", "spark.yarn.submit.waitAppCompletion": "true"}
        return {TAGS: ",".join(dict.fromkeys([*theirs, *tags])), **(once if remote else {})}

    def live(self, tags: Sequence[str]) -> list[str]:
        return sorted(set(_ID.findall(self._ask("-list", "-appTags", ",".join(tags), "-appStates", _LIVE))))

    def kill(self, ids: Sequence[str]) -> None:
        """Returns once YARN has recorded their end."""
        self._ask("-kill", *ids)

    def _ask(self, *arguments: str) -> str:
        program = str(self.home.folder / "bin" / "spark-class")
        return ask(self.home, self.environment, lambda _: [program, *_CLIENT, *arguments])
