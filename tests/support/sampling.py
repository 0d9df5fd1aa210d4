"""Samples limits while a test runs, from Postgres as often as possible, and evaluates the drivers'
own logs.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import psycopg

from tests.support.events import Event
from tests.support.installation import Installation

LIVE = "SELECT backfill_id, count(*) FROM attempt WHERE slot IS NOT NULL GROUP BY backfill_id"
STARTS = ("RunStarted",)
# Output may be published by another attempt, or by none for a while.
STOPS = ("RunSucceeded", "RunFailed", "RunCancelled", "RunAttemptLost", "RunSplit", "RunPublishing")


class Sampler:
    """Counts live attempts in a thread. ``most`` has the maximum per backfill, ``most_together``
    that of all at once.
    """

    def __init__(self, made: Installation) -> None:
        self._dsn = made.settings.dsn_of("owner")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.most: Counter[str] = Counter()
        self.most_together = 0
        self.samples = 0
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with psycopg.connect(self._dsn, autocommit=True) as conn:
                conn.execute("SET search_path = retrofill")
                while not self._stopping.wait(0.002):
                    rows = conn.execute(LIVE).fetchall()
                    self.samples += 1
                    for id, live in rows:
                        self.most[id] = max(self.most[id], live)
                    self.most_together = max(self.most_together, sum(live for _, live in rows))
        except psycopg.Error as e:
            self.error = e


def most_live(events: Iterable[Event]) -> dict[str, int]:
    """Each backfill's maximum of attempts at work, as a subscriber of run-events counts them."""
    # The attempt of each run at work. Of one attempt, the next run may begin before one has ended.
    live: dict[str, dict[int, int]] = {}
    most: Counter[str] = Counter()
    for event in events:
        mine = live.setdefault(event.key, {})
        if event.body["type"] in STARTS:
            mine[event.body["run_id"]] = event.body["attempt_id"]
        elif event.body["type"] in STOPS:
            mine.pop(event.body["run_id"], None)
        most[event.key] = max(most[event.key], len(set(mine.values())))
    return dict(most)


def work_of(path: Path) -> list[dict[str, Any]]:
    """The work that instant drivers logged."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def most_at_once(work: Sequence[dict[str, Any]]) -> int:
    """The maximum number of concurrent runs. One that ends as another begins does not overlap with
    it.
    """
    moments = sorted([(w["began"], 1) for w in work] + [(w["ended"], -1) for w in work])
    now = most = 0
    for _, change in moments:
        now += change
        most = max(most, now)
    return most
