"""supervisord keeps the parts running: its configuration, its start, and what is asked of it."""

from __future__ import annotations

import http.client
import os
import re
import shlex
import subprocess
import sys
import xmlrpc.client
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import SupervisorTransport

from retrofill.stack.layout import POSTGRES, SUPERVISOR, Identity, Layout
from retrofill.stack.processes import MARKER

STATES = {
    "RUNNING": "running",
    "STARTING": "starting",
    "BACKOFF": "starting",
    "STOPPING": "running",
    "STOPPED": "stopped",
    "EXITED": "stopped",
    "FATAL": "failed",
    "UNKNOWN": "failed",
}
Unreachable = (OSError, http.client.HTTPException, xmlrpc.client.Fault)


@dataclass(frozen=True)
class PartStatus:
    """What is known of one part; ``uptime`` in seconds."""

    name: str
    state: str
    pid: int | None
    restarts: int
    uptime: int | None
    said: str = ""


class Supervisor:
    """The supervisord of one home."""

    def __init__(self, layout: Layout, identity: Identity) -> None:
        self._layout = layout
        self._identity = identity

    def _rpc(self) -> Any:
        transport = SupervisorTransport(None, None, serverurl=f"unix://{self._identity.socket}")
        return xmlrpc.client.ServerProxy("http://127.0.0.1", transport=transport).supervisor

    def answers(self) -> bool:
        """Whether it runs."""
        try:
            self._rpc().getState()
        except Unreachable:
            return False
        return True

    def start(self, commands: dict[str, list[str]]) -> None:
        """Start it, detached from whoever started it, with these programs, none of which runs yet."""
        config = self._layout.run / "supervisord.conf"
        config.write_text(_config(self._layout, self._identity, commands))
        config.chmod(0o600)
        done = subprocess.run(
            [sys.executable, "-m", "supervisor.supervisord", "-c", str(config)],
            env={
                **os.environ,
                MARKER: self._identity.id,
                "RETROFILL_HOME": str(self._layout.home),
                "PYTHONWARNINGS": "ignore",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise OSError(f"supervisord: {(done.stderr or done.stdout).strip().splitlines()[-1]}")

    def start_part(self, name: str) -> None:
        """Start a program where it does not run; returns at once."""
        try:
            self._rpc().startProcess(name, False)
        except xmlrpc.client.Fault as e:
            if "ALREADY_STARTED" not in e.faultString:
                raise

    def stop_part(self, name: str) -> None:
        """Stop a program and wait for it."""
        try:
            self._rpc().stopProcess(name, True)
        except xmlrpc.client.Fault as e:
            if "NOT_RUNNING" not in e.faultString:
                raise

    def shutdown(self) -> None:
        """End it, with all its programs."""
        self._rpc().shutdown()

    def pid(self) -> int:
        """Its own process id."""
        return int(self._rpc().getPID())

    def status(self) -> dict[str, PartStatus]:
        """All parts by name. Raises one of ``Unreachable`` where it does not run."""
        spawned = _spawned(self._layout.log(SUPERVISOR))
        return {
            info["name"]: PartStatus(
                name=info["name"],
                state=STATES.get(info["statename"], "failed"),
                pid=info["pid"] or None,
                restarts=max(0, spawned.get(info["name"], 0) - 1),
                uptime=info["now"] - info["start"] if info["statename"] == "RUNNING" else None,
                said=info["spawnerr"] or info["description"],
            )
            for info in self._rpc().getAllProcessInfo()
        }


def _spawned(log: Path) -> dict[str, int]:
    """How often each part was started since supervisord was."""
    counts: dict[str, int] = {}
    if log.exists():
        text = log.read_text(errors="replace")
        for name in re.findall(r"spawned: '([\w-]+)'", text.rpartition("supervisord started with pid")[2]):
            counts[name] = counts.get(name, 0) + 1
    return counts


def _config(layout: Layout, identity: Identity, commands: dict[str, list[str]]) -> str:
    parts = [
        f"""[supervisord]
logfile={_quote(layout.log(SUPERVISOR))}
logfile_maxbytes=0
pidfile={_quote(layout.run / "supervisord.pid")}
childlogdir={_quote(layout.home / "logs")}
nocleanup=true
{"user=root" if os.geteuid() == 0 else ""}

[unix_http_server]
file={_quote(identity.socket)}
chmod=0700

[rpcinterface:supervisor]
supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface
"""
    ]
    for name, command in commands.items():
        parts.append(
            f"""[program:{name}]
command={_quote(shlex.join(command))}
autostart=false
autorestart=true
startsecs=1
startretries=1000000
stopsignal={"INT" if name == POSTGRES else "TERM"}
stopwaitsecs=25
stopasgroup=false
killasgroup=true
redirect_stderr=true
stdout_logfile={_quote(layout.log(name))}
stdout_logfile_maxbytes=50MB
stdout_logfile_backups=2
"""
        )
    return "\n".join(parts)


def _quote(value: object) -> str:
    """The configuration's own expansion uses %."""
    return str(value).replace("%", "%%")
