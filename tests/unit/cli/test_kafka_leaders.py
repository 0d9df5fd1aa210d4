"""Right after a broker's start, partitions may have no leader for a moment."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from retrofill_tools.client.kafka import bounds_of


class Broker:
    """Answers with these errors, then with the offsets."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)

    def get_watermark_offsets(self, partition: Any, timeout: float, cached: bool) -> tuple[int, int]:
        if self.errors:
            raise KafkaException(KafkaError(self.errors.pop(0)))
        return 3, 7


def asked(*errors: int, seconds: float = 10.0) -> tuple[int, int]:
    return bounds_of(cast("Consumer", Broker(*errors)), "topic", 0, seconds)


@pytest.mark.parametrize("error", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE])
@pytest.mark.parametrize("times", [0, 1, 3])
def test_a_partition_that_gets_a_leader_is_waited_for(error: int, times: int) -> None:
    assert asked(*[error] * times) == (3, 7)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (KafkaError.NOT_LEADER_FOR_PARTITION, 0.05),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, 10.0),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, 10.0),
    ],
)
def test_other_errors_and_a_leader_that_does_not_come_are_raised(error: int, seconds: float) -> None:
    with pytest.raises(KafkaException) as refused:
        asked(*[error] * 5, seconds=seconds)
    assert refused.value.args[0].code() == error
