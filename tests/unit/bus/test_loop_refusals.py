"""The message of a refused batch that becomes a dead letter, and those that never do."""

from collections.abc import Callable

import pytest
from psycopg.errors import LockNotAvailable, QueryCanceled
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from tests.support.offline import PARTITIONS, OfflinePoller, acting_as, offline

import retrofill_core.contract  # noqa: F401  registers every message type
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.faults import Conflict, Fenced, Locked, Poison, needing_rows
from retrofill_core.bus.handler import Handler, Hold
from retrofill_core.bus.inbox import End, Records
from retrofill_core.bus.takeover import DEATHS, Suspect
from retrofill_core.bus.worker import context
from retrofill_core.bus.worker.batches import Batches
from retrofill_core.bus.worker.context import STUCK_FAILURES, Failures
from retrofill_core.bus.worker.loop import Intake
from retrofill_core.bus.worker.shard import Ownership, TopicQueue
from retrofill_core.contract.topics import WATCHER, Topic, partition_of

TOPIC = str(Topic.DEADLINES)
KEY, BODY = b"7", b'{"type":"DeadlineResolved","deadline_id":7}'


class Answering:
    """A database that answers."""

    def connect(self):
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def execute(self, *_):
        pass


class Holding(Handler):
    """What ``hold`` says for a batch that begins at an offset."""

    def __init__(self):
        self.hold: Callable[[int], Hold] | None = None

    def admit(self, received):
        return {} if self.hold is None else {TOPIC: self.hold(received[0].record.offset)}


class Played(Batches):
    """The batches of a shard, without Postgres. ``failing(offsets)`` returns the exception that a
    transaction with these raises, or ``None``.
    """

    def __init__(self, failing):
        self.poller, self.handler = OfflinePoller(), Holding()
        self.context = offline(WATCHER, self.handler, poller=self.poller, engine=acting_as(Engine, Answering()))
        failures = Failures(self.context)
        super().__init__(self.context, failures)
        self.intake = Intake(self.context, failures)
        self.failing = failing
        self.handled, self.buried, self.tries = [], [], 0
        self.shard = self.context.shards[partition_of(KEY, PARTITIONS)]
        self.shard.begin({TOPIC: 0}, epoch=1)
        self.shard.ownership = Ownership.OWNED

    def _apply(self, shard, work):
        self.tries += 1
        if work.received and (error := self.failing([one.record.offset for one in work.received])) is not None:
            raise error
        self.handled += [one.record.offset for one in work.received]
        self.buried += [dead.record.offset for dead in work.dead]

    def play(self, count, steps=100):
        partition = self.shard.partition
        records = tuple(Record(TOPIC, partition, n, KEY, BODY, {}, (), 0) for n in range(count))
        self.intake.take(Records((*records, End(TOPIC, partition, count))))
        for _ in range(steps):
            if not self.shard.has_messages(0.0) or self.shard.ownership is not Ownership.OWNED:
                break
            self.run(self.shard)
        return self


def test_a_batch_that_lands_is_handled_in_one():
    played = Played(lambda offsets: None).play(5)
    assert (played.handled, played.buried, played.tries) == ([0, 1, 2, 3, 4], [], 1)
    assert played.shard.queues[TOPIC].next_offset == 5
    assert len(played.poller.given_back) == 5


def test_what_a_handler_leaves_to_the_next_step_is_handled_in_it():
    played = Played(lambda offsets: None)
    played.handler.hold = lambda first: Hold(first + 2, 0.0)
    ends = []
    played.play(5, steps=0)
    for _ in range(3):
        played.run(played.shard)
        ends.append(played.shard.queues[TOPIC].next_offset)
    assert (ends, played.handled, played.tries) == ([2, 4, 5], [0, 1, 2, 3, 4], 3)


@pytest.mark.parametrize("bad", range(5))
def test_of_a_batch_with_poison_only_the_one_is_put_aside(bad):
    played = Played(lambda offsets: Poison("x") if bad in offsets else None).play(5)
    assert (played.handled, played.buried) == ([n for n in range(5) if n != bad], [bad])
    assert played.shard.queues[TOPIC].next_offset == 5
    assert len(played.poller.given_back) == 5


def test_two_poisoned_messages_of_one_batch_are_both_found():
    played = Played(lambda offsets: Poison("x") if {1, 3} & set(offsets) else None).play(5)
    assert (played.handled, played.buried) == ([0, 2, 4], [1, 3])


def test_a_conflict_is_decided_again_at_once():
    errors = [Conflict("x"), Conflict("x")]
    played = Played(lambda offsets: errors.pop() if errors else None).play(5)
    assert (played.handled, played.buried, played.tries) == ([0, 1, 2, 3, 4], [], 3)


def test_one_message_that_conflicts_for_ever_is_put_aside_after_three_tries_alone():
    played = Played(lambda offsets: Conflict("x") if 2 in offsets else None).play(5)
    assert (played.handled, played.buried) == ([0, 1, 3, 4], [2])


@pytest.mark.parametrize("times", [1, 2])
def test_messages_that_each_conflict_now_and_then_are_never_put_aside(times):
    """Three conflicts in a row must be of the same message, not of three different ones."""
    seen: dict[int, int] = {}

    def failing(offsets):
        if len(offsets) > 1:
            return Poison("x")
        seen[offsets[0]] = seen.get(offsets[0], 0) + 1
        return Conflict("x") if seen[offsets[0]] <= times else None

    played = Played(failing).play(6)
    assert (played.handled, played.buried) == ([0, 1, 2, 3, 4, 5], [])


