"""Undecodable messages are refused with a one-line reason, whatever their bytes are."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrofill_core.contract import Undecodable, decode
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.base import MAX_DEPTH, MAX_INT

GOOD = b'{"type": "BackfillRequested", "pipeline": "p", "from": "2024-01-01", "to": "2024-01-02", "conf": {"x": %s}}'


def nested(levels: int) -> bytes:
    """A request whose ``conf.x`` is ``levels`` nested arrays."""
    return GOOD % (b"[" * levels + b"]" * levels)


BAD = {
    "null": (None, "is null"),
    "empty": (b"", "not JSON"),
    "truncated": (GOOD[:40], "not JSON"),
    "trailing": (GOOD % b"1" + b"}", "not JSON"),
    "not UTF-8": (GOOD % b'"\xff"', "not UTF-8"),
    "UTF-16": ((GOOD % b"1").decode().encode("utf-16"), "not UTF-8"),
    "NaN": (GOOD % b"NaN", "NaN"),
    "Infinity": (GOOD % b"-Infinity", "-Infinity"),
    "1e400": (GOOD % b"1e400", "too large"),
    "65 bits": (GOOD % str(2**64).encode(), "64 bits"),
    "-65 bits": (GOOD % str(-(2**64)).encode(), "64 bits"),
    "many digits": (GOOD % (b"9" * 10_000), "64 bits"),
    "deep": (nested(200), "levels deep"),
    "just too deep": (nested(MAX_DEPTH - 1), "levels deep"),
    "deeper than the parser goes": (nested(200_000), "levels deep"),
    "NUL": (GOOD % rb'"a\u0000b"', "NUL"),
    "NUL in a name": (GOOD % rb'{"\u0000": 1}', "NUL"),
    "raw NUL": (GOOD % b'"\0"', "not JSON"),
    "half a character": (GOOD % rb'"\ud83d"', "surrogate"),
    "array": (b"[1, 2]", "not an object: list"),
    "string": (b'"BackfillRequested"', "not an object: str"),
    "null as JSON": (b"null", "not an object: NoneType"),
    "unknown type": (b'{"type": "Nonsense"}', "unknown message type 'Nonsense'"),
    "missing type": (b'{"pipeline": "p"}', "no type"),
    "type is no text": (b'{"type": 7}', "no type"),
    "newer version": ((GOOD % b"1").replace(b"{", b'{"version": 2, ', 1), "BackfillRequested: version 2 is newer"),
    "version 0": ((GOOD % b"1").replace(b"{", b'{"version": 0, ', 1), "BackfillRequested: version"),
    "after a schema id": (b"\0\0\0\1\2" + GOOD % b"1", "a 0 byte and a schema id (258), as Schema"),
    "bytes 0 and no schema id": (b"\0\0\0\1", "not JSON"),
    "a name without end": (b'{"type": "%s"}' % (b"x" * 1_000_000), "unknown message type"),
    "unknown field": (
        (GOOD % b"1").replace(b"{", b'{"max_active_run": 2, ', 1),
        "BackfillRequested: unknown field 'max_active_run': did you mean 'max_active_runs'?",
    ),
    "unknown field like no other": (
        (GOOD % b"1").replace(b"{", b'{"zzz": 2, ', 1),
        "BackfillRequested: unknown field 'zzz'; known fields: type, version, in_reply_to, id, pipeline, from, to, intervals, max",
    ),
    "unknown field inside": (
        b'{"type": "PipelineApplied", "pipeline": {"name": "p", "schedule": "@daily", "code": {"module": "m", "attribute": "p"},'
        b' "tasks": [{"name": "a", "retry": 3}], "deadlines": [{"name": "d", "reference": "LOGICAL_DATE",'
        b' "interval_seconds": 5, "callback": {"kind": "webhook", "url": "https://a.b", "secrt": "x"}}]}}',
        "PipelineApplied: pipeline.tasks.0: unknown field 'retry': did you mean 'retries'?;"
        " pipeline.deadlines.0.callback.webhook: unknown field 'secrt': did you mean 'secret'?",
    ),
    "missing field": (
        b'{"type": "BackfillRequested", "pipeline": "p", "from": "2024-01-01"}',
        "it has no 'to': give from and to, or intervals",
    ),
    "neither a range nor dates": (
        b'{"type": "BackfillRequested", "pipeline": "p", "intervals": []}',
        "BackfillRequested: body: it has no 'from' and 'to': give from and to, or intervals",
    ),
    "a range and dates": (
        b'{"type": "BackfillRequested", "pipeline": "p", "to": "2024-01-01", "intervals": ["2024-01-01"]}',
        "it has intervals and 'to': give either from and to, or intervals",
    ),
    "no offset": (
        b'{"type": "BackfillRequested", "pipeline": "p", "from": "2024-01-01T00:00", "to": "x"}',
        "UTC offset",
    ),
    "65 bits as a text": (
        b'{"type": "RunBegan", "backfill_id": "b", "attempt_id": 1, "run_id": "%d", "attempt": 1}' % 2**64,
        "run_id does not fit",
    ),
    "65 bits as a text in a list": (
        b'{"type": "RunCancelRequested", "run_ids": ["%d"]}' % 2**64,
        "run_ids does not fit",
    ),
    "lines in a name": (b'{"type": "Non\\nsense\\r\\u2028"}', "unknown message type"),
}


@pytest.mark.parametrize(("value", "why"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_refused_with_one_line(value: bytes | None, why: str) -> None:
    with pytest.raises(Undecodable) as refused:
        decode(value)
    reason = str(refused.value)
    assert why in reason
    assert len(reason.splitlines()) == 1
    assert len(reason) <= 500


GOOD_VALUES = {
    "largest integer": str(MAX_INT).encode(),
    "smallest float": b"5e-324",
    "deepest": b"[" * (MAX_DEPTH - 2) + b"]" * (MAX_DEPTH - 2),
    "a character of two halves": rb'"\ud83d\ude00"',
    "a backslash and no NUL": rb'"\\u0000"',
}


@pytest.mark.parametrize("text", GOOD_VALUES.values(), ids=GOOD_VALUES.keys())
def test_what_is_just_allowed_comes_back_as_it_was(text: bytes) -> None:
    message = decode(GOOD % text)
    assert isinstance(message, BackfillRequested)
    assert message.conf["x"] == json.loads(text)
    assert decode(message.encode()) == message


def test_the_header_tells_the_type_where_the_body_does_not() -> None:
    body = b'{"pipeline": "p", "from": "2024-01-01", "to": "2024-01-02"}'
    assert isinstance(decode(body, "BackfillRequested"), BackfillRequested)


# Difficult characters, listed because drawing from all of Unicode is slow.
texts = st.text(st.sampled_from('a0-:\\"\0\n\u2028\ud83d\ude00é'), max_size=8)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = st.sampled_from(["version", "in_reply_to", "id", "pipeline", "from", "to", "conf", "max_active_runs"])


# The first draws depend on the machine's load, which says nothing about the code.
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(names, json_values, max_size=2))
def test_no_object_raises_anything_else(changes: dict[str, object]) -> None:
    try:
        message = decode(json.dumps(json.loads(GOOD % b"1") | changes).encode())
    except Undecodable as e:
        assert len(str(e).splitlines()) == 1
    else:
        assert decode(message.encode()) == message


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.binary(max_size=50))
def test_no_bytes_raise_anything_else(value: bytes) -> None:
    with pytest.raises(Undecodable):
        decode(value)
