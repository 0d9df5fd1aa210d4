"""Interleavings that once broke an invariant, each replayed step by step."""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import date, timedelta
from functools import partial
from itertools import count
from typing import Any

import pytest

from retrofill.log import FIELDS
from retrofill_core.bus.relay.cursor import CURSOR_PARTITION, TAKEN_KEY
from retrofill_core.bus.relay.relay import Relay
from retrofill_core.contract.backfills import BackfillCancelRequested
from retrofill_core.contract.topics import CALLBACK_RUNNER, PLANNER, RUN_STARTER, Topic, partition_of
from retrofill_core.store import attempts
from retrofill_core.store.history import SPAN
from retrofill_core.store.tables import SERVICE_TABLES
from run_starter.claims.checks import Claims
from run_starter.handler import StarterHandler
from run_starter.memory import LEASES_KEY, Memory, backfill_key
from run_starter.reports.steps import SILENT
from tests.simulation import services
from tests.simulation.drivers import Driver
from tests.simulation.memory import errors
from tests.simulation.memory.rows import NO_KEY_UPDATE, UPDATE, Tx
from tests.simulation.schedule import Scenario, run_until
from tests.simulation.scheduler import Task
from tests.simulation.shims import exchanged
from tests.simulation.steps import apply, ask, begin, drain, lose
from tests.simulation.world import ALL, World
from tests.support.definitions import alert


def check(world: World, key: str) -> None:
    """Have every run-starter check this."""
    for instance in world.alive(RUN_STARTER):
        assert instance.loop is not None
        for partition in instance.loop.owned():
            instance.loop._context.shards[partition].schedule_check(key, 0.0)


def memory_of(world: World) -> Memory:
    """What the only run-starter remembers of the only shard."""
    (instance,) = world.alive(RUN_STARTER)
    assert instance.loop is not None
    handler = instance.loop._context.handler
    assert isinstance(handler, StarterHandler)
    return handler._claims.of(0)


def test_a_step_of_the_databases_clock_ends_no_lease(world: World) -> None:
    """The database clock jumps past a lease while the driver is silent for less than a lease.

    The attempt must not be lost.
    """
    scenario = begin(world, days=20)
    # The first heartbeat is handled before the clock jumps.
    run_until(world, lambda: bool(world.at_work) and any(r["state"] == "running" for r in world.database.rows("run")))
    driver = world.at_work[0]
    driver.process.frozen = True
    world.scheduler.at(world.scheduler.now + driver.lease / 2, lambda: setattr(driver.process, "frozen", False))
    world.database.offset += 3600.0
    check(world, LEASES_KEY)
    for notified in world.database.listeners:
        notified(attempts.ATTEMPT_CHANNEL, "0")
    drain(world, scenario)
    (attempt,) = [row for row in world.database.rows("attempt") if row["id"] == driver.launch.attempt_id]
    mine = {run.id for run in driver.launch.runs}
    assert attempt["outcome"] == "done"
    assert {row["attempt"] for row in world.database.rows("run") if row["id"] in mine} == {1}


def test_nor_does_one_at_which_the_lease_of_another_attempt_ends(world: World) -> None:
    """One driver is silent for longer than a lease, the other for less when the clock jumps.

    The first one's end has the owner look at all leases. Only its own attempt must be lost.
    """
    scenario = begin(world, at_once=2, days=20)
    scheduler = world.scheduler
    run_until(world, lambda: bool(running(world)))
    (silent, *_) = running(world)
    silent.process.frozen = True
    later = scheduler.now + silent.lease / 2
    run_until(world, lambda: scheduler.now >= later and len(running(world)) == 2)
    (other,) = (driver for driver in running(world) if driver is not silent)
    other.process.frozen = True
    scheduler.at(scheduler.now + 0.75 * other.lease, lambda: setattr(other.process, "frozen", False))
    world.database.offset += 3600.0
    drain(world, scenario)
    ended = [row for row in world.database.rows("attempt") if row["error"] == SILENT.model_dump(exclude_none=True)]
    assert silent.launch.attempt_id in {row["id"] for row in ended}
    # Drivers here send heartbeats at random, so the other may be silent for a lease, too.
    assert all((row["ended_at"] - row["claimed_at"]).total_seconds() >= 3600.0 + silent.lease for row in ended)


