"""The logs of attempts, and ``python -m retrofill_core.attempt_logs``, which writes what drivers print to them.

A log has files ``ID.0.log``, ``ID.1.log``, …, each cut at the end of a line. One process per host writes, and gets a pipe for
each attempt. It outlives driver and host until it has written what they had flushed, so that no line is lost with them. It
masks secrets, starts another file when one is full, and removes old ones. Its standard input is a ``Config`` as JSON.
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from retrofill.attempt_logs import SIGN, next_log, note
from retrofill.masking import configure_masking, masked

if TYPE_CHECKING:
    # Not loaded by the writer, which starts with each host: settings take longer than all else that it needs.
    from retrofill_core.settings import Settings

# Attempts per folder, so that no folder gets too large.
PER_FOLDER = 1000
READ_AT_ONCE = 1_000_000
_IS_OURS = re.compile(r"\d+/\d+\.\d+\.log")
MAX_POSITION = 2**63
# The header with the end of what a host sent.
NEXT = "X-Retrofill-Next"


class Position(NamedTuple):
    """A place in a log: so many bytes into a part. Parts before it may be gone."""

    part: int = 0
    byte: int = 0

    def __str__(self) -> str:
        return f"{self.part}:{self.byte}"

    @classmethod
    def parse(cls, text: str) -> Position:
        """Raises ``ValueError``."""
        part, _, byte = text.partition(":")
        found = cls(int(part), int(byte))
        if not all(0 <= each < MAX_POSITION for each in found):
            raise ValueError(f"{text!r} is no place in a file")
        return found


def folder_of(settings: Settings) -> Path:
    """Where the logs are: the store that all hosts share, or a folder of this host."""
    return (settings.log_store or settings.home / "logs" / "attempts").absolute()


def path_of(folder: Path, attempt_id: int, part: int) -> Path:
    return folder / str(attempt_id // PER_FOLDER) / f"{attempt_id}.{part}.log"


def parts(folder: Path, attempt_id: int) -> list[int]:
    """The numbers of a log's parts that are there, in order."""
    found = path_of(folder, attempt_id, 0).parent.glob(f"{attempt_id}.*.log")
    numbers = (path.name.split(".")[1] for path in found)
    return sorted(int(number) for number in numbers if number.isdigit())


def read(folder: Path, attempt_id: int, at: Position, most: int = READ_AT_ONCE) -> tuple[bytes, Position] | None:
    """What follows ``at``, at most so many bytes, and where that ends. ``None``: there is no log."""
    numbers = parts(folder, attempt_id)
    if not numbers:
        return None
    for number in numbers:
        if number < at.part:
            continue
        begin = at.byte if number == at.part else 0
        data = _read(path_of(folder, attempt_id, number), begin, most)
        at = Position(number, begin + len(data))
        if data:
            return data, at
    return b"", at


