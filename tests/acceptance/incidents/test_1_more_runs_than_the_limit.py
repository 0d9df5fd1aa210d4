"""Incident: two schedulers read the same stale count of running runs, each filled the gap, and
twice the limit ran.

A claim here counts under the row locks of the backfill and the pipeline, and each live attempt
holds a unique slot. Exceeding the limit is impossible, even for a replica that wakes up late with a
stale count.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.definitions import daily
from tests.support.installation import PARTITIONS, Installation, until
from tests.support.replica import Replica
from tests.support.sampling import Sampler, most_at_once, most_live, work_of
from tests.support.stacks import stack

from retrofill_core.contract.runs import AttemptEnded, RunReported
from retrofill_core.contract.topics import Topic, partition_of

__all__ = ["stack"]
LIMIT = 3
NEVER = {"INSTANT_SECONDS": "3600", "RETROFILL_DRIVER_SLOTS": "16"}


def starter(stack: Installation, environment: Mapping[str, str], crash_point: str = "") -> Replica:
    """Start one more replica. With ``crash_point``, it stops itself at that point."""
    return stack.start("instant-starter", environment, RETROFILL_CRASH_POINT=crash_point)


def finish(stack: Installation, id: str) -> None:
    """Report success for each run of a backfill as it starts, until the backfill succeeds."""
    stack.wait_state(id, "running")
    said: set[int] = set()

    def ended() -> bool:
        running = "SELECT id, attempt, attempt_id FROM run WHERE backfill_id = %s AND state = 'running'"
        for run in stack.query(running, id):
            if run["id"] not in said:
                said.add(run["id"])
                about = {"backfill_id": id, "attempt_id": run["attempt_id"]}
                report = RunReported(**about, run_id=run["id"], attempt=run["attempt"], state="succeeded")
                stack.publish(Topic.RUN_REPORTS, id, report)
                # Not ``done``: nobody else tells the sleeping driver to leave.
                stack.publish(Topic.RUN_REPORTS, id, AttemptEnded(**about, state="released"))
        return stack.query("SELECT state FROM backfill WHERE id = %s", id) == [{"state": "succeeded"}]

    until(ended, f"{id} succeeds")


def wait_succeeded(stack: Installation, id: str) -> None:
    state = "SELECT state FROM backfill WHERE id = %s"
    until(
        lambda: stack.query(state, id) == [{"state": "succeeded"}],
        f"{id} succeeds",
        lambda: str(stack.runs_by_state(id)),
        seconds=150,
    )


def states(stack: Installation, id: str) -> list[str]:
    """The states of the runs, by position."""
    rows = stack.query("SELECT state FROM run WHERE backfill_id = %s ORDER BY position", id)
    return ["live" if row["state"] in ("starting", "running") else row["state"] for row in rows]


def test_a_locked_backfill_starts_nothing_and_holds_up_nobody(stack: Installation) -> None:
    for name in ("locked", "free"):
        stack.apply(daily(name))
    id = stack.request("locked", "2020-01-01", "2020-01-05", max_active_runs=LIMIT)
    stack.outcome(id)
    with stack.session() as other:
        other.execute("SELECT 1 FROM backfill WHERE id = %s FOR NO KEY UPDATE", [id])
        starter(stack, NEVER)
        finish(stack, stack.request("free", "2020-01-01", "2020-01-05", max_active_runs=2))
        assert states(stack, id) == ["queued"] * 5
    until(lambda: states(stack, id) == ["live"] * LIMIT + ["queued"] * 2, "as many as may be are live, in order")
    finish(stack, stack.request("free", "2021-01-01", "2021-01-05"))
    assert states(stack, id) == ["live"] * LIMIT + ["queued"] * 2


@contextmanager
def rebalancing(stack: Installation, environment: dict[str, str]) -> Iterator[None]:
    """Start and stop an extra replica continuously, so shards keep changing owners."""
    done = threading.Event()
    errors: list[BaseException] = []

    def cycle() -> None:
        try:
            while not done.is_set():
                extra = starter(stack, environment)
                done.wait(2)  # let it work for a while
                extra.stop()
        except BaseException as e:
            errors.append(e)
            raise

    thread = threading.Thread(target=cycle, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(60)
    assert not errors


def owned_by(stack: Installation, replica: Replica) -> set[int]:
    """The shards whose latest takeover was by this replica."""
    rows = stack.query("SELECT partition FROM run_starter_shard WHERE owner LIKE %s", f"%-{replica.process.pid}")
    return {row["partition"] for row in rows}


# Records who made each claim and the shard's owner, by trigger in the claim's transaction.
NOTE_CLAIMS = """
CREATE TABLE claimed (attempt bigint, by text, owner text);
CREATE FUNCTION note_claim() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = retrofill AS $$
BEGIN
  INSERT INTO claimed SELECT NEW.id, current_setting('application_name'), s.owner
    FROM backfill b JOIN run_starter_shard s ON s.partition = b.shard WHERE b.id = NEW.backfill_id;
  RETURN NULL;
