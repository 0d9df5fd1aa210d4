"""The page of versions is read back as it was written, so that a single pair can be run again."""

from __future__ import annotations

import pytest
from tests.matrix.__main__ import PAGE, rows_of, written


def test_the_rows_of_the_page_come_out_as_they_went_in() -> None:
    page = PAGE.read_text()
    rows = rows_of(page)
    assert "Spark 3.5, Python 3.8" in rows
    assert written(page, rows) == page
    assert written(page, dict(reversed(rows.items()))) == page


def test_one_pair_replaces_its_row_only() -> None:
    rows = rows_of(PAGE.read_text())
    again = {**rows, "Spark 3.5, Python 3.8": ["3.5.7", "3.8.18", "passed", "failed", "2026-01-01", "0" * 12]}
    assert rows_of(written(PAGE.read_text(), again)) == again


def test_a_page_without_its_table_is_refused() -> None:
    with pytest.raises(ValueError, match="one line <!-- table -->"):
        written("# Versions\n", {})
