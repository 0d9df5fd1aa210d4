"""Callbacks of runs and backfills, written in the transaction of what they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from retrofill.log import get_log
from retrofill_core.bus.transaction import Transaction
from retrofill_core.contract.deadlines import CallbackRequested
from retrofill_core.contract.partitioning import partitions_of
from retrofill_core.contract.topics import Topic
from retrofill_core.domain.callback import Occasion, order_key
from retrofill_core.domain.callback_rule import CallbackRule
from retrofill_core.domain.target import options_of
from retrofill_core.domain.templates import expand
from retrofill_core.store import callbacks, listed
from retrofill_core.store.callbacks import NewCallback

log = get_log(__name__)


@dataclass(frozen=True)
class Listed:
    """A callback to insert: that of ``rule``, at ``place`` of the list for ``occasion``.

    Without an ``event``, it is called with what it collects until its window ends.
    """

    rule: CallbackRule
    place: int
    occasion: Occasion
    backfill_id: str
    pipeline: str
    kwargs: Mapping[str, Any]
    event: Mapping[str, Any] = field(default_factory=dict)


def insert_listed(tx: Transaction, calls: Sequence[Listed], now: datetime, partitions: int) -> list[int]:
    """Insert callbacks, with a hint to the runner for each. Returns their ids, in order."""
    if not calls:
        return []
    ids = listed.next_ids(tx.conn, len(calls))
    shards = partitions_of(ids, partitions)
    callbacks.insert_all(tx.conn, [_new(*each, now) for each in zip(calls, ids, shards, strict=True)])
    for id, call in zip(ids, calls, strict=True):
        tx.emit(Topic.CALLBACK_REQUESTS, id, CallbackRequested(deadline_id=id, callback=call.rule.callback.label))
    return ids


def expanded(kwargs: Mapping[str, Any], fields: Mapping[str, Any], **about: object) -> dict[str, Any]:
    """Expand templates; if that fails, log it and keep the raw kwargs: the call goes ahead."""
    try:
        return expand(kwargs, fields)
    except ValueError as e:
        log.warning("kwargs_not_expanded", error=str(e), **about)
        return dict(kwargs)


def _new(call: Listed, id: int, shard: int, now: datetime) -> NewCallback:
    collects = not call.event
    target = call.rule.callback
    options = options_of(target, at_most_once=call.rule.at_most_once)
    return NewCallback(
        deadline_id=id,
        shard=shard,
        name=target.label,
        kind=target.kind,
        options=options,
        kwargs=dict(call.kwargs),
        event=dict(call.event),
        pipeline=call.pipeline,
        next_try_at=now + timedelta(seconds=call.rule.window_seconds if collects else 0.0),
        backfill_id=call.backfill_id,
        occasion=str(call.occasion),
        place=call.place,
        collects=collects,
        order_key=order_key(target.kind, target.label, options, call.backfill_id),
    )
