"""A dead letter contains the original bytes, their origin and the reason for the refusal."""

import hashlib
import json
from datetime import UTC, datetime

import pytest

from retrofill_core.bus.envelope import (
    MAX_HEADER_BYTES,
    MAX_KEY_BYTES,
    MAX_REASON,
    MAX_VALUE_BYTES,
    Record,
    dead_letter,
    header_bytes,
    read_headers,
)
from retrofill_core.contract.topics import Topic
from retrofill_core.store.outbox import pack_headers, unpack_headers

NOW = datetime(2024, 3, 1, 12, tzinfo=UTC)


def record(value=b"{", key=b"k", headers=()):
    read, bad = read_headers(headers)
    return Record("backfill-requests", 3, 41, key, value, read, tuple(headers), 1709294400000, bad)


def letter(reason="no JSON", **given):
    return dead_letter(record(**given), reason, "backfill-planner", NOW)


def ours(made):
    return {name: value.decode() for name, value in made.headers if name.startswith("retrofill_")}


@pytest.mark.parametrize("value", [b"{", b"", b"\xff\x00\xfe", None])
@pytest.mark.parametrize("key", [b"k", b"", b"\xff\x00", None])
def test_key_and_value_are_the_bytes_that_came(key, value):
    made = letter(key=key, value=value)
    assert (made.topic, made.key, made.value) == (Topic.DEAD_LETTERS, key, value)


def test_headers_stay_in_their_order_whatever_they_hold():
    headers = [("ce_id", b"c-1"), ("bytes", b"\xff\x00"), ("none", None), ("empty", b""), ("ce_id", b"again")]
    made = letter(headers=headers)
    assert list(made.headers[:5]) == headers
    assert unpack_headers(json.loads(pack_headers(made.headers)))[:5] == headers


def test_origin_and_reason_are_told():
    assert ours(letter()) == {
        "retrofill_reason": "no JSON",
        "retrofill_service": "backfill-planner",
        "retrofill_origin_topic": "backfill-requests",
        "retrofill_origin_partition": "3",
        "retrofill_origin_offset": "41",
        "retrofill_origin_timestamp_ms": "1709294400000",
        "retrofill_dead_at": "2024-03-01T12:00:00+00:00",
    }


@pytest.mark.parametrize(
    ("reason", "fields"),
    [
        ("two\nlines\r\n  and\tmore", "two lines and more"),
        ("x" * (MAX_REASON + 1), "x" * MAX_REASON),
        ("half \ud800 of a pair", "half ? of a pair"),
    ],
)
def test_the_reason_is_one_line_that_can_be_sent(reason, fields):
    assert ours(letter(reason))["retrofill_reason"] == fields


def test_what_still_fits_is_whole():
    made = letter(value=b"x" * MAX_VALUE_BYTES)
    assert len(made.value) == MAX_VALUE_BYTES
    assert "retrofill_value_sha256" not in ours(made)


def test_what_is_too_large_is_cut_with_hash_and_length():
    value = bytes(range(256)) * (MAX_VALUE_BYTES // 256 + 1)
    made = letter(value=value)
    assert made.value == value[:MAX_VALUE_BYTES]
    assert ours(made)["retrofill_value_sha256"] == hashlib.sha256(value).hexdigest()
    assert ours(made)["retrofill_value_length"] == str(len(value))


def test_a_key_that_is_too_large_is_cut_alike():
    made = letter(key=b"k" * (MAX_KEY_BYTES + 1))
    assert made.key == b"k" * MAX_KEY_BYTES
    assert ours(made)["retrofill_key_sha256"] == hashlib.sha256(b"k" * (MAX_KEY_BYTES + 1)).hexdigest()
    assert ours(made)["retrofill_key_length"] == str(MAX_KEY_BYTES + 1)


def test_headers_that_do_not_fit_are_left_out_and_counted():
    headers = [("ce_id", b"c-1"), ("large", b"x" * MAX_HEADER_BYTES), ("small", b"")]
    made = letter(headers=headers)
    assert list(made.headers[:1]) == headers[:1]
    assert ours(made)["retrofill_headers_dropped"] == "2"
    assert "retrofill_headers_dropped" not in ours(letter(headers=headers[:1]))


def test_the_largest_letter_is_one_that_the_relay_can_publish():
    """The relay's producer accepts messages of up to 2,000,000 bytes."""
    headers = [(f"{n:03}", b"x" * 97) for n in range(600)]
    made = letter("\U0001f600" * 5_000, key=b"k" * 50_000, value=b"v" * 5_000_000, headers=headers)
    assert len(made.key) + len(made.value) + header_bytes(made.headers) < 1_990_000


def test_a_letter_that_was_replayed_keeps_only_the_newest_reason():
    first = letter("old reason", headers=[("ce_id", b"c-1")])
    second = letter("new reason", headers=first.headers)
    assert [name for name, _ in second.headers].count("retrofill_reason") == 1
    assert ours(second)["retrofill_reason"] == "new reason"
    assert second.headers[0] == ("ce_id", b"c-1")
    assert len(second.headers) == len(first.headers)
