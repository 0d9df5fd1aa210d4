"""The relay's reaction when Kafka refuses a batch: it only sets aside a row that is refused alone,
and never for a transient error.
"""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from retrofill_core.bus.relay.refusals import Decision, HeldTopics, Narrow, Refusal, RefusedAlone, Stuck, Wait, decide

ROWS = [(n, "a" if n % 2 else "b") for n in range(10, 20)]
LARGE = Refusal(KafkaError.MSG_SIZE_TOO_LARGE, "too large")
RIGHT = Refusal(KafkaError.TOPIC_AUTHORIZATION_FAILED, "no right")
GONE = Refusal(KafkaError.UNKNOWN_TOPIC_OR_PART, "unknown")
PURGED = Refusal(KafkaError._PURGE_QUEUE, "purged")
NOT_ENOUGH = Refusal(KafkaError.NOT_ENOUGH_REPLICAS, "replicas")
OUT_OF_TIME = Refusal(KafkaError._MSG_TIMED_OUT, "timed out")
WRONG = Refusal(KafkaError._INCONSISTENT, "3 message(s) failed")


@pytest.mark.parametrize(
    ("rows", "refused", "overall", "decision"),
    [
        pytest.param([ROWS[3]], {13: LARGE}, None, RefusedAlone(13, "too large"), id="alone"),
        pytest.param(ROWS, {16: LARGE, 17: LARGE}, None, Narrow(6), id="those before it are innocent"),
        pytest.param(ROWS, dict.fromkeys(range(10, 20), LARGE), None, Narrow(5), id="refused with its whole request"),
        pytest.param(ROWS, {10: LARGE}, None, Narrow(1), id="the first, and only it"),
        pytest.param(ROWS, {11: GONE, 12: LARGE}, None, HeldTopics({"a": "unknown"}), id="a deleted topic is held"),
        pytest.param(
            [ROWS[1]], {11: RIGHT}, WRONG, HeldTopics({"a": "no right"}), id="and never a reason to set aside"
        ),
        pytest.param(ROWS, dict.fromkeys(range(10, 20), PURGED), RIGHT, Narrow(5), id="some topic of the transaction"),
        pytest.param([ROWS[1]], {11: PURGED}, RIGHT, HeldTopics({"a": "no right"}), id="the topic of the transaction"),
        pytest.param([ROWS[1]], {11: NOT_ENOUGH}, WRONG, Wait(), id="too few replicas: it waits"),
        pytest.param([ROWS[1]], {11: OUT_OF_TIME}, WRONG, Wait(), id="a time-out: it waits"),
        pytest.param([], {}, RIGHT, Wait(), id="the cursor's topic"),
    ],
)
def test_what_follows(
    rows: list[tuple[int, str]], refused: dict[int, Refusal], overall: Refusal | None, decision: Decision
) -> None:
    assert decide(rows, refused, overall) == decision


def test_a_batch_that_is_too_slow_gets_smaller_and_one_row_waits() -> None:
    assert decide(ROWS, {}, None, slow=True) == Narrow(5)
    assert decide(ROWS[:1], {}, None, slow=True) == Wait()


def test_only_the_topics_of_rows_that_are_slow_alone_are_held() -> None:
    assert decide(ROWS, {}, None, slow=True, stuck=[12, 14]) == Stuck(frozenset({"b"}))
    assert decide(ROWS[2:3], {}, None, slow=True, stuck=[12]) == Stuck(frozenset({"b"}))
