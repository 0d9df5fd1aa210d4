"""One claimed call on its own thread: tries it as its kind asks, renews the lease, records under the token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from tenacity import Retrying, retry_if_exception_type, wait_exponential

from callback_runner import webhooks
from callback_runner.decide import (
    Impossible,
    Outcome,
    Raised,
    Returned,
    Superseded,
    after_try,
    given_up,
    switched_off,
    unknown,
)
from callback_runner.functions import Child
from callback_runner.interruptible import Permit, ThreadTry, Try
from callback_runner.record import Claim, record
from callback_runner.sender import Sender, make_sender
from callback_runner.topics import TopicSender
from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill.system.crash import crash_point
from retrofill_core.bus import metrics
from retrofill_core.bus.transaction import token_transaction
from retrofill_core.contract.topics import CALLBACK_RUNNER
from retrofill_core.settings import Settings
from retrofill_core.store import callbacks

# A try and its limit in seconds, or the outcome if no try could begin.
Begun = tuple[Try, float] | Outcome


class Kinds:
    """Starts tries; one instance per runner."""

    def __init__(self, settings: Settings, installation: str, instance: str) -> None:
        self._settings = settings
        self._signer = webhooks.Signer(installation, settings.webhook_secrets, settings.pagerduty_keys)
        self._topics = TopicSender(settings, instance)

    @cached_property
    def _sender(self) -> Sender:
        return make_sender(self._settings.webhook_allow)

    def begin(self, claim: Claim, alive_until: Callable[[], float]) -> Begun:
        """Begin a try. ``alive_until``: the end of the claim's lease, in monotonic seconds."""
        match claim.kind:
            case "function":
                return self._function(claim, alive_until())
            case "webhook":
                return self._webhook(claim, alive_until)
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

    def _webhook(self, claim: Claim, alive_until: Callable[[], float]) -> Begun:
        address = webhooks.address_of(claim, self._settings.receivers)
        if isinstance(address, Impossible):
            return address
        if claim.off_since is not None and claim.off_address == self._signer.hash_of(address):
            return switched_off(claim.label, claim.off_since)
        work = partial(webhooks.call, claim, address, self._signer, self._sender)
        return self._thread(work, claim, self._settings.webhook_timeout_seconds, alive_until)

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


log = get_log(__name__)
LEASE_SECONDS = 10.0
RENEW_SECONDS = LEASE_SECONDS / 3
# After a stop, recording is retried this long while the database does not answer.
RECORD_AFTER_STOP_SECONDS = 2.0


