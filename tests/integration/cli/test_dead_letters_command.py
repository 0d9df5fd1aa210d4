"""``retrofill dead-letters``: list, replay and drop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.definitions import daily, key_on
from tests.support.installation import Installation, until
from tests.support.servers import Servers
from tests.support.terminal import point_at

from retrofill_core.bus.envelope import Record, dead_letter, headers_of
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.topics import Topic


@pytest.fixture(scope="module")
def made(servers: Servers) -> Iterator[Installation]:
    """An installation with its own planner, because these tests drop dead letters."""
    installation = servers.installation()
    try:
        installation.start("backfill-planner")
        installation.apply(daily())
        yield installation
    finally:
        installation.close()


@pytest.fixture(autouse=True)
def _here(made: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    point_at(made, monkeypatch)


@pytest.fixture
def poison(made: Installation, cli):
    """Create three dead letters in each of two partitions, and no others. Returns their positions
    by partition.
    """
    cli("dead-letters", "drop", "--all", "--yes")
    for partition in (0, 1):
        for n in range(3):
            made.publish(Topic.BACKFILL_REQUESTS, key_on(partition), b"{", headers={"ce_id": f"c-{n}"})
    until(lambda: len(made.events(Topic.DEAD_LETTERS)) == 6, "all dead letters")
    return {p: [f"{p}:{e.offset}" for e in made.events(Topic.DEAD_LETTERS) if e.partition == p] for p in (0, 1)}


def places(cli) -> set[str]:
    return {letter["place"] for letter in cli("dead-letters", "list", "--json").document}


def test_what_was_refused_is_shown_with_its_origin(cli, made, poison):
    (letter, *_) = [x for x in cli("dead-letters", "list", "--json").document if x["place"] == poison[1][0]]
    assert letter["headers"]["ce_id"] == "c-0"
    assert (letter["key"], letter["value"]) == (key_on(1), "{")
    assert (letter["origin_topic"], letter["origin_partition"]) == ("backfill-requests", "1")
    assert int(letter["origin_offset"]) >= 0
    assert letter["service"] == "backfill-planner"
    assert "not JSON" in letter["reason"]
    assert letter["dead_at"] and letter["at"]


def test_one_is_dropped_with_those_before_it_in_its_partition(cli, poison):
    result = cli("dead-letters", "drop", poison[0][1], "--yes", "--json")
    assert (result.status, result.document) == (0, {"dropped": 2, "by_partition": {"0": 2}})
    assert places(cli) == {poison[0][2], *poison[1]}
    again = cli("dead-letters", "drop", poison[0][1], "--yes")
    assert again.status == 1
    assert "there is no dead letter" in again.err
    assert "there is no dead letter" in cli("dead-letters", "replay", poison[0][0]).err


@pytest.mark.long
def test_all_are_dropped_and_new_ones_come(cli, made, poison):
    assert cli("dead-letters", "drop", "--all", "--yes").out == "dropped 6 dead letters\n"
    assert cli("dead-letters", "list").out == "no dead letters\n"
    assert cli("dead-letters", "drop", "--all", "--yes").out == "dropped 0 dead letters\n"
    made.publish(Topic.BACKFILL_REQUESTS, key_on(0), b"[]")
    until(lambda: len(made.events(Topic.DEAD_LETTERS)) == 1, "the new dead letter")
    assert len(places(cli)) == 1


def test_nothing_is_dropped_without_a_yes(cli, poison):
    result = cli("dead-letters", "drop", poison[1][0])
    assert (result.status, result.out) == (2, "")
    assert f"to permanently delete 1 dead letter, those of partition 1 up to {poison[1][0]}, add --yes" in result.err
    assert places(cli) == {*poison[0], *poison[1]}


@pytest.mark.parametrize("arguments", [[], ["0:0", "--all"], ["first"]])
def test_what_to_drop_has_to_be_said(cli, arguments):
    result = cli("dead-letters", "drop", *arguments, "--yes")
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)


def test_a_letter_that_is_replayed_twice_happens_once(cli, made):
    """A dead letter that an older planner could not read becomes valid after an upgrade and is
    followed.
    """
    body = BackfillRequested.model_validate({"pipeline": "p", "from": "2020-01-01", "to": "2020-01-02"})
    headers = headers_of(body, "test")
    raw = tuple((name, text.encode()) for name, text in headers.items())
    record = Record("backfill-requests", 3, 41, b"second-chance", body.encode(), headers, raw, 1709294400000)
    letter = dead_letter(record, "no reason any more", "backfill-planner")
    made.publish(
        Topic.DEAD_LETTERS,
        letter.key,
        letter.value,
        headers={name: (text or b"").decode() for name, text in letter.headers},
    )
    place = next(x["place"] for x in cli("dead-letters", "list", "--json").document if x["key"] == "second-chance")
    answers = [cli("dead-letters", "replay", place, "--json") for _ in range(2)]
    assert [answer.status for answer in answers] == [0, 0]
    assert {answer.document["answer"]["in_reply_to"] for answer in answers} == {headers["ce_id"]}
    assert {answer.document["answer"]["type"] for answer in answers} == {"BackfillPlanned"}
    assert made.value("SELECT count(*) FROM run WHERE backfill_id = 'second-chance'") == 2
    replayed = [e for e in made.events(Topic.BACKFILL_REQUESTS) if e.key == "second-chance"]
    assert [e.headers for e in replayed] == [headers, headers]


def test_what_was_cut_cannot_be_replayed(cli, made):
    made.publish(Topic.BACKFILL_REQUESTS, key_on(2), b"{", headers={"ce_id": "c-cut", "large": "x" * 100_000})
    letter = made.wait_event(Topic.DEAD_LETTERS, lambda e: e.headers.get("ce_id") == "c-cut", "the dead letter")
    refused = cli("dead-letters", "replay", f"{letter.partition}:{letter.offset}")
    assert refused.status == 1
    assert "holds only the start of a message (cut: headers)" in refused.err