END $$;
CREATE TRIGGER note_claim AFTER INSERT ON attempt FOR EACH ROW EXECUTE FUNCTION note_claim();
"""


def note_claims(stack: Installation) -> None:
    """Start recording claims."""
    with stack.session() as owner:
        owner.execute(NOTE_CLAIMS)
        owner.commit()


def check_claims(stack: Installation, at_least: int) -> None:
    """Assert that the shard's owner made each claim."""
    assert stack.value("SELECT count(*) FROM claimed") >= at_least
    assert stack.query("SELECT * FROM claimed WHERE by IS DISTINCT FROM owner") == []


def id_on(shard: int, name: str) -> str:
    """A backfill id that hashes to the shard."""
    return next(id for n in range(1000) if partition_of(id := f"{name}-{n}", PARTITIONS) == shard)


def test_two_starters_with_the_same_stale_count_fill_the_pipeline_once(stack: Installation) -> None:
    for name in ("p", "free"):
        stack.apply(daily(name, max_active_runs=LIMIT))
    first = starter(stack, NEVER, "claim:written:stop")
    second = starter(stack, NEVER)
    half = PARTITIONS // 2
    until(
        lambda: [len(owned_by(stack, each)) for each in (first, second)] == [half, half], "each owns half of the shards"
    )
    theirs, others = (min(owned_by(stack, replica)) for replica in (first, second))
    ids = [id_on(theirs, "a"), id_on(others, "b")]
    stack.request("p", "2021-01-01", "2021-01-05", id=ids[0], max_active_runs=LIMIT)
    until(first.is_stopped, "the first has filled the pipeline and not said so")
    # The second starter sees no live attempt of the pipeline.
    stack.request("p", "2022-01-01", "2022-01-05", id=ids[1], max_active_runs=LIMIT)
    free = stack.request("free", "2022-01-01", "2022-01-01", id=id_on(others, "free"))
    until(lambda: states(stack, free) == ["live"], "the second has looked at its backfill, and gone on")
    first.thaw()
    live = "SELECT count(*) FROM attempt WHERE pipeline_slot IS NOT NULL AND backfill_id = ANY(%s)"
    until(lambda: stack.value(live, ids) >= LIMIT, "the pipeline is full")
    # The first starter continues only after its claim has committed or failed.
    again = stack.request("free", "2023-01-01", "2023-01-01", id=id_on(theirs, "again"))
    until(lambda: states(stack, again) == ["live"], "the first has gone on")
    assert stack.value(live, ids) == LIMIT


@pytest.mark.long
def test_three_replicas_one_stopped_in_its_claim_never_start_more(stack: Installation) -> None:
    note_claims(stack)
    log = stack.settings.home / "work"
    environment = {
        "INSTANT_SECONDS": "0.05",
        "INSTANT_LOG": str(log),
        "RETROFILL_DRIVER_SLOTS": "8",
        "RETROFILL_LEASE_SECONDS": "4",
    }
    stack.apply(daily(max_active_runs=16))
    stopped = starter(stack, environment, "claim:written:stop")
    id = stack.request("p", "2020-01-01", "2020-07-18", max_active_runs=LIMIT)
    with Sampler(stack) as sampler:
        until(stopped.is_stopped, "the first owner stands in the middle of its claim")
        assert stack.runs_by_state(id) == {"queued": 200}
        for _ in range(2):
            starter(stack, environment)
        shard = stack.value("SELECT shard FROM backfill WHERE id = %s", id)
        until(lambda: shard not in owned_by(stack, stopped), "the shard has another owner")
        stopped.thaw()
        with rebalancing(stack, environment):
            wait_succeeded(stack, id)
    check(stack, sampler, log, {id: LIMIT}, group=LIMIT)
    check_claims(stack, at_least=200)
    assert stack.runs_by_state(id) == {"succeeded": 200}
    assert stopped.process.poll() is None, "the one that was stopped works on"


