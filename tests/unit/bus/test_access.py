"""The table of access rights, compared with the contract it is derived from."""

from __future__ import annotations

from retrofill.admin.access import table
from retrofill.contract.topics import DRIVER, REPUBLISHED, REQUESTER, SERVICES, Topic
from retrofill.contract.topics_of import TRAFFIC
from retrofill.settings import Settings


def test_what_is_published_again_is_what_others_than_services_write() -> None:
    read = {topic for service in SERVICES.values() for topic in service.reads}
    assert {topic for topic, traffic in TRAFFIC.items() if traffic.open and topic in read} == REPUBLISHED


def test_a_driver_reports_and_nothing_else() -> None:
    row = table(Settings(topic_prefix="t."))[DRIVER]
    assert (row.reads, row.writes, row.deletes, row.groups, row.transactional_ids) == (
        frozenset(), {"t.run-reports"}, frozenset(), (), ()
    )  # fmt: skip


def test_what_was_asked_for_beside_is_added() -> None:
    rows = table(Settings(topic_prefix="t.", openlineage_topic="lineage", callback_topics=["theirs"]))
    assert {who for who, row in rows.items() if "lineage" in row.writes} == {DRIVER}
    assert {who for who, row in rows.items() if "theirs" in row.writes} == {"callback-runner"}


def test_who_asks_for_backfills_names_no_code() -> None:
    row = table(Settings(topic_prefix="t."))[REQUESTER]
    assert row.writes == {f"t.{Topic.BACKFILL_REQUESTS}"}
    assert f"t.{Topic.RUN_REPORTS}" not in row.reads
