"""Topics hold every committed event once and nothing else, per key in commit order."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from retrofill_core.contract.topics import COMPACTED, Topic
from tests.chaos.history import History, Row
from tests.chaos.promises.messages import PUBLISHED
from tests.support.events import Event

# Topics that only services write. The others hold more than was committed, or are compacted.
WHOLE = tuple(topic for topic in (*PUBLISHED, Topic.DEAD_LETTERS) if topic not in COMPACTED)
Told = tuple[str | None, str]


def topics_hold_what_was_committed(history: History) -> Iterator[str]:
    """Each committed event appears once: none lost, duplicated or published after a rollback."""
    written: dict[str, Counter[tuple[str, Told]]] = defaultdict(Counter)
    for row in history.committed:
        written[row["topic"]][row["key"], _committed(row)] += 1
    for topic in Topic:
        found = Counter((event.key, _fields_of(event)) for event in history.of(topic))
        if topic not in COMPACTED:
            for (key, fields), count in (written[topic] - found).items():
                yield f"{topic}: {count} × {key} {fields[0]} was committed and is not there"
        if topic in WHOLE:
            for (key, fields), count in (found - written[topic]).items():
                yield f"{topic}: {count} × {key} {fields[0]} was not committed and is there"


def topics_are_in_commit_order(history: History) -> Iterator[str]:
    """Per service, topic and key. Two services have no common order."""
    order: dict[tuple[str, str, str], list[Told]] = defaultdict(list)
    services: dict[tuple[str, str, Told], str] = {}
    for row in history.committed:
        fields = _committed(row)
        order[row["service"], row["topic"], row["key"]].append(fields)
        services[row["topic"], row["key"], fields] = row["service"]
    found: dict[tuple[str, str, str], list[Told]] = defaultdict(list)
    for topic in (*WHOLE, *(COMPACTED & set(PUBLISHED))):
        for event in history.of(topic):
            fields = _fields_of(event)
            service = services.get((str(topic), event.key, fields))
            if service is not None:
                found[service, str(topic), event.key].append(fields)
    for place, published in found.items():
        if not _is_subsequence(published, order[place]):
            yield f"{place[1]}: events of {place[2]} by {place[0]} are in another order than their commits"


def _committed(row: Row) -> Told:
    return row["ce_id"], row["digest"] or digest(b"")


def _fields_of(event: Event) -> Told:
    """The event's ``ce_id`` and digest.

    The triggers record no ``ce_id`` that Postgres cannot store.
    """
    ce_id = event.headers.get("ce_id")
    return (None if ce_id is None or "\x00" in ce_id else ce_id), digest(event.value)


def digest(value: bytes) -> str:
    """The MD5 that Postgres computes; a null value counts as empty."""
    return hashlib.md5(value, usedforsecurity=False).hexdigest()


def _is_subsequence(part: Iterable[Told], whole: Iterable[Told]) -> bool:
    rest = iter(whole)
    return all(each in rest for each in part)


PROMISES = (topics_hold_what_was_committed, topics_are_in_commit_order)