@pytest.mark.long
def test_a_former_owner_that_wakes_before_its_claim_claims_nothing(stack: Installation) -> None:
    note_claims(stack)
    stack.apply(daily(max_active_runs=16))
    stack.outcome(stack.request("p", "2020-01-01", "2020-01-05", id="late", max_active_runs=LIMIT))
    with stack.session() as other:
        # Whatever finds the row locked leaves the claim to a check of its own.
        other.execute("SELECT 1 FROM backfill WHERE id = 'late' FOR NO KEY UPDATE")
        stopped = starter(stack, NEVER, "check:before-begin:b:late:stop")
        until(stopped.is_stopped, "the first owner is about to claim")
    # The successor has one driver, which leaves slots that the former owner could claim.
    starter(stack, NEVER | {"RETROFILL_DRIVER_SLOTS": "1"})
    until(lambda: states(stack, "late") == ["live"] + ["queued"] * 4, "the successor started what it could")
    until(lambda: not owned_by(stack, stopped), "all shards have another owner")
    stopped.thaw()
    # The claim is the first thing that the replica does when it wakes up.
    until(lambda: bool(owned_by(stack, stopped)), "the one that was stopped works on")
    check_claims(stack, at_least=1)


@pytest.mark.long
def test_a_former_owner_that_wakes_after_its_claim_runs_no_old_attempt(stack: Installation) -> None:
    log = stack.settings.home / "work"
    stack.apply(daily(max_active_runs=16))
    quick = {"INSTANT_SECONDS": "0", "INSTANT_LOG": str(log), "RETROFILL_LEASE_SECONDS": "2"}
    stopped = starter(stack, NEVER | quick, "claim:committed:stop")
    id = stack.request("p", "2020-01-01", "2020-01-05", max_active_runs=LIMIT)
    until(stopped.is_stopped, "the first owner has claimed and not launched")
    first = [row["id"] for row in stack.query("SELECT id FROM attempt")]
    assert len(first) == LIMIT
    starter(stack, NEVER | {"RETROFILL_LEASE_SECONDS": "3600"})
    # Those that the stopped host has acknowledged may have begun, so their numbers are used up.
    second = "SELECT count(*) FROM run WHERE state = 'running' AND attempt_id <> ALL(%s)"
    until(lambda: stack.value(second, first) == LIMIT, "the second attempts run")
    stopped.thaw()
    until(lambda: bool(owned_by(stack, stopped)), "the one that was stopped works on")
    stopped.stop()
    assert work_of(log) == []
    assert stack.value(second, first) == LIMIT
    assert sorted(states(stack, id)) == ["live"] * LIMIT + ["queued"] * 2


@pytest.mark.long
def test_the_pipelines_limit_holds_for_two_backfills_together(stack: Installation) -> None:
    log = stack.settings.home / "work"
    environment = {"INSTANT_SECONDS": "0.05", "INSTANT_LOG": str(log), "RETROFILL_DRIVER_SLOTS": "8"}
    stack.apply(daily(max_active_runs=LIMIT))
    for _ in range(3):
        stack.start("instant-starter", environment, wait=False)
    with Sampler(stack) as sampler:
        ids = [stack.request("p", f"{year}-01-01", f"{year}-03-01", max_active_runs=LIMIT) for year in (2021, 2022)]
        with rebalancing(stack, environment):
            for id in ids:
                wait_succeeded(stack, id)
    check(stack, sampler, log, dict.fromkeys(ids, LIMIT), group=LIMIT)
    assert [stack.runs_by_state(id) for id in ids] == [{"succeeded": 60}, {"succeeded": 60}]


def check(stack: Installation, sampler: Sampler, log: Path, limits: dict[str, int], *, group: int) -> None:
    """Assert from the rows, events and drivers' work logs that no limit was ever exceeded."""
    assert sampler.error is None
    assert sampler.samples > 100
    stack.wait_published()
    fields = most_live(stack.events(Topic.RUN_EVENTS))
    for id, limit in limits.items():
        assert 0 < sampler.most[id] <= limit
        assert 0 < fields[id] <= limit
    # The sampler saw the limit reached. Otherwise it could have missed a violation.
    assert sampler.most_together == group
    work = work_of(log)
    assert most_at_once(work) <= group
    for _, attempts in itertools.groupby(sorted(work, key=lambda w: w["interval"]), key=lambda w: w["interval"]):
        assert most_at_once(list(attempts)) == 1, "one live attempt of an interval at a time"
