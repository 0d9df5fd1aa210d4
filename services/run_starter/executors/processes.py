"""Driver processes: starts them with a log and ends them with all their children."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO

import psutil

from retrofill.driver.process import LEASE_OVER
from retrofill.groups import await_exit

GRACE_SECONDS = 2.0
MAX_BACKOFF_SECONDS = 30.0
# Beyond this, doubling changes nothing and would overflow.
MAX_DOUBLINGS = 10
_SECRETS = (
    "postgres_dsn", "postgres_service_dsns", "webhook_secrets", "pagerduty_keys",
    "kafka_username", "kafka_password", "kafka_passwords", "kafka_config", "kafka_driver_config",
    "kafka_ssl_certificate", "kafka_ssl_key", "kafka_ssl_key_password", "kafka_driver_ssl_key_password",
)  # fmt: skip
# A driver is of one pool, whose settings it gets one by one.
_POOLS = ("pools", "serves")
_NOT_THE_DRIVERS = {f"RETROFILL_{name}{how}".upper() for name in (*_SECRETS, *_POOLS) for how in ("", "_FILE")}
MAX_LOG_BYTES = 50_000_000


def driver_log(home: Path) -> IO[bytes]:
    """Open the log that all drivers of a home append to, rotating a large one first."""
    folder = home.absolute() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "drivers.log"
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def inherited(environment: Mapping[str, str], withheld: Collection[str] = ()) -> dict[str, str]:
    """The environment that a driver inherits: ours without secrets that are not its own."""
    return {
        name: value
        for name, value in environment.items()
        if name.upper() not in _NOT_THE_DRIVERS and name not in withheld
    }


def start(
    command: Sequence[str],
    home: Path,
    environment: Mapping[str, str],
    *,
    pipes: bool,
    output: int | None = None,
    inherits: Sequence[int] = (),
    withheld: Collection[str] = (),
) -> subprocess.Popen[str]:
    """Start a driver in its own session, so a terminal's Ctrl-C does not reach it directly.

    ``output``: where it prints, instead of the log of all drivers. ``inherits``: open files that it
    gets. ``withheld``: variables of our environment that it does not get.
    """
    with driver_log(home) as log:
        prints_to = log.fileno() if output is None else output
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else prints_to,
            stderr=prints_to,
            env={**inherited(os.environ, withheld), **environment, "PYTHONUNBUFFERED": "1"},
            pass_fds=inherits,
            start_new_session=True,
            text=True,
            bufsize=1,
        )


def pause(failures: int) -> float:
    """Seconds until the next start, after so many failures in a row."""
    return min(0.5 * 2.0 ** min(failures, MAX_DOUBLINGS), MAX_BACKOFF_SECONDS)


def end(process: subprocess.Popen[str]) -> None:
    """Terminate the process; after a grace period, kill it with its children. Returns at once."""
    if process.poll() is not None:
        return
    kill_later(process)
    process.terminate()


def kill_later(process: subprocess.Popen[str]) -> None:
    """Kill the process with all its children after the grace period. Returns at once."""
    killer = threading.Timer(GRACE_SECONDS, _kill, args=(process, _family(process.pid)))
    killer.daemon = True
    killer.start()


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return []


def _kill(process: subprocess.Popen[str], family: Sequence[psutil.Process]) -> None:
    for each in [*_family(process.pid), *family]:
        try:
            # psutil compares creation times, so a reused pid is not killed.
            each.kill()
        except psutil.NoSuchProcess:
            continue


def exit_reason(process: subprocess.Popen[str], why: str | None) -> str:
    """Wait for the process, end its group, and describe its exit; ``why``: its own last report."""
    await_exit(process.pid)
    code = process.wait()
    if why is not None:
        return why
    if code in (LEASE_OVER, -signal.SIGALRM):
        return "the driver exited because its lease ended: no heartbeat was acknowledged in time"
    return (
        f"the driver process was ended by signal {-code}"
        if code < 0
        else f"the driver process exited with status {code}"
    )
