"""``retrofill dead-letters``: list, replay and drop messages that no service could handle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from confluent_kafka import Consumer

from retrofill.errors import UserError, WrongUsage
from retrofill.wording import plural
from retrofill_core.contract.backfills import BackfillCommandRejected, BackfillRejected
from retrofill_core.contract.deadlines import CallbackReplayRejected
from retrofill_core.contract.pipelines import PipelineRejected
from retrofill_core.contract.topics import Topic
from retrofill_tools.cli.asking import Yes, confirm
from retrofill_tools.cli.options import ANSWER_SECONDS, AsJson, Form, Limit, TimeLimit, takes_form
from retrofill_tools.cli.output import instant, print_document, print_json, print_list, print_text
from retrofill_tools.client.connect import load_settings
from retrofill_tools.client.dead_letters import Letter, find_letter, newest, origin_of, read_range, republish
from retrofill_tools.client.kafka import bounds_of, delete_before, partitions_of, reading_topics

group = typer.Typer(
    name="dead-letters", help="List, replay and drop messages that could not be handled.", no_args_is_help=True
)


@group.command("list")
@takes_form
def list_(limit: Limit = 50, *, form: Form) -> None:
    """List dead letters, newest first."""
    settings = load_settings()
    whole = form in (Form.JSON, Form.YAML)
    with reading_topics(settings) as consumer:
        letters = newest(consumer, settings.topic_prefix + Topic.DEAD_LETTERS, limit, None if whole else 0)
    if whole:
        return print_document(form, [letter.as_json() for letter in letters])
    if form == Form.NAME:
        return print_list(form, letters, [], name=lambda each: each.place, empty="")
    return _print_letters(letters)


def _print_letters(letters: Sequence[Letter]) -> None:
    """Two lines per letter: its place and key, and why it was refused."""
    if not letters:
        print_text("no dead letters")
    for letter in letters:
        at = instant(datetime.fromtimestamp(letter.timestamp_ms // 1000, UTC))
        key = "–" if letter.key is None else letter.key.decode("utf-8", "replace")
        print_text(f"{letter.place}  {at} UTC  {letter.ours('origin_topic')}  {key[:80]}")
        print_text(f"    {letter.ours('reason')}")


@group.command()
def replay(
    place: Annotated[str, typer.Argument(metavar="P:O", help="The letter's place, as 'list' prints it.")],
    timeout: TimeLimit = ANSWER_SECONDS,
    as_json: AsJson = False,
) -> None:
    """Republish a dead letter unchanged to its original topic, and wait for the reply, if any."""
    settings = load_settings()
    letter = find_letter(settings, place)
    topic = origin_of(letter)
    answer = republish(settings, letter, topic, timeout)
    if as_json:
        answered = None if answer is None else answer.model_dump(mode="json", by_alias=True, exclude_none=True)
        print_json({"place": place, "topic": settings.topic_prefix + topic, "answer": answered})
    else:
        print_text(f"published again on {settings.topic_prefix}{topic}{f': {answer.type}' if answer else ''}")
    if isinstance(answer, BackfillRejected | BackfillCommandRejected | PipelineRejected | CallbackReplayRejected):
        raise UserError(answer.message)


@group.command()
def drop(
    place: Annotated[
        str | None,
        typer.Argument(metavar="[P:O]", help="The last letter to drop; earlier ones in its partition are dropped too."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Drop all current letters of all partitions.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete dead letters: P:O and all before it in its partition, or all.

    Kafka can only delete the beginning of a partition, not single messages. Shows the number of
    letters and asks for confirmation. This cannot be undone. Only the dead-letter topic is changed.
    """
    if (place is None) != everything:
        raise WrongUsage("give the last letter to drop, as 'retrofill dead-letters list' prints it, or --all")
    settings = load_settings()
    topic = settings.topic_prefix + Topic.DEAD_LETTERS
    last = None if place is None else find_letter(settings, place)
    with reading_topics(settings) as consumer:
        doomed = up_to(consumer, topic, last)
    count = sum(doomed.counts.values())
    if count:
        what = "all of them" if last is None else f"those of partition {last.partition} up to {place}"
        confirm(f"permanently delete {plural(count, 'dead letter')}, {what}", yes=yes)
        delete_before(settings, topic, doomed.ends)
    if as_json:
        print_json({"dropped": count, "by_partition": doomed.counts})
    else:
        print_text(f"dropped {plural(count, 'dead letter')}")


@dataclass(frozen=True)
class Doomed:
    """By partition: the offset before which letters will be dropped, and their number."""

    ends: dict[int, int]
    counts: dict[int, int]


def up_to(consumer: Consumer, topic: str, last: Letter | None) -> Doomed:
    """The letters up to ``last`` in its partition, or all current letters."""
    ends: dict[int, int] = {}
    counts: dict[int, int] = {}
    for partition in partitions_of(consumer, topic) if last is None else [last.partition]:
        first, end = bounds_of(consumer, topic, partition)
        ends[partition] = end if last is None else last.offset + 1
        counts[partition] = sum(1 for _ in read_range(consumer, topic, partition, first, ends[partition]))
    return Doomed(ends, counts)
