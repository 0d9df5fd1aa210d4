"""Publishes an attempt's staged output after it was accepted, also in place of a lost driver."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Callable, Iterator, Mapping, Sequence

from retrofill.bus.crash import crash_point
from retrofill.driver.conversation import Conversation
from retrofill.driver.errors import error_info
from retrofill.driver.execute import Result
from retrofill.driver.facts import ErrorInfo, Published
from retrofill.driver.kept import key_of
from retrofill.driver.launch import Launch, LaunchedRun
from retrofill.driver.log import get_log
from retrofill.driver.publication import Publication, publish
from retrofill.driver.report import Reporter
from retrofill.driver.tables.group import Group, groups_of
from retrofill.driver.tables.output import TableOutput
from retrofill.driver.tables.publication import NotPermitted, TablePublication, TableResult, Tables

log = get_log(__name__)
# If the file system is unavailable for longer, the run fails.
TRIES = 10
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 10.0


Ended = Callable[[Launch, LaunchedRun, Reporter, Result], object]


def may_publish(host: Conversation, runs: Sequence[LaunchedRun]) -> bool:
    """Whether this driver publishes all these runs, as Postgres says now. Waits until that is decided."""
    host.say("may_publish", [run.id for run in runs])
    return bool(host.hear("publish"))


class Publisher:
    """Publishes the attempt's staged output in a thread, in the order of its pieces.

    ``ended`` reports the result of a run.
    """

    def __init__(self, launch: Launch, reporter: Reporter, host: Conversation, ended: Ended, tables: Tables) -> None:
        self._launch = launch
        self._reporter = reporter
        self._host = host
        self._ended = ended
        self._tables = tables
        self._waiting: SimpleQueue[Sequence[LaunchedRun] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def publish(self, runs: Sequence[LaunchedRun]) -> None:
        """Report the sealed output of a piece's runs, and publish it once all of it is accepted.

        A run without output has succeeded.
        """
        for run in runs:
            if not run.outputs:
                self._ended(self._launch, run, self._reporter, Result(True))
        staged = [run for run in runs if run.outputs]
        if not staged:
            return
        crash_point("stage:sealed")
        for run in staged:
            self._reporter.staged(run, run.outputs)
        crash_point("stage:told")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="publisher", daemon=True)
            self._thread.start()
        self._waiting.put(staged)

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
        for runs in iter(self._waiting.get, None):
            try:
                if not may_publish(self._host, runs):
                    raise NotPermitted
                for run, result in publish_all(self._launch, self._launch.attempt_id, runs, self._tables):
                    self._ended(self._launch, run, self._reporter, result)
            except NotPermitted:
                # Another publisher replaced this one, or a review holds the runs.
                log.warning("not_ours_to_publish", runs=[run.id for run in runs], attempt=self._launch.attempt_id)


def publish_all(
    launch: Launch, attempt: int, runs: Sequence[LaunchedRun], tables: Tables
) -> Iterator[tuple[LaunchedRun, Result]]:
    """Publish what the accepted ``attempt`` (id) staged for the runs, and keep what it replaces: tables first.

    Yields the result of each run. Idempotent, also across drivers. Raises ``NotPermitted`` if another publisher has
    replaced this one.
    """
    published: dict[int, list[Published]] = {run.id: [] for run in runs}
    failed: dict[int, ErrorInfo] = {}
    for group in groups_of(launch, attempt, [*runs, *launch.siblings]):
        name = group.output.table
        for id, result in _publish_table(group, launch, runs, failed, tables).items():
            if isinstance(result, ErrorInfo):
                failed.setdefault(id, result)
            else:
                published[id].append(Published(name, result))
    for run in runs:
        error = failed.get(run.id)
        try:
            if error is None:
                published[run.id] += _publish_folders(launch, attempt, run)
        except Exception as e:  # noqa: BLE001 - what a file system does is not known
            error = error_info(e)
        crash_point("publish:done")
        yield run, Result(True, published=tuple(published[run.id])) if error is None else Result(False, error)


def _publish_table(
    group: Group, launch: Launch, runs: Sequence[LaunchedRun], failed: Mapping[int, ErrorInfo], tables: Tables
) -> Mapping[int, TableResult]:
    in_group = {run.id for run in group.runs}
    wanted = [run for run in runs if run.id in in_group]
    if not wanted:
        return {}
    over = {run.id for run in group.runs if run.over}
    publication = TablePublication(
        group, tables.permitted, {run.id for run in wanted}, failed, over, launch.keep_replaced_days
    )
    try:
        return tables.publish(publication, again=any(run.publication for run in wanted))
    except NotPermitted:
        raise
    except Exception as e:  # noqa: BLE001 - whatever Spark raises
        return {**{run.id: error_info(e) for run in wanted}, **publication.results}


def _publish_folders(launch: Launch, attempt: int, run: LaunchedRun) -> Iterator[Published]:
    key = key_of(launch.installation, run.id)
    for output in run.outputs:
        if TableOutput.of(output) is None:
            _publish_with_retries(Publication(Path(output), key, attempt, run.publication, launch.keep_replaced_days))
            yield Published(output)


def _publish_with_retries(publication: Publication) -> None:
    for tries in range(1, TRIES):
        try:
            return publish(publication)
        except OSError as e:
            log.warning("publication_waits", output=str(publication.target), error=str(e))
        time.sleep(min(FIRST_PAUSE_SECONDS * 2.0 ** (tries - 1), MAX_PAUSE_SECONDS))
    return publish(publication)
