"""A clock that jumps: Postgres' time of day is set off, backwards at once and forwards in steps shorter than a lease.

All of Retrofill goes by this clock. A jump forwards by more than a lease ends all leases at once; that is no fault that it
promises to bear without a second attempt, so it is not played.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

from retrofill.stack.layout import POSTGRES
from tests.chaos.server_faults import own
from tests.chaos.stage import Stage

SOURCE = Path(__file__).with_name("shifted_clock.c")
# A driver's lease is four seconds, of which a heartbeat every 0.8 s leaves three at least.
STEP_SECONDS = 1.0


def clock_jumps(stage: Stage, back: float = 12.0) -> None:
    """Postgres' clock jumps back, and returns in steps."""
    servers = own(stage)
    folder = stage.made.settings.home / "clock"
    folder.mkdir()
    offset = folder / "seconds"
    offset.write_bytes(struct.pack("d", 0.0))
    library = _compiled(folder)
    servers.run_with(POSTGRES, {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(offset)})
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


def _set(stage: Stage, file: Path, seconds: float) -> None:
    # In place: the processes have it mapped. Eight bytes at once are one store.
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
    """The library that sets it off; fails where there is no C compiler: then this fault cannot be played here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "no C compiler is here, and without one Postgres' clock cannot be set off: install gcc"
    library = folder / "shifted_clock.so"
    done = subprocess.run(
        [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-lm"], capture_output=True, text=True
    )
    assert done.returncode == 0, f"the library that sets Postgres' clock off cannot be compiled: {done.stderr}"
    return library
