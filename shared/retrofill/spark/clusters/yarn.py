"""Applications on YARN, by their tags. Hadoop's own client knows the cluster from ``HADOOP_CONF_DIR``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Iterator, Mapping, Sequence

from retrofill.spark.clusters import ask
from retrofill.spark.home import SparkHome

MASTER = "yarn"
TAGS = "spark.yarn.tags"
_CLIENT = ("org.apache.hadoop.yarn.client.cli.ApplicationCLI", "application")
# All states before the end: one that is being submitted will run.
_LIVE = "NEW,NEW_SAVING,SUBMITTED,ACCEPTED,RUNNING"
# Linux starts no program with an argument of more than 131,071 bytes, and a tag has about 30 and up to 63.
_PER_CALL = 500
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
        asked = (self._ask("-list", "-appTags", ",".join(some), "-appStates", _LIVE) for some in _parts(tags))
        return sorted({id for answer in asked for id in _ID.findall(answer)})

    def kill(self, ids: Sequence[str]) -> None:
        """Returns once YARN has recorded their end."""
        for some in _parts(ids):
            self._ask("-kill", *some)

    def _ask(self, *arguments: str) -> str:
        program = str(self.home.folder / "bin" / "spark-class")
        return ask(self.home, self.environment, lambda _: [program, *_CLIENT, *arguments])


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many at a time as one call takes."""
    return (names[at : at + _PER_CALL] for at in range(0, len(names), _PER_CALL))
