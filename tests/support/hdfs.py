"""HDFS on loopback: a NameNode and a DataNode of Hadoop's own."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from retrofill.spark import java as runtime
from retrofill.spark.java import spark_jars
from retrofill_core.settings import Settings
from retrofill_tools.stack.maven import Artifact
from retrofill_tools.stack.ports import held_port
from tests.support.hadoop_site import write_site
from tests.support.installation import until
from tests.support.maven import jar

# Of the version of Spark's client, whose jars it needs.
SERVERS = Artifact("org.apache.hadoop", "hadoop-client-minicluster", "3.4.2", "50 MB")
MAIN = "org.apache.hadoop.hdfs.server"
START_SECONDS = 180.0


@dataclass(frozen=True)
class Hdfs:
    """``port``: of the NameNode's clients. ``web``: of its web server. ``java``: begins the command of any of its programs."""

    port: int
    web: int
    java: Sequence[str]

    @property
    def address(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def warehouse(self) -> dict[str, str]:
        """Settings of a Spark server whose tables are in it."""
        return {"spark.sql.warehouse.dir": f"{self.address}/warehouse", "spark.hadoop.dfs.replication": "1"}

    def files(self) -> dict[str, object]:
        """All files, by their paths: another value when somebody writes one again."""
        listed = subprocess.run(
            [*self.java, "org.apache.hadoop.fs.FsShell", "-ls", "-R", "/"],
            check=True,
            capture_output=True,
            text=True,
            timeout=120,
        )
        lines = [each for each in listed.stdout.splitlines() if each.startswith("-")]
        return {each.split(maxsplit=7)[7].lstrip("/"): each for each in lines}

    def has_started(self) -> bool:
        """Whether files can be written."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.web}/jmx?qry=Hadoop:*,name=FSNamesystemState"
            ) as answer:
                (state,) = json.load(answer)["beans"]
        except (OSError, ValueError):
            return False
        return bool(state["NumLiveDataNodes"] == 1 and state["FSState"] == "Operational")


@contextmanager
def hdfs(home: Path) -> Iterator[Hdfs]:
    """An empty one. ``home``: for its files and logs."""
    with ExitStack() as held:
        opened = [f"--add-opens=java.base/{each}=ALL-UNNAMED" for each in ("java.lang", "java.util")]
        path = f"{home}:{jar(SERVERS)}:{spark_jars()}/*"
        java = [str(runtime.find(Settings())), "-Xmx256m", "-XX:+UseSerialGC", *opened, "-cp", path]
        made = Hdfs(held.enter_context(held_port()), held.enter_context(held_port()), java)
        write_site(home / "core-site.xml", {"fs.defaultFS": made.address})
        write_site(home / "hdfs-site.xml", _site(made, home))
        namenode, datanode = f"{MAIN}.namenode.NameNode", f"{MAIN}.datanode.DataNode"
        subprocess.run([*java, namenode, "-format", "-nonInteractive"], check=True, capture_output=True, timeout=120)
        log = home / "servers.log"
        with log.open("ab") as out:
            servers = [subprocess.Popen([*java, main], stdout=out, stderr=out) for main in (namenode, datanode)]
        try:
            until(lambda: _ended(servers) or made.has_started(), "HDFS has started", log.read_text, START_SECONDS)
            assert not _ended(servers), log.read_text()
            held.close()
            yield made
        finally:
            for each in servers:
                # They would wait for each other.
                each.kill()
                each.wait()


def _ended(servers: list[subprocess.Popen[bytes]]) -> bool:
    return any(each.poll() is not None for each in servers)


def _site(made: Hdfs, home: Path) -> dict[str, str]:
    return {
        "dfs.namenode.name.dir": f"file://{home}/name",
        "dfs.datanode.data.dir": f"file://{home}/data",
        "dfs.namenode.http-address": f"127.0.0.1:{made.web}",
        **{f"dfs.datanode.{name}": "127.0.0.1:0" for name in ("address", "http.address", "ipc.address")},
        "dfs.replication": "1",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.permissions.enabled": "false",
    }
