"""Output that a driver had flushed is in its attempt's log, whatever ended it; files are cut between lines."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from retrofill import attempt_logs
from retrofill.attempt_logs import open_log
from retrofill_core.attempt_logs import MAX_LINE, Config, Log, Position, parts, path_of, read, sweep


def text(folder: Path, attempt_id: int) -> str:
    at, found = Position(), b""
    while (more := read(folder, attempt_id, at)) is not None and more[0]:
        found, at = found + more[0], more[1]
    return found.decode("utf-8", "surrogateescape")


def test_files_are_cut_between_lines_and_none_is_lost(tmp_path: Path) -> None:
    lines = [f"line {n} {'x' * (n % 50)}\n" for n in range(2000)]
    log = Log(tmp_path, 7, file_bytes=1000)
    data = "".join(lines).encode()
    for begin in range(0, len(data), 777):
        log.feed(data[begin : begin + 777])
    log.close()
    assert text(tmp_path, 7) == "".join(lines)
    assert len(parts(tmp_path, 7)) > 50
    for part in parts(tmp_path, 7):
        there = path_of(tmp_path, 7, part).read_bytes()
        assert len(there) <= 1000
        assert there.endswith(b"\n")


def test_a_writer_that_starts_again_goes_on_in_the_last_file(tmp_path: Path) -> None:
    for word in ("one", "two"):
        log = Log(tmp_path, 7, file_bytes=6)
        log.feed(f"{word}\n{word}\n".encode())
        log.close()
    assert text(tmp_path, 7) == "one\none\ntwo\ntwo\n"
    assert parts(tmp_path, 7) == [0, 1, 2, 3]


def test_a_line_may_be_longer_than_a_file_and_needs_no_end(tmp_path: Path) -> None:
    log = Log(tmp_path, 7, file_bytes=10)
    long = b"y" * (MAX_LINE + 5)
    log.feed(long)
    log.feed(b"z\n\xff")
    log.close()
    assert text(tmp_path, 7).encode("utf-8", "surrogateescape") == long + b"z\n\xff\n"


def test_secrets_are_masked_also_across_chunks(tmp_path: Path) -> None:
    log = Log(tmp_path, 7, file_bytes=10_000)
    log.feed(b"before\nconnect postgresql://me:gehe")
    log.feed(b"im@db\npassword=other\n")
    log.close()
    assert text(tmp_path, 7) == "before\nconnect postgresql://me:***@db\npassword=***\n"


@pytest.mark.parametrize("before", [1, 12, 23])
def test_secrets_are_masked_where_a_long_line_is_cut(tmp_path: Path, before: int) -> None:
    log = Log(tmp_path, 7, 10 * MAX_LINE)
    secret = b" password=hunter2-canary "
    whole = b"x" * (MAX_LINE + 1 - before) + secret + b"y" * MAX_LINE
    # The line is cut as soon as it is too long, which is within the secret.
    for chunk in (whole[: MAX_LINE + 1], whole[MAX_LINE + 1 :], b" ends\n"):
        log.feed(chunk)
    log.close()
    written = text(tmp_path, 7)
    assert "canary" not in written and "hunter" not in written
    assert written.endswith("y ends\n") and written.count("password=***") == 1


def test_a_mark_begins_a_line_even_in_an_open_one(tmp_path: Path) -> None:
    log = Log(tmp_path, 7, file_bytes=10_000)
    mark = attempt_logs.signed("=== a ===")
    for chunk in (b"open", mark[:5], mark[5:], b"closed\n" + mark, b"last"):
        log.feed(chunk)
    log.close()
    assert text(tmp_path, 7) == "open\n=== a ===\nclosed\n=== a ===\nlast\n"


def test_a_full_disk_stops_nobody_and_is_noted(tmp_path: Path) -> None:
    (tmp_path / "0").write_text("where the folder should be")
    log = Log(tmp_path, 7, file_bytes=10_000)
    log.feed(b"lost\n")
    (tmp_path / "0").unlink()
    log.feed(b"written\n")
    log.close()
    assert text(tmp_path, 7) == "=== 5 bytes could not be written ===\nwritten\n"


def test_old_files_go_and_the_oldest_beyond_the_total_size(tmp_path: Path) -> None:
    now = time.time()
    for attempt_id, age in ((1, 500), (2, 300), (3, 200), (1004, 100)):
        path = path_of(tmp_path, attempt_id, 0)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
        os.utime(path, (now - age, now - age))
    busy = frozenset([path_of(tmp_path, 2, 0)])
    sweep(tmp_path, older_than=now - 400, total_bytes=300, busy=busy)
    assert [len(parts(tmp_path, id)) for id in (1, 2, 3, 1004)] == [0, 1, 1, 1]
    sweep(tmp_path, older_than=now - 400, total_bytes=200, busy=busy)
    assert [len(parts(tmp_path, id)) for id in (1, 2, 3, 1004)] == [0, 1, 0, 1]
    sweep(tmp_path, older_than=now, total_bytes=200)
    assert list(tmp_path.iterdir()) == []
    assert read(tmp_path, 1, Position()) is None


def test_what_follows_is_kept_after_another_host_removed_the_file(tmp_path: Path) -> None:
    log = Log(tmp_path, 7, file_bytes=10_000)
    log.feed(b"old\n")
    sweep(tmp_path, older_than=time.time() + 1, total_bytes=0)
    assert text(tmp_path, 7) == ""
    log.feed(b"new\n")
    log.close()
    assert text(tmp_path, 7) == "new\n"


def test_only_files_of_attempts_are_removed(tmp_path: Path) -> None:
    others = [tmp_path / name for name in ("nginx/access.log", "1/other.log", "1/1.0.log.log", "a/1.0.log")]
    mine = path_of(tmp_path, 1001, 0)
    for path in (*others, mine):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
        os.utime(path, (0, 0))
    sweep(tmp_path, older_than=time.time(), total_bytes=0)
    assert [path.exists() for path in (*others, mine)] == [True] * len(others) + [False]


def test_a_place_that_no_file_has_is_refused() -> None:
    for text in ("0:-1", "-1:0", f"0:{2**63}", f"{2**64}:0", "0:x", "0"):
        with pytest.raises(ValueError, match=r"."):
            Position.parse(text)


def test_a_reader_goes_on_where_it_was_although_parts_before_are_gone(tmp_path: Path) -> None:
    log = Log(tmp_path, 7, file_bytes=4)
    log.feed(b"one\ntwo\n")
    found = read(tmp_path, 7, Position())
    assert found == (b"one\n", Position(0, 4))
    path_of(tmp_path, 7, 0).unlink()
    assert read(tmp_path, 7, found[1]) == (b"two\n", Position(1, 4))
    assert read(tmp_path, 7, Position(1, 4)) == (b"", Position(1, 4))
    log.feed(b"new\n")
    assert read(tmp_path, 7, Position.parse("1:4")) == (b"new\n", Position(2, 4))
    log.close()


Channel = tuple[socket.socket, subprocess.Popen[bytes]]


@pytest.fixture
def channel(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Channel]:
    """To a writer whose files have, and together have, at most so many bytes."""
    file_bytes, total_bytes = getattr(request, "param", (100_000, 10_000_000))
    ours, far = socket.socketpair()
    config = Config(far.fileno(), str(tmp_path), file_bytes, 3600.0, total_bytes, redact=("geheim",))
    process = subprocess.Popen(
        [sys.executable, "-m", "retrofill_core.attempt_logs"], stdin=subprocess.PIPE, pass_fds=[far.fileno()]
    )
    far.close()
    assert process.stdin is not None
    process.stdin.write(config.as_json())
    process.stdin.close()
    yield ours, process
    ours.close()
    assert process.wait(30) == 0


PRINTS = """
import os, sys
for n in range(20_000):
    print(n, "geheim")
