"""Shards that an instance works on, whichever of their topics the group assigns to it, and how a
waiting step counts as progress.
"""

import pytest
from confluent_kafka import KafkaException
from tests.support.offline import PARTITIONS, OfflinePoller, offline

import retrofill_core.contract  # noqa: F401  registers every message type
from retrofill_core.bus.envelope import Record
from retrofill_core.bus.handler import Handler
from retrofill_core.bus.inbox import Assigned, Inbox, NotPositioned, OutOfRange, Positioned, Records, Revoked
from retrofill_core.bus.takeover import Takeover
from retrofill_core.bus.worker import batches, context, loop
from retrofill_core.bus.worker.batches import Work
from retrofill_core.bus.worker.loop import Loop
from retrofill_core.bus.worker.shard import Ownership
from retrofill_core.contract.topics import PLANNER, partition_of

PIPELINES, REQUESTS, EVENTS = map(str, PLANNER.reads)


class Clock:
    """Time that passes only when a test advances it."""

    now = 100.0

    def monotonic(self):
        return self.now


class Played(Loop):
    """The planner's loop, without servers."""

    def __init__(self, monkeypatch):
        self.clock = Clock()
        for module in (loop, context, batches):
            monkeypatch.setattr(module, "time", self.clock)
        poller = OfflinePoller()
        self.rewinds, self.released = poller.rewinds, poller.released
        self.applied: list[tuple[int, Work]] = []
        super().__init__(offline(PLANNER, Handler(), poller=poller), Inbox())
        monkeypatch.setattr(self._batches, "_apply", lambda shard, work: self.applied.append((shard.partition, work)))
        self.taking = lambda shard: Takeover(7, dict.fromkeys(shard.topics, 0), {})

    def _taken(self, shard):
        return self.taking(shard)

    def get(self, *items):
        for item in items:
            self._intake.take(item)
        for shard in self._context.shards:
            self._step(shard)

    def ownership(self, topic, partition):
        return self._context.shards.at(topic, partition).ownership


@pytest.fixture
def played(monkeypatch):
    return Played(monkeypatch)


def positioned(played):
    rewind = played.rewinds[-1]
    return Positioned(rewind.partition, rewind.ticket)


def test_who_has_the_first_topic_works_on_all_of_them(played):
    """With unequal partition counts, the group assigns no member all topics of some shards."""
    played.get(Assigned(((REQUESTS, 2), (EVENTS, 2))))
    assert (played.ownership(PIPELINES, 2), played.rewinds) == (Ownership.PARTIAL, [])
    played.get(Assigned(((PIPELINES, 2),)))
    assert played.rewinds[-1].offsets == {PIPELINES: 0, REQUESTS: 0, EVENTS: 0}
    played.get(positioned(played))
    assert played.owned() == [2]


def test_a_topic_that_moves_elsewhere_is_read_on_and_the_first_one_ends_it(played):
    played.get(Assigned(((PIPELINES, 1),)))
    played.get(positioned(played))
    played.get(Revoked(((REQUESTS, 1),)))
    assert (played.ownership(PIPELINES, 1), len(played.rewinds)) == (Ownership.SEEKING, 2)
    played.get(positioned(played), Revoked(((PIPELINES, 1),)))
    assert (played.owned(), played.released[-1]) == ([], (1, (PIPELINES, REQUESTS, EVENTS)))


def test_an_added_partition_publishes_again_what_lands_there_and_nothing_else(played):
    key = next(k for n in range(99) if partition_of(k := f"k{n}", 8) == 6)
    played.get(Assigned(((REQUESTS, 6),)))
    assert played.rewinds[-1].offsets == {REQUESTS: 0}
    played.get(positioned(played))
    body = b'{"type":"BackfillPauseRequested"}'
    played.get(Records((Record(REQUESTS, 6, 0, key.encode(), body, {}, (), 0),)))
    ((partition, work),) = played.applied
    assert (partition, work.received, [copy.key for copy in work.misplaced]) == (6, [], [key])
    assert (work.moves[REQUESTS].new, played.owned()) == (1, [])


def test_added_partitions_of_two_topics_are_two_shards(played):
    played.get(Assigned(((REQUESTS, 5), (EVENTS, 5))))
    assert [each.offsets for each in played.rewinds] == [{REQUESTS: 0}, {EVENTS: 0}]
    played.get(*(Positioned(each.partition, each.ticket) for each in played.rewinds))
    played.get(OutOfRange(EVENTS, 5, "gone"))
    assert played.ownership(EVENTS, 5) is Ownership.STOPPED
    assert played.problems() == {"shards": "run-events 5: run-events: gone"}
    assert played.ownership(REQUESTS, 5) is Ownership.OWNED


def test_shards_that_are_assigned_and_not_worked_on_are_counted(played):
    def away(shard):
        raise KafkaException("no answer")

    assert played.shards_by_state() == {"owned": 0, "taking_over": 0, "stopped": 0}
    played.get(Assigned(((PIPELINES, 0), (PIPELINES, 1), (REQUESTS, 2), (EVENTS, 5))))
    played.get(*(Positioned(each.partition, each.ticket) for each in played.rewinds))
    played.taking = away
    played.get(Assigned(((PIPELINES, 3),)))
    played.get(OutOfRange(REQUESTS, 1, "gone"))
    # Of shard 2 only another topic is assigned: another instance works on it. The last is an added partition.
    assert played.shards_by_state() == {"owned": 2, "taking_over": 1, "stopped": 1}


def test_a_rewind_that_was_refused_is_asked_for_again(played):
    played.get(Assigned(((PIPELINES, 0),)))
    (first,) = played.rewinds
    played.get(NotPositioned(0, first.ticket, "busy"))
    assert played._seconds_to_next() > 0
    played.clock.now += 10
    played.get()
    assert played.rewinds == [first, first]
    played.get(Revoked(((PIPELINES, 0),)), NotPositioned(0, first.ticket, "revoked"))
    played.clock.now += 10
    played.get(positioned(played))
    assert (len(played.rewinds), played.owned()) == (2, [])


def test_many_shards_that_each_wait_for_kafka_are_many_steps(played):
    """Otherwise a pass over them would look like one hung step, and the process would be killed for
    it.
    """
    waited = []

    def away(shard):
        played.clock.now += 20.0
        waited.append(played.busy_for())
        raise KafkaException("no answer")

    played.taking = away
    played._context.progressed()
    played.get(Assigned(tuple((PIPELINES, p) for p in range(PARTITIONS))))
    assert waited == [20.0] * PARTITIONS
    assert played.problems() == {"shards": None}
    for _ in range(4):
        played.clock.now += 10.0
        played.get()
    assert "shard 3: KafkaException: no answer" in played.problems()["shards"]
