"""Sections of the documentation that programs write: between two markers, a Markdown table."""

from __future__ import annotations

from collections.abc import Sequence


def parted(text: str, begin: str, end: str) -> tuple[str, str, str]:
    """What is before, between and after two markers.

    Raises ``ValueError`` unless each occurs once, in this order.
    """
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(
            f"the page needs one line {begin} and, after it, one line {end}: the section goes between them"
        )
    before, _, rest = text.partition(begin)
    between, _, after = rest.partition(end)
    return before, between, after


def rewritten(text: str, begin: str, end: str, section: str) -> str:
    """The page with ``section`` on lines of its own between the markers. Raises ``ValueError`` like ``parted``."""
    before, _, after = parted(text, begin, end)
    return f"{before}{begin}\n{section}\n{end}{after}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, without a line's end after it."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


def cells(line: str) -> list[str]:
    """The cells of a line of such a table."""
    return [cell.strip() for cell in line.strip("|").split("|")]
