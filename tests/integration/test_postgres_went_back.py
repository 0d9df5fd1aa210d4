"""Postgres was restored from an older copy while Kafka moved on: services detect it, and
``retrofill recover`` resolves it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.types.json import Jsonb
from tests.chaos.servers import POSTGRES, OwnServers
from tests.support.definitions import daily, key_on
from tests.support.installation import Installation, until
from tests.support.replica import Replica

from retrofill_core.bus.envelope import DEAD_LETTER_PREFIX
from retrofill_core.contract.runs import AttemptEnded, RunReported
from retrofill_core.contract.topics import Topic

DAYS = 40
SERVICES = ("backfill-planner", "instant-starter")


class Own(OwnServers):
    """Servers whose Postgres can be stopped, copied and restored."""

    @property
    def data(self) -> Path:
        """Postgres's data directory."""
        return self.layout.data(POSTGRES)

    def stop_postgres(self) -> None:
        """Stop it as an operator does."""
        self._supervisor().stop_parts([POSTGRES])

    def copy_postgres(self, to: Path) -> None:
        """Copy its data while it is stopped."""
        self.stop_postgres()
        shutil.copytree(self.data, to, symlinks=True)
        self.start_postgres()

    def restore_postgres(self, copy: Path) -> None:
        """Replace its data with the copy."""
        self.stop_postgres()
        shutil.rmtree(self.data)
        shutil.copytree(copy, self.data, symlinks=True)
        self.start_postgres()

    def start_postgres(self) -> None:
        """Start it and wait until it accepts connections."""
        self._supervisor().start_part(POSTGRES)
        self.wait_answers(POSTGRES)


@pytest.fixture
def own() -> Iterator[tuple[Own, Installation]]:
    """Dedicated servers with one installation."""
    with tempfile.TemporaryDirectory(prefix="retrofill-tests-") as home:
        servers = Own(Path(home))
        try:
            servers.start()
            made = servers.installation()
            try:
                yield servers, made
            finally:
                made.close()
        finally:
            servers.stop()


def start_all(made: Installation, *, wait: bool = True) -> list[Replica]:
    return [made.start(name, wait=wait, INSTANT_SECONDS="0.2") for name in SERVICES]


def succeeded(made: Installation, id: str) -> int:
    return made.runs_by_state(id).get("succeeded", 0)


