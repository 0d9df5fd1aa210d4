"""Ends the applications with a tag, as a process of its own: for a driver that has just been killed."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Mapping

import retrofill
from retrofill.driver.config import Config
from retrofill.spark.clusters import CannotKill, cluster_of, end
from retrofill.spark.home import SparkHome

# By its package's place, which may be an archive.
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from retrofill.driver.ending import main; main(sys.argv[2])"


def ending(settings: Config, conf: Mapping[str, str], tag: str) -> tuple[list[str], str]:
    """The command of a process that ends what has this tag, and its input, which may have secrets in it.

    ``conf``: the pipeline's Spark settings.
    """
    place = str(Path(retrofill.__file__).parents[1])
    given = json.dumps({"settings": asdict(settings), "conf": dict(conf)}, default=str)
    return [sys.executable, "-c", _PROGRAM, place, tag], given


def main(tag: str) -> None:
    """End what has this tag. Exits with one line if that cannot be done."""
    given = json.load(sys.stdin)
    try:
        cluster = cluster_of(SparkHome.of(Config.of(given["settings"])), given["conf"], os.environ)
        if cluster is not None:
            end(cluster, [tag])
    except CannotKill as e:
        sys.exit(str(e))
