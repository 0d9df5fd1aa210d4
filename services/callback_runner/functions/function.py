"""A call of a Python function: a process of its own."""

from __future__ import annotations

from callback_runner.claims import Claim
from callback_runner.decide import Outcome, Raised, Returned
from callback_runner.functions.process import Child


class FunctionTry:
    """One try of ``module:function``. Raises ``OSError`` where no process can be started."""

    # Its code is imported at once, and importing may have effects.
    begun = True

    def __init__(self, target: str, claim: Claim, lease_seconds: float) -> None:
        self._child = Child(target, claim.kwargs, claim.context, lease_seconds)
        self._killed = False

    def wait(self, seconds: float) -> bool:
        """Whether it ended within ``seconds``."""
        return self._child.wait(seconds)

    def tell_renewed(self) -> None:
        """Let it live on."""
        self._child.tell_renewed()

    def kill(self) -> None:
        """Kill it and what it started."""
        self._killed = self._killed or not self._child.wait(0)
        self._child.kill()

    def finish(self) -> Outcome | None:
        """Clean up. A process that a signal ended may have been anywhere in the function."""
        error = self._child.finish()
        if error is None:
            return Returned()  # in the last moment before it was to be killed, perhaps
        if self._child.signalled:
            return None if self._killed else Raised(error, uncertain=True)
        return Raised(error)
