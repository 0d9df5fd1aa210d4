"""Headers survive the outbox's JSON column byte for byte."""

import json

from hypothesis import example, given
from hypothesis import strategies as st

from retrofill_core.store.outbox import pack_headers, unpack_headers

VALUES = st.none() | st.binary(max_size=30) | st.text(max_size=30).map(lambda text: text.encode("utf-8"))
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6).map(tuple))
@example((("a", b"\x00"), ("a", b""), ("a", None), ("a", b"\xff"), ("a", "\ufffe\U0001f600".encode())))
def test_what_is_packed_is_unpacked(headers):
    assert unpack_headers(json.loads(pack_headers(headers))) == list(headers)


@given(st.lists(st.tuples(NAMES, VALUES), max_size=6).map(tuple))
def test_what_is_packed_is_text_that_the_column_can_hold(headers):
    """A NUL character is valid JSON that ``jsonb`` refuses."""
    packed = pack_headers(headers)
    assert "\\u0000" not in packed.replace("\\\\", "")
    packed.encode("ascii")


def test_plain_text_is_readable_in_the_table():
    assert pack_headers((("ce_id", b"c-1"), ("none", None))) == '[["ce_id", "c-1"], ["none", null]]'
