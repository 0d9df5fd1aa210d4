"""Keys hash to the same partitions as with Java's default partitioner."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrofill_core.contract.topics import murmur2, partition_of, partitions_of

# From Apache Kafka's own test of its murmur2, as signed 32-bit integers.
KAFKA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


def signed(value):
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize("key", KAFKA)
def test_the_hash_is_kafkas(key):
    assert signed(murmur2(key.encode())) == KAFKA[key]


@pytest.mark.parametrize("partitions", [1, 4, 12, 100])
@pytest.mark.parametrize("key", KAFKA)
def test_a_negative_hash_loses_its_sign_bit_and_not_its_sign(key, partitions):
    assert partition_of(key, partitions) == (KAFKA[key] & 0x7FFFFFFF) % partitions
    assert partition_of(key.encode(), partitions) == partition_of(key, partitions)


@given(st.binary(max_size=40), st.integers(1, 64))
def test_every_key_has_a_partition(key, partitions):
    assert 0 <= murmur2(key) < 2**32
    assert 0 <= partition_of(key, partitions) < partitions


def test_text_is_hashed_as_utf8():
    assert partition_of("tägliche", 12) == partition_of("tägliche".encode(), 12)


@given(st.integers(1, 10**12), st.integers(0, 50), st.integers(1, 64))
def test_ids_in_a_row_have_the_partitions_of_their_texts(first, count, partitions):
    ids = range(first, first + count)
    assert partitions_of(ids, partitions) == [partition_of(str(id), partitions) for id in ids]


@pytest.mark.parametrize("first", [1, 5, 95, 9_990, 99_990, 9_999_990, 99_999_990])
def test_and_so_have_those_that_become_one_digit_longer(first):
    ids = [*range(first, first + 20), first, 3, 10**9]
    assert partitions_of(ids, 8) == [partition_of(str(id), 8) for id in ids]
