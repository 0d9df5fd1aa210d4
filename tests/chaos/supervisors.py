"""Two supervisors for one home: started beside one that runs, or beside one that is frozen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil

from retrofill_tools.stack.layout import KAFKA, POSTGRES
from tests.chaos.server_faults import own
from tests.chaos.servers import OwnServers
from tests.chaos.stage import Stage
from tests.support.installation import until


def two_supervisors(stage: Stage) -> None:
    """A second supervisord is refused, but ``up`` replaces a frozen one.

    No server ever runs twice.
    """
    servers = own(stage)
    stage.wait(1.0)
    before = {part: servers.pid(part) for part in (KAFKA, POSTGRES)}
    config = servers.layout.run / "supervisord.conf"
    second = subprocess.run(
        [sys.executable, "-m", "supervisor.supervisord", "--nodaemon", "-c", str(config)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    stage.fault("a second supervisord")
    assert second.returncode != 0, f"a second supervisord was let in: {second.stdout}"
    assert before == {part: servers.pid(part) for part in before}, "a second supervisord changed what runs"
    stage.recovered("a second supervisord refused")
    stopped = psutil.Process(servers.supervisor_pid())
    os.kill(stopped.pid, signal.SIGSTOP)
    stage.fault("SIGSTOP of supervisord")
    servers.up()
    until(
        lambda: not stopped.is_running() or stopped.status() == psutil.STATUS_ZOMBIE, "the former supervisord is gone"
    )
    for part in (POSTGRES, KAFKA):
        servers.wait_answers(part)
    _each_runs_once(servers)
    stage.recovered("Kafka and Postgres under another supervisord")


def _each_runs_once(servers: OwnServers) -> None:
    home = str(servers.layout.home)
    kafkas = [p.pid for p in psutil.process_iter() if "kafka.Kafka" in (line := _line(p)) and home in line]
    assert kafkas == [servers.pid(KAFKA)], f"Kafka runs as {kafkas}"
    postgres = int((servers.layout.data(POSTGRES) / "postmaster.pid").read_text().split()[0])
    assert postgres == servers.pid(POSTGRES), f"Postgres runs as {postgres}"


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