def running(world: World) -> list[Driver]:
    """The drivers at work of which the database has had a sign of life."""
    ids = {row["id"] for row in world.database.rows("attempt") if row["state"] == "running"}
    return [driver for driver in world.at_work if driver.launch.attempt_id in ids]


def test_a_definition_that_cannot_be_read_stops_its_own_backfill_only() -> None:
    """A newer release planned the backfill, then an older one took over its shard.

    Its leases still end, and all other backfills continue.
    """
    with exchanged():
        world = World(next(seed for seed in range(100) if World(seed).partitions == 1))
        for service in world.services:
            world.start(service)
        scenario = Scenario(world)
        for name in ("unreadable", "other"):
            apply(world, name)
            ask(world, name, name, days=2)
        run_until(world, lambda: any(d.launch.backfill_id == "unreadable" for d in world.at_work))
        for row in world.database.tables["backfill"].rows:
            if row.committed and row.committed["id"] == "unreadable":
                row.alter(definition={"written_by": "a newer release"})
        world.crash(world.alive(RUN_STARTER)[0], machine=False)
        for driver in world.drivers:
            world.scheduler.kill(driver.process)
        world.start(RUN_STARTER)

        def is_isolated() -> bool:
            states = {row["id"]: row["state"] for row in world.database.rows("backfill")}
            mine = [row for row in world.database.rows("attempt") if row["backfill_id"] == "unreadable"]
            live = [row for row in mine if row["state"] != "ended"]
            return states == {"unreadable": "running", "other": "succeeded"} and not live

        run_until(world, is_isolated)
        world.publish(Topic.BACKFILL_REQUESTS, "unreadable", BackfillCancelRequested())
        drain(world, scenario)
        world.close()


def test_definitions_that_cannot_be_read_hide_no_other_backfill_of_their_pipeline() -> None:
    """Many that a newer release planned come before one that can be read."""
    with exchanged():
        world = World(next(seed for seed in range(100) if World(seed).partitions == 1))
        world.start(PLANNER)
        apply(world, max_active_runs=2)
        stored = world.database.tables["backfill"].rows
        for n in range(40):
            day: dict[str, Any] = dict.fromkeys(("from", "to"), str(date(2019, 1, 1) + timedelta(days=n)))
            ask(world, f"unreadable-{n}", **day)
        run_until(world, lambda: len(world.database.rows("backfill")) == 40)
        for row in stored:
            row.alter(definition={"written_by": "a newer release"})
        ask(world, "other", days=1)
        run_until(world, lambda: len(world.database.rows("backfill")) == 41)
        began = world.scheduler.now
        world.start(RUN_STARTER)

        def states() -> dict[str, str]:
            return {row["id"]: row["state"] for row in world.database.rows("backfill")}

        run_until(world, lambda: states()["other"] == "succeeded" or world.scheduler.now > began + 60)
        unreadable = [f"unreadable-{n}" for n in range(40)]
        assert states() == {"other": "succeeded"} | dict.fromkeys(unreadable, "running")
        # They are remembered for as long as they are active.
        memory = memory_of(world)
        assert memory.unreadable == dict.fromkeys(unreadable, 1)
        for id in unreadable:
            world.publish(Topic.BACKFILL_REQUESTS, id, BackfillCancelRequested())
        run_until(world, lambda: set(states().values()) == {"succeeded", "cancelled"} and not memory.unreadable)
        world.close()


def test_an_attempt_whose_claim_was_not_answered_is_launched_all_the_same(world: World) -> None:
    """The claim committed, but the run-starter does not know: it finds the attempt in its seat."""
    lost: list[str] = []

    def lose_the_answer(task: Task, what: str) -> None:
        starting = [run for run in world.database.rows("run") if run["state"] == "starting"]
        if what == "committed" and starting and not lost:
            lost.append(task.process.name)
            raise errors.disconnected("server closed the connection unexpectedly")

    scenario = begin(world)
    world.scheduler.on_step = lose_the_answer
    drain(world, scenario)
    assert lost == ["run-starter-1"]
    assert {run["attempt"] for run in world.database.rows("run")} == {1}
    assert {each["outcome"] for each in world.database.rows("attempt")} == {"done"}


