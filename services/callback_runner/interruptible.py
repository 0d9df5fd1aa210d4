"""One try of a call: the interface that all kinds have, and the tries that run on a thread."""

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

    def lease_renewed(self, alive_until: float) -> None:
        """The claim's lease was renewed, until then in monotonic seconds."""

    def kill(self) -> None:
        """Cut the try off. Safe from any thread and after its end."""

    def finish(self) -> Outcome | None:
        """Release all resources. Returns the outcome, or ``None`` if cut off before that."""

    @property
    def begun(self) -> bool:
        """Whether the call may have had an effect."""


class CutOff(Exception):
    """The try was killed, its limit has passed, or its lease may have ended."""


class Permit:
    """Checked by a thread before each step, so an abandoned one does nothing more.

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
        """From here on the call may have an effect. Raises ``CutOff`` if it must not."""
        with self._lock:
            self.left()
            if time.monotonic() >= self._alive_until():
                # This process was suspended past its lease: another runner may be making this call.
                raise CutOff
            self._begun = True

    def revoke(self) -> None:
        with self._lock:
            self._revoked = True

    @property
    def begun(self) -> bool:
        """Whether the call may have had an effect."""
        with self._lock:
            return self._begun


class ThreadTry:
    """Work on its own thread, which cannot be killed: its permit stops an abandoned one."""

    def __init__(self, work: Callable[[Permit], Outcome], permit: Permit, name: str) -> None:
        self._work = work
        self._permit = permit
        self._outcome: Outcome | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def wait(self, seconds: float) -> bool:
        return self._ended.wait(max(seconds, 0.0))

    def lease_renewed(self, alive_until: float) -> None:
        """Nothing to do: the permit reads the lease's end itself."""

    def kill(self) -> None:
        self._permit.revoke()

    def finish(self) -> Outcome | None:
        return self._outcome

    @property
    def begun(self) -> bool:
        return self._permit.begun

    def _run(self) -> None:
        try:
            self._outcome = self._work(self._permit)
        except CutOff:
            pass
        except Exception as e:  # noqa: BLE001 - any error of a server or library is this call's outcome
            self._outcome = Raised(f"{type(e).__name__}: {e}", uncertain=self._permit.begun)
        finally:
            self._ended.set()
