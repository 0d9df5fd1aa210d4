"""Checks at a host's start that the Spark of its drivers can be used."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from retrofill.errors import NotConfigured
from retrofill.spark import java
from retrofill.spark.home import SparkHome
from retrofill_core.setting_types import check_cluster
from retrofill_core.settings import Settings


def check(settings: Settings, python: str = sys.executable) -> None:
    """Raises ``NotConfigured`` if the Spark that drivers with this Python use cannot be used.

    Without any Spark, a host can still publish.
    """
    folder = os.environ.get("SPARK_CONF_DIR")
    if folder and not Path(folder).is_dir():
        raise NotConfigured("SPARK_CONF_DIR", f"SPARK_CONF_DIR: there is no directory {folder}: correct or unset it")
    if settings.spark_home is None and not os.environ.get("SPARK_HOME") and java.pyspark(python) is None:
        return
    home = SparkHome.of(settings, python)
    program = home.folder / "bin" / "spark-submit"
    if home.variable is not None and not os.access(program, os.X_OK):
        raise NotConfigured(
            home.variable,
            f"{home.variable}: there is no program {program}: set it to the folder of a Spark installation, or unset it "
            "to use the one in pyspark",
        )
    master = home.master
    if settings.spark_submit_deploy_mode == "cluster":
        try:
            check_cluster(master, settings.driver_host)
        except ValueError as e:
            raise NotConfigured("RETROFILL_SPARK_SUBMIT_MASTER", str(e)) from e
