"""A real Kubernetes API server with its etcd, on loopback. It has no nodes: pods wait for one until a test binds them."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import urllib.request
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from retrofill_tools.stack.ports import held_port
from tests.support.installation import until
from tests.support.kubernetes_binaries import binaries
from tests.support.stopped import stopped

HERE = "127.0.0.1"
START_SECONDS = 120.0
TOKEN = "the-tests-token"


class KubernetesApi:
    """Pods are read and changed by its REST API."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._held = ExitStack()
        self._port, etcd, peer = (self._held.enter_context(held_port()) for _ in range(3))
        self._etcd, self._peer = (f"http://{HERE}:{port}" for port in (etcd, peer))
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        return f"https://{HERE}:{self._port}"

    @property
    def login(self) -> Mapping[str, str]:
        """Spark's settings to log in."""
        prefix = "spark.kubernetes.authenticate.submission"
        return {f"{prefix}.oauthToken": TOKEN, f"{prefix}.caCertFile": str(self._authority)}

    @property
    def _authority(self) -> Path:
        return self.home / "tls" / "apiserver.crt"

    def start(self, *namespaces: str) -> None:
        """Start both, and make the namespaces."""
        programs = binaries()
        (self.home / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        if shutil.which("openssl") is None:
            pytest.skip("no openssl on the PATH, which makes the API server's key")
        command = ["openssl", "genrsa", "-out", str(self.home / "accounts.key"), "2048"]
        subprocess.run(command, check=True, capture_output=True)
        self._held.close()
        self._start(programs["etcd"], **self._of_etcd())
        self._start(programs["kube-apiserver"], **self._of_server())
        until(self._is_ready, "the API server is ready", self.log, START_SECONDS)
        for name in namespaces:
            self.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})

    def pods(self, namespace: str) -> dict[str, dict[str, Any]]:
        """The pods by name."""
        items = self.ask("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        return {pod["metadata"]["name"]: pod for pod in items}

    def bind(self, namespace: str, pod: str) -> None:
        """Give the pod a node, as the scheduler does. From then on a deletion waits for the node."""
        target = {"target": {"kind": "Node", "name": "node"}, "metadata": {"name": pod}}
        self.ask("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", target)

    def confirm_end(self, namespace: str, pod: str) -> None:
        """Say that the pod's processes have ended, as its node does."""
        self.ask("DELETE", f"/api/v1/namespaces/{namespace}/pods/{pod}", {"gracePeriodSeconds": 0})

    def stopped(self) -> AbstractContextManager[None]:
        """The API server does not answer for the duration of the block."""
        return stopped(self._processes["kube-apiserver"])

    def log(self) -> str:
        """The last lines of both logs."""
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self.home.glob("*.log"))

    def stop(self) -> None:
        self._held.close()
        for process in self._processes.values():
            process.kill()
            process.wait()

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call the API. Raises ``OSError`` if it refuses or does not answer."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}{path}", data, headers, method=method)
        trust = ssl.create_default_context(cafile=str(self._authority))
        with urllib.request.urlopen(request, timeout=10, context=trust) as answer:
            text = answer.read().decode()
        return dict(json.loads(text)) if text.startswith("{") else {"said": text}

    def _is_ready(self) -> bool:
        for name, process in self._processes.items():
            assert process.poll() is None, f"{name} ended: {self.log()}"
        try:
            return self.ask("GET", "/readyz") == {"said": "ok"}
        except (OSError, ssl.SSLError):
            return False

    def _start(self, program: Path, **options: str) -> None:
        words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        with (self.home / f"{program.name}.log").open("wb") as log:
            self._processes[program.name] = subprocess.Popen(
                [program, *words], stdout=log, stderr=log, cwd=self.home, start_new_session=True
            )

    def _of_etcd(self) -> dict[str, str]:
        return {
            "data_dir": str(self.home / "etcd"),
            "listen_client_urls": self._etcd,
            "advertise_client_urls": self._etcd,
            "listen_peer_urls": self._peer,
            "initial_advertise_peer_urls": self._peer,
            "initial_cluster": f"default={self._peer}",
            "unsafe_no_fsync": "true",
        }

    def _of_server(self) -> dict[str, str]:
        key = str(self.home / "accounts.key")
        return {
            "etcd_servers": self._etcd,
            "bind_address": HERE,
            # An address of loopback is no endpoint for pods, of which none runs.
            "endpoint_reconciler_type": "none",
            "secure_port": str(self._port),
            "cert_dir": str(self.home / "tls"),
            "token_auth_file": str(self.home / "tokens.csv"),
            "service_account_issuer": self.address,
            "service_account_key_file": key,
            "service_account_signing_key_file": key,
            "service_cluster_ip_range": "10.0.0.0/24",
            "authorization_mode": "RBAC",
            # There is no controller that would make them.
            "disable_admission_plugins": "ServiceAccount",
        }
