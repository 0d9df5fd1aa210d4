"""The processes of one stack, found by a marker in their environment even without a supervisor."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from subprocess import CompletedProcess

import psutil

from retrofill.errors import last_line
from retrofill.system.processes import STACK
from retrofill_core.contract.topics import SERVICES
from retrofill_tools.stack.layout import ADDRESSES, POSTGRES, Layout

HOME = "RETROFILL_HOME"
SERVICE_SECONDS = 8.0
SERVER_SECONDS = 25.0
KILL_SECONDS = 5.0


def why_it_ended(done: CompletedProcess[str]) -> str:
    """The last line that a program printed, rather of its errors; its exit status if it printed nothing."""
    return last_line(done.stderr) or last_line(done.stdout) or f"exit status {done.returncode}"


def environment(layout: Layout, stack_id: str) -> dict[str, str]:
    """Environment of every process of a stack.

    Server addresses come from the endpoints file instead.
    """
    foreign = {f"RETROFILL_{name}{how}".upper() for name in ADDRESSES for how in ("", "_FILE")}
    return {
        **{name: value for name, value in os.environ.items() if name.upper() not in foreign},
        STACK: stack_id,
        HOME: str(layout.home),
        # Spark workers must use the same Python as the process that sends them functions.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONWARNINGS": "ignore",
    }


def of_stack(stack_id: str) -> list[psutil.Process]:
    """All processes with this stack's marker, except the caller."""
    return marked(STACK, stack_id)


def marked(name: str, value: str) -> list[psutil.Process]:
    """All processes that were started with this variable in their environment, except the caller."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value and process.pid != os.getpid():
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_all(layout: Layout, stack_id: str) -> int:
    """End a stack's processes: first the clients of the servers, then the servers.

    Returns their number.
    """
    everything = {*of_stack(stack_id), *_of_database(layout)}
    servers = {process for process in everything if _is_server(process)}
    _end(everything - servers, SERVICE_SECONDS)
    _end(servers, SERVER_SECONDS)
    # A driver that was being started meanwhile.
    late = {*of_stack(stack_id), *_of_database(layout)}
    _end(late, SERVICE_SECONDS)
    _remove_stale_files(layout)
    return len(everything | late)


def wait_exited(processes: Iterable[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until the processes exit. Returns those still alive. Zombies count as exited."""
    until = time.monotonic() + seconds
    alive = [process for process in processes if is_alive(process)]
    while alive and time.monotonic() < until:
        time.sleep(0.05)
        alive = [process for process in alive if is_alive(process)]
    return alive


def is_alive(process: psutil.Process) -> bool:
    """Whether the process has not exited. A zombie has."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _of_database(layout: Layout) -> list[psutil.Process]:
    """All processes of this home's Postgres.

    Its children overwrite the marker with their process titles.
    """
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
            # SIGINT is Postgres's fast shutdown; on SIGTERM it waits for its clients.
            _send(process, signal.SIGINT)
        _send(process, signal.SIGCONT)
    alive = wait_exited(processes, seconds)
    databases = [process for process in alive if _is_postgres(process)]
    for process in databases:
        # On SIGQUIT the server also ends its children, which SIGKILL would leave behind.
        _send(process, signal.SIGQUIT)
    wait_exited(databases, KILL_SECONDS)
    for process in alive:
        _send(process, signal.SIGKILL)
    wait_exited(alive, KILL_SECONDS)


def _is_postgres(process: psutil.Process) -> bool:
    try:
        return process.name() == "postgres"
    except psutil.Error:
        return False


def _is_postmaster(process: psutil.Process) -> bool:
    """Whether this is the main process, which ends its children in the right order.

    Only that one is signaled.
    On SIGINT the checkpointer would write the shutdown checkpoint while clients still commit. Those
    commits would be acknowledged and lost, because the next start would see a clean shutdown and
    replay nothing.
    """
    try:
        parent = process.parent()
        # A child's title is "postgres: ROLE", but not yet right after its fork.
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


def _remove_stale_files(layout: Layout) -> None:
    """Remove pid and ready files of killed processes: their pids may have been reused."""
    if not _of_database(layout):
        # While a process is alive, this file keeps a second server from starting on the data.
        (layout.data(POSTGRES) / "postmaster.pid").unlink(missing_ok=True)
    for path in layout.run.glob("*.*.ready"):
        if not _is_replica(path):
            path.unlink(missing_ok=True)


def _is_replica(ready: Path) -> bool:
    """Whether a ready file belongs to a live replica, which may have been started by hand."""
    name, pid, _ = ready.name.rsplit(".", 2)
    try:
        return name in SERVICES and SERVICES[name].package in " ".join(psutil.Process(int(pid)).cmdline())
    except (ValueError, psutil.Error):
        return False
