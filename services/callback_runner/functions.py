"""One child process: gets its input, keeps the end of its output, dies with its children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from retrofill_core.startup import command_of

TAIL_BYTES = 4000
# Time to read the rest of the output after the process has exited.
DRAIN_SECONDS = 1.0


class Child:
    """A call of ``module:function`` in its own process and process group, which ends at ``alive_until`` (monotonic)."""

    def __init__(self, target: str, kwargs: Mapping[str, Any], context: Mapping[str, Any], alive_until: float) -> None:
        call = json.dumps({"kwargs": kwargs, "context": context}).encode()
        self._process = subprocess.Popen(
            command_of("callback_runner.function_child", target),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            bufsize=0,
        )
        self._tail = b""
        self._alive_until = alive_until
        self._writing = threading.Lock()
        # On threads: a child that does not read or stop writing must not block lease renewals.
        self._writer = threading.Thread(target=self._write_call, args=(call,), daemon=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._writer.start()
        self._reader.start()

    def wait(self, seconds: float) -> bool:
        """Whether the process exits within ``seconds``."""
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def lease_renewed(self, alive_until: float) -> None:
        """Let the child go on until then."""
        self._alive_until = alive_until
        if not self._writer.is_alive():
            self._write_renewal()

    @property
    def signalled(self) -> bool:
        """Whether a signal ended the process."""
        return (self._process.returncode or 0) < 0

    def kill(self) -> None:
        """Kill the process and its children. Safe from any thread and after its exit."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def finish(self) -> str | None:
        """Kill the group and release everything. Returns the error (``None``: exit status 0)."""
        self.kill()  # children that outlived the process
        status = self._process.wait()
        self._reader.join(DRAIN_SECONDS)
        self._writer.join(DRAIN_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        if status == 0:
            return None
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
        # NUL cannot be stored.
        output = self._tail.decode("utf-8", "replace").replace("\x00", "\ufffd").strip()
        return output or f"the call ended with no output: {how}"

    def _write_call(self, call: bytes) -> None:
        self._write(call + b"\n")
        self._write_renewal()  # perhaps renewed while the process did not read

    def _write_renewal(self) -> None:
        self._write(f"{self._alive_until!r}\n".encode())

    def _write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        with self._writing, suppress(OSError, ValueError):
            while data:
                data = data[self._process.stdin.write(data) or 0 :]

    def _read(self) -> None:
        assert self._process.stdout is not None
        with suppress(OSError, ValueError):
            while part := self._process.stdout.read(65536):
                self._tail = (self._tail + part)[-TAIL_BYTES:]
