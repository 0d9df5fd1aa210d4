"""Publishes what a viewer asks for, as the command line does, and waits for the planner's reply."""

from __future__ import annotations

from typing import Any

from retrofill_console.answers import Refused
from retrofill_console.console import Console
from retrofill_core.contract.base import Message
from retrofill_core.contract.topics import Topic
from retrofill_tools.client.kafka import ask

ANSWER_SECONDS = 30.0


def command(console: Console, id: str, request: Message) -> dict[str, Any]:
    """Ask for a backfill, or for a change of one. Raises ``Refused``."""
    return {"id": id, "answer": answered(ask(console.settings, Topic.BACKFILL_REQUESTS, id, request, ANSWER_SECONDS))}


def answered(reply: Message) -> dict[str, Any]:
    """A reply as JSON. Raises ``Refused`` if it is a refusal."""
    if reply.type.endswith("Rejected"):
        raise Refused(reply)
    return reply.model_dump(mode="json", by_alias=True, exclude_none=True)