class Call:
    """Runs one claim until it is recorded, even after the shard is lost."""

    def __init__(
        self, claim: Claim, settings: Settings, engine: Engine, kinds: Kinds, done: Callable[[Call], None]
    ) -> None:
        self.claim = claim
        self._settings = settings
        self._engine = engine
        self._kinds = kinds
        self._done = done
        # Measured from before the claim's commit, so the lease ends no earlier.
        self._alive_until = time.monotonic() + LEASE_SECONDS
        self._stopping = threading.Event()
        self._stopped_at = 0.0
        self._trying: Try | None = None
        self._thread = threading.Thread(target=self._run, name=f"callback-{claim.deadline_id}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Cut the call off; the try is recorded as failed."""
        self._stopped_at = time.monotonic()
        self._stopping.set()
        if self._trying is not None:
            self._trying.kill()

    def join(self, seconds: float) -> None:
        """Wait up to ``seconds`` until the outcome is recorded."""
        self._thread.join(seconds)

    def _run(self) -> None:
        claim = self.claim
        try:
            with metrics.CALLBACK_SECONDS.labels(claim.kind).time():
                outcome = self._call()
            crash_point("callback:called")
            if isinstance(outcome, Superseded):
                log.warning("callback_superseded", deadline=claim.deadline_id, attempt=claim.attempts)
            else:
                self._record_until_landed(outcome)
        except Exception as e:
            log.error("callback_not_recorded", deadline=claim.deadline_id, attempt=claim.attempts, exc_info=e)
        finally:
            self._done(self)

    # calling

    def _call(self) -> Outcome | Superseded:
        if self.claim.outage is not None:
            return given_up(self.claim.outage, self._settings.callback_patience_seconds)
        stopped = Raised("the callback-runner was stopped", at_once=True)
        if self._stopping.is_set():
            return stopped
        if time.monotonic() >= self._alive_until:
            # This process was suspended past its lease, or the claim's commit took as long: another runner may be making
            # this call, unless the claim is still ours.
            lost = self._renew(time.monotonic())
            if lost is not None:
                return lost
        begun = self._kinds.begin(self.claim, lambda: self._alive_until)
        if not isinstance(begun, tuple):
            return begun
        trying, limit = begun
        self._trying = trying
        if self._stopping.is_set():
            trying.kill()  # the stop came before ``_trying`` was set
        crash_point("callback:started")
        cut: Raised | Superseded | None = None
        try:
            cut = self._watch(trying, limit)
        finally:
            trying.kill()
            outcome = trying.finish()
        if isinstance(cut, Superseded):
            return cut
        if outcome is not None:
            return outcome
        if self._stopping.is_set():
            cut = stopped
        return replace(cut or _too_long(limit), uncertain=trying.begun)

    def _watch(self, trying: Try, limit: float) -> Raised | Superseded | None:
        """Renew the lease until the try ends. Returns why it must be cut off, or ``None``."""
        end = time.monotonic() + limit
        # Not from now: the claim's commit may have taken most of the lease.
        renew_at = self._alive_until - LEASE_SECONDS + RENEW_SECONDS
        while not trying.wait(min(end, renew_at) - time.monotonic()):
            now = time.monotonic()
            if self._stopping.is_set():
                return None
            if now >= end:
                return _too_long(limit)
            if now >= renew_at:
                renew_at = now + RENEW_SECONDS
                lost = self._renew(now)
                if lost is not None:
                    return lost
                trying.lease_renewed(self._alive_until)
        return None

    def _renew(self, now: float) -> Raised | Superseded | None:
        """Renew the lease, unless the database is away. Returns why the call must be cut off, or ``None``."""
        try:
            if not callbacks.renew(self._engine, self.claim.deadline_id, self.claim.token, LEASE_SECONDS):
                return Superseded()
        except SQLAlchemyError as e:
            log.warning("lease_not_renewed", deadline=self.claim.deadline_id, error=first_line(e))
            if time.monotonic() >= self._alive_until:
                return Raised("the lease ended: the database did not answer", at_once=True)
            return None
        self._alive_until = now + LEASE_SECONDS
        return None

    # recording

    def _record_until_landed(self, outcome: Outcome) -> None:
        """Retry while the database is down, so a call that succeeded is not repeated."""
        for attempt in Retrying(
            retry=retry_if_exception_type(SQLAlchemyError),
            wait=wait_exponential(0.1, max=2),
            stop=lambda _: self._gave_up(),
            reraise=True,
        ):
            with attempt:
                self._record(outcome)

    def _gave_up(self) -> bool:
        return self._stopping.is_set() and time.monotonic() >= self._stopped_at + RECORD_AFTER_STOP_SECONDS

    def _record(self, outcome: Outcome) -> None:
        claim, settings = self.claim, self._settings
        age = (datetime.now(UTC) - claim.due_at).total_seconds()
        decision = after_try(
            outcome,
            claim.attempts,
            settings.callback_max_attempts,
            at_most_once=claim.at_most_once,
            patient=claim.has_receiver and age < settings.callback_patience_seconds,
        )
        with token_transaction(self._engine, CALLBACK_RUNNER, claim.shard, settings.max_message_bytes) as tx:
            record(tx, claim, decision, outcome)
            crash_point("callback:before-commit")
        crash_point("callback:committed")


def _too_long(limit: float) -> Raised:
    return Raised(f"the call took longer than its limit of {limit:g} s and was cut off")
