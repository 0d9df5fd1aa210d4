"""Driver processes: started with their log, ended with all their children."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from retrofill.driver.process import LEASE_OVER
from retrofill.groups import await_exit

GRACE_SECONDS = 2.0
_SECRETS = (
    "postgres_dsn", "postgres_service_dsns", "webhook_secrets",
    "kafka_username", "kafka_password", "kafka_passwords", "kafka_config", "kafka_driver_config",
    "kafka_ssl_certificate", "kafka_ssl_key", "kafka_ssl_key_password", "kafka_driver_ssl_key_password",
)  # fmt: skip
_NOT_THE_DRIVERS = {f"RETROFILL_{name}{how}".upper() for name in _SECRETS for how in ("", "_FILE")}
MAX_LOG_BYTES = 50_000_000


def driver_log(home: Path) -> IO[bytes]:
    """The log that all drivers of a home append to; a large one is put aside first."""
    folder = home.absolute() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "drivers.log"
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What a driver gets of our environment: all but the secrets that are not its own."""
    return {name: value for name, value in environment.items() if name.upper() not in _NOT_THE_DRIVERS}


def start(command: Sequence[str], home: Path, environment: Mapping[str, str], *, pipes: bool) -> subprocess.Popen[str]:
    """Start a driver in a session of its own, so that a terminal's Ctrl-C reaches it only through us."""
    with driver_log(home) as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else log,
            stderr=log,
            env={**inherited(os.environ), **environment, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
            text=True,
            bufsize=1,
        )


def end(process: subprocess.Popen[str]) -> None:
    """Ask the process to end, and after a grace kill it with all its children. Returns at once."""
    if process.poll() is not None:
        return
    kill_later(process)
    process.terminate()


def kill_later(process: subprocess.Popen[str]) -> None:
    """Kill the process with all its children after the grace, if it is still there then. Returns at once."""
    killer = threading.Timer(GRACE_SECONDS, _kill, args=(process, _family(process.pid)))
    killer.daemon = True
    killer.start()


def end_now(process: subprocess.Popen[str]) -> None:
    """Kill the process with all its children."""
    _kill(process, _family(process.pid))


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return []


def _kill(process: subprocess.Popen[str], family: Sequence[psutil.Process]) -> None:
    for each in [*_family(process.pid), *family]:
        try:
            # psutil compares creation times, so that a number used anew is not hit.
            each.kill()
        except psutil.NoSuchProcess:
            continue


def how_it_ended(process: subprocess.Popen[str], why: str | None) -> str:
    """Wait for the process, end its group, and tell for people why it ended: what it said itself, or its status or signal."""
    await_exit(process.pid)
    code = process.wait()
    if why is not None:
        return why
    if code in (LEASE_OVER, -signal.SIGALRM):
        return "the driver ended itself because its lease was over: no heartbeat was acknowledged in time"
    return (
        f"the driver process was ended by signal {-code}"
        if code < 0
        else f"the driver process exited with status {code}"
    )