os.kill(os.getpid(), 9)
"""


def test_nothing_is_lost_of_a_process_that_is_killed(channel: Channel, tmp_path: Path) -> None:
    socket_, writer = channel
    pipes = [open_log(socket_, attempt_id) for attempt_id in (1, 2)]
    printers = [subprocess.Popen([sys.executable, "-u", "-c", PRINTS], stdout=pipe, stderr=pipe) for pipe in pipes]
    for pipe in pipes:
        os.close(pipe)
    while read(tmp_path, 1, Position()) is None:
        time.sleep(0.01)
    # A signal to everybody, as at the end of a container, does not end it either.
    writer.send_signal(signal.SIGTERM)
    assert [each.wait(60) for each in printers] == [-9, -9]
    socket_.close()
    assert writer.wait(20) == 0
    expected = "".join(f"{n} ***\n" for n in range(20_000))
    assert text(tmp_path, 1) == text(tmp_path, 2) == expected


@pytest.mark.parametrize("channel", [(10_000, 200_000)], indirect=True)
def test_a_driver_that_never_stops_printing_does_not_fill_the_disk(channel: Channel, tmp_path: Path) -> None:
    ours, process = channel
    with os.fdopen(open_log(ours, 7), "w") as pipe:
        pipe.writelines(f"line {n}\n" for n in range(200_000))
    ours.close()
    assert process.wait(30) == 0
    kept = text(tmp_path, 7).splitlines()
    assert kept[-1] == "line 199999"
    assert len(kept) < 100_000
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.log")) < 400_000
