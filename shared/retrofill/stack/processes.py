"""The processes of one stack, found by the marker in their environment, also when nobody supervises them any more."""

from __future__ import annotations

import signal

import psutil

from retrofill.stack.layout import POSTGRES, Layout

MARKER = "RETROFILL_STACK"
SERVICE_SECONDS = 8.0
SERVER_SECONDS = 25.0


def of_stack(stack_id: str) -> list[psutil.Process]:
    """All processes with this stack's marker. Only these are ever ended."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER) == stack_id:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def end_all(layout: Layout, stack_id: str) -> int:
    """End what is left of a stack: first whoever uses the servers, then the servers. Returns how many there were."""
    everything = of_stack(stack_id)
    servers = [process for process in everything if _is_server(process)]
    _end([process for process in everything if process not in servers], SERVICE_SECONDS)
    _end(servers, SERVER_SECONDS)
    # A driver that was being started while we looked.
    late = of_stack(stack_id)
    _end(late, SERVICE_SECONDS)
    _forget_stale_pid(layout)
    return len(everything) + len(late)


def _is_server(process: psutil.Process) -> bool:
    try:
        command = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return "kafka.Kafka" in command or "/postgres" in command.split(" -D ")[0]


def _end(processes: list[psutil.Process], seconds: float) -> None:
    for process in processes:
        try:
            # Postgres shuts down fast on SIGINT; on SIGTERM it waits for its clients.
            process.send_signal(signal.SIGINT if process.name() == "postgres" else signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
        except psutil.NoSuchProcess:
            continue
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=5)


def _forget_stale_pid(layout: Layout) -> None:
    """After a kill the pid file stays, and its number may be somebody else's by now."""
    (layout.data(POSTGRES) / "postmaster.pid").unlink(missing_ok=True)
