"""``python -m retrofill_core.attempt_logs.writer``: writes what drivers print to the logs of their attempts.

One process per host, which gets a pipe for each attempt. It outlives driver and host until it has
written what they had flushed, so that no line is lost with them. It masks secrets, starts another
file when one is full, and removes old ones. Its standard input is a ``Config`` as JSON.
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

from retrofill.attempt_logs import SIGN, next_log, note
from retrofill.masking import configure_masking, masked
from retrofill_core.attempt_logs.files import parts, path_of, sweep

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
