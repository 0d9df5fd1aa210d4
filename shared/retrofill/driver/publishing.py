"""Publishes an attempt's staged output after it was accepted, also in place of a lost driver."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from queue import SimpleQueue
from typing import Callable

from retrofill.bus.crash import crash_point
from retrofill.driver.base import BaseChanged
from retrofill.driver.conversation import Conversation
from retrofill.driver.errors import error_info
from retrofill.driver.execute import Result
from retrofill.driver.facts import Published
from retrofill.driver.launch import Launch, LaunchedRun
from retrofill.driver.log import get_log
from retrofill.driver.publication import Publication, publish
from retrofill.driver.report import Reporter
from retrofill.driver.reviewed import ReviewedRun
from retrofill.driver.tables.output import TableOutput
from retrofill.driver.tables.publication import NotPermitted, Tables

log = get_log(__name__)
# If the file system is unavailable for longer, the run fails.
TRIES = 10
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 10.0


Ended = Callable[[Launch, LaunchedRun, Reporter, Result], object]


def may_publish(host: Conversation, run: LaunchedRun) -> bool:
    """Whether this driver publishes the run, as Postgres says now. Waits until that is decided."""
    host.say("may_publish", run.id)
    return bool(host.hear("publish"))


class Publisher:
    """Publishes the attempt's staged output in a thread, in the order of its runs.

    ``ended`` reports the result of a run.
    """

    def __init__(self, launch: Launch, reporter: Reporter, host: Conversation, ended: Ended, tables: Tables) -> None:
        self._launch = launch
        self._reporter = reporter
        self._host = host
        self._ended = ended
        self._tables = tables
        self._waiting: SimpleQueue[tuple[LaunchedRun, tuple[str, ...]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def publish(self, run: LaunchedRun, outputs: tuple[str, ...], bases: tuple[str, ...] = ()) -> None:
        """Report the sealed output of a run, and publish it once it is accepted.

        ``bases``: the state of their places, for a review. A run without output has succeeded.
        """
        if not outputs:
            self._ended(self._launch, run, self._reporter, Result(True))
            return
        crash_point("stage:sealed")
        self._reporter.staged(run, outputs, bases)
        crash_point("stage:told")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="publisher", daemon=True)
            self._thread.start()
        self._waiting.put((run, outputs))

    def finish(self) -> None:
        """Wait until all is published and reported."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()

    @property
    def finished(self) -> bool:
        """Whether all that it was given is published and reported."""
        return self._thread is None or not self._thread.is_alive()

    def _serve(self) -> None:
        for run, outputs in iter(self._waiting.get, None):
            try:
                if not may_publish(self._host, run):
                    raise NotPermitted
                result = publish_all(self._launch, run, self._launch.attempt_id, outputs, self._tables)
            except NotPermitted:
                # Another publisher replaced this one.
                log.warning("not_ours_to_publish", run=run.id, attempt=self._launch.attempt_id)
            else:
                self._ended(self._launch, run, self._reporter, result)


def publish_all(
    launch: Launch, run: LaunchedRun, accepted_attempt: int, outputs: tuple[str, ...], tables: Tables
) -> Result:
    """Publish each output of a run, and keep what it replaces. Idempotent, also across drivers.

    If the place of one was changed since a review had approved the run, nothing is published, and the result says so.
    Raises ``NotPermitted`` if another publisher has replaced this one.
    """
    reviewed = ReviewedRun(launch, replace(run, outputs=outputs), accepted_attempt, tables)
    try:
        try:
            published = _publish(reviewed, run, accepted_attempt, outputs, tables)
        except BaseChanged as e:
            log.warning("base_changed", run=run.id, error=str(e))
            changed, bases = reviewed.present(e)
            return Result(True, changed=tuple(changed), bases=tuple(bases))
    except NotPermitted:
        raise
    except Exception as e:  # noqa: BLE001 - of a table, whatever Spark raises
        return Result(False, error_info(e))
    crash_point("publish:done")
    return Result(True, published=published)


def _publish(
    reviewed: ReviewedRun, run: LaunchedRun, accepted_attempt: int, outputs: tuple[str, ...], tables: Tables
) -> tuple[Published, ...]:
    published = []
    reviewed.refuse_changed()
    for number, output in enumerate(outputs):
        table = TableOutput.of(output)
        if table is not None:
            published.append(tables.publish(table, run, accepted_attempt, reviewed.rows(number)))
        else:
            replaced_change = _publish_with_retries(reviewed.publication(number))
            published.append(Published(output, replaced_change=replaced_change))
    return tuple(published)


def _publish_with_retries(publication: Publication) -> bool:
    for tries in range(1, TRIES):
        try:
            return publish(publication)
        except OSError as e:
            log.warning("publication_waits", output=str(publication.target), error=str(e))
        time.sleep(min(FIRST_PAUSE_SECONDS * 2.0 ** (tries - 1), MAX_PAUSE_SECONDS))
    return publish(publication)
