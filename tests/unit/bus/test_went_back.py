"""Ends a service whose Postgres is an old primary, or went back in time, and no other."""

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy.exc import OperationalError

from retrofill_core.bus.relay.cursor import Marks
from retrofill_core.bus.went_back import Guard, went_back
from retrofill_core.contract.topics import PLANNER, RUN_STARTER, SERVICES
from retrofill_core.settings import Settings
from retrofill_core.store.history import SPAN, PostgresWentBack, RelayRow

OLD = "it is an old primary that must be stopped, or was restored"
RESTORED = "it was restored from an older copy"
NOTHING = None


@pytest.mark.parametrize(
    ("mark", "row", "said"),
    [
        (Marks(0, 0), RelayRow(epoch=0, batch=0), NOTHING),
        (Marks(7, 3), RelayRow(epoch=3, batch=7), NOTHING),
        # Numbered and not yet published; taken over and not yet marked; begun by a transaction after Kafka was read.
        (Marks(7, 3), RelayRow(epoch=3, batch=8), NOTHING),
        (Marks(7, 3), RelayRow(epoch=4, batch=7), NOTHING),
        (Marks(7, 3), RelayRow(epoch=SPAN + 3, batch=7), NOTHING),
        (Marks(7, SPAN), RelayRow(epoch=SPAN + 3, batch=7), NOTHING),
        # Announced by who works on the new primary, whose relay has not taken over; taken over; taken over twice.
        (Marks(7, SPAN), RelayRow(epoch=3, batch=7), OLD),
        (Marks(7, SPAN + 4), RelayRow(epoch=3, batch=7), OLD),
        (Marks(0, 2 * SPAN), RelayRow(epoch=SPAN + 9, batch=900), OLD),
        (Marks(8, SPAN), RelayRow(epoch=3, batch=7), OLD),
        # What the old primary published is missing on the new one; a copy of the same generation.
        (Marks(8, SPAN), RelayRow(epoch=SPAN + 3, batch=7), RESTORED),
        (Marks(8, 3), RelayRow(epoch=3, batch=7), RESTORED),
        (Marks(7, 4), RelayRow(epoch=3, batch=7), RESTORED),
    ],
)
@pytest.mark.parametrize("service", SERVICES.values(), ids=lambda service: service.name)
def test_a_service_ends_for_what_kafka_has_of_any_and_its_postgres_does_not(service, mark, row, said):
    same = RelayRow(epoch=row.epoch, batch=1)
    marks = {name: Marks(1, row.epoch) for name in SERVICES} | {service.name: mark}
    rows = dict.fromkeys(SERVICES, same) | {service.name: row}
    found = went_back(marks, rows, recorded=True)
    if said is None:
        assert found is None
    else:
        assert found is not None and said in found and f"of the {service.name}" in found
    # Between the mark of a generation and its commit, a pooler may lead to the server that begins it.
    assert went_back(marks, rows, recorded=False) is None


def test_a_topic_that_may_not_be_read_is_left_out():
    rows = dict.fromkeys(SERVICES, RelayRow(epoch=3, batch=7))
    assert went_back({}, rows, recorded=True) is None
    found = went_back({RUN_STARTER.name: Marks(7, SPAN)}, rows, recorded=True)
    assert found is not None and found.startswith(f"Kafka has generation 1 of the {RUN_STARTER.name}, Postgres only 0")


def test_a_comparison_that_fails_is_repeated_and_one_that_finds_something_ends_the_service():
    """No answer is no sign."""
    outcomes = [
        None,
        KafkaException(KafkaError(KafkaError._TIMED_OUT)),
        OperationalError("SELECT", {}, Exception("the connection is lost")),
        None,
        PostgresWentBack("Kafka has generation 1"),
    ]
    stopping = threading.Event()
    guard = Guard(Settings(), PLANNER, "i", stopping)

    def compare():
        assert not stopping.is_set()
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    guard.watch(compare, seconds=0)
    assert (outcomes, guard.reason(), stopping.is_set()) == ([], "Kafka has generation 1", True)


def test_a_service_that_stops_compares_no_more():
    stopping = threading.Event()
    stopping.set()
    Guard(Settings(), PLANNER, "i", stopping).watch(lambda: pytest.fail("it compares"))
