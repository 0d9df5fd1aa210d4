"""An owner's state of one shard: message order, holds, ends of partitions, next due time."""

import math

import pytest

from retrofill_core.bus.envelope import Record
from retrofill_core.bus.inbox import End
from retrofill_core.bus.worker.shard import Ownership, Shard, TopicQueue

LONG_AGO, NEVER = 1.0, math.inf  # always before or after the monotonic clock


def record(offset, topic="a"):
    return Record(topic, 0, offset, b"k", b"{}", {}, (), 0)


def end(offset, topic="a"):
    return End(topic, 0, offset)


@pytest.fixture
def shard():
    shard = Shard(0, ("a", "b"))
    shard.begin({"a": 5, "b": 0}, epoch=3)
    shard.ownership = Ownership.OWNED
    return shard


def fill(shard, *items):
    for item in items:
        assert shard.add(item)


def offsets(items):
    return [(item.topic, item.offset) for item in items]


class TestBatch:
    def test_it_holds_so_many_messages_and_the_ends_among_them(self, shard):
        fill(shard, record(5), end(6), record(6), end(7), record(7))
        assert offsets(shard.batch(2, 0.0)) == [("a", 5), ("a", 6), ("a", 6), ("a", 7)]

    def test_it_holds_so_many_bytes_but_one_message_in_any_case(self, shard):
        fill(shard, *(Record("a", 0, n, b"k", b"x" * 9, {}, (("h", b"yy"),), 0) for n in (5, 6, 7)))
        assert offsets(shard.batch(9, 0.0, max_bytes=26)) == [("a", 5), ("a", 6)]
        assert offsets(shard.batch(9, 0.0, max_bytes=25)) == [("a", 5)]
        assert offsets(shard.batch(9, 0.0, max_bytes=1)) == [("a", 5)]

    def test_topics_are_one_after_the_other_and_share_the_limit(self, shard):
        fill(shard, record(0, "b"), record(5), record(6), record(1, "b"))
        assert offsets(shard.batch(3, 0.0)) == [("a", 5), ("a", 6), ("b", 0)]

    @pytest.mark.parametrize(
        ("of_a", "of_b", "limit", "taken"),
        [
            (500, 500, 10, (5, 5)),
            (500, 2, 10, (8, 2)),
            (3, 500, 10, (3, 7)),
            (500, 1, 3, (2, 1)),
            (500, 500, 1, (1, 0)),
        ],
    )
    def test_no_topic_takes_what_another_needs_nor_leaves_what_none_needs(self, shard, of_a, of_b, limit, taken):
        fill(shard, *(record(5 + n) for n in range(of_a)), *(record(n, "b") for n in range(of_b)))
        found = [item.topic for item in shard.batch(limit, 0.0)]
        assert (found.count("a"), found.count("b")) == taken

    def test_topics_share_the_bytes(self, shard):
        large = [
            Record(topic, 0, n, b"k", b"x" * 99, {}, (), 0)
            for topic, first in (("a", 5), ("b", 0))
            for n in range(first, first + 9)
        ]
        fill(shard, *large)
        found = [item.topic for item in shard.batch(9, 0.0, max_bytes=large[0].size * 4)]
        assert (found.count("a"), found.count("b")) == (2, 2)

    def test_a_full_batch_still_takes_ends_that_come_before_any_message(self, shard):
        fill(shard, record(5), end(3, "b"), record(3, "b"), end(4, "b"))
        assert offsets(shard.batch(1, 0.0)) == [("a", 5), ("b", 3)]

    def test_nothing_leaves_the_queue_before_it_is_done(self, shard):
        fill(shard, record(5), record(6))
        assert list(shard.batch(9, 0.0)) == list(shard.batch(9, 0.0)) != []

    def test_a_held_topic_waits_and_the_others_go_on(self, shard):
        fill(shard, record(5), end(6), record(0, "b"))
        shard.queues["a"].held_until = 10.0
        assert offsets(shard.batch(9, 9.9)) == [("b", 0)]
        assert offsets(shard.batch(9, 10.0)) == [("a", 5), ("a", 6), ("b", 0)]

    def test_a_message_that_was_refused_is_tried_without_the_other_topics(self, shard):
        fill(shard, record(0, "b"), record(1, "b"), record(5))
        shard.queues["b"].refuse(10.0, "locked")
        assert offsets(shard.batch(9, 9.9)) == [("a", 5)]
        assert offsets(shard.batch(9, 10.0)) == [("b", 0)]
        shard.done("b", 1, 1)
        assert offsets(shard.batch(9, 10.0)) == [("a", 5), ("b", 1)]

    def test_it_is_tried_in_turn_with_the_others(self, shard):
        """Each of its tries may take a second, so in many shards the next one is always due."""
        fill(shard, record(0, "b"), record(5), record(6))
        shard.queues["b"].refuse(10.0, "locked")
        shard.others_first = True
        assert offsets(shard.batch(1, 99.0)) == [("a", 5)]
        shard.done("a", 6, 1)
        assert offsets(shard.batch(1, 99.0)) == [("b", 0)]
        shard.queues["b"].refuse(99.0, "locked")
        shard.others_first = True
        shard.done("a", 7, 1)
        shard.others_first = True
        assert offsets(shard.batch(1, 99.0)) == [("b", 0)]

    def test_what_is_held_counts_neither_as_message_nor_as_end(self, shard):
        fill(shard, record(5), end(6))
        shard.queues["a"].held_until = 10.0
        assert (shard.has_messages(9.9), shard.has_ends(9.9)) == (False, False)
        assert (shard.has_messages(10.0), shard.has_ends(10.0)) == (True, True)

    def test_ends_alone_are_no_messages(self, shard):
        assert (shard.has_messages(0.0), shard.has_ends(0.0)) == (False, False)
        fill(shard, end(5))
        assert (shard.has_messages(0.0), shard.has_ends(0.0)) == (False, True)


