"""Events that Kafka refuses: the relay isolates and sets aside the refused event, or holds its
topic, and publishes all others.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request

import psycopg
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from psycopg.types.json import Jsonb
from tests.support.installation import Installation, until
from tests.support.replica import Replica

from retrofill_core.bus.clients import admin
from retrofill_core.contract.topics import Topic

SMALL = 50_000


def limit_messages(made: Installation, topic: Topic) -> None:
    """Lower a topic's ``max.message.bytes`` below the size of the events."""
    entry = ConfigEntry("max.message.bytes", str(SMALL), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, f"{made.settings.topic_prefix}{topic}", incremental_configs=[entry])
    client = admin(made.settings, "test")
    for future in client.incremental_alter_configs([resource]).values():
        future.result(20)


def emit(made: Installation, *rows: tuple[Topic, bytes], key: bytes = b"k") -> list[int]:
    """Insert rows into the planner's outbox in one transaction. Returns their ids."""
    with psycopg.connect(made.settings.dsn_of("owner")) as conn:
        ids = [
            conn.execute(
                "INSERT INTO retrofill.backfill_planner_outbox (topic, key, value, headers) "
                "VALUES (%s, %s, %s, %s) RETURNING id",
                [str(topic), key, value, Jsonb([["ce_id", f"{n}"]])],
            ).fetchone()
            for n, (topic, value) in enumerate(rows)
        ]
        conn.execute("SELECT pg_notify('retrofill_outbox_backfill_planner', '')")
    return [id for (id,) in (row for row in ids if row is not None)]


def values(made: Installation, topic: Topic) -> list[bytes]:
    return [event.value for event in made.events(topic)]


def ready(made: Installation, replica: Replica) -> dict[str, str | None]:
    (file,) = (made.settings.home / "run").glob(f"*.{replica.process.pid}.ready")
    try:
        with urllib.request.urlopen(json.loads(file.read_text())["http"] + "/readyz", timeout=10) as answer:
            body = answer.read()
    except urllib.error.HTTPError as e:
        body = e.read()
    found: dict[str, str | None] = json.loads(body)
    return found


def test_one_event_that_cannot_be_published_is_set_aside_and_the_rest_goes_on(installation: Installation) -> None:
    limit_messages(installation, Topic.BACKFILL_EVENTS)
    planner = installation.start("backfill-planner")
    good = [str(n).encode() for n in range(40)]
    bad = os.urandom(2 * SMALL)
    rows = [(Topic.BACKFILL_EVENTS, value) for value in (*good[:23], bad, *good[23:])]
    ids = emit(installation, *rows)
    installation.wait_published()
    assert values(installation, Topic.BACKFILL_EVENTS) == good
    (letter,) = installation.events(Topic.DEAD_LETTERS)
    assert (letter.key, letter.value) == ("k", bad)
    assert letter.headers["retrofill_origin_topic"] == Topic.BACKFILL_EVENTS
    assert f"outbox row {ids[23]}" in letter.headers["retrofill_reason"]
    assert "MSG_SIZE_TOO_LARGE" in letter.headers["retrofill_reason"]
    (said,) = [json.loads(line) for line in planner.said().splitlines() if '"event_refused"' in line]
    assert (said["outbox_row"], said["topic"], said["key"]) == (ids[23], Topic.BACKFILL_EVENTS, "k")
    assert "MSG_SIZE_TOO_LARGE" in said["reason"]


def test_a_dead_letter_that_is_refused_too_stays_in_postgres(installation: Installation) -> None:
    limit_messages(installation, Topic.BACKFILL_EVENTS)
    limit_messages(installation, Topic.DEAD_LETTERS)
    installation.start("backfill-planner")
    bad = os.urandom(2 * SMALL)
    emit(installation, (Topic.BACKFILL_EVENTS, bad), (Topic.BACKFILL_EVENTS, b"after"))
    installation.wait_published()
    assert values(installation, Topic.BACKFILL_EVENTS) == [b"after"]
    (kept,) = installation.query("SELECT topic, value, reason FROM backfill_planner_outbox_refused")
    assert (kept["topic"], bytes(kept["value"])) == (Topic.DEAD_LETTERS, bad)
    assert "MSG_SIZE_TOO_LARGE" in kept["reason"]


def test_a_deleted_topic_holds_only_its_own_events_until_it_is_there_again(installation: Installation) -> None:
    planner = installation.start("backfill-planner")
    gone = f"{installation.settings.topic_prefix}{Topic.PIPELINE_EVENTS}"
    client: AdminClient = admin(installation.settings, "test")
    client.delete_topics([gone])[gone].result(20)
    emit(
        installation,
        (Topic.BACKFILL_EVENTS, b"1"),
        (Topic.PIPELINE_EVENTS, b"first"),
        (Topic.BACKFILL_EVENTS, b"2"),
        (Topic.PIPELINE_EVENTS, b"second"),
    )
    until(lambda: values(installation, Topic.BACKFILL_EVENTS) == [b"1", b"2"], "the others go on", planner.said)
    assert installation.value("SELECT count(*) FROM backfill_planner_outbox") == 2
    assert f"topic {Topic.PIPELINE_EVENTS} rejects events" in (ready(installation, planner)["events"] or "")
    client.create_topics([NewTopic(gone, installation.settings.partitions, 1)])[gone].result(20)
    installation.wait_published()
    assert values(installation, Topic.PIPELINE_EVENTS) == [b"first", b"second"]
    assert installation.events(Topic.DEAD_LETTERS) == []
    assert ready(installation, planner)["events"] == "ok"


def test_a_batch_is_bounded_in_bytes(installation: Installation) -> None:
    large = os.urandom(900_000)
    emit(installation, *((Topic.BACKFILL_EVENTS, large) for _ in range(20)))
    installation.start("backfill-planner")
    installation.wait_published()
    # 18 MB in batches of at most 8 MB.
    assert installation.value("SELECT batch FROM backfill_planner_relay") == 3
    assert len(values(installation, Topic.BACKFILL_EVENTS)) == 20
