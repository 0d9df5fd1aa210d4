"""Measures Retrofill on the whole embedded stack with real drivers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, timedelta
from pathlib import Path

import psycopg
from tests.support.installation import until

from benchmarks.start import started
from benchmarks.support.flights import User, user_with_spark
from benchmarks.support.kafka import ask, at_end
from benchmarks.support.plain_days import FLIGHTS
from retrofill_core.bus.clients import producer
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.topics import Topic, partition_of

PIPELINES = Path(__file__).parent / "pipelines.py"
FIRST = date(2001, 1, 1)
SECONDS = 600.0


class Retrofill:
    """A user's stack with the pipelines applied."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.settings = user.settings()
        self.notes = Path(user.environment["PEER_NOTES"])
        self._sender = producer(self.settings, "bench")
        self._day = 0
        user.run("pipelines", "apply", str(PIPELINES))

    def accept(self, runs: int, repeat: int) -> float:
        """Seconds from a request to reading ``BackfillPlanned``, when all its runs exist."""
        id = f"accept-{repeat}"
        partition = partition_of(id, self.settings.partitions)
        subscriber = at_end(self.settings, Topic.BACKFILL_EVENTS, [partition])
        subscriber.poll(5)
        began = time.monotonic()
        self._request("nothing", runs, id)
        while (message := subscriber.poll(60)) is not None:
            if message.error() is None and message.key() == id.encode():
                seconds = time.monotonic() - began
                answer = json.loads(message.value() or b"{}")
                assert (answer["type"], answer["runs"]) == ("BackfillPlanned", runs), answer
                subscriber.close()
                # Its runs are not part of the measurement.
                self.user.run("backfill", "cancel", id, "--yes")
                self._ended(id)
                return seconds
        raise AssertionError("there was no answer")

    def first_run(self) -> float:
        """Seconds from a request for one day to the first line of its task."""
        self._day += 1
        (line,) = started(self.settings, self._sender, self.notes, self._day)
        return line

    def runs_a_second(self, runs: int, repeat: int) -> float:
        """Runs per second, from the first start to the last end, by the database clock."""
        id = f"trivial-{repeat}"
        self._request("nothing", runs, id, max_active_runs=64, reprocess_behavior="completed")
        self._ended(id)
        with psycopg.connect(self.settings.dsn_of("owner")) as conn:
            row = conn.execute(
                "SELECT count(*) FILTER (WHERE state = 'succeeded'), max(finished_at) - min(started_at) "
                "FROM retrofill.run WHERE backfill_id = %s",
                [id],
            ).fetchone()
        assert row is not None and row[0] == runs, row
        return float(runs / row[1].total_seconds())

    def deadlines(self, count: int, repeat: int) -> list[float]:
        """Seconds from each missed deadline to its callback."""
        self.notes.write_text("")
        id = f"late-{repeat}"
        self._request("late", count, id, reprocess_behavior="completed")
        until(lambda: len(_times(self.notes)) == count, "callbacks", seconds=SECONDS)
        with psycopg.connect(self.settings.dsn_of("owner")) as conn:
            rows = conn.execute("SELECT due_at FROM retrofill.deadline WHERE backfill_id = %s ORDER BY due_at", [id])
            due = [row[0].timestamp() for row in rows]
        self.user.run("backfill", "cancel", id, "--yes")
        self._ended(id)
        return [noted - moment for noted, moment in zip(_times(self.notes), due, strict=True)]

    def _request(self, pipeline: str, runs: int, id: str, **more: object) -> None:
        # ``nothing`` reprocesses the same days; the other pipelines get new days each time.
        self._day += 1
        first = FIRST if pipeline == "nothing" else FIRST + timedelta(days=self._day * runs)
        last = first + timedelta(days=runs - 1)
        body = BackfillRequested.model_validate(
            {"pipeline": pipeline, "from": str(first), "to": str(last), "reprocess_behavior": "completed", **more}
        )
        ask(self.settings, self._sender, id, body)

    def _ended(self, id: str) -> None:
        with psycopg.connect(self.settings.dsn_of("owner"), autocommit=True) as conn:
            ended = "SELECT ended_at IS NOT NULL FROM retrofill.backfill WHERE id = %s"
            until(lambda: conn.execute(ended, [id]).fetchone() == (True,), f"the end of {id}", seconds=SECONDS)


@contextmanager
def stack(folder: Path, deadline_seconds: float) -> Iterator[Retrofill]:
    """A whole stack whose tasks and callbacks note their times in ``folder``."""
    environment = {
        "PEER_NOTES": str(folder / "notes"),
        "PEER_DEADLINE_SECONDS": str(deadline_seconds),
        "RETROFILL_CALLBACKS": '{"note_the_time": "benchmarks.peers.pipelines:note_the_time"}',
        "PYTHONPATH": ":".join([str(FLIGHTS.parents[1]), *filter(None, sys.path)]),
    }
    with user_with_spark(flights=False, more=environment) as user:
        yield Retrofill(user)


def _times(notes: Path) -> list[float]:
    return sorted(float(line) for line in notes.read_text().split()) if notes.exists() else []
