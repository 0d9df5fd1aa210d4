"""One Kafka transaction of the relay, with the broker's verdict on each row."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from retrofill.system.crash import crash_point
from retrofill_core.bus.relay.cursor import CURSOR_PARTITION, KAFKA_SECONDS
from retrofill_core.bus.relay.refusals import ROW_CODES, TOPIC_CODES, Refusal
from retrofill_core.contract.topics import place_of
from retrofill_core.store.outbox import Stored, unpack_headers

# After this long without a single delivery, the rest will not be delivered either.
STALL_SECONDS = 10.0
# As long as a partition may take to store one row of a trial.
TRIAL_SECONDS = 5.0
# Less than ``transaction.timeout.ms``, so the broker does not end the transaction first.
MAX_SECONDS = 40.0


@dataclass
class Sending:
    """Publishes one batch. ``refused`` (by row id) and ``overall`` say why it was not published.

    ``slow``: delivery stalled or took too long. ``stuck``: the rows (the first of each partition)
    that were not delivered although the cursor was, which takes the same way.
    """

    client: Producer
    prefix: str
    partitions: int  # as fixed at init; a topic may have more by now
    refused: dict[int, Refusal] = field(default_factory=dict)
    overall: Refusal | None = None
    slow: bool = False
    stuck: list[Stored] = field(default_factory=list)
    _waiting: dict[int, Stored] = field(default_factory=dict)
    _cursor_stored: bool = False

    def publish(self, rows: Sequence[Stored], cursor: Callable[[], tuple[str, bytes, bytes]]) -> bool:
        """Publish ``rows`` in order, and the cursor (topic, key, value), in one transaction.

        Returns whether it committed. If not, it may still commit until it is aborted or another
        producer takes over. Raises ``KafkaException`` where the outcome is unknown.
        """
        self.client.begin_transaction()
        crash_point("relay:kafka-begun")
        if all(self._produce_row(row) for row in rows):
            topic, key, value = cursor()
            self._produce(topic, key, value, [], CURSOR_PARTITION, self._cursor_delivery)
        elif self.overall is None:
            return False
        if not self._delivered(len(rows) + 1) or any(
            one.code in ROW_CODES | TOPIC_CODES for one in self.refused.values()
        ):
            return False
        # If rows were only purged, the failing commit returns the reason.
        crash_point("relay:before-kafka-commit")
        try:
            self.client.commit_transaction(KAFKA_SECONDS)
        except KafkaException as e:
            if not self._aborts(e):
                raise
            return False
        return True

    def stores(self, rows: Sequence[Stored]) -> bool:
        """Whether Kafka stores ``rows``. They are sent in a transaction that is always aborted.

        An aborted transaction keeps its id busy until its partitions have stored its end, so the
        answer is also no while the last trial waits for that. Raises ``KafkaException``.
        """
        self.client.init_transactions(TRIAL_SECONDS)
        self.client.begin_transaction()
        sent = all(self._produce_row(row) for row in rows)
        stored = sent and self.client.flush(TRIAL_SECONDS) == 0 and not self.refused
        self.client.abort_transaction(KAFKA_SECONDS)
        return stored

    def _aborts(self, e: KafkaException) -> bool:
        """Whether the broker refused the commit and only an abort can follow."""
        error: KafkaError = e.args[0]
        if not error.txn_requires_abort():
            return False
        self.overall = _refusal(error)
        return True

    def abort(self) -> bool:
        """Abort; returns whether it is certain that nothing is or will be committed."""
        try:
            self.client.abort_transaction(KAFKA_SECONDS)
        except KafkaException:
            return False
        return True

    def reason(self) -> str:
        """Why the batch was not published, in one line."""
        if self.slow:
            # What the abort then discarded was also refused, but that says nothing.
            late = f"no delivery for {STALL_SECONDS:.0f} s, or not all delivered within {MAX_SECONDS:.0f} s"
            return "; ".join([late, *(self.place(row) for row in self._firsts())])
        first = next(iter(self.refused.values()), None)
        cause = self.overall or first
        return "" if cause is None else cause.text

    def place(self, row: Stored) -> str:
        """Where ``row`` waits, as one phrase."""
        topic = self.prefix + row.topic
        return f"partition {self.partition_of(row)} of {topic} has not stored outbox row {row.id}"

    def partition_of(self, row: Stored) -> int:
        """The partition of ``row``."""
        return place_of(row.key, self.partitions)

    def _firsts(self) -> list[Stored]:
        """The first row of each partition that was not delivered."""
        firsts: dict[tuple[str, int], Stored] = {}
        for row in self._waiting.values():
            firsts.setdefault((row.topic, self.partition_of(row)), row)
        return list(firsts.values())

    def _produce_row(self, row: Stored) -> bool:
        """Returns False where nothing more can be sent in this transaction."""
        on_delivery = partial(self._delivery, row.id)
        try:
            headers = unpack_headers(row.headers)
            topic, partition = self.prefix + row.topic, self.partition_of(row)
            self._produce(topic, row.key, row.value, headers, partition, on_delivery)
        except KafkaException as e:
            refusal = _refusal(e.args[0])
            if refusal.code == KafkaError._STATE:
                # The transaction has already failed; the delivery reports have the reason.
                self.overall = self.overall or refusal
            else:
                self.refused[row.id] = refusal
            return False
        except (ValueError, TypeError) as e:
            self.refused[row.id] = Refusal(KafkaError._INVALID_ARG, f"cannot be sent: {e}")
            return False
        self._waiting[row.id] = row
        return True

    def _produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, str | bytes | None]],
        partition: int,
        on_delivery: Callable[[KafkaError | None, Any], None],
    ) -> None:
        while True:
            try:
                self.client.produce(
                    topic, key=key, value=value, headers=headers, partition=partition, on_delivery=on_delivery
                )
            except BufferError:
                # The client's queue is full: wait for deliveries.
                self.client.poll(0.1)
            else:
                return

    def _delivery(self, id: int, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            self.refused[id] = _refusal(error)
        else:
            self._waiting.pop(id, None)

    def _cursor_delivery(self, error: KafkaError | None, _: Any) -> None:
        self._cursor_stored = self._cursor_stored or error is None

    def _delivered(self, left: int) -> bool:
        """Wait while deliveries progress; returns whether all were delivered or refused."""
        began = time.monotonic()
        while (now_left := self.client.flush(STALL_SECONDS)) > 0:
            stalled = now_left >= left
            if stalled or time.monotonic() - began > MAX_SECONDS - STALL_SECONDS:
                self.slow = True
                self.stuck = self._firsts() if stalled and self._cursor_stored else []
                return False
            left = now_left
        return True


def _refusal(error: KafkaError) -> Refusal:
    return Refusal(error.code(), f"{error.name()}: {error.str()}")
