"""The end of an attempt that staged output: sealed, told, accepted, published; and publishing for a driver that was lost."""

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
# A file system that is away for longer fails the run: the next request for the interval processes it anew.
TRIES = 10
MAX_PAUSE_SECONDS = 10.0


def publish_staged(launch: Launch, staging: Staging, reporter: Reporter, host: Conversation) -> Result | None:
    """Publish what the attempt's tasks staged, once it was accepted; ``None`` where it is not this driver's to publish."""
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
        # Another attempt, or another publisher of this one: what is staged is theirs, or is thrown away by a later run.
        log.warning("not_ours_to_publish", run=launch.run_id, attempt=launch.attempt)
        return None
    return publish_all(launch, outputs)


def publish_all(launch: Launch, outputs: tuple[str, ...]) -> Result:
    """Publish each output; idempotent, by as many drivers as it takes."""
    for output in outputs:
        publication = Publication(Path(output), launch.run_id, launch.attempt, launch.publication)
        try:
            _again_while_away(publication)
        except (OSError, StagedOutputGone) as e:
            return Result(False, error_info(e))
    crash_point("publish:done")
    return Result(True)


def _again_while_away(publication: Publication) -> None:
    def fields(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        log.warning("publication_waits", output=str(publication.target), error=str(error))

    for attempt in Retrying(
        retry=retry_if_exception_type(OSError),
        stop=stop_after_attempt(TRIES),
        wait=wait_exponential(0.2, max=MAX_PAUSE_SECONDS),
        before_sleep=fields,
        reraise=True,
    ):
        with attempt:
            publish(publication)
