"""Names of tables, outputs as text, and the exchange of directories."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from retrofill.outputs.tables.delta import about_of, is_long_enough
from retrofill.outputs.tables.protocol import drop
from retrofill.protocol.table_output import TableOutput, joined, parts_of
from retrofill.system.files import exchange


@pytest.mark.parametrize("parts", [["t"], ["lake", "db", "t"], ["delta", "/data/a b"], ["a.b", "c`d"], ["ünï", "9"]])
def test_names_are_quoted_where_they_must_be(parts: list[str]) -> None:
    assert parts_of(joined(parts)) == parts


@pytest.mark.parametrize("name", ["", "a.", ".a", "a..b", "a`b`", "`a"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not the name of a table"):
        parts_of(name)


def test_an_output_is_one_text() -> None:
    output = TableOutput("lake.db.`a?b&c`", "lake.db.`a?b&c__x`", "the day", "date", "iceberg", 3)
    assert TableOutput.of(str(output)) == output
    formatted = replace(output, formats='{"dt": "%Y%m%d&=+"}')
    assert TableOutput.of(str(formatted)) == formatted
    filled = replace(output, filled=("id", "a,b"), undoes=7)
    assert TableOutput.of(str(filled)) == filled
    assert TableOutput.of("/data/table:1/day=1") is None


@pytest.mark.parametrize(
    ("said", "about"),
    [
        ('{"retrofill": {"runs": "7"}}', {"runs": "7"}),
        ('{"writer": "retrofill"}', {}),
        ('{"retrofill": "7"}', {}),
        ('loaded by "retrofill" job', {}),
        ('["retrofill"]', {}),
    ],
)
def test_what_others_say_of_their_commits_is_not_ours(said: str, about: dict[str, str]) -> None:
    assert about_of(said) == about


def test_directories_are_exchanged_or_nothing_happens(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    (one / "file").touch()
    assert exchange(one, other) in (False, None)
    other.mkdir()
    done = exchange(one, other)
    assert (other / "file").exists() == (done is True)
    assert (one / "file").exists() == (done is None)


class Spark:
    """A session that accepts all statements."""

    def sql(self, statement: str) -> Spark:
        return self

    def collect(self) -> list[object]:
        return []


@pytest.mark.parametrize(("scheme", "goes"), [("", True), ("file://", True), ("s3a://", False), ("hdfs://host", False)])
def test_only_files_of_this_machine_are_deleted_with_a_table_that_a_path_names(
    tmp_path: Path, scheme: str, goes: bool
) -> None:
    staged = tmp_path / "t__retrofill_1"
    staged.mkdir()
    drop(Spark(), f"delta.`{scheme}{staged}`")
    assert staged.exists() is not goes


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
@pytest.mark.parametrize("folder", ["c#", "c?", "c%23"])
def test_a_dropped_table_is_deleted_where_its_whole_name_says_and_nothing_beside_it(
    tmp_path: Path, scheme: str, folder: str
) -> None:
    (tmp_path / "c").mkdir()
    staged = tmp_path / folder / "t__retrofill_1"
    staged.mkdir(parents=True)
    drop(Spark(), f"delta.`{scheme}{staged}`")
    assert not staged.exists()
    assert (tmp_path / "c").exists()


def test_a_directory_that_is_not_named_as_a_staged_table_is_never_deleted(tmp_path: Path) -> None:
    for name in (tmp_path, f"file://elsewhere{tmp_path}"):
        drop(Spark(), f"delta.`{name}`")
    assert tmp_path.exists()


@pytest.mark.parametrize(
    ("interval", "long"),
    [
        ("interval 30 days", True),
        ("interval 1 week", True),
        ("7 days", True),
        ("interval 6 days 24 hours", True),
        ("interval 6 days", False),
        ("interval 24 hours", False),
        ("0 seconds", False),
        ("interval", False),
        ("for a while", False),
    ],
)
def test_how_long_a_log_remembers_what_was_published(interval: str, long: bool) -> None:
    assert is_long_enough(interval) is long