@pytest.mark.parametrize("kind", ["BackfillPlanned", "BackfillCancelling", "RunSucceeded", "RunCancelled"])
def test_a_message_that_became_a_dead_letter_does_no_harm(world: World, kind: str) -> None:
    """The message is only a hint: its reader finds the work without it, even without a takeover."""
    lose(world, kind)
    scenario = begin(world)
    if "Cancel" in kind:
        world.publish(Topic.BACKFILL_REQUESTS, "b", BackfillCancelRequested())
    drain(world, scenario)
    assert world.lost, f"there was no {kind}"


def test_publishers_that_die_one_after_the_other_fail_no_run_though_the_backfill_is_cancelled(world: World) -> None:
    """A cancel does not end what only publishes, and what was accepted does not fail for lost drivers."""
    scenario = begin(world)
    deaths: list[int] = []

    def die_while_publishing(task: Task, what: str) -> None:
        rows = {row["id"]: row for row in world.database.rows("attempt") if row["state"] != "ended"}
        publishing = {run["attempt_id"] for run in world.database.rows("run") if run["state"] == "publishing"}
        # Before it may begin, its end would not count.
        begun = [d for d in world.drivers if d.process.alive and d.begun is not None]
        for driver in [d for d in begun if d.launch.attempt_id in publishing & rows.keys()]:
            id = driver.launch.attempt_id
            if not deaths:
                world.publish(Topic.BACKFILL_REQUESTS, "b", BackfillCancelRequested())
            if len(deaths) == most:
                continue
            if deaths and not rows[id]["cancel_requested"]:
                # The request reaches it before its end.
                driver.process.frozen = True
                check(world, backfill_key("b"))
            else:
                deaths.append(id)
                driver.die("killed")

    # The pauses in between double.
    most = 4
    world.put_off = 0.0
    world.scheduler.on_step = die_while_publishing
    drain(world, scenario)
    (published,) = [run for run in world.database.rows("run") if run["lost_attempts"]]
    assert published["state"] == "succeeded"
    assert published["lost_attempts"] == most - 1, "the first loss does not count"
    assert [row["outcome"] for row in world.database.rows("attempt") if row["id"] in deaths] == ["lost"] * len(deaths)
    assert world.database.rows("backfill")[0]["state"] == "cancelled"


def test_heartbeats_that_nobody_has_read_yet_are_a_sign_of_life(world: World) -> None:
    """The run-starter freezes for longer than a lease while its driver keeps running.

    The unread heartbeats must keep the attempt alive.
    """
    frozen: list[float] = []

    def freeze(task: Task, what: str) -> None:
        (starter,) = world.alive(RUN_STARTER)
        if world.at_work and not frozen:
            frozen.append(world.scheduler.now)
            world.freeze(starter, world.settings.lease_seconds + 2.0)

    scenario = begin(world)
    world.scheduler.on_step = freeze
    drain(world, scenario)
    assert frozen
    first = min(world.database.rows("run"), key=lambda run: run["id"])
    assert (first["state"], first["attempt"]) == ("succeeded", 1)
    assert {each["outcome"] for each in world.database.rows("attempt")} == {"done"}


def test_a_batch_whose_deletion_postgres_did_not_take_is_not_published_again(world: World) -> None:
    """Postgres goes down after the batch was committed to Kafka.

    The cursor tells the next relay that the batch was published.
    """
    outages: list[str] = []

    def stop(task: Task, what: str) -> None:
        if what == "transaction committed" and task.name.endswith("relay") and len(outages) < 3:
            outages.append(task.process.name)
            world.servers.stop_postgres(3.0)

    scenario = begin(world)
    world.scheduler.on_step = stop
    drain(world, scenario)
    assert len(outages) == 3


