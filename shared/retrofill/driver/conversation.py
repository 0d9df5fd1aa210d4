"""The JSON-lines connection between a driver and its host.

It imports functions, not modules: user code may replace what a module has.
"""

from __future__ import annotations

import threading
from json import dumps, loads
from queue import SimpleQueue
from typing import IO, Any, Callable

from retrofill.driver.process import Ending
from retrofill.masking import masked

MAX_REASON = 1000
# What a host sends, besides what a handler is for.
KINDS = ("settings", "launch", "begin", "publish", "code")


class Conversation:
    """Messages to and from the host.

    A thread reads them, so the host's exit is always noticed at once.
    """

    def __init__(self, incoming: IO[str], outgoing: IO[str], ending: Ending) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._ending = ending
        self._messages: dict[str, SimpleQueue[Any]] = {kind: SimpleQueue() for kind in KINDS}
        self._handlers: dict[str, Callable[[Any], object]] = {
            kind: messages.put for kind, messages in self._messages.items()
        }
        self._saying = threading.Lock()
        ending.tell = lambda why, shared: self.say("lost", {"why": masked(why)[:MAX_REASON], "shared": shared})
        threading.Thread(target=self._read, name="host", daemon=True).start()

    def say(self, kind: str, fields: object) -> None:
        """Send one message. Ends the driver if the connection is closed."""
        try:
            with self._saying:
                self._outgoing.write(dumps({kind: fields}) + "\n")
                self._outgoing.flush()
        except OSError as e:
            self._ending.end(f"the host hung up: {e}")

    def hear(self, kind: str) -> Any:
        """Wait for the next message of a kind and return its content."""
        return self._messages[kind].get()

    def on(self, kind: str, handler: Callable[[Any], object]) -> None:
        """Have the reading thread call ``handler`` with the content of each message of a kind."""
        self._handlers[kind] = handler

    def _read(self) -> None:
        try:
            for line in self._incoming:
                message = loads(line)
                if message.get("end"):
                    break
                ((kind, fields),) = message.items()
                self._handlers[kind](fields)
            self._ending.end("ended by the host", status=0)
        except (ValueError, KeyError, AttributeError, OSError) as e:
            self._ending.end(f"invalid message from the host: {e}")
