"""supervisord, which keeps the parts running: its configuration, start and RPC, and why a part is failing."""

from __future__ import annotations

import http.client
import json
import math
import os
import re
import shlex
import socket
import subprocess
import time
import xmlrpc.client
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from retrofill_core.contract.topics import RUN_STARTER
from retrofill_core.startup import command_of
from retrofill_tools.stack.layout import POSTGRES, SUPERVISOR, Identity, Layout
from retrofill_tools.stack.processes import environment, why_it_ended

STOP_SECONDS = 20
RPC_SECONDS = 10.0
STATES = {
    "RUNNING": "running",
    "STARTING": "starting",
    "BACKOFF": "starting",
    "STOPPING": "running",
    "STOPPED": "stopped",
    "EXITED": "starting",  # will be restarted; a part that was asked to stop is STOPPED
    "FATAL": "failed",
    "UNKNOWN": "failed",
}
Unreachable = (OSError, http.client.HTTPException, xmlrpc.client.Fault)
# A part that lived at least this long did not fail to start.
STEADY_SECONDS = 30.0
SHORT_LIVES = 3
_TAIL_BYTES = 65_536
_MAX_REASON = 300
_BEGAN = "supervisord started with pid"
_EVENT = re.compile(r"^(\S+ \S+),\d+ \w+ (spawned|exited|stopped): '?([\w-]+)'?", re.MULTILINE)
_IS_ERROR = re.compile(r"^[\w.]*(Error|Exception)\b|\b(FATAL|ERROR|Error|Exception)\b")


@dataclass(frozen=True)
class PartStatus:
    """One part;

    ``uptime`` is in seconds. Its state is failing while it exits soon after each start.
    """

    name: str
    state: str
    pid: int | None
    restarts: int
    uptime: int | None
    message: str = ""
    # Why it is failing.
    reason: str | None = None


