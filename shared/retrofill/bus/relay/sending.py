"""One Kafka transaction of the relay, with what the broker says of each row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer
from sqlalchemy import RowMapping

from retrofill.bus.crash import crash_point
from retrofill.bus.relay.refusals import ROW_CODES, TOPIC_CODES, Refusal
from retrofill.contract.partitioning import place_of
from retrofill.store import outbox

# Without a single delivery for so long, the rest will not be delivered either.
STILL_SECONDS = 10.0
# Less than ``transaction.timeout.ms``: the broker must not end the transaction under us.
MOST_SECONDS = 40.0
KAFKA_SECONDS = 10.0


@dataclass
class Sending:
    """The rows of one batch on their way. ``refused`` and ``overall`` say why it was not published."""

    client: Producer
    prefix: str
    partitions: int  # that were fixed at init: a topic may have got more
    refused: dict[int, Refusal] = field(default_factory=dict)
    overall: Refusal | None = None
    slow: bool = False

    def publish(self, rows: Sequence[RowMapping], cursor: Callable[[], tuple[str, bytes, bytes]]) -> bool:
        """Publish ``rows`` in their order and the cursor (topic, key, value) in one transaction; whether it is committed.

        Where it is not, nothing is known about it until it was aborted, or another producer took over. Raises
        ``KafkaException`` where its outcome is unknown.
        """
        self.client.begin_transaction()
        crash_point("relay:kafka-begun")
        if all(self._produce_row(row) for row in rows):
            topic, key, value = cursor()
            self._produce(topic, key, value, [], 0, lambda *_: None)
        elif self.overall is None:
            return False
        if not self._delivered(len(rows) + 1) or any(
            one.code in ROW_CODES | TOPIC_CODES for one in self.refused.values()
        ):
            return False
        # Where rows were only purged, to commit is to be told why: a transaction that has failed cannot be committed.
        crash_point("relay:before-kafka-commit")
        try:
            self.client.commit_transaction(KAFKA_SECONDS)
        except KafkaException as e:
            if not self._aborts(e):
                raise
            return False
        return True

    def _aborts(self, e: KafkaException) -> bool:
        """Whether the broker refused to commit, and all that can follow is an abort."""
        error: KafkaError = e.args[0]
        if not error.txn_requires_abort():
            return False
        self.overall = _refusal(error)
        return True

    def abort(self) -> bool:
        """Abort; whether it is certain that nothing of it is or will be committed."""
        try:
            self.client.abort_transaction(KAFKA_SECONDS)
        except KafkaException:
            return False
        return True

    def why(self) -> str:
        """Why it was not published, in a line."""
        first = next(iter(self.refused.values()), None)
        if self.overall is not None or first is not None:
            return (self.overall or first).text  # type: ignore[union-attr]  # one of them is there
        return f"not delivered within {STILL_SECONDS:.0f} s without any progress"

    def _produce_row(self, row: RowMapping) -> bool:
        """False where nothing more can be sent in this transaction."""
        fields = partial(self._delivery, row["id"])
        try:
            headers = outbox.unpack_headers(row["headers"])
            partition = place_of(row["key"], self.partitions)
            self._produce(self.prefix + row["topic"], row["key"], row["value"], headers, partition, fields)
        except KafkaException as e:
            refusal = _refusal(e.args[0])
            if refusal.code == KafkaError._STATE:
                # The transaction has failed already: the delivery reports say why.
                self.overall = self.overall or refusal
            else:
                self.refused[row["id"]] = refusal
            return False
        except (ValueError, TypeError) as e:
            self.refused[row["id"]] = Refusal(KafkaError._INVALID_ARG, f"it cannot be sent: {e}")
            return False
        return True

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, str | bytes | None]],
        partition: int,
        fields: Callable[[KafkaError | None, Any], None],
    ) -> None:
        while True:
            try:
                self.client.produce(
                    topic, key=key, value=value, headers=headers, partition=partition, on_delivery=fields
                )
            except BufferError:
                # The local queue is full: wait until some of it is delivered.
                self.client.poll(0.1)
            else:
                return

    def _delivery(self, id: int, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self.refused[id] = _refusal(error)

    def _delivered(self, left: int) -> bool:
        """Wait until all was delivered or refused, as long as it goes on; whether it was."""
        began = time.monotonic()
        while (now_left := self.client.flush(STILL_SECONDS)) > 0:
            if now_left >= left or time.monotonic() - began > MOST_SECONDS - STILL_SECONDS:
                self.slow = True
                return False
            left = now_left
        return True


def _refusal(error: KafkaError) -> Refusal:
    return Refusal(error.code(), f"{error.name()}: {error.str()}")
