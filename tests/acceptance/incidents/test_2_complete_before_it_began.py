"""Incident: a backfill's row was committed before its runs. A sweeper found no unfinished run and
marked it complete; or the process died in between, and the orphan blocked every later backfill.

Here a planner that is killed at any step leaves the whole backfill or nothing, no backfill ends
with an unfinished run, and every request gets exactly one reply.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest
from tests.acceptance.incidents.whole_backfills import (
    BACKFILLS,
    RUNS,
    WHOLE,
    Sampler,
    Subscriber,
    answers,
    ask,
    installation_with_a_pipeline,
)
from tests.support.definitions import key_on
from tests.support.installation import PARTITIONS, Installation, until
from tests.support.servers import Servers
from tests.support.tiers import some

from retrofill_core.contract.topics import Topic, partition_of

PLANNED, REJECTED, SUCCEEDED = "BackfillPlanned", "BackfillRejected", "BackfillSucceeded"
# A story mostly waits for the broker to notice a dead member, so several run concurrently.
STORIES_AT_ONCE = 4


@dataclass(frozen=True)
class Left:
    """The state that a planner killed at a crash point must leave."""

    backfill: bool  # all of its rows or none
    sent: bool = False  # its reply is visible to read_uncommitted subscribers
    answer: bool = False  # its reply is visible to read_committed subscribers


# In planning order: before, inside and after the transaction, then the relay's three steps.
POINTS = {
    "batch:before-begin": Left(backfill=False),
    "batch:begun": Left(backfill=False),
    "plan:backfill-written": Left(backfill=False),
    "plan:runs-written": Left(backfill=False),
    "plan:deadlines-written": Left(backfill=False),
    "plan:outcome-recorded": Left(backfill=False),
    "batch:before-commit": Left(backfill=False),
    "outbox:written": Left(backfill=False),
    "batch:committed": Left(backfill=True),
    "relay:numbered": Left(backfill=True),
    "relay:before-kafka-commit": Left(backfill=True, sent=True),
    "relay:published": Left(backfill=True, sent=True, answer=True),
    "relay:before-deletion-commit": Left(backfill=True, sent=True, answer=True),
    "relay:deleted": Left(backfill=True, sent=True, answer=True),
}

# Inside and after the transaction that ends the backfill, and the state that remains.
ENDINGS = {"end:written": "running", "end:committed": "succeeded"}


def killed(installation: Installation, point: str) -> Callable[[], None]:
    """Start a planner that kills itself at ``point``. Returns a function that awaits its death."""
    dying = installation.start("backfill-planner", RETROFILL_CRASH_POINT=point, wait=False)

    def died() -> None:
        until(lambda: dying.process.poll() is not None, f"the planner dies at {point}")
        assert dying.process.returncode == -signal.SIGKILL, dying.said()

    return died


def killed_while_planning(installation: Installation, subscriber: Subscriber, point: str) -> None:
    """Kill the planner at ``point`` while it plans a request; then repeat the request and send
    rivals.
    """
    # The rival follows on the same partition, so the first request wins whichever planner handles
    # it.
    id = key_on(1)
    rival = next(f"rival-{n}" for n in range(100) if partition_of(f"rival-{n}", PARTITIONS) == 1)
    asked = ask(installation, id)
    killed(installation, point)()

    left = installation.query(BACKFILLS)
    assert [{name: row[name] for name in WHOLE} for row in left] == [WHOLE] * POINTS[point].backfill
    assert (asked in answers(installation, "read_uncommitted")) == POINTS[point].sent
    assert (asked in answers(installation)) == POINTS[point].answer

    asked_again, asked_by_rival = ask(installation, id), ask(installation, rival)
    installation.start("backfill-planner")
    first, again, refused = [subscriber.answer(e) for e in (asked, asked_again, asked_by_rival)]
    late = subscriber.answer(ask(installation, key_on(2)))
    assert first["type"] == PLANNED
    assert first["runs"] == RUNS
    assert again == first | {"in_reply_to": asked_again}
    for loser in (refused, late):
        assert (loser["type"], loser["reason"], loser["conflicting_backfill_id"]) == (REJECTED, "overlap", id)
    # The new owner has checked the backfill, and there is nothing to complete.
    assert installation.value("SELECT state FROM backfill") == "running"
    assert installation.runs_by_state(id) == {"queued": RUNS}

    installation.start("instant-starter", RETROFILL_DRIVER_SLOTS="4")
    assert installation.wait_state(id, "succeeded", "failed", "cancelled") == "succeeded"
    assert installation.runs_by_state(id) == {"succeeded": RUNS}
    nothing_blocks_the_next(installation, subscriber)
    each_answered_once(installation, 5)


def killed_while_ending(installation: Installation, subscriber: Subscriber, point: str, state: str) -> None:
    """Kill the planner at ``point`` of the check that ends a backfill."""
    died = killed(installation, point)
    asked = ask(installation, "ending")
    assert subscriber.answer(asked)["runs"] == RUNS
    installation.start("instant-starter", RETROFILL_DRIVER_SLOTS="4")
    died()
    assert installation.runs_by_state("ending") == {"succeeded": RUNS}
    assert installation.value("SELECT state FROM backfill") == state
    installation.start("backfill-planner")
    assert installation.wait_state("ending", "succeeded", "failed", "cancelled") == "succeeded"
    nothing_blocks_the_next(installation, subscriber)
    each_answered_once(installation, 2)


def nothing_blocks_the_next(installation: Installation, subscriber: Subscriber) -> None:
    """Assert that the same range can be planned again."""
    next_one = subscriber.answer(ask(installation, "next", reprocess_behavior="completed"))
    assert (next_one["type"], next_one["runs"]) == (PLANNED, RUNS)


def each_answered_once(installation: Installation, requests: int) -> None:
    """Assert one reply per request and one end per backfill. For read_uncommitted subscribers,
    copies of an event share one ``ce_id``.
    """
    installation.wait_published()
    seen = answers(installation)
    ends = seen.pop(SUCCEEDED)
    assert len(ends) == len({end.key for end in ends})
    assert [len(events) for events in seen.values()] == [1] * requests
    for events in answers(installation, "read_uncommitted").values():
        assert len({e.headers["ce_id"] for e in events}) == len({(e.key, e.value) for e in events})
    assert installation.events(Topic.DEAD_LETTERS) == []


Story = Callable[[Installation, Subscriber], None]


def sampled(servers: Servers, making: threading.Lock, story: Story) -> None:
    """Run a story in its own installation while a sampler polls it."""
    with making:
        installation = installation_with_a_pipeline(servers)
    subscriber = Subscriber(installation)
    try:
        sampler = Sampler(installation)
        with sampler.looking():
            story(installation, subscriber)
        assert sampler.broken == []
        assert sampler.states == {"running", "succeeded"}
    finally:
        subscriber.close()
        installation.close()


@pytest.fixture(scope="module")
def stories(servers: Servers, request: pytest.FixtureRequest) -> Iterator[dict[str, Future[None]]]:
    """The stories of the collected tests, run concurrently."""
    fields: dict[str, Story] = {point: partial(killed_while_planning, point=point) for point in POINTS}
    for point, state in ENDINGS.items():
        fields[point] = partial(killed_while_ending, point=point, state=state)
    chosen = {item.callspec.params["point"] for item in request.session.items if item.module is request.module}  # type: ignore[attr-defined]
    making = threading.Lock()
    threads = ThreadPoolExecutor(STORIES_AT_ONCE)
    try:
        yield {
            name: threads.submit(sampled, servers, making, story) for name, story in fields.items() if name in chosen
        }
    finally:
        threads.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "point",
    some(POINTS, "batch:begun", "plan:runs-written", "outbox:written", "batch:committed", "relay:before-kafka-commit"),
)
def test_a_planner_killed_while_it_plans_leaves_the_whole_backfill_or_none(
    stories: dict[str, Future[None]], point: str
) -> None:
    stories[point].result()


@pytest.mark.parametrize("point", ENDINGS)
def test_a_planner_killed_while_it_ends_a_backfill_ends_it_once(stories: dict[str, Future[None]], point: str) -> None:
    stories[point].result()
