"""Starts services by forking a process that has imported them: a second of CPU less for each.

``python -m tests.support.forks`` is that process. It reads requests from its standard input, a
socket, and says on it which process it forked and how each one ended. It ends with its parent.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from retrofill_core.contract.topics import SERVICES

ROOT = Path(__file__).parents[2]
PRELOADED = (*(f"{service.package}.__main__" for service in SERVICES.values()), "tests.support.instant_starter")


class Forked:
    """A forked service, with those methods of ``subprocess.Popen`` that tests use."""

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid = pid
        self._nursery = nursery

    @property
    def returncode(self) -> int | None:
        """As of ``subprocess.Popen``, without a ``poll`` before."""
        return self._nursery.ended.get(self.pid)

    def poll(self) -> int | None:
        """The exit code, or minus the signal's number; ``None`` while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit. Raises ``subprocess.TimeoutExpired``."""
        with self._nursery.changed:
            if not self._nursery.changed.wait_for(lambda: self.returncode is not None, timeout):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has exited."""
        if self.returncode is None:
            # Its exit may not be known here yet.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks, and what it said. ``ended``: exit codes by process id."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.forks"], stdin=theirs.fileno(), cwd=ROOT, start_new_session=True
            )
        self._socket = ours
        self._asking = threading.Lock()
        self._forked: int | None = None
        self.ended: dict[int, int] = {}
        self.changed = threading.Condition()
        threading.Thread(target=self._listen, name="forks", daemon=True).start()

    def start(self, module: str, env: Mapping[str, str], log: Path) -> Forked:
        """Run a module as ``python -m`` does."""
        # Here, so that it is there when this returns.
        log.touch()
        request = json.dumps({"module": module, "env": dict(env), "log": str(log)})
        with self._asking:
            self._socket.sendall(request.encode() + b"\n")
            with self.changed:
                self.changed.wait_for(lambda: self._forked is not None)
                pid, self._forked = self._forked, None
        assert pid is not None
        assert pid > 0, f"the process that forks {module} has ended"
        return Forked(pid, self)

    def close(self) -> None:
        """End the process that forks. Those that it forked go on."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait()

    def _listen(self) -> None:
        with self._socket.makefile("rb") as lines:
            for line in lines:
                said = json.loads(line)
                with self.changed:
                    if "forked" in said:
                        # An id that is used again.
                        self.ended.pop(said["forked"], None)
                        self._forked = said["forked"]
                    else:
                        self.ended[said["ended"]] = said["code"]
                    self.changed.notify_all()
        with self.changed:
            self._forked = -1
            self.changed.notify_all()


def serve(requests: socket.socket) -> None:
    """Fork until the other end closes."""
    for module in PRELOADED:
        importlib.import_module(module)
    # Once here, rather than in each fork.
    for model in _below(BaseModel):
        model.model_rebuild()
    # The collector must not touch, and so copy, what all forks share.
    gc.freeze()
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    lines = requests.makefile("rb", buffering=0)
    both: list[socket.socket | int] = [requests, woken]
    while True:
        ready, _, _ = select.select(both, [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_ended(requests)
        if requests in ready:
            if not (line := lines.readline()):
                return
            _tell(requests, forked=_fork(json.loads(line), requests, (woken, wakes)))


def _below(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for each in model.__subclasses__():
        yield from (each, *_below(each))


def _tell_ended(requests: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(requests, ended=pid, code=os.waitstatus_to_exitcode(status))


def _tell(requests: socket.socket, **said: int) -> None:
    requests.sendall(json.dumps(said).encode() + b"\n")


def _fork(request: dict[str, Any], requests: socket.socket, pipe: tuple[int, int]) -> int:
    pid = os.fork()
    if pid == 0:
        _become(request, requests, pipe)
        # Ends as an interpreter does, from the bottom of its stack.
        sys.exit(0)
    return pid


def _become(request: dict[str, Any], requests: socket.socket, pipe: tuple[int, int]) -> None:
    """Be what ``python -m`` of the module is."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for each in (requests.detach(), *pipe):
        os.close(each)
    with Path(request["log"]).open("wb") as log, Path(os.devnull).open("rb") as nothing:
        for given, taken in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(given.fileno(), taken)
    # The interpreter has read PYTHONFAULTHANDLER already.
    faulthandler.enable()
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [request["module"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=os.dup(0)))
