"""Publishes an attempt's staged output after it was accepted, also in place of a lost driver."""

from __future__ import annotations

from pathlib import Path

import structlog
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from retrofill.bus.crash import crash_point
from retrofill.driver.conversation import Conversation
from retrofill.driver.errors import error_info
from retrofill.driver.execute import Result
from retrofill.driver.launch import Launch
from retrofill.driver.publication import Publication, StagedOutputGone, publish
from retrofill.driver.report import Reporter
from retrofill.driver.staging import CannotStage, Staging

log = structlog.get_logger(__name__)
# If the file system is unavailable for longer, the run fails.
TRIES = 10
MAX_PAUSE_SECONDS = 10.0


def publish_staged(launch: Launch, staging: Staging, reporter: Reporter, host: Conversation) -> Result | None:
    """Report the staged output and publish it once accepted.

    Returns ``None`` if another driver must publish it.
    """
    try:
        outputs = staging.seal()
    except (CannotStage, OSError) as e:
        staging.discard()
        return Result(False, error_info(e))
    if not outputs:
        return Result(True)
    crash_point("stage:sealed")
    reporter.staged(outputs)
    crash_point("stage:told")
    host.say("may_publish", True)
    if not host.hear("publish"):
        # Another attempt or publisher replaced this one and publishes the output.
        log.warning("not_ours_to_publish", run=launch.run_id, attempt=launch.attempt)
        return None
    return publish_all(launch, outputs)


def publish_all(launch: Launch, outputs: tuple[str, ...]) -> Result:
    """Publish each output. Idempotent, also across drivers."""
    for output in outputs:
        publication = Publication(Path(output), launch.run_id, launch.attempt, launch.publication)
        try:
            _publish_with_retries(publication)
        except (OSError, StagedOutputGone) as e:
            return Result(False, error_info(e))
    crash_point("publish:done")
    return Result(True)


def _publish_with_retries(publication: Publication) -> None:
    def log_retry(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning("publication_waits", output=str(publication.target), error=str(error))

    for attempt in Retrying(
        retry=retry_if_exception_type(OSError),
        stop=stop_after_attempt(TRIES),
        wait=wait_exponential(0.2, max=MAX_PAUSE_SECONDS),
        before_sleep=log_retry,
        reraise=True,
    ):
        with attempt:
            publish(publication)
