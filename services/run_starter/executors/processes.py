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
from retrofill.masking import masked
from retrofill.system.processes import STACK, await_exit

GRACE_SECONDS = 2.0
# For a helper to see that its driver is gone and start what is to follow, which takes milliseconds on an idle machine.
HELPER_SECONDS = 2.0
MAX_BACKOFF_SECONDS = 30.0
# Beyond this, doubling changes nothing and would overflow.
MAX_DOUBLINGS = 10
# Its host sends a driver the settings that it needs; the others may be secrets.
_OURS = "RETROFILL_"
MAX_LOG_BYTES = 50_000_000
# Of what a process printed last, which says why it could not start.
LAST_BYTES, LAST_CHARS = 65_536, 300


def log_file(home: Path) -> Path:
    """The log that all drivers of a home append to."""
    return home.absolute() / "logs" / "drivers.log"


def driver_log(home: Path) -> IO[bytes]:
    """Open it, rotating a large one first."""
    path = log_file(home)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


def inherited(environment: Mapping[str, str], withheld: Collection[str] = ()) -> dict[str, str]:
    """The environment that a driver inherits: ours without our settings, and without secrets that are not its own."""
    return {
        name: value
        for name, value in environment.items()
        if name == STACK or (not name.upper().startswith(_OURS) and name not in withheld)
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
    family = _family(process.pid)
    killer = threading.Timer(GRACE_SECONDS, _start_killing, args=(process.pid, family))
    killer.daemon = True
    try:
        killer.start()
    except RuntimeError:
        # No thread can be started, and a driver must not outlive its attempt. A script's helper sees that it is gone.
        _kill_all([each for each in family if _session(each) == process.pid])


def _family(pid: int) -> list[psutil.Process]:
    """The process and its descendants, each after its parent."""
    try:
        parent = psutil.Process(pid)
        return [parent, *parent.children(recursive=True)]
    except (psutil.Error, OSError):
        # It is gone, or too many files are open.
        return []


def _start_killing(pid: int, family: Sequence[psutil.Process]) -> None:
    everyone = list(dict.fromkeys([*_family(pid), *family]))
    # No daemon: what does not end by itself would survive a run-starter that stops meanwhile.
    try:
        threading.Thread(target=_kill, args=(pid, everyone), name="killer", daemon=False).start()
    except RuntimeError:
        _kill(pid, everyone)


def _kill(pid: int, family: Collection[psutil.Process]) -> None:
    """Kill the driver's session, and what is left of the other sessions a moment later.

    A script's helper leads its own. Only if it sees its driver go, it ends the script's application in the cluster.
    Parents are killed first: one that sees its child die exits by itself, with a status that says nothing of a kill.
    """
    own = [each for each in family if _session(each) == pid]
    _kill_all(own)
    _, left = psutil.wait_procs([each for each in family if each not in own], HELPER_SECONDS)
    _kill_all(left)


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


def _kill_all(processes: Collection[psutil.Process]) -> None:
    for each in processes:
        try:
            # psutil compares creation times, so a reused pid is not killed.
            each.kill()
        except psutil.NoSuchProcess:
            continue


def logged(home: Path) -> int:
    """The size of that log."""
    try:
        return log_file(home).stat().st_size
    except OSError:
        return 0


def last_words(home: Path, start: int) -> str | None:
    """The last line after the first ``start`` bytes there that is no log's, as an interpreter's own error is, masked.

    Drivers that work append to the same file, but in JSON.
    """
    end = logged(home)
    try:
        with log_file(home).open("rb") as log:
            log.seek(max(start if start <= end else 0, end - LAST_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return None
    found = next((line.strip() for line in reversed(lines) if line.strip() and not line.startswith("{")), None)
    return None if found is None else masked(found)[:LAST_CHARS]


def was_unheard(process: subprocess.Popen[str]) -> bool:
    """Whether the process, which has exited, lived until the end of its lease, and no heartbeat was acknowledged."""
    return process.returncode == LEASE_OVER


def exit_reason(process: subprocess.Popen[str], why: str | None) -> str:
    """Wait for the process, end its group, and describe its exit; ``why``: its own last report."""
    await_exit(process.pid)
    code = process.wait()
    if why is not None:
        return why
    if was_unheard(process):
        return "the driver exited because its lease ended: no heartbeat was acknowledged in time"
    if code == -signal.SIGALRM:
        return "the driver process was stuck or stopped until its lease ended: it sent no heartbeat in time"
    return (
        f"the driver process was ended by signal {-code}"
        if code < 0
        else f"the driver process exited with status {code}"
    )
