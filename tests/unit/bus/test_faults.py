"""Classes of database failures, for every class of SQLSTATE that the design names."""

import psycopg
import pytest
from confluent_kafka import KafkaError, KafkaException
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolExhausted

from retrofill_core.bus.faults import Conflict, Fault, Fenced, Poison, classify


def of_state(state, *, disconnected=False):
    class Refused(psycopg.Error):
        sqlstate = state

    return DBAPIError("UPDATE", {}, Refused(), connection_invalidated=disconnected)


@pytest.mark.parametrize(
    ("state", "fault"),
    [
        ("23505", Fault.CONFLICT),  # unique
        ("23P01", Fault.CONFLICT),  # exclusion
        ("40P01", Fault.CONFLICT),  # deadlock
        ("40001", Fault.CONFLICT),  # serialization
        ("55P03", Fault.WAIT),  # lock
        ("57014", Fault.TIMEOUT),  # statement
        ("25P04", Fault.TIMEOUT),  # transaction
        ("25P03", Fault.TIMEOUT),  # idle inside the transaction
        ("22001", Fault.POISON),  # too long
        ("22003", Fault.POISON),  # out of range
        ("22P05", Fault.POISON),  # no such character
        ("54000", Fault.POISON),  # limit exceeded
        ("54001", Fault.POISON),  # statement too complex
        ("23502", Fault.POISON),  # not null
        ("23503", Fault.POISON),  # foreign key
        ("23514", Fault.POISON),  # check
        ("08006", Fault.WAIT),  # connection failure
        ("25006", Fault.WAIT),  # read-only: a standby
        ("28P01", Fault.WAIT),  # password
        ("40003", Fault.WAIT),  # statement completion unknown
        ("42501", Fault.WAIT),  # no grant
        ("42P01", Fault.WAIT),  # no table
        ("53100", Fault.WAIT),  # disk full
        ("53300", Fault.WAIT),  # too many connections
        ("57P01", Fault.WAIT),  # shutdown
        ("57P03", Fault.WAIT),  # starting up
        ("58030", Fault.WAIT),  # I/O
        ("XX000", Fault.WAIT),  # internal
        (None, Fault.WAIT),
    ],
)
def test_what_the_database_said(state, fault):
    assert classify(of_state(state)) is fault


@pytest.mark.parametrize("state", ["23505", "40P01", "22001", "57P01", None])
def test_a_connection_that_broke_says_nothing_of_the_data(state):
    assert classify(of_state(state, disconnected=True)) is Fault.WAIT


@pytest.mark.parametrize("state", ["25P03", "25P04"])
def test_a_transaction_that_took_too_long_loses_its_connection_and_is_still_about_the_work(state):
    assert classify(of_state(state, disconnected=True)) is Fault.TIMEOUT


def test_text_that_the_driver_does_not_send_is_poison_and_no_dependency_that_is_down():
    with pytest.raises(psycopg.DataError) as raised:
        psycopg.types.string.StrDumper(str).dump("a\0b")
    assert classify(DataError("SELECT", {}, raised.value)) is Fault.POISON


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (Fenced("x"), Fault.FENCED),
        (Conflict("x"), Fault.CONFLICT),
        (Poison("x"), Fault.POISON),
        (OperationalError("x", {}, psycopg.OperationalError("no server")), Fault.WAIT),
        (InterfaceError("x", {}, psycopg.InterfaceError("closed")), Fault.WAIT),
        (PoolExhausted("x"), Fault.WAIT),
        (KafkaException(KafkaError(KafkaError._TRANSPORT)), Fault.WAIT),
        (ConnectionRefusedError(), Fault.WAIT),
        (OSError("disk"), Fault.WAIT),
        (TimeoutError(), Fault.WAIT),
        (KeyError("x"), Fault.POISON),
        (ValueError("x"), Fault.POISON),
        (AssertionError("x"), Fault.POISON),
        (RecursionError("x"), Fault.POISON),
        (OverflowError("x"), Fault.POISON),
    ],
    ids=lambda each: type(each).__name__,
)
def test_what_anything_else_means(error, fault):
    assert classify(error) is fault
