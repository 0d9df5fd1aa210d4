"""Changes of the branches of an Iceberg table."""

from __future__ import annotations

import random
import time
from typing import Any

# Together about ten seconds.
_TRIES, _FIRST_PAUSE, _MAX_PAUSE = 10, 0.1, 2.0


def change_branches(session: Any, table: str, change: str) -> None:
    """Execute ``ALTER TABLE`` with a ``change`` of branches.

    Unlike a commit of rows, Iceberg does not repeat one of branches by itself if another commit came first.
    """
    for number in range(1, _TRIES + 1):
        try:
            session.sql(f"ALTER TABLE {table} {change}")
        except Exception as e:
            if "CommitFailedException" not in str(e) or number == _TRIES:
                raise
            time.sleep(min(_FIRST_PAUSE * 2.0**number, _MAX_PAUSE) * random.uniform(0.5, 1.5))
            session.sql(f"REFRESH TABLE {table}")
        else:
            return
