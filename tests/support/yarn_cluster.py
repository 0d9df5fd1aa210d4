"""A YARN cluster of one machine on loopback: a ResourceManager and a NodeManager of Hadoop's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from retrofill.spark import java as runtime
from retrofill.spark.java import spark_jars
from retrofill_core.settings import Settings
from retrofill_tools.stack.maven import Artifact, FetchFailed
from retrofill_tools.stack.ports import held_port
from tests.support.hadoop_site import write_site
from tests.support.installation import until
from tests.support.maven import jar
from tests.support.stopped import stopped

HERE = "127.0.0.1"
START_SECONDS = 120.0
MAIN = "org.apache.hadoop.yarn.server"
# Not of the version of Spark's client: servers before 3.5 need libraries that are neither in Java nor in Spark. They log in
# with Bouncy Castle, but do not contain it.
NEEDED = [
    *[
        Artifact("org.apache.hadoop", f"hadoop-client-{name}", "3.5.0", "50 MB at most")
        for name in ("minicluster", "api", "runtime")
    ],
    *[
        Artifact("org.bouncycastle", f"{name}-jdk18on", "1.82", "9 MB at most")
        for name in ("bcprov", "bcpkix", "bcutil")
    ],
]
SERVERS = {"resourcemanager": "resourcemanager.ResourceManager", "nodemanager": "nodemanager.NodeManager"}


class Yarn:
    """The two servers. Applications are listed by the ResourceManager's REST API."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.conf = home / "conf"
        self._held = ExitStack()
        names = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
        self._ports = {name: self._held.enter_context(held_port()) for name in names}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start both, and wait until the NodeManager has registered. Skips if the jar cannot be downloaded."""
        jars = _server_jars()
        # The jar lacks the static pages, without whose folders its web servers do not start.
        for name in ("conf", "web/webapps/cluster", "web/webapps/node", "web/webapps/static", "local", "logs"):
            (self.home / name).mkdir(parents=True)
        # A client gives up soon.
        patience = {"ipc.client.rpc-timeout.ms": "4000", "ipc.client.connect.max.retries": "1"}
        write_site(self.conf / "core-site.xml", {"fs.defaultFS": "file:///", **patience})
        write_site(self.conf / "yarn-site.xml", self._site())
        self._held.close()
        opened = [f"--add-opens={name}=ALL-UNNAMED" for name in ("java.base/java.lang", "java.base/java.util")]
        path = ":".join(map(str, [self.conf, self.home / "web", *jars, spark_jars() / "*"]))
        for name, main in SERVERS.items():
            options = [*opened, "-Xmx512m", "-XX:+UseSerialGC", f"-Dyarn.log.dir={self.home}"]
            command = [str(runtime.find(Settings())), *options, "-cp", path, f"{MAIN}.{main}"]
            with (self.home / f"{name}.log").open("wb") as log:
                self._processes[name] = subprocess.Popen(
                    command, stdout=log, stderr=log, env=os.environ | self.environment, start_new_session=True
                )
        until(self._is_ready, "the NodeManager has registered", self.log, START_SECONDS)

    @property
    def environment(self) -> Mapping[str, str]:
        """How clients find the cluster."""
        return {"HADOOP_CONF_DIR": str(self.conf), "JAVA_HOME": str(_java_home())}

    @property
    def spark_conf(self) -> Mapping[str, str]:
        """Settings with which small applications start quickly: Spark's jars are there already."""
        small = ("driver", "executor", "yarn.am")
        return {
            "spark.yarn.jars": f"local:{spark_jars()}/*",
            "spark.yarn.stagingDir": f"file://{self.home}/staging",
            "spark.executor.instances": "1",
            **{f"spark.{name}.memory": "512m" for name in small},
        }

    def apps(self) -> list[dict[str, Any]]:
        """All applications, the oldest first."""
        found = self._get("apps").get("apps") or {}
        return sorted(found.get("app", []), key=lambda app: int(app["startedTime"]))

    def log(self) -> str:
        """The last lines of the servers' logs and of all containers."""
        logs = [*self.home.glob("*.log"), *self.home.glob("logs/*/*/std*")]
        return "\n".join(f"{path}: {path.read_text(errors='replace')[-1500:]}" for path in logs)

    def stopped(self) -> AbstractContextManager[None]:
        """The ResourceManager does not answer for the duration of the block."""
        return stopped(self._processes["resourcemanager"])

    def starting_nothing(self) -> AbstractContextManager[None]:
        """Applications are accepted and do not start for the duration of the block."""
        return stopped(self._processes["nodemanager"])

    def stop(self) -> None:
        """Kill both, and all containers."""
        self._held.close()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _is_ready(self) -> bool:
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} ended: {self.log()}"
        try:
            nodes = self._get("nodes").get("nodes") or {}
        except OSError:
            return False
        return any(node["state"] == "RUNNING" for node in nodes.get("node", []))

    def _get(self, what: str) -> dict[str, Any]:
        url = f"http://{HERE}:{self._ports['webapp.address']}/ws/v1/cluster/{what}"
        request = urllib.request.Request(url, headers={"Accept": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.load(answer))

    def _site(self) -> dict[str, str]:
        return {
            **{f"yarn.resourcemanager.{name}": f"{HERE}:{port}" for name, port in self._ports.items()},
            "yarn.resourcemanager.hostname": HERE,
            "yarn.resourcemanager.scheduler.class": f"{MAIN}.resourcemanager.scheduler.fifo.FifoScheduler",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.resourcemanager.connect.max-wait.ms": "4000",
            "yarn.resourcemanager.connect.retry-interval.ms": "500",
            "yarn.nodemanager.hostname": HERE,
            **{f"yarn.nodemanager.{name}": f"{HERE}:0" for name in ("address", "localizer.address", "webapp.address")},
            "yarn.nodemanager.local-dirs": str(self.home / "local"),
            "yarn.nodemanager.log-dirs": str(self.home / "logs"),
            "yarn.nodemanager.resource.memory-mb": "8192",
            "yarn.nodemanager.resource.cpu-vcores": "8",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
        }


def _java_home() -> Path:
    return runtime.find(Settings()).resolve().parent.parent


def _server_jars() -> list[Path]:
    """Hadoop's servers in one jar, and what that needs beside it."""
    try:
        return [jar(each) for each in NEEDED]
    except FetchFailed as e:
        pytest.skip(str(e))
