"""A plain SVG plot: each figure as a share of its limit, with the limit as a line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from benchmarks.core import Figure

LEFT, WIDTH, ROW, TOP = 380, 420, 22, 40
LOWEST, HIGHEST = 0.02, 20.0  # of the limit, on a logarithmic scale


def bars(figures: Sequence[tuple[str, Figure]]) -> str:
    """One bar per figure.

    Left is better, the line is the limit, whiskers span best to worst repeat.
    """
    height = TOP + ROW * len(figures) + 20
    rows = [line for n, (label, each) in enumerate(figures) for line in _bar(label, each, TOP + n * ROW)]
    line = _x(1.0)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 80}" height="{height}" '
            'font-family="sans-serif" font-size="12">',
            '<rect width="100%" height="100%" fill="white"/>',
            f'<text x="{line}" y="20" text-anchor="middle">the aim</text>',
            f'<text x="{LEFT}" y="20">better</text>',
            *rows,
            f'<line x1="{line}" x2="{line}" y1="26" y2="{height - 10}" stroke="black" stroke-dasharray="4 3"/>',
            "</svg>\n",
        ]
    )


def _bar(label: str, each: Figure, y: int) -> list[str]:
    shares = sorted(_share(each, value) for value in each.values)
    middle = _share(each, each.median)
    colour = "#2a9d8f" if each.met else "#d1495b"
    return [
        f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(label)}</text>',
        f'<rect x="{LEFT}" y="{y + 3}" width="{_x(middle) - LEFT:.1f}" height="{ROW - 8}" fill="{colour}"/>',
        f'<line x1="{_x(shares[0]):.1f}" x2="{_x(shares[-1]):.1f}" y1="{y + 10}" y2="{y + 10}" stroke="black"/>',
        f'<text x="{LEFT + WIDTH + 8}" y="{y + 13}">{each.median:.3g} {escape(each.unit)}</text>',
    ]


def _share(each: Figure, value: float) -> float:
    assert each.limit is not None
    part, whole = (each.limit, value) if each.at_least else (value, each.limit)
    # Nothing of nothing is at the aim, as with "no statement more".
    share = part / whole if whole else HIGHEST if part else 1.0
    return min(max(share, LOWEST), HIGHEST)


def _x(share: float) -> float:
    return LEFT + WIDTH * math.log(share / LOWEST) / math.log(HIGHEST / LOWEST)
