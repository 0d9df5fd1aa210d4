"""A callback that records when it was called."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any


async def note_the_time(**_: Any) -> None:
    """Append the time in seconds since the epoch."""
    with Path(os.environ["PEER_NOTES"]).open("a") as notes:
        notes.write(f"{time.time()}\n")
