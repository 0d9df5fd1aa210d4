"""Publishes an attempt's staged output after it was accepted, also in place of a lost driver."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Callable

from retrofill.bus.crash import crash_point
from retrofill.driver.conversation import Conversation
from retrofill.driver.errors import error_info
from retrofill.driver.execute import Result
from retrofill.driver.facts import Published
from retrofill.driver.kept import key_of
from retrofill.driver.launch import Launch, LaunchedRun
from retrofill.driver.log import get_log
from retrofill.driver.patience import NotNow
from retrofill.driver.publication import Publication, PublishedAgain, StagedOutputGone, publish
from retrofill.driver.report import Reporter
from retrofill.driver.tables.output import TableOutput
from retrofill.driver.tables.publication import NotPermitted, Tables
from retrofill.errors import first_line

log = get_log(__name__)


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

    def publish(self, run: LaunchedRun, outputs: tuple[str, ...]) -> None:
        """Report the sealed output of a run, and publish it once it is accepted.

        A run without output has succeeded.
        """
        if not outputs:
            self._ended(self._launch, run, self._reporter, Result(True))
            return
        crash_point("stage:sealed")
        self._reporter.staged(run, outputs)
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

    The result is put off if that is not possible now. Raises ``NotPermitted`` if another publisher has replaced
    this one.
    """
    published, key, days = [], key_of(launch.installation, run.id), launch.keep_replaced_days
    for output in outputs:
        try:
            table = TableOutput.of(output)
            if table is not None:
                published.append(Published(table.table, tables.publish(table, run, accepted_attempt)))
            else:
                publication = Publication(Path(output), key, accepted_attempt, run.publication, days)
                tables.patience.retry(output, partial(_publish_files, publication), _is_refusal)
                published.append(Published(output))
        except NotPermitted:
            raise
        except NotNow as e:
            return put_off(e.__cause__ or e)
        except Exception as e:  # noqa: BLE001 - of a table, whatever Spark raises
            return _refused(e, outputs, tables)
    crash_point("publish:done")
    return Result(True, published=tuple(published))


def put_off(error: BaseException) -> Result:
    """The result of a run whose output cannot be published now."""
    return Result(False, error_info(error), put_off=True)


def _refused(error: Exception, outputs: tuple[str, ...], tables: Tables) -> Result:
    """The result of a run whose output is refused for ever: a former publisher must not publish it after that."""
    if any(TableOutput.of(output) for output in outputs):
        try:
            tables.end_all()
        except Exception as e:  # noqa: BLE001 - whatever Spark raises
            tables.leave_if_lost(e)
            unknown = NotNow(f"{first_line(error)}; whether earlier publishers have ended is unknown: {first_line(e)}")
            return put_off(unknown)
    return Result(False, error_info(error))


def _publish_files(publication: Publication, _: int) -> None:
    """One try: what an earlier one has done is found on disk."""
    try:
        publish(publication)
    except StagedOutputGone as e:
        if not publication.target.parent.is_dir():
            # A disk that is not mounted looks as if all were deleted.
            raise FileNotFoundError(f"{publication.target.parent} is not there") from e
        raise


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, (StagedOutputGone, PublishedAgain))
