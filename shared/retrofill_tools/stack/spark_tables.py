"""Table formats for the embedded Spark: their jars, which are downloaded once, and the settings that they need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from retrofill.spark.java import with_jars
from retrofill_tools.stack.maven import Artifact, Maven

EXTENSIONS = "spark.sql.extensions"


@dataclass(frozen=True)
class TableFormat:
    """``artifacts``: all jars that Spark lacks, by a name for people."""

    artifacts: dict[str, Artifact]
    extension: str
    conf: dict[str, str] = field(default_factory=dict)


# Of the newest Spark that both are published for.
FORMATS = {
    "iceberg": TableFormat(
        {"Iceberg": Artifact("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0", "48 MB")},
        "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    ),
    "delta": TableFormat(
        {
            "Delta": Artifact("io.delta", "delta-spark_4.1_2.13", "4.4.0", "9 MB"),
            "Delta-storage": Artifact("io.delta", "delta-storage", "4.4.0", "0.1 MB"),
        },
        "io.delta.sql.DeltaSparkSessionExtension",
        {
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # Fifty tasks to read the log of a small table take longer than the rest of a commit.
            "spark.databricks.delta.snapshotPartitions": "2",
        },
    ),
}


def with_tables(conf: Mapping[str, str], formats: Sequence[str], maven: Maven) -> dict[str, str]:
    """The settings ``conf`` of a Spark that has these formats too. Raises ``FetchFailed``."""
    conf = dict(conf)
    jars: list[str] = []
    for chosen in (FORMATS[name] for name in formats):
        for name, artifact in chosen.artifacts.items():
            jars.append(str(maven.fetch(name, artifact) / artifact.jar))
        conf = {**chosen.conf, **conf}
        conf[EXTENSIONS] = ",".join(filter(None, [conf.get(EXTENSIONS), chosen.extension]))
    return with_jars(conf, jars)
