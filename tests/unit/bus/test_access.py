"""The table of access rights, compared with the contract it is derived from."""

from __future__ import annotations

from retrofill_core.contract.topics import CONSOLE, OPERATOR, REPUBLISHED, REQUESTER, RUN_STARTER, SERVICES, Topic
from retrofill_core.contract.topics_of import TRAFFIC
from retrofill_core.settings import Settings
from retrofill_tools.admin.access import table


def test_what_is_published_again_is_what_others_than_services_write() -> None:
    read = {topic for service in SERVICES.values() for topic in service.reads}
    assert {topic for topic, traffic in TRAFFIC.items() if traffic.open and topic in read} == REPUBLISHED


def test_nobody_but_services_and_people_logs_in() -> None:
    """Drivers do not: their host publishes what they report."""
    rows = table(Settings(topic_prefix="t."))
    assert rows.keys() == {*SERVICES, OPERATOR, REQUESTER, CONSOLE}
    assert {who for who, row in rows.items() if "t.run-reports" in row.writes} == {RUN_STARTER.name, OPERATOR}


def test_what_was_asked_for_beside_is_added() -> None:
    rows = table(Settings(topic_prefix="t.", openlineage_topic="lineage", callback_topics=["theirs"]))
    assert {who for who, row in rows.items() if "lineage" in row.writes} == {RUN_STARTER.name}
    assert {who for who, row in rows.items() if "theirs" in row.writes} == {"callback-runner"}


def test_who_asks_for_backfills_names_no_code() -> None:
    row = table(Settings(topic_prefix="t."))[REQUESTER]
    assert row.writes == {f"t.{Topic.BACKFILL_REQUESTS}"}
    assert f"t.{Topic.RUN_REPORTS}" not in row.reads


def test_the_console_reads_everything_and_only_asks() -> None:
    row = table(Settings(topic_prefix="t."))[CONSOLE]
    assert row.reads == {f"t.{topic}" for topic in Topic}
    assert (row.writes, row.deletes) == (frozenset({"t.backfill-requests", "t.callback-requests"}), frozenset())
