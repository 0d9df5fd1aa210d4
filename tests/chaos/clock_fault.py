"""Jumps of the Postgres clock: backward, forward in steps, and forward by much more than a lease.

A lease ends only when both the Postgres clock and the owner's clock say so. None of these jumps may
take a live run from its driver.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from datetime import timedelta
from pathlib import Path

from retrofill_core.contract.topics import Topic
from retrofill_tools.stack.layout import POSTGRES
from tests.chaos.history import Wish
from tests.chaos.overload import FAR
from tests.chaos.server_faults import own
from tests.chaos.stage import PROBE, Stage
from tests.chaos.workload import request_of
from tests.support.installation import until

SOURCE = Path(__file__).with_name("shifted_clock.c")
STEP_SECONDS = 1.0
# Longer than the stage's default, so that a busy machine does not end leases.
LEASE_SECONDS = 10.0
# Runs that are at work before a jump and long enough after it for an owner to notice an ended
# lease. Each is its own backfill: within one backfill, waiting runs would delay the second driver.
LIVE, LIVE_SECONDS = 2, LEASE_SECONDS
# A single jump may fall between two lease checks and go unnoticed after the next heartbeat.
JUMPS = 8
AT_WORK = "SELECT count(*) FROM run WHERE backfill_id = ANY(%s) AND state = 'running'"
ATTEMPTS = "SELECT state, attempt, lost_attempts FROM run WHERE backfill_id = ANY(%s)"
ENDED = "SELECT count(*) FROM backfill WHERE id = ANY(%s) AND ended_at IS NOT NULL"


def clock_jumps(stage: Stage, back: float = 12.0, on: float = 6 * LEASE_SECONDS) -> None:
    """Shift the Postgres clock while runs are at work.

    First back by ``back`` seconds, then forward in steps, then repeatedly forward by ``on``
    seconds.
    """
    servers = own(stage)
    folder = stage.made.settings.home / "clock"
    folder.mkdir()
    offset = folder / "seconds"
    offset.write_bytes(struct.pack("d", 0.0))
    library = _compiled(folder)
    servers.run_with(POSTGRES, {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(offset)})
    stage.crew.equip("run-starter", RETROFILL_LEASE_SECONDS=str(LEASE_SECONDS))
    stage.crew.replace("run-starter")
    stage.recovered("Postgres under a clock of its own")
    _set(stage, offset, -back)
    stage.wait(2 * STEP_SECONDS)
    stage.recovered(f"Postgres' clock {back:.0f} s back")
    now = -back
    while now < back / 2:
        now += STEP_SECONDS
        _set(stage, offset, now)
        stage.wait(2 * STEP_SECONDS)
    stage.recovered("Postgres' clock forwards in steps")
    live = _live_runs(stage)
    for _ in range(JUMPS):
        now += on
        _set(stage, offset, now)
        stage.wait(STEP_SECONDS)
    until(lambda: stage.made.value(ENDED, live) == LIVE, "the runs that were at work end", seconds=120)
    taken = [row for row in stage.made.query(ATTEMPTS, live) if row["attempt"] != 1 or row["lost_attempts"]]
    assert not taken, f"a jump of Postgres' clock took live runs from their drivers: {taken}"
    stage.recovered(f"Postgres' clock {JUMPS} times {on:.0f} s on")


def _live_runs(stage: Stage) -> list[str]:
    """Start runs that are at work at the same time; returns their backfills."""
    days = [FAR + timedelta(days=n) for n in range(LIVE)]
    # Beside many backfills, the second may begin long after the first.
    all_there = "all-are-at-work"
    wishes = [Wish(f"live-{n}", PROBE, d, d, seconds=LIVE_SECONDS, awaits=all_there) for n, d in enumerate(days)]
    ids = [wish.id for wish in wishes]
    stage.extra |= {wish.id: wish for wish in wishes}
    stage.player.send_all(Topic.BACKFILL_REQUESTS, [(wish.id, request_of(wish, stage.folder)) for wish in wishes])
    until(lambda: stage.made.value(AT_WORK, ids) == LIVE, "runs are at work", seconds=60)
    (stage.folder / all_there).touch()
    return ids


def _set(stage: Stage, file: Path, seconds: float) -> None:
    # Write in place, because the processes have the file mapped. Eight bytes are one store.
    handle = os.open(file, os.O_WRONLY)
    try:
        os.pwrite(handle, struct.pack("d", seconds), 0)
    finally:
        os.close(handle)
    stage.clock.jumped(seconds)
    shown = float(stage.made.value("SELECT extract(epoch FROM clock_timestamp())"))
    said = stage.clock.of_postgres(time.time())
    assert abs(shown - said) < STEP_SECONDS, f"Postgres' clock shows {shown}, it was set to {said}"
    stage.fault(f"Postgres' clock {'back' if seconds < 0 else 'on'}")


def _compiled(folder: Path) -> Path:
    """Compile the library that shifts the clock. Fails without a C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "no C compiler is here, and without one Postgres' clock cannot be set off: install gcc"
    library = folder / "shifted_clock.so"
    done = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-lm"], capture_output=True, text=True
    )
    assert done.returncode == 0, f"the library that sets Postgres' clock off cannot be compiled: {done.stderr}"
    return library