def recover(made: Installation, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from retrofill_tools.cli.main import run; run()", "recover", *options],
        env={**os.environ, **made.environment()},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def starts(made: Installation) -> Counter[tuple[int, int]]:
    """The number of ``RunStarted`` events of each attempt."""
    events = [event.body for event in made.events(Topic.RUN_EVENTS) if event.body["type"] == "RunStarted"]
    return Counter((body["run_id"], body["attempt"]) for body in events)


def refuse_to_work(made: Installation, sign: str) -> None:
    """Assert that every service exits at once, with one line that names the finding and the command
    to type.
    """
    for replica in start_all(made, wait=False):
        assert replica.process.wait(60) == 1, replica.said()
        last = replica.said().splitlines()[-1]
        assert sign in last and "run 'retrofill recover'" in last, replica.said()


def kill_all(made: Installation) -> None:
    for replica in made.replicas:
        replica.kill()


def recover_twice(made: Installation, generation: int) -> None:
    """Recover, the first time without the confirmation. No attempt is live afterwards."""
    asked = recover(made)
    assert (asked.returncode, asked.stderr) == (
        2,
        "retrofill: to repair the state, add --yes: there is no terminal to ask on\n",
    )
    done = recover(made, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Postgres only" in done.stdout and f"recovered (generation {generation})" in done.stdout
    assert live_attempts(made) == 0


def live_attempts(made: Installation) -> int:
    return int(made.value("SELECT count(*) FROM attempt WHERE slot IS NOT NULL"))


def last_attempts(made: Installation) -> list[dict[str, Any]]:
    """The last attempt of each run that was given to one."""
    return made.query(
        "SELECT backfill_id, attempt_id, id AS run_id, greatest(attempt, 1) AS attempt FROM run"
        " WHERE attempt_id IS NOT NULL"
    )


def report_failures(made: Installation, outlived: list[dict[str, Any]], kept: int) -> list[str]:
    """Report that all these runs failed, as drivers would that outlived the servers; wait until refused.

    Those of attempts up to ``kept``, which are in the copy, are only ignored. Returns the others' sorted ids.
    """
    others = []
    for row in outlived:
        about = {name: row[name] for name in ("backfill_id", "attempt_id")}
        for report in (
            RunReported(**about, run_id=row["run_id"], attempt=row["attempt"], state="failed"),
            AttemptEnded(**about, state="lost"),
        ):
            ce_id = made.publish(Topic.RUN_REPORTS, row["backfill_id"], report)
            if row["attempt_id"] > kept:
                others.append(str(ce_id))
    until(lambda: dead_letters(made) == sorted(others), "the others are dead letters")
    return sorted(others)


def dead_letters(made: Installation) -> list[str]:
    """The sorted ids of all dead letters, which must be reports of unknown attempts."""
    letters = made.events(Topic.DEAD_LETTERS)
    assert [letter for letter in letters if "has no attempt" not in letter.headers[f"{DEAD_LETTER_PREFIX}reason"]] == []
    return sorted(letter.headers["ce_id"] for letter in letters)


def published_twice(made: Installation) -> list[str]:
    """The ids of events that are on topics more than once. A dead letter keeps that of its message."""
    topics = [topic for topic in Topic if topic != Topic.DEAD_LETTERS]
    ids = Counter(e.headers["ce_id"] for topic in topics for e in made.events(topic) if "ce_id" in e.headers)
    return [ce_id for ce_id, n in ids.items() if n > 1]


@pytest.mark.embedded
@pytest.mark.long
def test_a_restored_copy_is_noticed_and_gone_on_from(own: tuple[Own, Installation], tmp_path: Path) -> None:
    servers, made = own
    start_all(made)
    made.apply(daily("p", max_active_runs=3))
    id = made.request("p", "2020-01-01", "2020-02-09", max_active_runs=3)
    until(lambda: succeeded(made, id) >= 5, "some runs are done")
    servers.copy_postgres(tmp_path / "copy")
    until(lambda: succeeded(made, id) >= 20, "the backfill goes on")
    lost = made.request("p", "2021-01-01", "2021-01-03")
    made.outcome(lost)
    kill_all(made)
    before, outlived = starts(made), last_attempts(made)
    refused: list[str] = []
    for again in (1, 2):
        given_out = made.value("SELECT max(id) FROM attempt")
        servers.restore_postgres(tmp_path / "copy")
        kept = made.value("SELECT max(id) FROM attempt")
        # A cold copy is on the same timeline; only Kafka's newer state reveals it.
        refuse_to_work(made, "was restored from an older copy")
        recover_twice(made, again)
        start_all(made)
        if again == 1:
            refused = report_failures(made, outlived, kept)
            until(lambda: sum(starts(made).values()) >= sum(before.values()) + 5, "runs start again")
            kill_all(made)
        else:
            for each in (id, lost):
                made.wait_state(each, "succeeded")
        assert made.value("SELECT min(id) FROM attempt WHERE id > %s", kept) > given_out > kept
    counts = starts(made)
    assert [key for key, n in counts.items() if n > 1] == []
    assert sum(counts.values()) > sum(before.values()) + DAYS - 20
    assert made.runs_by_state(id) == {"succeeded": DAYS}
    assert made.runs_by_state(lost) == {"succeeded": 3}
    assert published_twice(made) == []
    assert dead_letters(made) == refused != []


def put_back(made: Installation, topic: Topic, key: str, value: bytes, headers: dict[str, str]) -> None:
    """Let an event of the planner wait, as in a copy that was made before it was published."""
    made.query(
        "INSERT INTO backfill_planner_outbox (topic, key, value, headers) VALUES (%s, %s, %s, %s) RETURNING id",
        *(str(topic), key.encode(), value, Jsonb([[*each] for each in headers.items()])),
    )


def fall_behind(made: Installation) -> None:
    """Let the planner's relay not know the last batch that is in Kafka."""
    made.query("UPDATE backfill_planner_relay SET batch = batch - 1 RETURNING batch")


def test_events_of_the_copy_that_kafka_has_are_not_published_again(installation: Installation) -> None:
    planner = installation.start("backfill-planner")
    installation.apply(daily("p"))
    planner.stop()
    (event,) = installation.events(Topic.PIPELINE_EVENTS)
    # One event as the copy had it before publication, and one that was never published.
    put_back(installation, Topic.PIPELINE_EVENTS, event.key, event.value, event.headers)
    put_back(installation, Topic.PIPELINE_EVENTS, event.key, b"{}", {"ce_id": "never published"})
    fall_behind(installation)
    done = recover(installation, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pending events dropped as already published: 1\n" in done.stdout
    installation.start("backfill-planner")
    installation.wait_published()
    ids = [each.headers["ce_id"] for each in installation.events(Topic.PIPELINE_EVENTS)]
    assert ids == [event.headers["ce_id"], "never published"]


@pytest.mark.long
def test_a_request_that_waits_to_be_republished_is_not_taken_for_its_original(installation: Installation) -> None:
    planner = installation.start("backfill-planner")
    installation.apply(daily("p"))
    planner.stop()
    key = key_on(0)
    # The originals have no key, or are on the wrong partition. The third is a copy that Kafka has.
    for ce_id, there, partition in (("no key", None, 1), ("misplaced", key, 1), ("republished", key, 0)):
        headers = {"ce_id": ce_id}
        installation.publish(Topic.BACKFILL_REQUESTS, there, b"{}", partition=partition, headers=headers)
        put_back(installation, Topic.BACKFILL_REQUESTS, key, b"{}", headers)
    fall_behind(installation)
    done = recover(installation, "--yes")
    assert "pending events dropped as already published: 1\n" in done.stdout, done.stderr
    kept = installation.query("SELECT headers FROM backfill_planner_outbox ORDER BY id")
    assert [row["headers"] for row in kept] == [[["ce_id", "no key"]], [["ce_id", "misplaced"]]]


@pytest.mark.long
def test_a_relay_that_changed_its_transactional_id_is_recovered(installation: Installation) -> None:
    planner = installation.start("backfill-planner")
    installation.apply(daily("p"))
    planner.stop()
    # As ``Numbering.change_id`` leaves it.
    installation.query("UPDATE backfill_planner_relay SET transactional = 3 RETURNING transactional")
    done = recover(installation, "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert installation.value("SELECT transactional FROM backfill_planner_relay") == 3
    installation.start("backfill-planner")
    installation.apply(daily("q"))


@pytest.mark.long
def test_a_run_that_had_timed_out_is_not_marked_when_it_is_queued_again(installation: Installation) -> None:
    installation.start("backfill-planner")
    installation.start("instant-starter", INSTANT_HANG="2020-01-02")
    installation.apply(daily("p", run_timeout_seconds=1.0))
    id = installation.request("p", "2020-01-02", "2020-01-02")
    until(lambda: installation.runs_by_state(id).get("running") == 1, "it runs")
    kill_all(installation)
    # As ``mark_failing`` leaves it until its attempt has ended.
    installation.query('UPDATE run SET error = \'{"type": "RunTimedOut", "message": "too late"}\' RETURNING id')
    assert recover(installation, "--yes").returncode == 0
    assert installation.query("SELECT state, error, times_out_at FROM run") == [
        {"state": "queued", "error": None, "times_out_at": None}
    ]
