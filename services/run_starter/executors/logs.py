"""The logs of this host's attempts: the process that writes them, and the page that serves them to users on other machines."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import parse_qs

from retrofill.attempt_logs import open_log
from retrofill.log import get_log
from retrofill_core.attempt_logs import NEXT, Config, Position, folder_of, read
from retrofill_core.settings import Settings
from retrofill_core.startup import command_of
from run_starter.executors import processes

log = get_log(__name__)
COMMAND = command_of("retrofill_core.attempt_logs")
CLOSE_SECONDS = 5.0
# One that ended after more than this did not fail to start.
STEADY_SECONDS = 60.0


class AttemptLogs:
    """Starts the writer, and starts it again if it ends.

    Drivers hand their pipes over ``channel``, which stays the same for every writer, and again when
    one has ended. Who prints more than a pipe holds waits for the next one.
    """

    def __init__(self, settings: Settings, redact: tuple[str, ...] | None = None) -> None:
        """``redact``: what is masked, instead of what the settings say."""
        self._home = settings.home
        self.channel, self._far = socket.socketpair()
        self._config = Config(
            control=self._far.fileno(),
            folder=str(folder_of(settings)),
            file_bytes=settings.log_file_bytes,
            keep_seconds=settings.log_keep_seconds,
            total_bytes=settings.log_total_bytes,
            redact=tuple(settings.redact) if redact is None else redact,
        )
        self._closed = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="log-writer", daemon=True)
        self._keeper.start()

    def open(self, attempt_id: int) -> int | None:
        """Returns the end of a pipe whose content goes to the attempt's log, ``None`` if there is no writer."""
        try:
            return open_log(self.channel, attempt_id)
        except OSError as e:
            log.warning("attempt_log_not_opened", attempt=attempt_id, error=str(e))
            return None

    def close(self) -> None:
        """Wait until what the drivers printed is written."""
        self._closed.set()
        self.channel.close()
        self._far.close()
        self._keeper.join(CLOSE_SECONDS)

    def _keep(self) -> None:
        failures = 0
        while not self._closed.wait(processes.pause(failures) if failures else 0.0):
            began = time.monotonic()
            try:
                self._run()
            except Exception as e:  # noqa: BLE001 - without this thread, no attempt would have a log any more
                log.error("log_writer_not_started", error=str(e))
            failures = 1 if time.monotonic() > began + STEADY_SECONDS else failures + 1

    def _run(self) -> None:
        with processes.driver_log(self._home) as errors:
            process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=processes.inherited(os.environ),
                pass_fds=(self._far.fileno(),),
                # It must outlive this process, whatever ends it.
                start_new_session=True,
            )
        process.communicate(self._config.as_json())
        if not self._closed.is_set():
            log.error("log_writer_ended", status=process.returncode)


_ATTEMPT = re.compile(r"[1-9]\d{0,18}")
_TEXT = {"Content-Type": "text/plain; charset=utf-8"}
Answer = tuple[str, Mapping[str, str], bytes]


class LogPage:
    """``ATTEMPT_ID?at=PART:BYTE``: what follows there; the header ``NEXT`` says where that ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, path: str, query: str) -> Answer:
        if not _ATTEMPT.fullmatch(path):
            return _refusal("404 Not Found", "the path is the id of an attempt")
        try:
            at = Position.parse(parse_qs(query).get("at", ["0:0"])[0])
        except ValueError:
            return _refusal("400 Bad Request", "at is PART:BYTE, like 0:4096")
        try:
            found = read(self._folder, int(path), at)
        except OSError as e:
            return _refusal("500 Internal Server Error", f"the log cannot be read: {e}")
        if found is None:
            return _refusal("404 Not Found", f"there is no log of attempt {path} here")
        data, end = found
        return "200 OK", {**_TEXT, NEXT: str(end), "Content-Length": str(len(data))}, data


def _refusal(status: str, why: str) -> Answer:
    return status, _TEXT, why.encode() + b"\n"
