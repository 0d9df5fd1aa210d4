"""The simulated store behaves like the real Postgres: hosts, their seats, and who waits for one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from sqlalchemy import update
from tests.support.both_stores import BASE, DAY, NOW, Both, both, claim, give, installation, over, register
from tests.support.sessions import Step, commit, together

from retrofill_core.store import attempts, giving_way, hosts, launches, places
from retrofill_core.store import tables as t
from retrofill_core.store.giving_way import Rank, SeatKind, wait_for_no_seat

__all__ = ["both", "installation"]
TABLES = (t.host, t.seat, t.seat_wait)


def ready(conn: Any, seats: int = 2, seconds: float = 3600.0, pool: str = "default") -> int:
    """A host whose seats are warm."""
    id = register(conn, seats, seconds, pool)
    for no in range(1, seats + 1):
        hosts.set_warm(conn, id, no, warm=True)
    return id


def free(conn: Any, own: int, most: int = 9, executors: tuple[str, ...] = ("pool",), pool: str = "default") -> Any:
    """The seats that a claim of shard 0 would get, with what else it learns."""
    offer = hosts.lock_free(conn, [own, 77], 0, pool, executors, most)
    assert {seat.pool for seat in offer.seats} <= {pool}
    return (
        [(seat.host_id, seat.no) for seat in offer.seats],
        offer.total,
        sorted((each.live, (NOW - each.since).days) for each in offer.rivals),
    )


def take(conn: Any, host: int, no: int, slot: int, own: int = 1) -> list[int]:
    new = attempts.NewAttempt("b1", 1, "each", slot - 1, 1, slot, slot, {"file": "/p.py"}, "h", host, no)
    return attempts.insert_all(conn, [new], [own], NOW, 30.0)


def seats(conn: Any, id: int) -> Any:
    """The seats of a host, without moments."""
    found = hosts.seats_of(conn, [id])
    return [(row.no, row.warm, row.attempt_id, row.backfill_id, row.overdue) for row in found]


def wait(shard: int, pool: str, live: int, seconds: float, conn: Any, submits: bool = False) -> None:
    """Its first backfill waits since so many days."""
    giving_way.wait_for_seat(conn, shard, SeatKind(pool, submits), Rank(live, NOW - live * DAY), seconds)


def a(work: Any) -> Step:
    return ("a", work)


def test_free_seats_the_own_ones_first_then_where_most_are_free(both: Both) -> None:
    said = both.play(
        *BASE,
        a(lambda conn: [ready(conn, 2), ready(conn, 3), ready(conn, 3), ready(conn, 2, -1.0)]),
        a(lambda conn: (take(conn, 2, 1, 1), take(conn, 2, 2, 2))),
        a(lambda conn: free(conn, 1)),
        a(lambda conn: free(conn, 3, most=4)),
        a(lambda conn: free(conn, 0, executors=("spark-submit",))),
        a(lambda conn: hosts.renew(conn, 3, 60.0, submits=True, note="x")),
        a(lambda conn: hosts.set_warm(conn, 3, 2, warm=False)),
        a(lambda conn: (free(conn, 1), free(conn, 1, executors=("spark-submit",)))),
        a(commit),
    )
    assert said[5][0] == [[1, 1], [1, 2], [3, 1], [3, 2], [2, 3], [3, 3]]
    assert said[6][0] == [[3, 1], [3, 2], [3, 3], [1, 1]]
    assert said[7] == [[], None, []]
    assert said[10][1][0] == [[3, 1], [3, 2], [3, 3]]
    both.same_tables(*TABLES)


def test_a_seat_that_another_claim_has_is_skipped(both: Both) -> None:
    said = both.play(
        *BASE,
        a(lambda conn: ready(conn, 3)),
        a(commit),
        a(lambda conn: free(conn, 1, most=2)),
        ("b", lambda conn: free(conn, 1)),
        a(lambda conn: take(conn, 1, 1, 1)),
        a(commit),
        ("b", lambda conn: free(conn, 1)),
        ("b", lambda conn: (take(conn, 1, 1, 2), take(conn, 1, 3, 3))),
        ("b", commit),
    )
    assert said[6][0] == [[1, 3]]
    assert said[9][0] == [[1, 2], [1, 3]]
    # The first one is not free: the attempt has no seat, and its claim is rolled back for that.
    assert [len(ids) for ids in said[10]] == [0, 1]


def test_an_attempt_is_acknowledged_once_and_by_its_own_incarnation(both: Both) -> None:
    said = both.play(
        *BASE,
        a(lambda conn: [ready(conn), ready(conn)]),
        a(lambda conn: (take(conn, 1, 1, 1), take(conn, 2, 1, 2), take(conn, 2, 2, 3))),
        a(lambda conn: conn.execute(update(t.attempt).values(lease_until=NOW.replace(year=2100))).rowcount),
        a(lambda conn: sorted(hosts.unacknowledged(conn, [1, 2, 3]))),
        a(lambda conn: [hosts.acknowledge(conn, host, attempt) for host, attempt in ((1, 2), (2, 2), (2, 2), (1, 1))]),
        a(lambda conn: sorted(hosts.unacknowledged(conn, [1, 2, 3]))),
        a(lambda conn: conn.execute(update(t.attempt).values(lease_until=NOW.replace(year=2000))).rowcount),
        a(lambda conn: hosts.acknowledge(conn, 2, 3)),
        a(lambda conn: (seats(conn, 1), seats(conn, 2))),
        a(lambda conn: over(conn, 2)),
        a(lambda conn: seats(conn, 2)),
        a(lambda conn: hosts.free(conn, {2: True, 3: False, 9: True})),
        a(lambda conn: seats(conn, 2)),
        a(commit),
    )
    assert said[6:9] == [[2, 3], [False, True, False, False], [3]]
    assert said[10] is False
    assert said[13] == [[1, True, 2, "b1", False], [2, True, 3, "b1", None]]
    assert said[15] == [[1, True, None, None, None], [2, False, None, None, None]]


def test_the_rows_of_a_host_long_dead_go_unless_a_seat_is_taken(both: Both) -> None:
    said = both.play(
        *BASE,
        a(lambda conn: [ready(conn, 2, -700.0), ready(conn, 2, -700.0)]),
        a(lambda conn: take(conn, 2, 1, 1)),
        a(lambda conn: [register(conn), hosts.renew(conn, 1, 9.0, submits=True, note=None)]),
        a(lambda conn: [seats(conn, id) for id in (1, 2, 3)]),
        a(
            together(
                lambda conn: hosts.renew(conn, 2, 60.0, submits=True, note=None),
                lambda conn: hosts.make_seats(conn, 2, [2]),
            )
        ),
        a(lambda conn: seats(conn, 2)),
        a(lambda conn: hosts.withdraw(conn, 3)),
        a(lambda conn: seats(conn, 3)),
        a(commit),
    )
    # It went when the next one registered, which is therefore the second.
    taken = [1, True, 1, "b1", None]
    assert said[6] == [[], [taken], [[1, False, None, None, None]]]
    # Its host makes the other one again.
    assert said[7:9] == [[True, None], [taken, [2, False, None, None, None]]]
    assert said[5][1] is False


def test_who_waits_is_seen_by_other_shards_for_a_while(both: Both) -> None:
    said = both.play(
        *BASE,
        a(lambda conn: ready(conn, 1)),
        a(together(*(partial(wait, shard, "default", live, 60.0) for shard, live in ((0, 5), (1, 2), (2, 7), (1, 3))))),
        a(together(partial(wait, 3, "default", 1, -1.0), partial(wait, 1, "other", 9, 60.0))),
        a(lambda conn: free(conn, 1)),
        a(
            together(
                lambda conn: wait_for_no_seat(conn, 2, SeatKind("default", False)),
                lambda conn: wait_for_no_seat(conn, 1, SeatKind("other", False)),
            )
        ),
        a(lambda conn: free(conn, 1)),
        a(commit),
    )
    assert [said[6][2], said[8][2]] == [[[3, 3], [7, 7]], [[3, 3]]]
    both.same_tables(*TABLES)


def test_who_waits_for_spark_submit_is_no_rival_where_no_host_submits(both: Both) -> None:
    said = both.play(
        *BASE,
        a(lambda conn: ready(conn, 1)),
        a(together(*(partial(wait, 1, "default", live, 60.0, submits=live == 1) for live in (1, 2)))),
        a(lambda conn: hosts.renew(conn, 1, 60.0, submits=False, note=None)),
        a(lambda conn: free(conn, 1)),
        a(lambda conn: hosts.renew(conn, 1, 60.0, submits=True, note=None)),
        a(lambda conn: free(conn, 1)),
        a(lambda conn: wait_for_no_seat(conn, 1, SeatKind("default", False))),
        a(lambda conn: free(conn, 1)),
        a(commit),
    )
    assert [said[n][2] for n in (6, 8, 10)] == [[[2, 2]], [[1, 1], [2, 2]], [[1, 1]]]
    both.same_tables(*TABLES)


def test_each_pool_has_its_own_seats(both: Both) -> None:
    said = both.play(
        *BASE,
        a(lambda conn: [ready(conn, 2), ready(conn, 3, pool="other"), ready(conn, 1, pool="other")]),
        a(lambda conn: take(conn, 2, 1, 1)),
        a(lambda conn: [free(conn, 3, pool=pool) for pool in ("default", "other", "nobody")]),
        a(lambda conn: hosts.renew(conn, 1, 60.0, submits=True, note=None)),
        a(lambda conn: free(conn, 3, executors=("spark-submit",), pool="other")),
        a(
            together(
                partial(wait, 4, "other", 2, 60.0),
                lambda conn: free(conn, 1)[2],
                lambda conn: free(conn, 1, pool="other")[2],
            )
        ),
        a(lambda conn: hosts.renew(conn, 2, 60.0, submits=True, note=None, python="3.11.2", spark="4.1.4")),
        a(lambda conn: hosts.renew(conn, 2, 60.0, submits=True, note=None)),
        a(lambda conn: [row.host_id for row in hosts.seats_of(conn, [1, 3])]),
        a(commit),
    )
    assert said[5] == [[[[1, 1], [1, 2]], 2, []], [[[3, 1], [2, 2], [2, 3]], 4, []], [[], None, []]]
    assert said[7] == [[], None, []]
    assert said[8][1:] == [[], [[2, 2]]]
    assert said[11] == [1, 1, 3]
    both.same_tables(*TABLES)


def test_a_launch_is_derived_from_rows(both: Both) -> None:
    def given(conn: Any, id: int) -> Any:
        found = launches.given(conn, id)
        return found and (found.attempt.code, found.backfill.id, [row.id for row in found.runs])

    said = both.play(
        *BASE,
        a(lambda conn: give(conn, claim(conn, 1, count=2), 1, 2)),
        a(lambda conn: [given(conn, id) for id in (1, 2)]),
        a(lambda conn: over(conn, 1)),
        a(lambda conn: given(conn, 1)),
        a(commit),
    )
    assert said[4] == [[{"file": "/p.py"}, "b1", [1, 2]], None]
    assert said[6] is None


@pytest.mark.parametrize(
    "values",
    [
        {"no": 1, "host_id": 1, "warm": True},
        {"no": 2, "host_id": 9, "warm": True},
        {"no": 2, "host_id": 1, "warm": True, "attempt_id": 1},
        {"no": 2, "host_id": 1, "warm": True, "attempt_id": 99},
        {"no": 2, "host_id": 1, "warm": True, "acknowledged_at": NOW},
        {"no": 2, "host_id": 1, "warm": False},
    ],
)
def test_constraints_of_seats(both: Both, values: dict[str, Any]) -> None:
    both.play(
        *BASE, a(lambda conn: claim(conn, 1)), a(lambda conn: conn.execute(t.seat.insert().values(values)) and None)
    )


def test_who_writes_what_and_who_waits_for_it(both: Both) -> None:
    """A lock is free once its attempt is not live, and those about which another transaction decides are undecided."""
    everything = ["a", "b", "c"]
    state = a(lambda conn: (places.held(conn, everything), sorted_waits(conn, everything)))
    said = both.play(
        *BASE,
        a(lambda conn: (ready(conn, 2), take(conn, 1, 1, 1))),
        a(lambda conn: sorted(places.undecided(conn, everything))),
        a(lambda conn: places.take(conn, ["b", "a"], 1)),
        ("b", lambda conn: sorted(places.undecided(conn, [*everything, "d"]))),
        ("b", commit),
        a(commit),
        a(lambda conn: places.wait(conn, ["a", "c"], "b2", NOW, 3600.0)),
        a(lambda conn: places.wait(conn, ["a"], "b2", NOW - DAY, 3600.0)),
        a(lambda conn: places.wait(conn, ["a"], "b3", NOW, -3600.0)),
        state,
        a(lambda conn: places.wait_no_more(conn, ["b2"])),
        a(lambda conn: over(conn, 1)),
        state,
        a(lambda conn: take(conn, 1, 2, 2)),
        a(lambda conn: places.take(conn, ["a"], 2)),
        state,
        a(commit),
    )
    assert said[len(BASE) + 3] == everything
    both.same_tables(t.write_lock, t.write_wait)


def sorted_waits(conn: Any, names: list[str]) -> list[tuple[str, str]]:
    return sorted((each.name, each.backfill_id) for each in places.waiting(conn, names))
