"""Each poison message becomes one dead letter with its bytes; no other message does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from retrofill_core.contract.topics import Topic
from tests.chaos.history import POISON, History
from tests.support.events import Event

ORIGIN = ("retrofill_origin_topic", "retrofill_origin_partition", "retrofill_origin_offset")


def every_poison_has_its_dead_letter(history: History) -> Iterator[str]:
    """One dead letter per poison message, with its key, bytes and origin."""
    letters: dict[tuple[str, ...], list[Event]] = defaultdict(list)
    for letter in history.of(Topic.DEAD_LETTERS):
        letters[tuple(letter.headers.get(name, "") for name in ORIGIN)].append(letter)
    there = set()
    for topic, events in history.poison.items():
        for event in events:
            there.add(event.key)
            found = letters[topic, str(event.partition), str(event.offset)]
            if len(found) != 1:
                yield f"{event.key} at {topic} {event.partition}@{event.offset} has {len(found)} dead letters"
            elif (found[0].key, found[0].value) != (event.key, event.value):
                yield f"the dead letter of {event.key} holds {found[0].value[:80]!r} instead of {event.value[:80]!r}"
    for key in history.poisoned - there:
        yield f"{key} was acknowledged by the broker and is on no topic"


def nothing_else_is_put_aside(history: History) -> Iterator[str]:
    """No valid message is dead-lettered.

    A permanently failed callback leaves one letter, for a replay.
    """
    failed = {str(row["deadline_id"]) for row in history.rows("callback") if row["state"] == "failed"}
    for letter in history.of(Topic.DEAD_LETTERS):
        if letter.key.startswith(POISON):
            continue
        if letter.headers.get(ORIGIN[0]) == Topic.CALLBACK_REQUESTS and letter.key in failed:
            failed.discard(letter.key)
            continue
        yield f"a dead letter: {letter.key} {dict(letter.headers)}"
    for id in sorted(failed):
        yield f"callback {id} failed for good and has no dead letter"


PROMISES = (every_poison_has_its_dead_letter, nothing_else_is_put_aside)