def _read(path: Path, begin: int, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(begin)
            return file.read(most)
    except FileNotFoundError:  # removed in between
        return b""


class Found(NamedTuple):
    """One file of a log."""

    changed: float
    size: int
    path: Path


def sweep(folder: Path, *, older_than: float, total_bytes: int, busy: frozenset[Path] = frozenset()) -> None:
    """Remove files that nobody wrote since ``older_than`` (Unix time), and the oldest beyond a total size.

    ``busy`` ones stay. Hosts that share the folder may do this at the same time.
    """
    files = sorted(_files(folder))
    total = sum(file.size for file in files)
    for file in files:
        if (file.changed < older_than or total > total_bytes) and file.path not in busy:
            file.path.unlink(missing_ok=True)
            total -= file.size
            _remove_empty(file.path.parent)


def _files(folder: Path) -> list[Found]:
    found: list[Found] = []
    for path in folder.glob("*/*.log"):
        # Other programs may keep their own logs in the folder that users name.
        if not _IS_OURS.fullmatch(str(path.relative_to(folder))):
            continue
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        found.append(Found(status.st_mtime, status.st_size, path))
    return found


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # others are still in it
        folder.rmdir()


CHUNK = 65_536
# A longer line is written, and searched for secrets, in pieces.
MAX_LINE = 262_144
MAX_SECRET = 16_384
SWEEP_SECONDS = 600.0
# Old logs are also removed whenever this share of their total size has been written.
SWEEP_SHARE = 0.05
# How long to wait for what a user's processes still print after host and drivers have ended.
LINGER_SECONDS = 5.0
_SIGN = SIGN.encode()
_SIGN_FIRST = re.compile(rb"(?m)^" + re.escape(_SIGN))


@dataclass(frozen=True)
class Config:
    """``control``: the number of the socket that announces attempts."""

    control: int
    folder: str
    file_bytes: int
    keep_seconds: float
    total_bytes: int
    redact: tuple[str, ...] = ()

    def as_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class Log:
    """The log of one attempt."""

    def __init__(self, folder: Path, attempt_id: int, file_bytes: int) -> None:
        self._folder = folder
        self._attempt_id = attempt_id
        self._limit = file_bytes
        self._part, self._size = _last_part(folder, attempt_id)
        self._file: int | None = None
        # The beginning of a line whose end has not come yet.
        self._rest = b""
        self._lost = 0

    @property
    def path(self) -> Path:
        """The file that is written to."""
        return path_of(self._folder, self._attempt_id, self._part)

    def feed(self, chunk: bytes) -> None:
        """Write the lines that are complete."""
        data = _SIGN_FIRST.sub(b"", self._rest + chunk).replace(_SIGN, b"\n")
        *lines, self._rest = data.split(b"\n")
        masked = [_masked(line) + b"\n" for line in lines]
        if len(self._rest) > MAX_LINE:
            # Its end may have the beginning of a secret.
            done = _masked(self._rest)
            masked.append(done[:-MAX_SECRET])
            self._rest = done[-MAX_SECRET:]
        self._store(masked)

    def close(self) -> None:
        """Write what is left. A last line without an end gets one."""
        if self._rest:
            self._store([_masked(self._rest) + b"\n"])
        self._close()

    def _store(self, lines: Iterable[bytes]) -> None:
        pending = bytearray()
        for line in lines:
            full = self._size + len(pending)
            if full and full + len(line) > self._limit:
                self._append(bytes(pending))
                pending.clear()
                self._close()
                self._part, self._size = self._part + 1, 0
            pending += line
        self._append(bytes(pending))

    def _append(self, data: bytes) -> None:
        """Append; if that is not possible, drop it: who prints must not wait for a full disk."""
        if not data:
            return
        try:
            if self._lost:
                self._write(note(f"{self._lost} bytes could not be written").encode() + b"\n")
                self._lost = 0
            self._write(data)
        except OSError as e:
            self._lost += len(data)
            self._close()
            _complain(f"cannot write {self.path}: {e}")

    def _write(self, data: bytes) -> None:
        if self._file is not None and os.fstat(self._file).st_nlink == 0:
            # Another host that shares the folder made room.
            self._close()
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            self._size = os.fstat(self._file).st_size
        while data:
            written = os.write(self._file, data)
            self._size += written
            data = data[written:]

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Writer:
    """Serves all pipes until they and the control socket are closed."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._folder = Path(config.folder)
        self._control: socket.socket | None = socket.socket(fileno=config.control)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._control, selectors.EVENT_READ)
        self._logs: dict[int, Log] = {}
        # By pipe: closed with it, which tells whoever prints to it that this process is done.
        self._alive: dict[int, int] = {}
        self._sweep_at = 0.0
        self._written = 0

    def run(self) -> None:
        """Write until there is nothing more to write."""
        while self._control is not None or self._logs:
            self._sweep()
            ready = self._selector.select(SWEEP_SECONDS if self._control is not None else LINGER_SECONDS)
            if self._control is None and not ready:
                break
            for key, _ in ready:
                if key.fd in self._logs:
                    self._read(key.fd)
                else:
                    self._accept()
        for pipe in list(self._logs):
            self._end(pipe)

    def _accept(self) -> None:
        assert self._control is not None
        try:
            found = next_log(self._control)
        except OSError as e:
            _complain(f"the output of an attempt is lost: {e}")
            return
        if found is None:
            self._selector.unregister(self._control)
            self._control.close()
            self._control = None
            return
        attempt_id, (pipe, alive) = found
        self._alive[pipe] = alive
        self._logs[pipe] = Log(self._folder, attempt_id, self._config.file_bytes)
        self._selector.register(pipe, selectors.EVENT_READ)

    def _read(self, pipe: int) -> None:
        chunk = os.read(pipe, CHUNK)
        if chunk:
            self._logs[pipe].feed(chunk)
            self._written += len(chunk)
        else:
            self._end(pipe)

    def _end(self, pipe: int) -> None:
        self._selector.unregister(pipe)
        self._logs.pop(pipe).close()
        os.close(pipe)
        os.close(self._alive.pop(pipe))

    def _sweep(self) -> None:
        if time.monotonic() < self._sweep_at and self._written < self._config.total_bytes * SWEEP_SHARE:
            return
        self._sweep_at, self._written = time.monotonic() + SWEEP_SECONDS, 0
        busy = frozenset(log.path for log in self._logs.values())
        try:
            older_than = time.time() - self._config.keep_seconds
            sweep(self._folder, older_than=older_than, total_bytes=self._config.total_bytes, busy=busy)
        except OSError as e:
            _complain(f"cannot remove old logs: {e}")


def _last_part(folder: Path, attempt_id: int) -> tuple[int, int]:
    """The number of a log's last part, and its size."""
    try:
        if numbers := parts(folder, attempt_id):
            return numbers[-1], path_of(folder, attempt_id, numbers[-1]).stat().st_size
    except OSError as e:
        _complain(f"cannot read {folder}: {e}")
    return 0, 0


def _masked(line: bytes) -> bytes:
    # Bytes that are no text stay as they are.
    return masked(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _complain(what: str) -> None:
    # Standard error is the log of all drivers, on the same disk.
    with suppress(OSError):
        sys.stderr.write(json.dumps({"event": "attempt_log", "level": "error", "error": what}) + "\n")


def main() -> None:
    # It ends once its host and all drivers have, after it has written their last words.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    given = json.load(sys.stdin)
    config = Config(**{**given, "redact": tuple(given["redact"])})
    configure_masking(config.redact)
    Writer(config).run()


if __name__ == "__main__":
    main()
