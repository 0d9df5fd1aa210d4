"""Logs what was decided about a batch that was not published, and holds the topics that it is about."""

from __future__ import annotations

from datetime import UTC, datetime

from retrofill.log import get_log
from retrofill_core.bus.observability import metrics
from retrofill_core.bus.relay.holds import Holds
from retrofill_core.bus.relay.numbering import Batch
from retrofill_core.bus.relay.refusals import Decision, HeldTopics, Narrow, Stuck
from retrofill_core.bus.relay.sending import Sending
from retrofill_core.store.outbox import Stored, unpack_headers

log = get_log(__name__)


def report(decision: Decision, batch: Batch, sending: Sending, holds: Holds) -> None:
    """Log ``decision`` and hold its topics."""
    match decision:
        case HeldTopics(topics):
            for topic, reason in topics.items():
                holds.hold(topic, reason)
                metrics.RETRIES.labels("relay", "topic").inc()
                log.error(
                    "topic_refused",
                    topic=sending.prefix + topic,
                    reason=reason,
                    what_to_do="recreate the topic ('retrofill init' creates missing ones) or grant the right to "
                    "write to it; its events wait in the outbox, other topics continue",
                )
        case Stuck(topics):
            for topic in sorted(topics):
                _hold_stuck(topic, [row for row in sending.stuck if row.topic == topic], sending, holds)
        case Narrow(rows):
            metrics.RETRIES.labels("relay", "narrow").inc()
            log.info("batch_narrowed", batch=batch.number, rows=len(batch.rows), to=rows)
        case _:
            pass


def _hold_stuck(topic: str, rows: list[Stored], sending: Sending, holds: Holds) -> None:
    places = "; ".join(sending.place(row) for row in rows)
    holds.hold(topic, f"nothing stored since {stamp()}: {places}", rows)
    metrics.RETRIES.labels("relay", "topic").inc()
    for row in rows:
        log.error(
            "topic_stuck",
            topic=sending.prefix + topic,
            partition=sending.partition_of(row),
            outbox_row=row.id,
            type=_text(dict(unpack_headers(row.headers)).get("ce_type")),
            key=_text(row.key),
            what_to_do="bring back the partition's leader, or as many replicas as the topic's min.insync.replicas; "
            "the topic's events wait in the outbox, other topics continue",
        )


def _text(raw: str | bytes | None) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else raw or ""


def stamp() -> str:
    """The present time, to the second."""
    return datetime.now(UTC).isoformat(" ", "seconds")
