"""One claimed call, in a thread of its own: run the child, renew the lease meanwhile, record under the token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from tenacity import Retrying, retry_if_exception_type, wait_exponential

from callback_runner.decide import (
    GiveUp,
    Impossible,
    Outcome,
    Raised,
    Returned,
    Succeed,
    Superseded,
    TryAgain,
    after_try,
    unknown,
)
from callback_runner.process import Child
from retrofill.bus.crash import crash_point
from retrofill.bus.topics import CALLBACK_RUNNER, Topic
from retrofill.bus.transaction import Transaction, token_transaction
from retrofill.messages.deadlines import CallbackFailed, CallbackSucceeded
from retrofill.settings import Settings
from retrofill.store import callbacks

log = structlog.get_logger(__name__)
LEASE_SECONDS = 10.0
# After a stop was asked for, how long a database that does not answer is asked again.
RECORD_AFTER_STOP_SECONDS = 2.0


@dataclass(frozen=True)
class Claim:
    """A callback that this runner claimed."""

    deadline_id: int
    shard: int
    name: str
    kwargs: dict[str, Any]
    attempt: int
    token: str
    # What the function is told of the deadline, as JSON.
    context: dict[str, Any]


class Call:
    """Runs one claim to its record, whoever owns the shard meanwhile."""

    def __init__(self, claim: Claim, settings: Settings, engine: Engine, done: Callable[[Call], None]) -> None:
        self.claim = claim
        self._settings = settings
        self._engine = engine
        self._done = done
        # From before the claim was committed: the lease ends no earlier than this says.
        self._alive_until = time.monotonic() + LEASE_SECONDS
        self._stopping = threading.Event()
        self._stopped_at = 0.0
        self._child: Child | None = None
        self._thread = threading.Thread(target=self._run, name=f"callback-{claim.deadline_id}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Kill the call; its try is recorded as one that failed."""
        self._stopped_at = time.monotonic()
        self._stopping.set()
        if self._child is not None:
            self._child.kill()

    def join(self, seconds: float) -> None:
        """Wait for the record."""
        self._thread.join(seconds)

    def _run(self) -> None:
        claim = self.claim
        try:
            outcome = self._call()
            crash_point("callback:called")
            if isinstance(outcome, Superseded):
                log.warning("callback_superseded", deadline=claim.deadline_id, attempt=claim.attempt)
            else:
                self._record_until_landed(outcome)
        except Exception as e:
            log.error("callback_not_recorded", deadline=claim.deadline_id, attempt=claim.attempt, exc_info=e)
        finally:
            self._done(self)

    # calling

    def _call(self) -> Outcome:
        target = self._settings.callbacks.get(self.claim.name)
        if target is None:
            return unknown(self.claim.name, self._settings.callbacks)
        try:
            child = Child(target, self.claim.kwargs, self.claim.context, LEASE_SECONDS)
        except OSError as e:
            return Raised(f"the process for the call could not be started: {e}")
        self._child = child
        if self._stopping.is_set():
            child.kill()  # the stop came before there was one to kill
        crash_point("callback:started")
        try:
            verdict = self._watch(child)
        finally:
            child.kill()
            error = child.finish()
        if error is None and not isinstance(verdict, Superseded):
            return Returned()  # in the last moment before it was to be killed, perhaps
        if verdict is not None:
            return verdict
        if self._stopping.is_set():
            return Raised("the callback-runner was stopped during the call", at_once=True)
        return Raised(error or "")

    def _watch(self, child: Child) -> Outcome | None:
        """Renew the lease until the child ended (``None``) or has to be killed."""
        limit = self._settings.callback_timeout_seconds
        end = time.monotonic() + limit
        renew_at = time.monotonic() + LEASE_SECONDS / 3
        while not child.wait(min(end, renew_at) - time.monotonic()):
            now = time.monotonic()
            if self._stopping.is_set():
                child.kill()
            elif now >= end:
                child.kill()
                return Raised(f"the call took longer than its limit of {limit:g} s and was killed")
            elif now >= renew_at:
                renew_at = now + LEASE_SECONDS / 3
                lost = self._renew(child, now)
                if lost is not None:
                    return lost
        return None

    def _renew(self, child: Child, now: float) -> Outcome | None:
        try:
            if not callbacks.renew(self._engine, self.claim.deadline_id, self.claim.token, LEASE_SECONDS):
                return Superseded()
        except SQLAlchemyError as e:
            log.warning("lease_not_renewed", deadline=self.claim.deadline_id, error=str(e).splitlines()[0])
            if time.monotonic() >= self._alive_until:
                return Raised("the lease ended during the call: the database did not answer", at_once=True)
            return None
        self._alive_until = now + LEASE_SECONDS
        child.tell_renewed()
        return None

    # recording

    def _record_until_landed(self, outcome: Returned | Raised | Impossible) -> None:
        """A database that is down does not make a call that succeeded undone."""
        for attempt in Retrying(
            retry=retry_if_exception_type(SQLAlchemyError),
            wait=wait_exponential(0.1, max=2),
            stop=lambda _: self._given_up(),
            reraise=True,
        ):
            with attempt:
                self._record(outcome)

    def _given_up(self) -> bool:
        return self._stopping.is_set() and time.monotonic() >= self._stopped_at + RECORD_AFTER_STOP_SECONDS

    def _record(self, outcome: Returned | Raised | Impossible) -> None:
        claim = self.claim
        decision = after_try(outcome, claim.attempt, self._settings.callback_max_attempts)
        with token_transaction(self._engine, CALLBACK_RUNNER, claim.shard, self._settings.max_message_bytes) as tx:
            landed = self._apply(tx, decision)
            crash_point("callback:before-commit")
        crash_point("callback:committed")
        log.info(
            "callback_tried",
            deadline=claim.deadline_id,
            callback=claim.name,
            attempt=claim.attempt,
            result=type(decision).__name__ if landed else "superseded",
            error=None if isinstance(decision, Succeed) else decision.error.splitlines()[-1],
        )

    def _apply(self, tx: Transaction, decision: Succeed | GiveUp | TryAgain) -> bool:
        id, token = self.claim.deadline_id, self.claim.token
        match decision:
            case Succeed():
                landed = callbacks.succeed(tx.conn, id, token)
                if landed:
                    done = CallbackSucceeded(deadline_id=id, callback=self.claim.name, attempts=self.claim.attempt)
                    tx.emit(Topic.CALLBACK_EVENTS, id, done)
                return landed
            case GiveUp(error):
                landed = callbacks.fail(tx.conn, id, token, error)
                if landed:
                    tx.emit(Topic.CALLBACK_EVENTS, id, failed(id, self.claim.name, self.claim.attempt, error))
                return landed
            case TryAgain(error, seconds):
                return callbacks.try_again(tx.conn, id, token, error, seconds, self.claim.shard)


def failed(deadline_id: int, name: str, attempts: int, error: str) -> CallbackFailed:
    """The event of a callback that failed for good."""
    return CallbackFailed(deadline_id=deadline_id, callback=name, attempts=attempts, message=error)
