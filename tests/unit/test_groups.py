"""The output of a child is read by lines, and one that never ends in pieces."""

from __future__ import annotations

import errno
import hashlib
import selectors
import subprocess
import sys
import tracemalloc
from typing import Any

import psutil
import pytest
from tests.support.threads import LIMIT, fail_once

from retrofill.system.processes import CHUNK, lines_until_exit

MEGABYTES = 64
LONGEST = 262_144
# Not as long as what is read at a time, so that characters are cut.
UNIT = "5 %\r…"


def child(code: str) -> Any:
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys\n{code}"], stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def test_output_without_a_line_end_comes_in_pieces_while_it_is_printed() -> None:
    times = (MEGABYTES << 20) // len(UNIT.encode())
    process = child(
        f"sys.stdout.reconfigure(encoding='utf-8')\nfor _ in range({times} // 100): print({UNIT * 100!r}, end='')"
    )
    found, size, longest = hashlib.sha256(), 0, 0
    tracemalloc.start()
    try:
        for piece in lines_until_exit(process, process.stdout, LONGEST):
            # The pipe is full.
            assert size > 0 or process.poll() is None
            found.update(piece.encode())
            size, longest = size + len(piece), max(longest, len(piece))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert process.wait() == 0
    assert size == len(UNIT) * (times // 100) * 100
    assert found.digest() == hashlib.sha256((UNIT * 100 * (times // 100)).encode()).digest()
    assert LONGEST < longest <= LONGEST + CHUNK
    # Characters that are not ASCII take two bytes or more, and a piece is made of its parts.
    assert peak < 16 * (LONGEST + CHUNK)


@pytest.mark.parametrize("longest", [None, 100])
def test_lines_come_whole_whatever_comes_at_a_time(longest: int | None) -> None:
    lines = ["a\n", "\n", "b" * 100 + "\n", "c"]
    process = child(f"for each in {''.join(lines)!r}: print(each, end='', flush=True)")
    assert list(lines_until_exit(process, process.stdout, longest)) == lines
    assert process.wait() == 0


def test_a_line_of_any_length_comes_whole_to_who_needs_it() -> None:
    process = child("print('x' * 3_000_000)")
    assert [len(line) for line in lines_until_exit(process, process.stdout)] == [3_000_001]
    assert process.wait() == 0


def test_at_the_limit_of_threads_no_file_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = fail_once(monkeypatch, "watch-exit")
    started_nothing(RuntimeError, LIMIT)
    assert failed.is_set()


def test_at_the_limit_of_files_none_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def limited() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(selectors, "DefaultSelector", limited)
    started_nothing(OSError, "Too many open files")


def started_nothing(error: type[Exception], why: str) -> None:
    """It fails at once, though the child lives."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdin is not None
        before = psutil.Process().num_fds()
        with pytest.raises(error, match=why):
            next(lines_until_exit(child, child.stdout))
        assert psutil.Process().num_fds() == before
        child.stdin.close()
