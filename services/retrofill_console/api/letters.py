"""Dead letters: those on their topic, and those that the console replays."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from retrofill.errors import UserError
from retrofill_console.answers import Refused
from retrofill_console.api.bodies import Places
from retrofill_console.api.parameters import limit
from retrofill_console.asking import ANSWER_SECONDS
from retrofill_console.console import Console
from retrofill_core.contract.topics import REQUESTS, Topic
from retrofill_tools.client.dead_letters import Letter, find_letter, newest, origin_of, republish
from retrofill_tools.client.kafka import reading_topics

# A letter may have 1.9 MB. All are read again at each new one.
VALUE_BYTES = 10_000


def listed(console: Console, request: Request) -> list[dict[str, Any]]:
    """Dead letters, newest first; ``replay``: why the console does not replay it.

    ``value_bytes``: the length of a value of which only the start is there.
    """
    settings = console.settings
    with reading_topics(settings) as consumer:
        found = newest(consumer, settings.topic_prefix + Topic.DEAD_LETTERS, limit(request), VALUE_BYTES)
    return [{**letter.as_json(), "replay": _why_not(letter)} for letter in found]


def replay(console: Console, body: Places, _: str | None) -> dict[str, Any]:
    """Replay each; one that fails does not keep the others from it."""
    return {"results": [{"place": place, "error": _replay(console, place)} for place in body.places]}


def _why_not(letter: Letter) -> str | None:
    """The console may only publish requests; other messages are the operator's matter."""
    try:
        topic = origin_of(letter)
    except UserError as e:
        return str(e)
    return (
        None
        if topic in REQUESTS
        else f"{topic} is not a topic of requests: retrofill dead-letters replay {letter.place}"
    )


def _replay(console: Console, place: str) -> str | None:
    try:
        letter = find_letter(console.settings, place)
        if (why := _why_not(letter)) is not None:
            return why
        answer = republish(console.settings, letter, origin_of(letter), ANSWER_SECONDS)
    except UserError as e:
        return str(e)
    return str(Refused(answer)) if answer is not None and answer.type.endswith("Rejected") else None
