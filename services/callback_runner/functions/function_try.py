"""A try of a Python function, in its own process."""

from __future__ import annotations

from callback_runner.claims import Claim
from callback_runner.decide import Outcome, Raised, Returned
from callback_runner.functions.process import Child


class FunctionTry:
    """One try of ``module:function``. Raises ``OSError`` if no process can be started."""

    # The process imports user code at once, and an import may have effects.
    begun = True

    def __init__(self, target: str, claim: Claim, alive_until: float) -> None:
        self._child = Child(target, claim.kwargs, claim.context, alive_until)
        self._killed = False

    def wait(self, seconds: float) -> bool:
        return self._child.wait(seconds)

    def lease_renewed(self, alive_until: float) -> None:
        self._child.lease_renewed(alive_until)

    def kill(self) -> None:
        self._killed = self._killed or not self._child.wait(0)
        self._child.kill()

    def finish(self) -> Outcome | None:
        """After a signal, the outcome is uncertain: the function may have been anywhere."""
        error = self._child.finish()
        if error is None:
            return Returned()  # perhaps just before the kill
        if self._child.signalled:
            return None if self._killed else Raised(error, uncertain=True)
        return Raised(error)
