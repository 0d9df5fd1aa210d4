"""The relay publishes at once, or a moment later if nobody acts on the events."""

import math
import threading
from collections import deque
from types import SimpleNamespace
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.offline import NO_DATABASE

from retrofill_core.bus.relay import relay as module
from retrofill_core.bus.relay.relay import LINGER_SECONDS, Relay
from retrofill_core.contract.topics import WATCHER
from retrofill_core.settings import Settings

IDLE = 60.0
LATER, URGENT = True, False


class Played(threading.Event):
    """A relay that waits on a clock of its own, for wakes at given times. Also its event."""

    def __init__(self, *wakes):
        super().__init__()
        self.now = 0.0
        self.wakes = deque(wakes)
        self._set = False
        with mock.patch.object(module, "Membership"):
            self.relay = Relay(Settings(), WATCHER, "i", NO_DATABASE, 4)
        self.relay._woken = self

    def set(self):
        self._set = True

    def clear(self):
        self._set = False

    def wait(self, timeout=None):
        until = math.inf if timeout is None else self.now + timeout
        while not self._set and self.wakes and self.wakes[0][0] <= until:
            at, later = self.wakes.popleft()
            self.now = max(self.now, at)
            self.wake(later)
        if not self._set:
            assert until < math.inf, "it waits for ever"
            self.now = until

    def wake(self, later):
        with self._clock():
            self.relay.wake(later=later)

    def goes_on_at(self, idle=IDLE):
        """When it ends its next wait."""
        with self._clock():
            self.relay._wait(idle)
        return self.now

    def _clock(self):
        return mock.patch.object(module, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.mark.parametrize(
    ("wakes", "goes_on_at"),
    [
        ([], IDLE),
        ([(1, URGENT)], 1),
        ([(1, LATER)], 1 + LINGER_SECONDS),
        ([(1, LATER), (1.02, URGENT)], 1.02),
        ([(1, LATER), (1.02, LATER), (1.03, URGENT)], 1.03),
        # Others that may wait do not put it off.
        ([(1, LATER), (1.03, LATER), (1.049, LATER)], 1 + LINGER_SECONDS),
        ([(1, LATER), (1 + 2 * LINGER_SECONDS, URGENT)], 1 + LINGER_SECONDS),
    ],
)
def test_it_goes_on_at_once_or_a_moment_later(wakes, goes_on_at):
    assert Played(*wakes).goes_on_at() == pytest.approx(goes_on_at)


def test_each_wait_counts_for_itself():
    played = Played((1, URGENT), (1.5, LATER), (3, LATER), (3.01, URGENT), (4, LATER))
    expected = [1, 1.5 + LINGER_SECONDS, 3.01, 4 + LINGER_SECONDS, 4 + LINGER_SECONDS + IDLE]
    assert [played.goes_on_at() for _ in expected] == pytest.approx(expected)


def test_what_came_while_it_published_waits_only_for_what_is_left():
    played = Played()
    played.wake(LATER)
    played.now += LINGER_SECONDS / 2
    assert played.goes_on_at() == pytest.approx(LINGER_SECONDS)
    played.wake(LATER)
    played.now += 7
    assert played.goes_on_at() == pytest.approx(LINGER_SECONDS + 7)


def test_another_assignment_is_noticed_at_once():
    """The group's member only sets the event."""
    played = Played()
    played.now = 5.0
    played.set()
    assert played.goes_on_at(None) == 5.0


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 2), st.booleans()), max_size=20))
def test_nothing_waits_longer_than_it_may(wakes):
    wakes.sort(key=lambda wake: wake[0])
    played = Played(*wakes)
    ends = []
    while played.wakes or played._set:
        ends.append(played.goes_on_at())
    for at, later in wakes:
        end = next(end for end in ends if end >= at)
        assert end <= at + (LINGER_SECONDS if later else 0) + 1e-9