class TestDone:
    def test_the_handled_messages_are_given_back_and_the_offset_moves(self, shard):
        fill(shard, record(5), end(7), record(7))
        assert offsets(shard.done("a", 7, 2)) == [("a", 5)]
        assert shard.queues["a"].next_offset == 7
        assert offsets(shard.batch(9, 0.0)) == [("a", 7)]

    def test_an_end_counts_as_read_to_once_all_before_it_is_done(self, shard):
        fill(shard, record(5), end(8))
        assert shard.queues["a"].read_to == -1
        shard.done("a", 6, 1)
        assert shard.queues["a"].read_to == -1
        shard.done("a", 8, 1)
        assert shard.queues["a"].read_to == 8
        assert shard.queues["b"].read_to == -1

    def test_a_message_after_an_end_leaves_it_read_to(self, shard):
        fill(shard, end(8), record(8))
        shard.done("a", 9, 2)
        assert shard.queues["a"].read_to == 8


class TestOwnership:
    @pytest.mark.parametrize("ownership", [o for o in Ownership if o is not Ownership.OWNED])
    def test_nothing_is_queued_for_a_shard_that_is_not_ours(self, shard, ownership):
        shard.ownership = ownership
        assert shard.add(record(5)) is False
        assert shard.queues["a"].items == TopicQueue().items

    def test_nothing_is_queued_of_a_topic_that_was_not_taken(self, shard):
        assert shard.add(record(5, "elsewhere")) is False

    def test_taking_over_seeks_and_outdates_what_was_on_its_way(self, shard):
        fill(shard, record(5))
        before = shard.ticket
        shard.begin({"a": 7, "b": 1}, epoch=4)
        assert (shard.ownership, shard.epoch) == (Ownership.SEEKING, 4)
        assert shard.ticket > before
        assert {topic: queue.next_offset for topic, queue in shard.queues.items()} == {"a": 7, "b": 1}
        assert not shard.has_ends(NEVER)

    @pytest.mark.parametrize("ownership", [Ownership.PARTIAL, Ownership.FENCED, Ownership.STOPPED])
    def test_losing_it_forgets_everything_and_gives_back_the_messages(self, shard, ownership):
        fill(shard, record(5), end(6), record(0, "b"))
        shard.schedule_check("x", 1.0)
        shard.failures, shard.alone, shard.conflicts = 3, 2, 2
        shard.dirty, shard.ends_since = True, 1.0
        before = shard.ticket
        assert offsets(shard.lose(ownership)) == [("a", 5), ("b", 0)]
        assert shard.ownership is ownership
        assert shard.ticket > before
        left = (shard.queues, shard.checks, shard.failures, shard.alone, shard.conflicts, shard.dirty, shard.ends_since)
        assert left == ({}, {}, 0, 0, 0, False, None)