def test_a_relay_that_takes_over_notices_that_postgres_lost_a_published_batch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Postgres went back after the service's start, which looks for that too.

    The relay must not give the batch's number to other rows.
    """
    drain(world, begin(world))
    (row,) = world.database.tables[SERVICE_TABLES[PLANNER.package].relay.name].rows
    assert row.committed is not None
    batch = row.committed["batch"]
    row.alter(batch=batch - 1, batch_ids=[])
    reasons: list[str] = []
    monkeypatch.setattr(services, "Relay", partial(Relay, went_back=reasons.append))
    (planner,) = world.alive(PLANNER)
    world.crash(planner, machine=False)
    world.start(PLANNER)
    run_until(world, lambda: bool(reasons), 60.0)
    assert reasons[0].startswith(f"Kafka has batch {batch} of the backfill-planner, Postgres only {batch - 1}: ")


def test_a_relay_on_an_old_primary_publishes_nothing_after_another_server_took_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka has the mark of a newer generation. The old primary is writable, and no batch of it is behind."""
    drain(world, begin(world))
    topic = PLANNER.cursor_topic(world.settings.topic_prefix)
    mark = str(SPAN + 2).encode()
    world.broker.append(topic, TAKEN_KEY, mark, [], partition=CURSOR_PARTITION)
    reasons: list[str] = []
    monkeypatch.setattr(services, "Relay", partial(Relay, went_back=reasons.append))
    (planner,) = world.alive(PLANNER)
    world.crash(planner, machine=False)
    world.start(PLANNER)
    run_until(world, lambda: bool(reasons), 60.0)
    assert reasons[0].startswith("Kafka has generation 1 of the backfill-planner, Postgres only 0: ")
    # It did not hide the newer mark behind its own.
    run_until(world, lambda: [entry.value for _, _, entry in world.broker.read(topic)].count(mark) > 1, 60.0)


