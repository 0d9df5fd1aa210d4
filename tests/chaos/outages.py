"""Kafka is away for less and for more than a lease, while tasks run that take as long as one; a receiver is away for minutes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, timedelta

from retrofill_core.contract.topics import Topic
from tests.chaos import work
from tests.chaos.history import Wish
from tests.chaos.server_faults import own
from tests.chaos.servers import KAFKA, POSTGRES
from tests.chaos.stage import Stage
from tests.chaos.workload import request_of
from tests.support.definitions import daily
from tests.support.installation import until
from tests.support.receiver import Answer

STARTER, PIPELINE = "run-starter", "minutes"
FIRST, RUNS = date(2010, 1, 1), 4
BEGUN = "SELECT count(*) FROM run WHERE backfill_id = %s AND state = 'running'"
ENDED = "SELECT count(*) FROM backfill WHERE id = %s AND ended_at IS NOT NULL"
# Publishers of staged output are attempts, too.
OUTCOMES = "SELECT outcome, count(*) AS n FROM attempt WHERE backfill_id = %s AND mode <> 'publish' GROUP BY outcome"


def kafka_away(stage: Stage, lease: float = 6.0, away: Sequence[float] = (1.0, 2.0, 6.0, 18.0)) -> None:
    """Kafka is killed and stays away, or hangs, for each of these times: no attempt ends. Then Postgres is away, too, for
    longer than a lease: attempts end, and none has its run beside another.
    """
    stage.made.apply(daily(PIPELINE, max_active_runs=RUNS, code={"file": work.__file__, "attribute": "work"}))
    stage.limits[PIPELINE], stage.batches[PIPELINE] = RUNS, 1
    # Beside those of the workload.
    stage.crew.equip(STARTER, RETROFILL_LEASE_SECONDS=f"{lease}", RETROFILL_DRIVER_SLOTS=f"{RUNS * 3}")
    stage.crew.replace(STARTER)
    for number, seconds in enumerate(away):
        found = _outcomes(stage, number, stopped if number % 2 else hanging, lease, seconds)
        assert found == {"done": RUNS}, found
        stage.recovered("Kafka away")
    found = _outcomes(stage, len(away), without_both, lease, lease * 2)
    # Whether the host or the owner is first to say so is open.
    ended = found.pop("lost", 0) + found.pop("released", 0)
    assert (ended, found) == (RUNS, {"done": RUNS}), found
    stage.recovered("Kafka and Postgres away")


Away = Callable[[Stage], Iterator[None]]


def _outcomes(stage: Stage, number: int, how: Away, lease: float, seconds: float) -> dict[str, int]:
    """How the attempts of a backfill end that runs during the outage of this number."""
    name, first = f"{how.__name__}-{number}", FIRST + timedelta(days=RUNS * number)
    last = first + timedelta(days=RUNS - 1)
    wish = Wish(f"{PIPELINE}-{name}", PIPELINE, first, last, limit=RUNS, seconds=lease, awaits=f"{name}.go")
    stage.extra[wish.id] = wish
    stage.player.send(Topic.BACKFILL_REQUESTS, wish.id, request_of(wish, stage.folder), 1)
    until(lambda: stage.made.value(BEGUN, wish.id) == RUNS, "all runs have begun", seconds=240)
    stage.wait(stage.chance.uniform(0.0, lease / 2))
    (stage.folder / f"{name}.go").touch()
    with contextmanager(how)(stage):
        stage.fault(f"{how.__name__} for {seconds:g} s: Kafka")
        stage.wait(seconds)
    until(lambda: bool(stage.made.value(ENDED, wish.id)), "its backfill ends", seconds=lease * 4 + 240)
    return {row["outcome"]: row["n"] for row in stage.made.query(OUTCOMES, wish.id)}


def stopped(stage: Stage) -> Iterator[None]:
    """It answers nobody, and closes all connections."""
    own(stage).stop_part(KAFKA)
    yield
    own(stage).start_part(KAFKA)


def hanging(stage: Stage) -> Iterator[None]:
    """It takes messages, and answers nothing."""
    pid = own(stage).pid(KAFKA)
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)
    own(stage).wait_answers(KAFKA)


def without_both(stage: Stage) -> Iterator[None]:
    """Neither server answers."""
    own(stage).stop_part(KAFKA)
    own(stage).stop_part(POSTGRES)
    yield
    own(stage).start_part(POSTGRES)
    own(stage).start_part(KAFKA)


DOWN = "SELECT count(*) FROM receiver WHERE down_since IS NOT NULL"


def receiver_away(stage: Stage, seconds: float = 600.0) -> None:
    """The receiver of webhooks answers with an error for so long, then not at all: all calls arrive afterwards, in order."""
    until(lambda: bool(stage.receiver.timed("/soon")), "webhooks are sent", seconds=240)
    for kind, answer in (("answers 503", Answer(503)), ("hangs", Answer(hold=threading.Event()))):
        stage.receiver.answer("/soon", answer)
        until(lambda: stage.made.value(DOWN) == 1, "a call has failed", seconds=240)
        stage.fault(f"the receiver {kind}")
        stage.wait(seconds)
        stage.receiver.answer("/soon", Answer(204))
        if answer.hold is not None:
            answer.hold.set()
        stage.recovered("the receiver away")
