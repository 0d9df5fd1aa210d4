"""A Hive metastore in a server of its own, with its tables in Postgres."""

from __future__ import annotations

import subprocess
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from retrofill.spark import java as runtime
from retrofill.spark.java import spark_jars
from retrofill_core.settings import Settings
from retrofill_tools.stack.maven import Artifact
from retrofill_tools.stack.ports import answers, held_port
from tests.support.hadoop_site import write_site
from tests.support.installation import until
from tests.support.lake import POSTGRES_DRIVER
from tests.support.maven import jar, jars

METASTORE = Artifact("org.apache.hive", "hive-standalone-metastore", "3.1.3", "53 MB", whole=True)
# Hadoop and the logging that it depends on are too old for today's Java. Spark has newer ones.
TOO_OLD, NEWER = ("hadoop-", "log4j", "slf4j"), ("hadoop-client-*.jar", "*log4j*.jar", "*slf4j*.jar")
START_SECONDS = 180.0
OPENED = ("java.lang", "java.net", "java.util", "java.util.concurrent")


@contextmanager
def metastore(dsn: str, home: Path) -> Iterator[dict[str, str]]:
    """Spark's settings for a new metastore. ``dsn``: of a Postgres that may create a database for it."""
    jdo = _database(dsn)
    site = {
        **jdo,
        "metastore.schema.verification": "false",
        "metastore.warehouse.dir": f"{home}/warehouse",
        "metastore.expression.proxy": "org.apache.hadoop.hive.metastore.DefaultPartitionExpressionProxy",
        "metastore.task.threads.always": "org.apache.hadoop.hive.metastore.events.EventCleanerTask",
    }
    write_site(home / "metastore-site.xml", site)
    own = [each for each in jars(METASTORE) if not each.name.startswith(TOO_OLD)]
    newer = [each for pattern in NEWER for each in spark_jars().glob(pattern)]
    opened = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in OPENED]
    path = ":".join(map(str, [home, *newer, *own, jar(POSTGRES_DRIVER)]))
    java = [str(runtime.find(Settings())), "-Xmx512m", *opened, "-cp", path]
    _create_tables(java, jdo, home)
    log = home / "metastore.log"
    with held_port() as port:
        command = [*java, "org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(port)]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            until(
                lambda: process.poll() is not None or answers(port),
                "the metastore listens",
                log.read_text,
                START_SECONDS,
            )
            assert process.poll() is None, log.read_text()
            yield {
                "spark.hadoop.hive.metastore.uris": f"thrift://127.0.0.1:{port}",
                "spark.sql.warehouse.dir": site["metastore.warehouse.dir"],
            }
        finally:
            process.terminate()
            process.wait(30)


def _database(dsn: str) -> dict[str, str]:
    """The settings of a new database."""
    name = f"metastore_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(make_conninfo(dsn, dbname="postgres"), autocommit=True) as conn:
        conn.execute(f"CREATE DATABASE {name}")
    of = conninfo_to_dict(dsn)
    # This metastore compares dates of partitions with text, which Postgres otherwise refuses.
    url = f"jdbc:postgresql://{of['host']}:{of['port']}/{name}?stringtype=unspecified"
    login = {"UserName": str(of["user"]), "Password": str(of.get("password") or "")}
    about = {"URL": url, "DriverName": "org.postgresql.Driver", **login}
    return {f"javax.jdo.option.Connection{name}": value for name, value in about.items()}


def _create_tables(java: list[str], jdo: Mapping[str, str], home: Path) -> None:
    """Create the metastore's tables before it starts.

    If it creates a table when it is first needed, in a second connection, that waits for ever for the transaction of the
    first one, in which it is needed.
    """
    with zipfile.ZipFile(jar(METASTORE)) as archive:
        archive.extract("package.jdo", home)
    properties = {
        **jdo,
        "javax.jdo.PersistenceManagerFactoryClass": "org.datanucleus.api.jdo.JDOPersistenceManagerFactory",
        "datanucleus.identifierFactory": "datanucleus1",
        "datanucleus.rdbms.useLegacyNativeValueStrategy": "true",
        "datanucleus.connectionPoolingType": "None",
    }
    file = home / "datanucleus.properties"
    file.write_text("\n".join(f"{name}={value}" for name, value in properties.items()))
    tool = "org.datanucleus.store.schema.SchemaTool"
    command = [*java, tool, "-create", "-api", "JDO", "-props", str(file), str(home / "package.jdo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
