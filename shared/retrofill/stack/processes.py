"""The processes of one stack, found by the marker in their environment, also when nobody supervises them any more."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from retrofill.contract.topics import SERVICES
from retrofill.stack.layout import ADDRESSES, POSTGRES, Layout

MARKER = "RETROFILL_STACK"
HOME = "RETROFILL_HOME"
SERVICE_SECONDS = 8.0
SERVER_SECONDS = 25.0
KILL_SECONDS = 5.0


def environment(layout: Layout, stack_id: str) -> dict[str, str]:
    """What every process of a stack is started with; addresses come from the endpoints file."""
    foreign = {f"RETROFILL_{name}{how}".upper() for name in ADDRESSES for how in ("", "_FILE")}
    return {
        **{name: value for name, value in os.environ.items() if name.upper() not in foreign},
        MARKER: stack_id,
        HOME: str(layout.home),
        # Spark's workers must be the Python of whoever sends them functions.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONWARNINGS": "ignore",
    }


def of_stack(stack_id: str) -> list[psutil.Process]:
    """All processes with this stack's marker, but for the caller. Only these are ever ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER) == stack_id and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_all(layout: Layout, stack_id: str) -> int:
    """End what is left of a stack: first whoever uses the servers, then the servers. Returns how many there were."""
    everything = {*of_stack(stack_id), *_of_database(layout)}
    servers = {process for process in everything if _is_server(process)}
    _end(everything - servers, SERVICE_SECONDS)
    _end(servers, SERVER_SECONDS)
    # A driver that was being started while we looked.
    late = {*of_stack(stack_id), *_of_database(layout)}
    _end(late, SERVICE_SECONDS)
    _forget_stale_files(layout)
    return len(everything | late)


def wait_gone(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until they ended; those that did not. One that only its parent has yet to notice has ended."""
    until = time.monotonic() + seconds
    alive = [process for process in processes if _is_alive(process)]
    while alive and time.monotonic() < until:
        time.sleep(0.05)
        alive = [process for process in alive if _is_alive(process)]
    return alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _of_database(layout: Layout) -> list[psutil.Process]:
    """Every process of this home's Postgres: its children write their titles over the environment, marker and all."""
    data = str(layout.data(POSTGRES).resolve())
    found = []
    for process in psutil.process_iter():
        try:
            if process.name() == "postgres" and process.cwd() == data:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _is_server(process: psutil.Process) -> bool:
    try:
        return process.name() == "postgres" or "kafka.Kafka" in process.cmdline()
    except psutil.Error:
        return False


def _end(processes: set[psutil.Process], seconds: float) -> None:
    for process in processes:
        if not _is_postgres(process):
            _send(process, signal.SIGTERM)
        elif _is_postmaster(process):
            # Postgres shuts down fast on SIGINT; on SIGTERM it waits for its clients.
            _send(process, signal.SIGINT)
        _send(process, signal.SIGCONT)
    alive = wait_gone(processes, seconds)
    databases = [process for process in alive if _is_postgres(process)]
    for process in databases:
        # Still an orderly end: the server takes its children along, which a kill leaves behind.
        _send(process, signal.SIGQUIT)
    wait_gone(databases, KILL_SECONDS)
    for process in alive:
        _send(process, signal.SIGKILL)
    wait_gone(alive, KILL_SECONDS)


def _is_postgres(process: psutil.Process) -> bool:
    try:
        return process.name() == "postgres"
    except psutil.Error:
        return False


def _is_postmaster(process: psutil.Process) -> bool:
    """Whether this is the server itself, which alone is asked to end: it ends its children, in the right order.

    Its checkpointer takes SIGINT for the order to write the last checkpoint. With clients still committing, what they
    commit after that is acknowledged, and lost: the next start sees an orderly end and replays nothing.
    """
    try:
        parent = process.parent()
        # A child calls itself "postgres: what it does"; one that was just forked does not yet.
        return not (process.cmdline() or [""])[0].startswith("postgres: ") and (
            parent is None or not _is_postgres(parent)
        )
    except psutil.Error:
        return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        return


def _forget_stale_files(layout: Layout) -> None:
    """What a kill leaves behind names process ids that may be somebody else's by now."""
    if not _of_database(layout):
        # With one of its processes alive the file is what keeps a second server off the data.
        (layout.data(POSTGRES) / "postmaster.pid").unlink(missing_ok=True)
    for path in layout.run.glob("*.*.ready"):
        if not _is_replica(path):
            path.unlink(missing_ok=True)


def _is_replica(ready: Path) -> bool:
    """Whether the process that made a ready file lives: replicas started by hand are not ours to forget."""
    name, pid, _ = ready.name.rsplit(".", 2)
    try:
        return name in SERVICES and SERVICES[name].package in " ".join(psutil.Process(int(pid)).cmdline())
    except (ValueError, psutil.Error):
        return False
