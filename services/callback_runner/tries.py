"""One try of a call, whatever its kind: what the call's lifecycle needs of it, and the kind that is a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from callback_runner.decide import Outcome, Raised


class Try(Protocol):
    """A try that has begun."""

    def wait(self, seconds: float) -> bool:
        """Whether it ended within ``seconds``."""

    def tell_renewed(self) -> None:
        """The claim was renewed."""

    def kill(self) -> None:
        """Cut it off; from any thread, also when it has ended."""

    def finish(self) -> Outcome | None:
        """Release everything; what it came to, or ``None`` where it was cut off before that was known."""

    @property
    def begun(self) -> bool:
        """Whether it may have had an effect."""


class CutOff(Exception):
    """The try was killed, its time is over or its claim is not known to be alive."""


class Permit:
    """What a thread asks before each step, so that one that was given up does nothing more.

    ``alive_until``: the end of the claim's lease, in monotonic seconds.
    """

    def __init__(self, limit_seconds: float, alive_until: Callable[[], float]) -> None:
        self._end = time.monotonic() + limit_seconds
        self._alive_until = alive_until
        self._lock = threading.Lock()
        self._revoked = False
        self._begun = False

    def left(self) -> float:
        """Seconds until the limit. Raises ``CutOff``."""
        left = self._end - time.monotonic()
        if self._revoked or left <= 0:
            raise CutOff
        return left

    def begin(self) -> None:
        """From here on the call may have had an effect. Raises ``CutOff``: then it has had none, unless it had begun."""
        with self._lock:
            self.left()
            if time.monotonic() >= self._alive_until():
                # This process slept through its lease: another runner may be making this call.
                raise CutOff
            self._begun = True

    def revoke(self) -> None:
        """Allow nothing more."""
        with self._lock:
            self._revoked = True

    @property
    def begun(self) -> bool:
        """Whether the call may have had an effect."""
        with self._lock:
            return self._begun


class ThreadTry:
    """Work in a thread of its own. A thread cannot be killed: it is left alone, and its permit ends it."""

    def __init__(self, work: Callable[[Permit], Outcome], permit: Permit, name: str) -> None:
        self._work = work
        self._permit = permit
        self._outcome: Outcome | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        """Whether it ended within ``seconds``."""
        return self._ended.wait(max(seconds, 0.0))

    def tell_renewed(self) -> None:
        """The permit knows."""

    def kill(self) -> None:
        """Let it do nothing more."""
        self._permit.revoke()

    def finish(self) -> Outcome | None:
        """What it came to, if that is known."""
        return self._outcome

    @property
    def begun(self) -> bool:
        """Whether it may have had an effect."""
        return self._permit.begun

    def _run(self) -> None:
        try:
            self._outcome = self._work(self._permit)
        except CutOff:
            pass
        except Exception as e:  # noqa: BLE001 - whatever a server or a library does is the result of this call
            self._outcome = Raised(f"{type(e).__name__}: {e}", uncertain=self._permit.begun)
        finally:
            self._ended.set()
