"""Differences between a topic's actual and required settings, and which of them are unusable."""

from __future__ import annotations

import pytest

from retrofill_tools.admin.topics import differences

GOOD = {
    "max.message.bytes": "2097152",
    "cleanup.policy": "delete",
    "min.insync.replicas": "2",
    "retention.ms": "604800000",
    "retention.bytes": "-1",
}
EVENTS = {"max.message.bytes": "2097152", "min.insync.replicas": "2"}
SMALL = {"retention.bytes": "1048576"}
COMPACTED = {**EVENTS, "cleanup.policy": "compact"}
LETTERS = {**EVENTS, "retention.ms": "-1"}
CURSOR = {"cleanup.policy": "compact", "min.insync.replicas": "2"}


@pytest.mark.parametrize(
    ("wanted", "changed", "cursor", "expected"),
    [
        pytest.param(EVENTS, {}, False, [], id="as it should be"),
        pytest.param(EVENTS, {"max.message.bytes": "9000000"}, False, [], id="larger is fine"),
        pytest.param(EVENTS, {"max.message.bytes": "1048588"}, False, [("max.message.bytes", False)], id="too small"),
        pytest.param(EVENTS, {"cleanup.policy": "compact"}, False, [("cleanup.policy", True)], id="events compacted"),
        pytest.param(EVENTS, {"retention.ms": "60000"}, False, [("retention.ms", False)], id="gone in a minute"),
        pytest.param(EVENTS, SMALL, False, [("retention.bytes", False)], id="gone after a megabyte"),
        pytest.param(EVENTS, {"min.insync.replicas": "1"}, False, [("min.insync.replicas", False)], id="one copy"),
        pytest.param(EVENTS, {"min.insync.replicas": "4"}, False, [("min.insync.replicas", True)], id="never enough"),
        pytest.param(LETTERS, {}, False, [("retention.ms", False)], id="letters that end"),
        pytest.param(LETTERS, {"retention.ms": "-1"}, False, [], id="letters that stay"),
        pytest.param(
            LETTERS, {"retention.ms": "-1", **SMALL}, False, [("retention.bytes", False)], id="a megabyte of letters"
        ),
        pytest.param(COMPACTED, {}, False, [("cleanup.policy", False)], id="state that is deleted"),
        pytest.param(CURSOR, {}, True, [("cleanup.policy", True)], id="a cursor that is deleted"),
        pytest.param(CURSOR, {"retention.ms": "-1"}, True, [], id="a cursor that is kept"),
        pytest.param(CURSOR, {"retention.ms": "-1", **SMALL}, True, [("cleanup.policy", True)], id="a small cursor"),
        pytest.param(CURSOR, {"cleanup.policy": "compact"}, True, [], id="a cursor"),
        pytest.param(CURSOR, {"cleanup.policy": "compact", **SMALL}, True, [], id="a cursor whose size does not count"),
    ],
)
def test_differences(
    wanted: dict[str, str], changed: dict[str, str], cursor: bool, expected: list[tuple[str, bool]]
) -> None:
    found = differences("t", wanted, {**GOOD, **changed}, 3, cursor=cursor)
    assert [(one.setting, one.fatal) for one in found] == expected


def test_a_difference_names_the_command_that_ends_it() -> None:
    (found,) = differences("t", EVENTS, {**GOOD, **SMALL}, 3, cursor=False)
    line = found.line("k:9092")
    assert line.startswith("topic t has retention.bytes=1048576: ")
    assert line.endswith(
        ". Run: kafka-configs.sh --bootstrap-server k:9092 --alter --entity-type topics --entity-name t "
        "--add-config retention.bytes=-1"
    )
