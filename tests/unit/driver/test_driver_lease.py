"""The lease as the driver sees it: it ends L after the last acknowledged heartbeat was sent, on the
driver's own clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from retrofill.driver.lease import SHARE, Lease

L = 10.0


class World:
    """A clock and heartbeat acknowledgments that the test controls."""

    def __init__(self) -> None:
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

    @property
    def over(self) -> bool:
        return self.lease.beat() == 0.0


def test_a_heartbeat_goes_out_every_fifth_of_the_lease() -> None:
    world = World()
    for _ in range(40):
        world.lease.beat()
        for _, acknowledged in world.sent:
            acknowledged()
        world.now += 0.5
    gaps = [b - a for (a, _), (b, _) in zip(world.sent, world.sent[1:], strict=False)]
    assert gaps
    assert set(gaps) == {L / SHARE}


def test_without_any_acknowledgement_it_is_over_after_one_lease() -> None:
    world = World()
    world.lease.beat()
    world.now += L - 0.01
    assert not world.over
    world.now += 0.01
    assert world.over


def test_it_counts_from_the_sending_and_not_from_the_acknowledgement() -> None:
    world = World()
    world.lease.beat()
    world.now += 8
    world.sent[0][1]()
    assert world.renewals == [110.0]
    assert world.alarms == [2.0]
    world.now = 110.0
    assert world.over


def test_an_acknowledgement_after_the_end_renews_nothing() -> None:
    world = World()
    world.lease.beat()
    world.now += L
    world.sent[0][1]()
    assert world.over
    assert world.renewals == []


def test_acknowledgements_out_of_order_never_shorten_it() -> None:
    world = World()
    world.lease.beat()
    world.now += 2
    world.lease.beat()
    world.sent[1][1]()
    world.sent[0][1]()
    assert world.renewals == [112.0, 112.0]


def test_a_stop_takes_the_alarm_back_and_later_acknowledgements_do_not_set_it() -> None:
    world = World()
    world.lease.beat()
    world.lease.stop()
    world.sent[0][1]()
    assert world.alarms == [0]


@given(st.lists(st.tuples(st.floats(0.01, 4.0), st.booleans()), max_size=60))
def test_it_is_over_exactly_one_lease_after_the_last_acknowledged_sending(steps: list[tuple[float, bool]]) -> None:
    world = World()
    last = 100.0
    world.lease.beat()
    for pause, acknowledge in steps:
        world.now += pause
        over = world.over
        assert over == (world.now >= last + L)
        if over:
            return
        if acknowledge:
            sent_at, acknowledged = world.sent[-1]
            acknowledged()
            last = max(last, sent_at)


def test_threads_the_first_acknowledgement_is_awaited_and_the_end_is_called_once() -> None:
    ended = threading.Event()
    sent: list[Callable[[], object]] = []
    lease = Lease(sent.append, 0.2, expired=ended.set, alarm=lambda _: None)
    lease.start()
    threading.Timer(0.02, sent[0]).start()
    lease.wait_acknowledged()
    assert ended.wait(5)
    assert len(sent) >= 4


def test_threads_a_stopped_lease_does_not_end_the_process() -> None:
    ended = threading.Event()
    lease = Lease(lambda _: None, 2.0, expired=ended.set, alarm=lambda _: None)
    lease.start()
    lease.stop()
    assert not ended.wait(2.5)
