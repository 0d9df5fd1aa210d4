"""Numbers in addresses."""

from __future__ import annotations

import pytest

from retrofill.errors import WrongUsage
from retrofill_console.api.inputs import number


def test_numbers_between_the_bounds_are_taken() -> None:
    assert [number(text, "n", 0, 10_000) for text in ("0", "007", "10000")] == [0, 7, 10_000]


@pytest.mark.parametrize("text", ["", "-1", "10001", "1.5", "²", "0" * 20 + "99999999", "0" * 5_000])
def test_every_other_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(WrongUsage, match="use a number from 0 to 10,000") as caught:
        number(text, "n", 0, 10_000)
    assert len(str(caught.value)) < 100
