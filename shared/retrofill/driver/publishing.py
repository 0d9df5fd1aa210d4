"""Publishes an attempt's staged output after it was accepted, also in place of a lost driver."""

from __future__ import annotations

import threading
from functools import partial
from queue import SimpleQueue
from typing import Callable, Iterator, Mapping, Sequence, Union

from retrofill.driver.execute import Result
from retrofill.driver.process import Conversation
from retrofill.driver.report import Reporter
from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill.outputs.base import BaseChanged
from retrofill.outputs.places import PlaceTaken
from retrofill.outputs.publication import Publication, PublishedAgain, StagedOutputGone, publish
from retrofill.outputs.reviewed import Reviewed
from retrofill.outputs.tables.group import Group, earlier_groups, groups_of
from retrofill.outputs.tables.protocol import TableGone
from retrofill.outputs.tables.publication import NotPermitted, TablePublication, Tables
from retrofill.outputs.tables.turns import NotNow
from retrofill.protocol.facts import ErrorInfo, Published, error_info
from retrofill.protocol.launch import Launch, LaunchedRun
from retrofill.protocol.table_output import TableOutput
from retrofill.system.crash import crash_point

log = get_log(__name__)


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

    def publish(self, runs: Sequence[LaunchedRun], bases: Mapping[int, tuple[str, ...]]) -> None:
        """Report the sealed output of a piece's runs, and publish it once all of it is accepted.

        ``bases``: the state of its places by run, for a review. A run without output has succeeded.
        """
        for run in runs:
            if not run.outputs:
                self._ended(self._launch, run, self._reporter, Result(True))
        staged = [run for run in runs if run.outputs]
        if not staged:
            return
        crash_point("stage:sealed")
        for run in staged:
            self._reporter.staged(run, run.outputs, bases.get(run.id, ()))
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

    Yields the result of each run. It is put off if it cannot be published now, and says what was changed if that was the
    place of an output since a review had approved the run. Idempotent, also across drivers. Raises ``NotPermitted`` if
    another publisher has replaced this one.
    """
    accepted = [*runs, *(run for run in launch.siblings if run.accepted_attempt == attempt)]
    reviewed = Reviewed(launch, attempt, accepted, tables)
    published: dict[int, list[Published]] = {run.id: [] for run in runs}
    ended = _changed_in_advance(reviewed, runs)
    groups = groups_of(launch, attempt, accepted)
    for group in groups:
        earlier = earlier_groups(group, groups)
        for id, result in _publish_table(group, earlier, launch, runs, ended, reviewed, tables).items():
            if isinstance(result, Published):
                published[id].append(result)
            else:
                ended.setdefault(id, result)
    for run in runs:
        result = ended.get(run.id) or _publish_folders(run, published[run.id], reviewed, tables)
        if isinstance(result, BaseChanged):
            result = _held(run, result, reviewed)
        crash_point("publish:done")
        yield run, result


# Why a run is not published.
NotPublished = Union[Result, BaseChanged]


def put_off(error: BaseException) -> Result:
    """The result of a run whose output cannot be published now."""
    return Result(False, error_info(error), put_off=True)


def _changed_in_advance(reviewed: Reviewed, runs: Sequence[LaunchedRun]) -> dict[int, NotPublished]:
    """Runs of several outputs of which one would not be published: then none is, unless a lost publisher had begun."""
    several = [run for run in runs if len(run.outputs) > 1 and run.bases]
    try:
        return {**reviewed.changed(several)}
    except NotNow as e:
        return {run.id: put_off(e.__cause__ or e) for run in several}


def _held(run: LaunchedRun, by: BaseChanged, reviewed: Reviewed) -> Result:
    log.warning("base_changed", run=run.id, error=str(by))
    try:
        changed, bases = reviewed.present(run, by)
    except NotNow as e:
        return put_off(e.__cause__ or e)
    return Result(True, changed=tuple(changed), bases=tuple(bases))


def _publish_table(
    group: Group,
    earlier: Sequence[Group],
    launch: Launch,
    runs: Sequence[LaunchedRun],
    ended: Mapping[int, NotPublished],
    reviewed: Reviewed,
    tables: Tables,
) -> Mapping[int, Published | NotPublished]:
    """What became of each of the runs in one table."""
    in_group = {run.id for run in group.runs}
    waiting = {id for id, each in ended.items() if isinstance(each, Result) and each.put_off}
    wanted = {run.id for run in runs if run.id in in_group and run.review == group.review} - waiting
    if not wanted:
        return {}
    unfit = {id: _reason(each) for id, each in ended.items() if id in wanted}
    over = {run.id for run in group.runs if run.over}
    publication = TablePublication(
        group, tables.permitted, wanted, unfit, over, launch.keep_replaced_days, reviewed.rows(group), earlier
    )
    waits: Result | None = None
    try:
        tables.publish(publication, again=any(run.publication for run in runs))
    except TableGone as e:
        publication.settle(dict.fromkeys(wanted, error_info(e)))
    except NotNow as e:
        waits = put_off(e.__cause__ or e)
    results = publication.results
    refused = {id: each for id, each in results.items() if isinstance(each, ErrorInfo) and id not in ended}
    found: dict[int, Published | NotPublished] = {**_refused(refused, tables)}
    for id, result in results.items():
        if isinstance(result, str):
            found[id] = Published(group.output.table, result, id in publication.replaced_changes)
        elif isinstance(result, BaseChanged):
            found[id] = result
    if waits is not None:
        found.update(dict.fromkeys(wanted - results.keys(), waits))
    return found


def _reason(ended: NotPublished) -> ErrorInfo | BaseChanged:
    if isinstance(ended, BaseChanged):
        return ended
    assert ended.error is not None
    return ended.error


def _refused(errors: Mapping[int, ErrorInfo], tables: Tables) -> Mapping[int, Result]:
    """The results of runs whose rows are refused for ever: a former publisher must not publish them after that."""
    if not errors:
        return {}
    try:
        tables.end_all()
    except Exception as e:  # noqa: BLE001 - whatever Spark raises
        tables.leave_if_lost(e)
        unknown = f"whether earlier publishers have ended is unknown: {first_line(e)}"
        return {id: put_off(NotNow(f"{error.message}; {unknown}")) for id, error in errors.items()}
    return {id: Result(False, error) for id, error in errors.items()}


def _publish_folders(
    run: LaunchedRun, published: Sequence[Published], reviewed: Reviewed, tables: Tables
) -> NotPublished:
    """Publish the directories of a run whose tables are ``published``."""
    found = [*published]
    try:
        for folder in (each for each in run.outputs if TableOutput.of(each) is None):
            publication = reviewed.folder(run, folder)
            changed = tables.patience.retry(folder, partial(_publish_files, publication), _is_refusal)
            found.append(Published(folder, replaced_change=changed))
    except BaseChanged as e:
        return e
    except NotNow as e:
        return put_off(e.__cause__ or e)
    except Exception as e:  # noqa: BLE001 - what a file system does is not known
        return Result(False, error_info(e))
    return Result(True, published=tuple(found))


def _publish_files(publication: Publication, _: int) -> bool:
    """One try: what an earlier one has done is found on disk. Returns as ``publish``."""
    try:
        return publish(publication)
    except StagedOutputGone as e:
        if not publication.target.parent.is_dir():
            # A disk that is not mounted looks as if all were deleted.
            raise FileNotFoundError(f"{publication.target.parent} is not there") from e
        raise


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, (StagedOutputGone, PublishedAgain, BaseChanged, PlaceTaken))
