"""Starts a try of any kind of callback: function, webhook or topic."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

from callback_runner.claims import Claim
from callback_runner.decide import Impossible, Outcome, Raised, Returned, switched_off, unknown
from callback_runner.functions.process import Child
from callback_runner.interruptible import Permit, ThreadTry, Try
from callback_runner.topics.sender import TopicSender
from callback_runner.webhooks import protocol
from callback_runner.webhooks.sender import Sender, make_sender
from retrofill_core.settings import Settings

# A try and its limit in seconds, or the outcome if no try could begin.
Begun = tuple[Try, float] | Outcome


class Kinds:
    """Starts tries; one instance per runner."""

    def __init__(self, settings: Settings, installation: str, instance: str) -> None:
        self._settings = settings
        self._signer = protocol.Signer(installation, settings.webhook_secrets, settings.pagerduty_keys)
        self._topics = TopicSender(settings, instance)

    @cached_property
    def _sender(self) -> Sender:
        return make_sender(self._settings.webhook_allow)

    def begin(self, claim: Claim, alive_until: Callable[[], float]) -> Begun:
        """Begin a try. ``alive_until``: the end of the claim's lease, in monotonic seconds."""
        match claim.kind:
            case "function":
                return self._function(claim, alive_until())
            case "webhook" if claim.off_since is not None:
                return switched_off(claim.name, claim.off_since)
            case "webhook":
                work = partial(protocol.call, claim, self._signer, self._sender)
                return self._thread(work, claim, self._settings.webhook_timeout_seconds, alive_until)
            case "topic":
                work = partial(self._topics.call, claim)
                return self._thread(work, claim, self._settings.callback_timeout_seconds, alive_until)
            case _:
                return Impossible(f"this callback-runner does not support callbacks of kind {claim.kind!r}")

    def _function(self, claim: Claim, alive_until: float) -> Begun:
        target = self._settings.callbacks.get(claim.name)
        if target is None:
            what = f"{claim.name!r} is not in the allow-list of callbacks"
            return unknown(what, "RETROFILL_CALLBACKS", self._settings.callbacks)
        try:
            return FunctionTry(target, claim, alive_until), self._settings.callback_timeout_seconds
        except OSError as e:
            return Raised(f"the process for the call could not be started: {e}")

    def _thread(
        self, work: Callable[[Permit], Outcome], claim: Claim, limit: float, alive_until: Callable[[], float]
    ) -> Begun:
        permit = Permit(limit, alive_until)
        return ThreadTry(work, permit, f"{claim.kind}-{claim.deadline_id}"), limit


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
