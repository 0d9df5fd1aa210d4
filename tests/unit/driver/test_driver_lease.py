"""The lease as the driver sees it: it ends when what was left of it has passed since the driver asked,
or L after the last acknowledged heartbeat was sent, on the driver's own clock.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from retrofill.driver.lease import SHARE, Lease
from retrofill.driver.report import Wire

L = 10.0
# By how much a process that lives ends itself before the kernel would.
EARLY = 0.5


class World:
    """A clock and heartbeat acknowledgments that the test controls."""

    def __init__(self, left: float | None = None) -> None:
        """With ``left``, it may begin at once."""
        self.now = 100.0
        self.sent: list[tuple[float, Callable[[], object]]] = []
        self.alarms: list[float] = []
        self.renewals: list[float] = []
        self.lease = Lease(
            lambda acknowledged: self.sent.append((self.now, acknowledged)),
            L,
            expired=lambda: None,
            clock=lambda: self.now,
            alarm=self.alarms.append,
            renewed=self.renewals.append,
        )
        if left is not None:
            assert self.lease.last_until(self.now + left)
            self.alarms.clear()
            self.renewals.clear()

    @property
    def over(self) -> bool:
        return self.lease.beat() == 0.0

    def sends(self) -> tuple[float, Callable[[], object]]:
        """Let the next heartbeat become due; returns when it was sent, and its acknowledgement."""
        self.now += L / SHARE
        before = len(self.sent)
        self.lease.beat()
        assert len(self.sent) == before + 1
        return self.sent[-1]


@pytest.mark.parametrize("left", [None, L])
def test_a_heartbeat_goes_out_every_fifth_of_the_lease(left: float | None) -> None:
    world = World(left)
    for _ in range(40):
        world.lease.beat()
        for _, acknowledged in world.sent:
            acknowledged()
        world.now += 0.5
    times = [100.0, *(sent_at for sent_at, _ in world.sent)]
    assert {later - earlier for earlier, later in itertools.pairwise(times)} == {L / SHARE}
    assert len(world.sent) == 9


@pytest.mark.parametrize(("seconds", "pause"), [(2.0, 0.4), (15.0, 3.0), (25.0, 5.0), (60.0, 5.0), (3600.0, 5.0)])
def test_kafka_may_be_away_for_all_of_a_lease_but_one_pause(seconds: float, pause: float) -> None:
    now, sent = 100.0, list[Callable[[], object]]()
    lease = Lease(sent.append, seconds, expired=lambda: None, clock=lambda: now, alarm=lambda _: None)
    assert lease.last_until(now + seconds)
    now += pause
    lease.beat()
    sent.pop()()
    # The next one is sent, and not acknowledged before the server is back.
    now += seconds - min(1.0, seconds / 20) - 0.01
    assert lease.beat() > 0.0
    sent.pop(0)()
    now += pause
    assert (lease.beat() > 0.0) == (seconds > 2.0 * pause)


def test_an_acknowledgement_after_the_end_renews_nothing() -> None:
    world = World(L)
    _, acknowledged = world.sends()
    world.now = 100 + L
    acknowledged()
    assert world.over
    assert world.renewals == []


def test_a_stop_takes_the_alarm_back_and_later_acknowledgements_do_not_set_it() -> None:
    world = World(L)
    _, acknowledged = world.sends()
    world.lease.stop()
    acknowledged()
    assert world.alarms == [0]


@pytest.mark.parametrize(("stuck", "ends"), [(0.0, L - EARLY), (1.9, L - EARLY), (4.5, L), (9.9, L), (20.0, L)])
def test_a_process_that_lives_ends_before_the_kernel_ends_one_that_was_stuck(stuck: float, ends: float) -> None:
    """Nothing is acknowledged. How it ends tells whether it sent heartbeats all the time."""
    world = World(L)
    last = 100.0
    while not world.over:
        last = world.now
        # Stuck at the end, in native code or because it was stopped.
        world.now += stuck if stuck and world.now + stuck >= 100.0 + L - EARLY else 0.1
        assert world.now < 100.0 + 3 * L
    assert world.now >= 100.0 + ends - 0.001
    if ends == L - EARLY:
        assert last < 100.0 + L - EARLY


# What happens after a pause, and what is left of the lease if it is a permission to begin.
STEPS = st.tuples(st.floats(0.01, 4.0), st.sampled_from(["wait", "acknowledge", "begin"]), st.floats(-1.0, 2 * L))


@given(steps=st.lists(STEPS, max_size=60), early=st.integers(0, 3))
@example(steps=[(2.0, "acknowledge", 0.0), (0.1, "acknowledge", 0.0), (0.1, "begin", 1.0), (1.0, "wait", 0.0)], early=0)
@example(steps=[(1.0, "begin", 0.0)], early=0)
@example(steps=[(1.0, "begin", 9.0), (4.0, "begin", 3.0), (2.0, "begin", -1.0), (3.0, "wait", 0.0)], early=0)
@example(steps=[(1.0, "begin", 3.0), (1.0, "wait", 0.0), (1.0, "acknowledge", 0.0), (1.0, "begin", -1.0)], early=0)
def test_it_is_over_exactly_when_the_last_of_its_ends_has_come(
    steps: list[tuple[float, str, float]], early: int
) -> None:
    """Nothing ends it before the first permission to begin. Then it lasts as long as any permission said, or L after
    an acknowledged heartbeat was sent. The kernel's alarm is set for that moment, and a process that lives does not
    wait for it.

    ``early``: how many heartbeats earlier than the last the acknowledged one was sent.
    """
    world = World()
    ends: float | None = None
    for pause, step, left in steps:
        world.now += pause
        over = world.over
        if ends is None or world.now < ends - EARLY:
            assert not over
        elif world.now >= ends:
            assert over
        if over:
            return
        before, renewed = len(world.renewals), False
        if step == "begin":
            ends = max(ends or 0.0, world.now + left)
            renewed = world.lease.last_until(world.now + left)
            assert renewed == (ends - world.now > EARLY)
        elif step == "acknowledge" and world.sent:
            sent_at, acknowledged = world.sent[max(0, len(world.sent) - 1 - early)]
            acknowledged()
            renewed = ends is not None
            ends = max(ends, sent_at + L) if ends is not None else None
        assert len(world.renewals) == len(world.alarms) == before + renewed
        if renewed and ends is not None:
            assert (world.renewals[-1], world.alarms[-1]) == (ends, ends - world.now)
        elif step == "begin":
            # Nothing is left, so nothing began that an end could end.
            return
    assert world.renewals == sorted(world.renewals)


pauses = st.floats(0.0, 6.0)


@given(
    before=st.lists(pauses, max_size=6),
    question=st.tuples(pauses, pauses),
    after=st.lists(st.tuples(pauses, st.sampled_from(["wait", "acknowledge", "ask"])), max_size=40),
)
def test_it_is_over_before_the_lease_in_postgres_is(
    before: list[float], question: tuple[float, float], after: list[tuple[float, str]]
) -> None:
    """Postgres counts from handling a heartbeat: at the earliest when it was sent, at the latest
    before the lease may end. The driver asks again before each run.
    """
    world = World()
    until = world.now + L
    for pause in before:
        world.now += pause
        world.lease.beat()
        if world.sent and world.now < until:
            _, acknowledged = world.sent[-1]
            acknowledged()
            until = max(until, world.sent[-1][0] + L)

    def may_begin() -> bool:
        asked = world.now
        world.now += question[0]
        left = until - world.now
        world.now += question[1]
        return left > 0 and world.lease.last_until(asked + left)

    if not may_begin():
        return
    for pause, step in after:
        if world.over:
            return
        assert world.now < until
        if step == "ask" and not may_begin():
            return
        if step == "acknowledge" and world.sent:
            sent_at, acknowledged = world.sent[-1]
            acknowledged()
            until = max(until, sent_at + L)
        world.now += pause


def test_threads_the_end_is_called_once_it_has_come() -> None:
    ended = threading.Event()
    sent: list[Callable[[], object]] = []
    lease = Lease(sent.append, 0.2, expired=ended.set, alarm=lambda _: None)
    lease.start()
    assert not ended.wait(0.5), "it may not begin yet, so nothing has to end"
    assert sent
    assert lease.last_until(time.monotonic() + 0.2)
    assert ended.wait(5)


def test_threads_what_is_left_counts_from_the_permission_and_not_from_the_next_heartbeat() -> None:
    ended = threading.Event()
    lease = Lease(lambda _: None, 1000.0, expired=ended.set, alarm=lambda _: None)
    lease.start()
    assert lease.last_until(time.monotonic() + 1.05)
    assert ended.wait(5)


def test_threads_a_stopped_lease_does_not_end_the_process() -> None:
    ended = threading.Event()
    lease = Lease(lambda _: None, 2.0, expired=ended.set, alarm=lambda _: None)
    lease.start()
    assert lease.last_until(time.monotonic() + 1.0)
    lease.stop()
    assert not ended.wait(1.5)


class Host:
    """The host's end of a conversation: it says things to what listens."""

    def __init__(self) -> None:
        self.say_to: dict[str, Callable[[Any], object]] = {}
        self.heard: list[Any] = []

    def on(self, kind: str, handler: Callable[[Any], object]) -> None:
        self.say_to[kind] = handler

    def say(self, kind: str, fields: Any) -> None:
        self.heard.append(fields["number"])


def test_a_lease_that_was_renewed_in_postgres_lasts_and_its_heartbeat_is_still_no_report_that_kafka_has() -> None:
    host, renewed = Host(), list[int]()
    wire = Wire(host, on_loss=lambda why: None)  # type: ignore[arg-type]
    for number in (1, 2, 3):
        wire.send("AttemptHeartbeat", {}, partial(renewed.append, number))
    flushed = threading.Thread(target=wire.flush, daemon=True)
    flushed.start()
    host.say_to["renewed"](2)
    assert (host.heard, renewed) == ([1, 2, 3], [1, 2])
    assert flushed.is_alive()
    host.say_to["acknowledged"](3)
    flushed.join(20)
    assert not flushed.is_alive()
    # That of an earlier one renews nothing, because later ones count.
    assert set(renewed[2:]) == {1, 2, 3}
