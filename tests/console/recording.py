"""A terminal session as an animated SVG: ``python -m tests.console.recording``.

Starts the embedded stack in a temporary directory, with the pipelines of ``sample.py``, types the commands
below into a real terminal, and writes ``docs/pictures/terminal.svg``.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from string import Template

import pyte
from pyte.screens import Char

from tests.console.pictures import PICTURES, Stack, stack

COLUMNS, LINES = 104, 26
COMMANDS = (
    "retrofill backfill dry-run orders_daily --from 2024-06-01 --to 2024-08-31",
    "retrofill backfill create orders_daily --from 2024-06-01 --to 2024-08-31 --id summer --watch",
    "retrofill runs show summer 2024-07-11",
)
# Seconds. A pause is cut to the first; the end stays until it begins again.
LONGEST, LAST, TYPED, APART = 1.2, 6.0, 0.04, 0.1
PIXELS_X, PIXELS_Y, EDGE = 8, 18, 14
COLORS = {
    "black": "#3b4048", "red": "#f0716b", "green": "#5fb878", "brown": "#e0b05c", "yellow": "#e0b05c", "blue": "#7aa7f7",
    "magenta": "#c490e4", "cyan": "#63c3cf", "white": "#d8dce2", "default": "#d8dce2",
}  # fmt: skip
PAGE = Template("""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $width $height" width="$width" height="$height" role="img">
<title>$title</title>
<style>
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre; }
.b { font-weight: 700; } .d { opacity: .6; }
@keyframes play { $steps }
.film { animation: play ${seconds}s steps(1, end) infinite; }
</style>
<rect width="100%" height="100%" rx="8" fill="#16191d"/>
<svg x="$edge" y="$edge" width="$inner_width" height="$inner_height" viewBox="0 0 $inner_width $inner_height">
<defs>$lines</defs>
<g class="film">$frames</g>
</svg>
</svg>
""")


@dataclass(frozen=True)
class Frame:
    """What the screen shows, each line as SVG, for some seconds."""

    lines: tuple[str, ...]
    seconds: float


def session(made: Stack, commands: Sequence[str]) -> Iterator[Frame]:
    """Type the commands, one after the other, and watch the screen."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    for command in commands:
        stream.feed(b"\x1b[32m$\x1b[0m ")
        for letter in command:
            stream.feed(letter.encode())
            yield Frame(shown(screen), TYPED)
        stream.feed(b"\r\n")
        for chunk, seconds in output(made, command):
            yield Frame(shown(screen), min(seconds, LONGEST))
            stream.feed(chunk)
        yield Frame(shown(screen), LONGEST)
    yield Frame(shown(screen), LAST)


def output(made: Stack, command: str) -> Iterator[tuple[bytes, float]]:
    """What a command prints, a tenth of a second at a time, and how long it was silent before."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    environment = {**made.env, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    name, *arguments = command.split()
    words = [str(Path(sys.executable).with_name(name)), *arguments]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    try:
        last = time.monotonic()
        while chunk := _read(ours):
            yield chunk, (now := time.monotonic()) - last
            last = now
    finally:
        os.close(ours)
        assert process.wait(60) == 0, f"{command}: exit status {process.returncode}"


def _read(file: int) -> bytes:
    """All that is printed until nothing follows for a tenth of a second; empty: the end."""
    found = b""
    while not found or select.select([file], [], [], APART)[0]:
        try:
            more = os.read(file, 65_536)
        except OSError:  # nobody has it open any more
            break
        if not more:
            break
        found += more
    return found


def shown(screen: pyte.Screen) -> tuple[str, ...]:
    """Each line of the screen as a ``text`` element's content."""
    return tuple(_line([screen.buffer[y][x] for x in range(COLUMNS)]) for y in range(LINES))


def _line(cells: Sequence[Char]) -> str:
    spans, x = [], 0
    for style, group in groupby(cells, key=_style):
        text = "".join(each.data for each in group)
        if text.strip():
            spans.append(f'<tspan x="{x * PIXELS_X}"{style}>{escape(text.rstrip())}</tspan>')
        x += len(text)
    return "".join(spans)


def _style(cell: Char) -> str:
    color = COLORS.get(cell.fg.removeprefix("bright"), f"#{cell.fg}")
    bold = ' class="b"' if cell.bold else ""
    return f' fill="{color}"{bold}'


def svg(frames: Sequence[Frame], title: str) -> str:
    """An SVG that plays the frames for ever. A line that stays is in it once."""
    joined = [
        Frame(lines, sum(each.seconds for each in same)) for lines, same in groupby(frames, key=lambda each: each.lines)
    ]
    total = sum(each.seconds for each in joined)
    numbers: dict[str, int] = {}
    drawn, steps, at = [], [], 0.0
    width, height = COLUMNS * PIXELS_X, LINES * PIXELS_Y
    for n, frame in enumerate(joined):
        used = [(y, numbers.setdefault(line, len(numbers))) for y, line in enumerate(frame.lines) if line]
        drawn += [f'<use href="#l{line}" x="{n * width}" y="{y * PIXELS_Y}"/>' for y, line in used]
        steps.append(f"{100 * at / total:.3f}% {{ transform: translateX({-n * width}px); }}")
        at += frame.seconds
    lines = [f'<text id="l{n}" y="{PIXELS_Y - 5}">{line}</text>' for line, n in numbers.items()]
    return PAGE.substitute(
        width=width + 2 * EDGE, height=height + 2 * EDGE, inner_width=width, inner_height=height, edge=EDGE,
        title=escape(title), steps=" ".join(steps), seconds=f"{total:.1f}", lines="".join(lines), frames="".join(drawn),
    )  # fmt: skip


def main(target: Path = PICTURES / "terminal.svg") -> None:
    """Record the commands."""
    with stack() as made:
        frames = list(session(made, COMMANDS))
    target.write_text(svg(frames, "A backfill is previewed, requested and watched in a terminal"), "utf-8")
    print(f"{target}: {sum(each.seconds for each in frames):.0f} s, {target.stat().st_size / 1000:.0f} kB")  # noqa: T201


if __name__ == "__main__":
    main()