class _Connection(http.client.HTTPConnection):
    """HTTP over a Unix socket, with a timeout in case supervisord is frozen."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=RPC_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(RPC_SECONDS)
        self.sock.connect(self._path)


class _Transport(xmlrpc.client.Transport):
    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def make_connection(self, _host: Any) -> http.client.HTTPConnection:
        return _Connection(self._path)


class Supervisor:
    """The supervisord of one home."""

    def __init__(self, layout: Layout, identity: Identity) -> None:
        self._layout = layout
        self._identity = identity

    def _rpc(self) -> Any:
        transport = _Transport(self._identity.socket)
        return xmlrpc.client.ServerProxy("http://localhost", transport=transport).supervisor

    def answers(self) -> bool:
        try:
            self._rpc().getState()
        except Unreachable:
            return False
        return True

    def start(self, commands: dict[str, list[str]], drain_seconds: float) -> None:
        """Start supervisord as a daemon with these programs, without starting the programs.

        ``drain_seconds``: how long a run-starter that is stopped may wait for its drivers.
        """
        config = self._layout.run / "supervisord.conf"
        config.write_text(_config(self._layout, self._identity, commands, drain_seconds))
        config.chmod(0o600)
        done = subprocess.run(
            command_of("supervisor.supervisord", "-c", str(config)),
            env=environment(self._layout, self._identity.id),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise OSError(f"supervisord: {why_it_ended(done)}")

    def start_part(self, name: str) -> None:
        """Start a program if it is not running; does not wait for it."""
        try:
            self._rpc().startProcess(name, False)
        except xmlrpc.client.Fault as e:
            if "ALREADY_STARTED" not in e.faultString:
                raise

    def stop_parts(self, names: Iterable[str]) -> None:
        """Stop programs in parallel, and wait for them. supervisord kills those that take too long."""
        waiting = set(names)
        for name in waiting:
            try:
                self._rpc().stopProcess(name, False)
            except xmlrpc.client.Fault as e:
                if "NOT_RUNNING" not in e.faultString:
                    raise
        while waiting:
            time.sleep(0.05)
            status = self.status()
            waiting = {name for name in waiting if status[name].pid is not None}

    def shutdown(self) -> None:
        """End supervisord and all its programs."""
        self._rpc().shutdown()

    def pid(self) -> int:
        return int(self._rpc().getPID())

    def status(self) -> dict[str, PartStatus]:
        """All parts by name. Raises one of ``Unreachable`` if supervisord is not running."""
        log = self._layout.log(SUPERVISOR)
        text = log.read_text(errors="replace") if log.exists() else ""
        spawned, short = _spawned(text), short_lives(text, datetime.now())  # local time, as in the log
        return {
            info["name"]: self._part(info, spawned.get(info["name"], 0), short.get(info["name"], 0))
            for info in self._rpc().getAllProcessInfo()
        }

    def _part(self, info: Any, spawned: int, short_lives: int) -> PartStatus:
        state = STATES.get(info["statename"], "failed")
        if short_lives >= SHORT_LIVES and state in ("running", "starting"):
            state = "failing"
        broken = state in ("failing", "failed")
        return PartStatus(
            name=info["name"],
            state=state,
            pid=info["pid"] or None,
            restarts=max(0, spawned - 1),
            uptime=info["now"] - info["start"] if info["statename"] == "RUNNING" else None,
            message=info["spawnerr"] or info["description"],
            reason=reason(self._layout.log(info["name"])) or info["spawnerr"] if broken else None,
        )


def _spawned(log: str) -> dict[str, int]:
    """How often each part was started since supervisord started."""
    counts: dict[str, int] = {}
    for name in re.findall(r"spawned: '([\w-]+)'", log.rpartition("supervisord started with pid")[2]):
        counts[name] = counts.get(name, 0) + 1
    return counts


def _stop_seconds(name: str, drain_seconds: float) -> int:
    """How long a program may take to stop. A run-starter needs as long as others after its drivers."""
    return STOP_SECONDS + (math.ceil(drain_seconds) if name == RUN_STARTER.name else 0)


def _config(layout: Layout, identity: Identity, commands: dict[str, list[str]], drain_seconds: float) -> str:
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
stopwaitsecs={_stop_seconds(name, drain_seconds)}
stopasgroup=true
killasgroup=true
redirect_stderr=true
stdout_logfile={_quote(layout.log(name))}
stdout_logfile_maxbytes=50MB
stdout_logfile_backups=2
"""
        )
    return "\n".join(parts)


def _quote(value: object) -> str:
    """Escaped for the configuration, which expands ``%``."""
    return str(value).replace("%", "%%")


def short_lives(log: str, now: datetime) -> dict[str, int]:
    """By part, how many times in a row it exited soon after its start.

    ``log`` is supervisord's. Its times have no time zone, nor may ``now``.
    """
    counts: dict[str, int] = {}
    began: dict[str, datetime] = {}
    for moment, event, name in _EVENT.findall(log.rpartition(_BEGAN)[2]):
        at = datetime.strptime(moment, "%Y-%m-%d %H:%M:%S")  # local time without a zone, like now
        if event == "spawned":
            began[name] = at
            continue
        lived = (at - began.pop(name, at)).total_seconds()
        counts[name] = counts.get(name, 0) + 1 if event == "exited" and lived < STEADY_SECONDS else 0
    for name, since in began.items():
        if (now - since).total_seconds() >= STEADY_SECONDS:
            counts[name] = 0
    return counts


def reason(log: Path) -> str:
    """The last line of a part's log that reports an error, or else the last line."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    found = next((why for line in reversed(lines) if (why := _why(line))), (lines or [""])[-1])
    return found[:_MAX_REASON]


def _why(line: str) -> str | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return line if _IS_ERROR.search(line) else None
    if not isinstance(entry, dict) or entry.get("level") not in ("error", "critical"):
        return None
    detail = entry.get("error") or str(entry.get("exception") or "").strip().rpartition("\n")[2]
    return f"{entry.get('event')}: {detail}" if detail else str(entry.get("event"))