def test_a_dependency_that_is_down_is_waited_for():
    played = Played(lambda offsets: OSError("down")).play(5, steps=1)
    assert (played.handled, played.buried) == ([], [])
    assert played.shard.retry_at > 0
    assert played.shard.queues[TOPIC].next_offset == 0


def test_a_locked_row_holds_the_message_that_needs_it_and_what_follows():
    played = Played(lambda offsets: Locked("held") if 2 in offsets else None).play(5)
    queue = played.shard.queues[TOPIC]
    assert (played.handled, played.buried, queue.next_offset) == ([0, 1], [], 2)
    assert (queue.refused, queue.held_until > 0, played.shard.retry_at) == (1, True, 0.0)
    # Tried alone from now on, for as long as it takes.
    queue.held_until, tries = 0.0, played.tries
    played.run(played.shard)
    assert (queue.refused, played.tries, played.buried) == (2, tries + 1, [])
    queue.held_until = 0.0
    played.failing = lambda offsets: None
    played.play(0)
    assert (played.handled, queue.refused) == ([0, 1, 2, 3, 4], 0)


def test_the_other_topics_of_its_shard_go_on_and_readiness_names_it():
    played = Played(lambda offsets: Locked("held") if 0 in offsets else None)
    played.play(1, steps=0)
    other = str(Topic.RUN_EVENTS)
    played.shard.queues[other] = TopicQueue()
    played.shard.add(Record(other, played.shard.partition, 9, KEY, BODY, {}, (), 0))
    while played.shard.queues[TOPIC].refused < STUCK_FAILURES:
        assert played.context.shards.problems() == {"shards": None}
        played.shard.queues[TOPIC].held_until = 0.0
        played.run(played.shard)
    reason = f"{TOPIC}: the message at offset 0 waits for a locked row: held"
    assert played.context.shards.problems() == {"shards": f"shard {played.shard.partition}: {reason}"}
    assert played.shard.queues[other].next_offset == 10


def test_conflicts_before_a_lock_count_for_no_other_message():
    errors = [Conflict("x"), Conflict("x"), Locked("held"), Conflict("x")]
    played = Played(lambda offsets: errors.pop(0) if errors else None)
    played.play(1, steps=4)
    assert (played.buried, played.shard.conflicts) == ([], 0)
    other = str(Topic.RUN_EVENTS)
    played.shard.queues[other] = TopicQueue()
    played.shard.add(Record(other, played.shard.partition, 0, KEY, BODY, {}, (), 0))
    played.run(played.shard)
    assert (played.buried, played.shard.conflicts) == ([], 1)


def test_a_message_that_admission_holds_is_not_said_to_wait_for_a_row():
    played = Played(lambda offsets: Locked("held"))
    played.play(1, steps=1)
    assert played.shard.waiting(1) != []
    played.shard.queues[TOPIC].held_until = 0.0
    played.handler.hold = lambda first: Hold(0, 60.0)
    played.run(played.shard)
    assert played.shard.waiting(1) == []


def test_only_a_row_that_the_handler_needs_counts_as_locked():
    """A shard's own row that is locked makes the whole shard wait: no topic of it could go on."""
    timed_out = OperationalError("SELECT", {}, LockNotAvailable())
    with pytest.raises(Locked), needing_rows():
        raise timed_out
    with pytest.raises(OperationalError), needing_rows():
        raise OperationalError("SELECT", {}, QueryCanceled())
    played = Played(lambda offsets: timed_out).play(2, steps=1)
    assert (played.shard.queues[TOPIC].refused, played.shard.retry_at > 0) == (0, True)


def test_a_fence_ends_the_work_and_keeps_nothing():
    played = Played(lambda offsets: Fenced("x")).play(5)
    assert (played.tries, played.handled, played.buried) == (1, [], [])
    assert played.shard.ownership is Ownership.FENCED
    assert played.shard.last_offsets == {TOPIC: 0}
    assert len(played.poller.given_back) == 5


class TestCareful:
    """After process deaths, each message is recorded before it is tried, and the record is cleared
    if the process survives.
    """

    @pytest.fixture
    def written(self, monkeypatch):
        found = []

        def record_try(engine, service, partition, epoch, record, deaths):
            found.append(None if record is None else (record.offset, deaths))

        monkeypatch.setattr(context, "record_try", record_try)
        return found

    def careful(self, failing, deaths=0):
        played = Played(failing)
        played.shard.careful = 2
        played.shard.suspect = Suspect(TOPIC, 0, deaths) if deaths else None
        return played

    def test_each_of_the_first_is_written_down_and_then_they_go_together_again(self, written):
        played = self.careful(lambda offsets: None).play(5)
        assert (played.handled, played.tries, written) == ([0, 1, 2, 3, 4], 3, [(0, 0), (1, 0)])

    def test_three_deaths_of_one_message_alone_set_it_aside(self, written):
        played = self.careful(lambda offsets: None, DEATHS).play(2)
        assert (played.buried, played.handled, written) == ([0], [1], [(1, 0)])

    def test_fewer_do_not(self, written):
        played = self.careful(lambda offsets: None, DEATHS - 1).play(2)
        assert (played.buried, written[0]) == ([], (0, DEATHS - 1))

    def test_a_dependency_that_is_away_when_the_process_ends_is_no_death(self, written):
        played = self.careful(lambda offsets: OSError("down"), DEATHS - 1).play(2, steps=1)
        assert (played.buried, played.shard.trying, written) == ([], False, [(0, DEATHS - 1), None])

    def test_a_message_that_is_held_was_not_tried(self, written):
        played = self.careful(lambda offsets: None)
        played.handler.hold = lambda first: Hold(0, 60.0)
        played.play(2, steps=1)
        assert (played.handled, written) == ([], [(0, 0), None])
