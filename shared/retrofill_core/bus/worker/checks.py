"""Runs due checks: short transactions that decide from the rows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from retrofill.log import get_log
from retrofill.system.crash import crash_point
from retrofill_core.bus import metrics
from retrofill_core.bus.faults import Fault, classify, needing_rows
from retrofill_core.bus.transaction import Transaction
from retrofill_core.bus.worker.context import MAX_BACKOFF_SECONDS, Failures, WorkerContext, pause, short
from retrofill_core.bus.worker.shard import Shard

log = get_log(__name__)
CHECKS_PER_PASS = 50
CONFLICT_SECONDS = 0.02
LOCKED_SECONDS = 0.5


class Checks:
    """The checks of one worker's shards."""

    def __init__(self, context: WorkerContext, failures: Failures) -> None:
        self._context = context
        self._failures = failures

    def run(self, shard: Shard) -> None:
        """Run due checks, at most ``CHECKS_PER_PASS`` keys, grouped by the handler."""
        for group in self._due(shard):
            error = self._run(shard, group)
            if error is None:
                continue
            if len(group) == 1 or classify(error) in (Fault.FENCED, Fault.WAIT):
                self._refused(shard, group, error)
                return
            # Check each key alone, so that the one at fault does not block the others.
            for key in group:
                shard.schedule_check(key, 0.0)
            for key in group:
                error = self._run(shard, [key])
                if error is not None:
                    self._refused(shard, [key], error)
                    return

    def _due(self, shard: Shard) -> Iterator[Sequence[str]]:
        left = CHECKS_PER_PASS
        for group in self._context.handler.group(shard.due_checks(time.monotonic())):
            if chosen := group[:left]:
                yield chosen
            left -= len(chosen)

    def _run(self, shard: Shard, keys: Sequence[str]) -> Exception | None:
        """Check ``keys`` in one transaction; returns its exception, or ``None`` if it committed."""
        self._context.progressed()
        began = time.monotonic()
        for key in keys:
            shard.checks.pop(key, None)
            crash_point(f"check:before-begin:{key}")
        tx: Transaction | None = None
        try:
            with self._context.transaction(shard) as tx:
                crash_point("check:begun")
                with needing_rows():
                    self._context.handler.check(tx, keys)
                crash_point("check:before-commit")
            crash_point("check:committed")
        except Exception as e:  # noqa: BLE001 - classified by the caller; a check is never lost
            if tx is not None and classify(e) is Fault.WAIT:
                # It may have committed with the reply lost; then only we know of the checks that it
                # scheduled. (A batch detects this case by its offsets.)
                self._context.schedule_checks(shard, tx.checks)
            return e
        metrics.CHECK_SECONDS.observe(time.monotonic() - began)
        shard.failures = 0
        for key in keys:
            shard.conflicting_checks.pop(key, None)
        self._context.schedule_checks(shard, tx.checks)
        return None

    def _refused(self, shard: Shard, keys: Sequence[str], error: Exception) -> None:
        fault = classify(error)
        metrics.RETRIES.labels("check", fault.value).inc()
        if fault is Fault.FENCED:
            self._failures.fenced(shard, error)
            return
        now = time.monotonic()
        for key in keys:
            shard.schedule_check(key, now + self._pause(shard, key, fault))
        if fault is Fault.WAIT:
            self._failures.back_off(shard, error, "check_waits")
        elif fault is Fault.LOCKED:
            log.warning("check_waits", shard=shard.partition, checks=list(keys), error=short(error))
        elif fault is Fault.CONFLICT:
            log.info("check_again", shard=shard.partition, checks=list(keys), error=short(error))
        else:
            log.error("check_failed", shard=shard.partition, checks=list(keys), exc_info=error)

    def _pause(self, shard: Shard, key: str, fault: Fault) -> float:
        """Seconds until a refused key is checked again; grows for a conflict or a lock that persists."""
        if fault is Fault.WAIT:
            return 0.0
        if fault not in (Fault.CONFLICT, Fault.LOCKED):
            return MAX_BACKOFF_SECONDS
        before = shard.conflicting_checks.get(key, 0)
        shard.conflicting_checks[key] = before + 1
        first = CONFLICT_SECONDS if fault is Fault.CONFLICT else LOCKED_SECONDS
        return pause(first, before)