class TestLooks:
    def test_the_earlier_of_two_wishes_counts(self, shard):
        shard.schedule_check("x", 5.0)
        shard.schedule_check("x", 9.0)
        assert shard.checks == {"x": 5.0}
        shard.schedule_check("x", 3.0)
        assert shard.checks == {"x": 3.0}

    def test_what_is_due(self, shard):
        shard.schedule_check("x", 5.0)
        shard.schedule_check("y", 6.0)
        assert shard.due_checks(4.9) == []
        assert shard.due_checks(5.0) == ["x"]
        assert sorted(shard.due_checks(6.0)) == ["x", "y"]


class TestNextDue:
    @pytest.mark.parametrize("ownership", [Ownership.PARTIAL, Ownership.SEEKING, Ownership.STOPPED])
    def test_who_may_not_work_has_nothing_to_do(self, shard, ownership):
        fill(shard, record(5))
        shard.schedule_check("x", LONG_AGO)
        shard.ownership = ownership
        assert shard.next_due(0.2) is None

    @pytest.mark.parametrize("ownership", [Ownership.ASSIGNED, Ownership.FENCED])
    def test_a_take_over_is_due_when_it_may_be_tried_again(self, shard, ownership):
        shard.ownership, shard.retry_at = ownership, 77.0
        assert shard.next_due(0.2) == 77.0

    @pytest.mark.parametrize(
        ("items", "checks", "more", "due"),
        [
            ((), {}, {}, None),
            # A message is due at once, and else the first check.
            ((record(5),), {"x": NEVER}, {}, 0.0),
            ((), {"x": 9.0, "y": 5.0}, {}, 5.0),
            # Ends of partitions wait until they are recorded, also behind a hold that is over.
            ((end(5),), {}, {"ends_since": 40.0}, 40.5),
            ((end(5),), {}, {"held_until": LONG_AGO, "ends_since": 40.0}, 40.5),
            ((end(5),), {}, {"held_until": LONG_AGO}, None),
            # What is held or refused is due when that ends, and keeps nobody busy before.
            ((record(5),), {}, {"held_until": NEVER}, NEVER),
            ((record(5),), {}, {"held_until": LONG_AGO}, 0.0),
            ((record(5), end(6)), {}, {"refused": NEVER, "ends_since": LONG_AGO}, NEVER),
            # After a failure nothing is due before the next try, for which no message waits longer.
            ((record(5),), {"x": LONG_AGO}, {"retry_at": 50.0}, 50.0),
            ((record(5),), {"x": 500.0}, {"retry_at": 50.0}, 50.0),
            ((), {"x": 500.0}, {"retry_at": 50.0}, 500.0),
            ((), {}, {"retry_at": 50.0}, 50.0),
        ],
    )
    def test_what_is_due_next(self, shard, items, checks, more, due):
        fill(shard, *items)
        for key, at in checks.items():
            shard.schedule_check(key, at)
        if "held_until" in more:
            shard.queues["a"].held_until = more["held_until"]
        if "refused" in more:
            shard.queues["a"].refuse(more["refused"], "locked")
        if "retry_at" in more:
            shard.failures, shard.retry_at = 1, more["retry_at"]
        shard.ends_since = more.get("ends_since")
        assert shard.next_due(0.5) == due

    def test_a_check_does_not_overtake_a_message_of_its_key_that_waits_for_a_row(self, shard):
        fill(shard, record(5))
        shard.schedule_check("k", LONG_AGO)
        shard.schedule_check("other", LONG_AGO)
        assert shard.due_checks(LONG_AGO) == ["k", "other"]
        shard.queues["a"].refuse(NEVER, "locked")
        assert shard.due_checks(LONG_AGO) == ["other"]
        shard.checks.pop("other")
        assert shard.next_due(0.2) == NEVER
        shard.done("a", 6, 1)
        assert shard.due_checks(LONG_AGO) == ["k"]
