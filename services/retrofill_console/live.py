"""Live events: Kafka is read once, and its events go to every viewer, small or only counted."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as KafkaMessage

from retrofill.errors import UserError
from retrofill.log import get_log
from retrofill_core.bus.clients import reader
from retrofill_core.contract.base import Undecodable, decode_object
from retrofill_core.contract.topics import CLI_CLIENT, Topic
from retrofill_core.domain.run import RunState
from retrofill_core.settings import Settings
from retrofill_tools.client.connect import explain_kafka
from retrofill_tools.client.documents import encoded
from retrofill_tools.client.kafka import bounds_of, content, partitions_of

# What viewers are shown at once; the dead letters' bodies are not ours.
TOPICS = (
    Topic.BACKFILL_EVENTS,
    Topic.RUN_EVENTS,
    Topic.PIPELINE_EVENTS,
    Topic.DEADLINE_MISSED,
    Topic.CALLBACK_EVENTS,
    Topic.DEAD_LETTERS,
)
# The state of a run after an event. That of a lost attempt says it itself.
RUN_STATES = {
    "RunStarted": RunState.RUNNING,
    "RunHeldForReview": RunState.STAGED,
    "RunPublishing": RunState.PUBLISHING,
    "RunSucceeded": RunState.SUCCEEDED,
    "RunFailed": RunState.FAILED,
    "RunSplit": RunState.QUEUED,
    "RunCancelled": RunState.CANCELLED,
}
MAX_TEXT = 300
# What server-sent events are.
STREAM = "text/event-stream"
OBJECTS = ("runs", "runs_by_state")
DROPPED = ("version", "in_reply_to", "code_sha256")


@dataclass(frozen=True)
class Event:
    """A message, and its place: the number of its partition among all that are read, and its offset."""

    place: int
    offset: int
    topic: Topic
    body: Mapping[str, Any]

    @property
    def of_run(self) -> bool:
        return self.topic == Topic.RUN_EVENTS

    @property
    def backfill_id(self) -> str | None:
        found = self.body.get("backfill_id")
        return found if isinstance(found, str) else None


def shortened(topic: Topic, body: Mapping[str, Any]) -> dict[str, Any]:
    """The message without what pages do not need: tracebacks, paths, long lists."""
    found = {name: value for name, value in body.items() if name not in DROPPED and (_fits(value) or name in OBJECTS)}
    state = body.get("state") if body.get("type") == "RunAttemptLost" else RUN_STATES.get(str(body.get("type")))
    return {"topic": topic, **found, **({} if state is None else {"run_state": state})}


def _fits(value: Any) -> bool:
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= MAX_TEXT)


@dataclass
class Batch:
    """Events that are sent together; ``after`` is the place behind them, as an id."""

    events: Sequence[Event]
    after: str
    _encoded: dict[str | None, bytes] = field(default_factory=dict)

    def sent_to(self, backfill: str | None) -> bytes:
        """What viewers of a backfill, or of none, get. Made once for all of them."""
        if backfill not in self._encoded:
            self._encoded[backfill] = message("changes", _document(self.events, backfill), self.after)
        return self._encoded[backfill]


def _document(events: Sequence[Event], backfill: str | None) -> dict[str, Any]:
    shown = [each.body for each in events if not each.of_run or each.backfill_id == backfill]
    return {"events": shown, "moved": Counter(each.backfill_id for each in events if each.of_run and each.backfill_id)}


def message(event: str, document: Any, id: str | None = None) -> bytes:
    """One server-sent event. JSON has no line ends outside of texts, and escapes those in them."""
    head = b"" if id is None else b"id: " + id.encode() + b"\n"
    return head + b"event: " + event.encode() + b"\ndata: " + encoded(document) + b"\n\n"


_ID = re.compile(r"[0-9a-f]{1,16}(\.[0-9a-f]{1,16}){0,20000}")


# Two messages to a viewer are so far apart, or more: a page draws ten times a second.
APART_SECONDS = 0.1
# How many of the last events are kept for viewers that come back.
KEPT = 20_000
PING_SECONDS = 15.0
PING = b": still here\n\n"
# Of the browser's next try, after the console was gone.
RETRY = b"retry: 1000\n"
MISSED = "too much happened meanwhile"


class Hub:
    """Belongs to one event loop; only its thread may call this."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        # The number of the first batch kept, and how many events are kept.
        self._first, self._kept = 0, 0
        # Next offsets by place: behind all that was read, and where what is kept begins.
        self._next: list[int] = []
        self._begin: list[int] = []
        self._pending: list[Event] = []
        self._sent_at = float("-inf")
        self._problem: str | None = None
        self._waiting: set[asyncio.Event] = set()
        self._closed = False

    @property
    def version(self) -> int:
        """Rises whenever something happened."""
        return self._first + len(self._batches)

    @property
    def viewers(self) -> int:
        return len(self._waiting)

    @property
    def problem(self) -> str | None:
        """Why nothing is read."""
        return self._problem

    def start_at(self, places: Sequence[int]) -> None:
        """Begin at these offsets. What was kept is no longer joined to what follows."""
        self._first, self._kept = self.version + 1, 0
        self._batches.clear()
        self._pending.clear()
        self._next, self._begin = list(places), list(places)
        self._wake()

    def add(self, events: Sequence[Event]) -> None:
        """Take new events, in the order of each place."""
        if not self._pending:
            left = self._sent_at + APART_SECONDS - time.monotonic()
            asyncio.get_running_loop().call_later(max(left, 0.0), self._flush)
        self._pending += events

    def report(self, problem: str | None) -> None:
        """Tell viewers that nothing is read, and why, or that it is again."""
        if problem != self._problem:
            self._problem = problem
            self._wake()

    def close(self) -> None:
        """End all streams; browsers try again."""
        self._closed = True
        self._wake()

    def _flush(self) -> None:
        events, self._pending = self._pending, []
        if not events:
            return
        for event in events:
            self._next[event.place] = max(self._next[event.place], event.offset + 1)
        self._batches.append(Batch(events, written(self._next)))
        self._kept += len(events)
        self._sent_at = time.monotonic()
        while self._kept > KEPT and len(self._batches) > 1:
            self._forget()
        self._wake()

    def _forget(self) -> None:
        oldest = self._batches.popleft()
        self._first += 1
        self._kept -= len(oldest.events)
        for event in oldest.events:
            self._begin[event.place] = max(self._begin[event.place], event.offset + 1)

    def _wake(self) -> None:
        for each in self._waiting:
            each.set()

    async def stream(self, last_id: str | None, backfill: str | None) -> AsyncIterator[bytes]:
        """Server-sent events for a viewer, from behind ``last_id`` if it was here before."""
        changed = asyncio.Event()
        self._waiting.add(changed)
        try:
            hello = RETRY + message("hello", {"viewers": self.viewers})
            missed = b"" if last_id is None else self._caught_up(last_id, backfill)
            at, told = self.version, None
            yield hello + missed
            while not self._closed:
                if told != self._problem:
                    told = self._problem
                    yield message("kafka", {"error": told})
                if at < self._first:
                    at = self.version
                    yield message("reload", {"why": MISSED})
                while self._first <= at < self.version:
                    yield self._batches[at - self._first].sent_to(backfill)
                    at += 1
                if await self._quiet(changed):
                    yield PING
        finally:
            self._waiting.discard(changed)

    async def _quiet(self, changed: asyncio.Event) -> bool:
        """Wait for a change; whether none came for a while."""
        try:
            await asyncio.wait_for(changed.wait(), PING_SECONDS)
        except TimeoutError:
            return True
        changed.clear()
        return False

    def _caught_up(self, last_id: str, backfill: str | None) -> bytes:
        """All that a viewer missed since that place, in one message."""
        since = read(last_id)
        if since is None or not between(self._begin, since, self._next):
            return message("reload", {"why": MISSED})
        missed = [each for batch in self._batches for each in batch.events if each.offset >= since[each.place]]
        return Batch(missed, written(self._next)).sent_to(backfill)