def test_work_goes_on_after_switches_of_postgres(world: World) -> None:
    """All owners and relays are fenced, and nobody has to do anything."""
    scenario = begin(world, days=20)
    for seconds in (3.0, 0.5):
        run_until(world, lambda: any(row["state"] == "running" for row in world.database.rows("run")), 60.0)
        world.servers.switch_postgres(seconds)
        run_until(world, lambda: not world.database.down, 60.0)
    drain(world, scenario)
    assert {row["state"] for row in world.database.rows("run")} == {"succeeded"}
    assert [row["epoch"] // SPAN for row in world.database.rows(SERVICE_TABLES[PLANNER.package].relay.name)] == [2]


def test_a_command_waits_for_as_long_as_somebody_else_has_its_backfill(world: World) -> None:
    """``lock_timeout`` ends each try after a second.

    Such failures, however many, must not dead-letter the message.
    """
    scenario = begin(world)
    other = _cancel_what_another_session_has_locked(world)
    end = world.scheduler.now + 8.0
    world.scheduler.at(end, lambda: world.database.rollback(other))
    world.scheduler.run(lambda: world.scheduler.now >= end)
    assert world.database.rows("backfill")[0]["state"] == "running"
    drain(world, scenario)
    assert world.database.rows("backfill")[0]["state"] == "cancelled"


def _cancel_what_another_session_has_locked(world: World) -> Tx:
    """Request the cancellation of the backfill, whose row the returned transaction has locked."""
    world.scheduler.run(lambda: bool(world.database.rows("backfill")))
    (row,) = [row for row in world.database.tables["backfill"].rows if row.committed]
    other = world.database.begin("somebody else")
    other.lock(row, NO_KEY_UPDATE)
    world.publish(Topic.BACKFILL_REQUESTS, "b", BackfillCancelRequested())
    return other


def test_a_locked_backfill_holds_only_what_follows_its_command_on_the_same_topic() -> None:
    """A command waits for it, and a pipeline of the same shard is applied behind that command.

    A request for an unknown pipeline in another shard, which is refused once all pipelines are read,
    must not wait for the lock.
    """
    with exchanged(), closing(of_several_shards()) as world:
        _hold_a_lock_in_one_shard_and_ask_in_another(world)


def of_several_shards() -> World:
    """The first world with more than one shard; nothing runs in it yet."""
    return next(world for seed in count() if (world := World(seed)).partitions > 1)


def _hold_a_lock_in_one_shard_and_ask_in_another(world: World) -> None:
    shard = partition_of("b", world.partitions)
    other_shards = (f"r{n}" for n in count() if partition_of(f"r{n}", world.partitions) != shard)
    same_shard = (f"q{n}" for n in count() if partition_of(f"q{n}", world.partitions) == shard)
    asking, pipeline = next(other_shards), next(same_shard)
    for service in world.services:
        world.start(service)
    scenario = begin(world)
    holder = _cancel_what_another_session_has_locked(world)
    end = world.scheduler.now + 3.0
    world.scheduler.at(end, lambda: None)
    world.scheduler.run(lambda: world.scheduler.now >= end)
    apply(world, pipeline)
    ask(world, asking, "nobody")

    def refused() -> bool:
        events = [world.body(entry) for _, _, entry in world.broker.read(str(Topic.BACKFILL_EVENTS))]
        return [event["type"] for event in events if event["backfill_id"] == asking] == ["BackfillRejected"]

    run_until(world, refused, 30.0)
    assert world.database.rows("backfill")[0]["state"] == "running"
    world.database.rollback(holder)
    drain(world, scenario)
    assert world.database.rows("backfill")[0]["state"] == "cancelled"


def test_a_request_that_waits_for_a_held_pipeline_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It is about an unknown pipeline, which may be the one of a message that waits for a locked row."""
    with exchanged(logging.WARNING), closing(of_several_shards()) as world:
        shard = partition_of("p", world.partitions)
        asking = next(id for n in count() if partition_of(id := f"r{n}", world.partitions) != shard)
        world.start(PLANNER)
        apply(world)
        run_until(world, lambda: bool(world.database.rows("pipeline")))
        other = world.database.begin("somebody else")
        other.lock(world.database.tables["pipeline"].rows[0], UPDATE)
        apply(world, max_active_runs=2)
        ask(world, asking, "nobody")

        def waits() -> list[dict[str, Any]]:
            return [vars(each)[FIELDS] for each in caplog.records if each.msg == "request_waits_for_pipelines"]

        run_until(world, lambda: bool(waits()))
        found = waits()[0]
        assert found["shard"] == partition_of(asking, world.partitions)
        assert (found["topic"], found["offset"], found["unread_partitions"]) == ("backfill-requests", 0, [shard])
        world.database.rollback(other)
        run_until(world, lambda: [row["id"] for row in world.database.rows("backfill_request")] == [asking])


def test_a_claim_that_needs_a_locked_row_does_not_hold_the_reports_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made in their transaction, for as long as the row is locked."""
    raised = []

    def claims(*_: object) -> int:
        raised.append(True)
        raise errors.lock_timeout()

    monkeypatch.setattr(Claims, "check_after_ends", claims)
    drain(world, begin(world))
    assert raised
    assert [row["state"] for row in world.database.rows("run")] == ["succeeded"] * 3


def test_a_call_that_goes_on_after_its_shard_is_somebody_elses_is_recorded_once() -> None:
    """The runner renews its lease in Postgres and records the outcome under its token.

    The shard's new owner leaves the call alone.
    """
    with exchanged():
        world = next(world for seed in count() if (world := World(seed)).services == ALL)
        try:
            _move_the_shard_in_the_middle_of_a_call(world)
        finally:
            world.close()


def _move_the_shard_in_the_middle_of_a_call(world: World) -> None:
    moved: list[str] = []

    def move(task: Task, what: str) -> None:
        runners = world.alive(CALLBACK_RUNNER)
        if world.calling and len(runners) == 1:
            moved.append(world.calling[0].name)
            world.start(CALLBACK_RUNNER)
            group = world.broker.groups[CALLBACK_RUNNER.group("")]
            world.cut(runners[0], 30.0)
            world.scheduler.at(world.scheduler.now + 1.0, group.rebalance)

    for service in world.services:
        world.start(service)
    world.call_seconds = 6.0
    deadlines = [alert("now", "BACKFILL_REQUESTED_AT", 0.01, callback="page")]
    scenario = begin(world, deadlines=deadlines)
    world.scheduler.run(lambda: bool(world.database.rows("backfill")))
    world.scheduler.on_step = move
    drain(world, scenario)
    assert moved == ["callback-runner-1"]
    assert [callback["state"] for callback in world.database.rows("callback")] == ["succeeded"]
    assert list(world.calls.values()) == [1]
