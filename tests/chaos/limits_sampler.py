"""Samples the number of live attempts in Postgres as often as possible, also during server faults."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Self

import psycopg

from tests.support.installation import Installation

LIVE = """
SELECT a.backfill_id AS id, count(*) FROM retrofill.attempt a WHERE a.slot IS NOT NULL GROUP BY 1
UNION ALL
SELECT 'pipeline:' || p.name, count(*) FROM retrofill.attempt a JOIN retrofill.pipeline p ON p.no = a.pipeline_no
WHERE a.slot IS NOT NULL GROUP BY 1
"""
PAUSE_SECONDS = 0.01
AGAIN_SECONDS = 0.2


class LimitsSampler:
    """``most`` is the highest count by backfill id, and by ``pipeline:`` plus name."""

    def __init__(self, made: Installation) -> None:
        self._dsn = made.settings.dsn_of("owner")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.most: Counter[str] = Counter()
        self.samples = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop sampling; ``most`` is final afterwards."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                with psycopg.connect(self._dsn, autocommit=True, connect_timeout=3) as conn:
                    while not self._stopping.wait(PAUSE_SECONDS):
                        self._sample(conn)
            except psycopg.Error:
                # While the server is down, nothing can be claimed, so no sample is missed.
                self._stopping.wait(AGAIN_SECONDS)

    def _sample(self, conn: psycopg.Connection) -> None:
        for id, live in conn.execute(LIVE).fetchall():
            self.most[id] = max(self.most[id], live)
        self.samples += 1