def written(places: Sequence[int]) -> str:
    """Offsets in hexadecimal, with dots between."""
    return ".".join(f"{each:x}" for each in places)


def read(text: str) -> list[int] | None:
    """The offsets; ``None`` if that is not one of ours."""
    return [int(each, 16) for each in text.split(".")] if _ID.fullmatch(text) else None


def between(first: Sequence[int], places: Sequence[int], last: Sequence[int]) -> bool:
    """Whether all are, each on its own partition."""
    return len(first) == len(places) == len(last) and all(
        low <= each <= high for low, each, high in zip(first, places, last, strict=True)
    )


log = get_log(__name__)
POLL_SECONDS = 0.25
AT_ONCE = 500
RETRY_SECONDS = 1.0
# How long a broker may be silent after an error before it is asked whether it is there.
ASK_SECONDS = 2.0
# How far before the end of each partition it begins, so that viewers of an earlier console miss nothing.
BEHIND = 100


class LiveReader(threading.Thread):
    """Reads events until stopped, and gives them to a hub in its event loop."""

    def __init__(self, settings: Settings, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="live-reader", daemon=True)
        self._settings = settings
        self._hub = hub
        self._loop = loop
        self._stopping = threading.Event()
        self._error: KafkaError | None = None

    def run(self) -> None:
        """Read; after an error, begin again."""
        while not self._stopping.is_set():
            try:
                self._read()
            except (KafkaException, UserError) as e:
                why = explain_kafka(self._settings, e) if isinstance(e, KafkaException) else str(e)
                log.warning("live_reader_waits", error=why)
                self._tell(self._hub.report, why)
                self._stopping.wait(RETRY_SECONDS)

    def stop(self) -> None:
        """End the thread at its next wake-up, without waiting for it."""
        self._stopping.set()

    def _read(self) -> None:
        consumer = reader(self._settings, CLI_CLIENT, error_cb=self._note)
        try:
            places, positions = self._begin(consumer)
            self._tell(self._hub.start_at, positions)
            self._tell(self._hub.report, None)
            while not self._stopping.is_set():
                self._pass_on(consumer.consume(AT_ONCE, POLL_SECONDS), places)
                self._look_after(consumer)
        finally:
            consumer.close()

    def _begin(self, consumer: Consumer) -> tuple[dict[tuple[str, int], int], list[int]]:
        """Assign all partitions shortly before their ends; their places, and their first offsets."""
        assigned = []
        for topic in TOPICS:
            name = self._settings.topic_prefix + topic
            for partition in partitions_of(consumer, name):
                first, end = bounds_of(consumer, name, partition)
                assigned.append(TopicPartition(name, partition, max(first, end - BEHIND)))
        consumer.assign(assigned)
        return {(each.topic, each.partition): n for n, each in enumerate(assigned)}, [each.offset for each in assigned]

    def _pass_on(self, messages: list[KafkaMessage], places: dict[tuple[str, int], int]) -> None:
        events = [event for each in messages if (event := self._event(each, places)) is not None]
        if events:
            self._tell(self._hub.add, events)

    def _event(self, found: KafkaMessage, places: dict[tuple[str, int], int]) -> Event | None:
        there = content(found)
        if there is None:
            return None
        name, partition, offset = there.topic() or "", there.partition() or 0, there.offset() or 0
        topic = Topic(name.removeprefix(self._settings.topic_prefix))
        place = places[name, partition]
        if topic == Topic.DEAD_LETTERS:
            return Event(place, offset, topic, {"topic": topic, "type": "DeadLetter", "place": f"{partition}:{offset}"})
        try:
            return Event(place, offset, topic, shortened(topic, decode_object(there.value() or b"")))
        except Undecodable:  # another producer's message
            return None

    def _note(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._error = error

    def _look_after(self, consumer: Consumer) -> None:
        """After the connection was lost: say so until Kafka answers again. The client goes on by itself."""
        if self._error is None:
            return
        try:
            consumer.list_topics(timeout=ASK_SECONDS)
        except KafkaException:
            self._tell(self._hub.report, f"Kafka at {self._settings.bootstrap_servers()} does not answer")
            return
        self._error = None
        self._tell(self._hub.report, None)

    def _tell(self, call: Callable[..., object], *arguments: object) -> None:
        # The loop is gone if the console was stopped meanwhile.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)
