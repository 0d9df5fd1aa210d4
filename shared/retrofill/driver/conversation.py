"""The JSON lines between a driver and its host."""

from __future__ import annotations

import json
import threading
from queue import SimpleQueue
from typing import IO, Any

from retrofill.driver.process import Ending
from retrofill.redaction import redacted

MAX_REASON = 1000


class Conversation:
    """What the host says is read on a thread of its own, so that its end is noticed whatever the driver is at."""

    def __init__(self, heard: IO[str], said: IO[str], ending: Ending) -> None:
        self._heard = heard
        self._said = said
        self._ending = ending
        self._messages: SimpleQueue[dict[str, Any]] = SimpleQueue()
        ending.tell = lambda why: self.say("lost", redacted(why)[:MAX_REASON])
        threading.Thread(target=self._read, name="host", daemon=True).start()

    def say(self, kind: str, fields: object) -> None:
        """Send one line. A host that is gone is noticed by the reader."""
        try:
            self._said.write(json.dumps({kind: fields}) + "\n")
            self._said.flush()
        except OSError as e:
            self._ending.end(f"the host hung up: {e}")

    def hear(self, kind: str) -> Any:
        """Wait for the next message, which must be of this kind."""
        message = self._messages.get()
        if kind not in message:
            self._ending.end(f"the host said {sorted(message)} where {kind!r} was due")
        return message[kind]

    def preset(self, message: dict[str, Any]) -> None:
        """Take a message as heard."""
        self._messages.put(message)

    def _read(self) -> None:
        try:
            for line in self._heard:
                message = json.loads(line)
                if message.get("end"):
                    break
                self._messages.put(message)
            self._ending.end("told by the host", status=0)
        except (ValueError, AttributeError, OSError) as e:
            self._ending.end(f"the host cannot be understood: {e}")
