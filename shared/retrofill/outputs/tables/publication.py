"""Publishes staged tables: replaces the rows of all runs of an attempt in one commit, exactly once.

If a table refuses that, or runs must not be published, the group is burned where the format needs it, and its two
halves are published in the same way. So one bad interval fails alone.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Callable, Collection, Generator, Iterable, Mapping, Protocol, Sequence, TypeVar, Union

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill.outputs.base import BaseChanged
from retrofill.outputs.publication import StagedOutputGone
from retrofill.outputs.tables.changes import ReviewedRows
from retrofill.outputs.tables.formats import FORMATS
from retrofill.outputs.tables.group import Group
from retrofill.outputs.tables.protocol import Burned, Format, NotPublished, NotSeen, TableGone, drop
from retrofill.outputs.tables.turns import NotNow, Patience, turn
from retrofill.protocol.facts import ErrorInfo, error_info
from retrofill.protocol.launch import Launch, LaunchedRun
from retrofill.spark.loss import condition as condition_of
from retrofill.spark.loss import is_of_server, line_of
from retrofill.system.crash import crash_point

log = get_log(__name__)
# Classes of SQLSTATE: the rows, the table's rules or the statement are wrong, or the table cannot do that at all.
# Conflicts with other commits have others.
_REFUSALS = ("22", "23", "42", "0A")
# Hive's own errors, whatever they are about: its metastore may be away.
_OF_HIVE = "_LEGACY_ERROR_TEMP_3065"
Permitted = Callable[[Sequence[LaunchedRun]], bool]
# Ends the process: why, and whether the whole Spark server is lost, which other attempts use, too.
Lost = Callable[[str, bool], object]
Steps = Generator[str, None, None]
# Of a run: the table's version since it was published, or why it is not: for good, or until another review.
TableResult = Union[str, ErrorInfo, BaseChanged]
Unfit = Union[ErrorInfo, BaseChanged]


# Begins the text of a burn for a run that waits for another review.
_HELD = "BaseChanged: "
Found = TypeVar("Found")
# Then no part of a group can be published, either.
_HOPELESS = (StagedOutputGone, NotSeen)


class NotPermitted(Exception):
    """Another publisher has replaced this one."""


@dataclass
class TablePublication:
    """What an accepted attempt staged for one table.

    ``whole``: the group of all its runs. ``earlier``: those of earlier reviews, in which a run may have been published before
    another output of its was changed. ``wanted``: the ids of those to be published now. ``failed``: of these, those
    that must not be, because of another output of theirs. ``over``: the ids of those that have ended. ``reviewed``: what a
    review has approved. ``replaced_changes``: the ids of those that replaced something else.
    """

    whole: Group
    permitted: Permitted
    wanted: Collection[int]
    failed: Mapping[int, Unfit] = field(default_factory=dict)
    over: Collection[int] = ()
    keep_days: int = 0
    reviewed: ReviewedRows | None = None
    earlier: Sequence[Group] = ()
    replaced_changes: set[int] = field(default_factory=set)
    results: dict[int, TableResult] = field(default_factory=dict)

    def open(self, group: Group) -> Group | None:
        """The part of a group that is still to be published."""
        return group.only(lambda run: run.id in self.wanted and run.id not in self.results)

    def settle(self, results: Mapping[int, TableResult]) -> None:
        """Record results by run id, of those that are still to be published."""
        self.results.update({id: each for id, each in results.items() if id in self.wanted and id not in self.results})

    @property
    def is_over(self) -> bool:
        """Whether nobody needs the staged rows any more. What waits for another review is staged still."""
        done = {id for id, each in self.results.items() if not isinstance(each, BaseChanged)}
        return all(run.id in done or run.id in self.over for run in self.whole.runs)


class PublisherSessions(Protocol):
    """What publications need of a driver's access to Spark."""

    shares_server: bool
    """Whether other attempts use its Spark server, too."""

    def publisher(self) -> Any:
        """A session of the same settings for publishing tables, which user code does not know."""

    def lost(self, error: BaseException) -> BaseException | None:
        """The cause of ``error`` that shows that Spark lost the session, or ``None``.

        No try of the attempt can succeed then. A session that user code stopped is not lost.
        """

    def end_publications(self, attempts: Iterable[int]) -> None:
        """Have the operations of the publisher's session ended, and those of these attempts' publishers.

        Raises whatever Spark does if it does not confirm that.
        """


class Tables:
    """Publishes staged tables in a session of its own, which is opened for the first one.

    ``permitted`` asks whether this driver still publishes these runs. ``lost`` ends the process.
    """

    def __init__(self, launch: Launch, sessions: PublisherSessions, permitted: Permitted, lost: Lost) -> None:
        # Of directories, too.
        self.patience = Patience()
        self.permitted = permitted
        self._launch = launch
        self._sessions = sessions
        self._lost = lost

    def session(self) -> Any:
        """The session in which it publishes."""
        return self._sessions.publisher()

    def retried(self, output: str, work: Callable[[], Found]) -> Found:
        """What ``work`` returns, which only reads a table. Raises ``NotNow``."""

        def once(_: int) -> Found:
            try:
                return work()
            except Exception as e:
                self.leave_if_lost(e)
                raise

        return self.patience.retry(output, once, lambda _: False)

    def publish(self, publication: TablePublication, *, again: bool) -> None:
        """Replace the rows of the runs that are wanted, into ``publication.results``. Idempotent.

        ``again``: another publisher may have tried. Raises ``NotPermitted``, ``TableGone``, or ``NotNow`` when nothing of a
        try is under way any more.
        """
        output = publication.whole.output

        def once(tries: int) -> None:
            session: Any = None
            try:
                session = self._sessions.publisher()
                table = FORMATS[output.format](session, output.table)
                if not table.fenced and (again or tries > 1):
                    self.end_all()
                alone = tries > 1 or table.conflicts_always()
                with turn(output.table) if alone else nullcontext():
                    for step in steps(publication, session, again=again or tries > 1):
                        crash_point(step)
            except Exception as e:
                self.leave_if_lost(e)
                if is_refusal(e) and not session.catalog.tableExists(output.table):
                    raise TableGone(f"table {output.table} does not exist any more: {first_line(e)}") from e
                raise

        try:
            self.patience.retry(output.table, once, lambda e: isinstance(e, (NotPermitted, TableGone)))
        except NotNow:
            self._end_tries()
            raise

    def _end_tries(self) -> None:
        """Interrupt what an error may have left behind. Without an answer, the process ends."""
        try:
            self._sessions.end_publications(())
        except Exception as e:  # noqa: BLE001 - whatever it is, an operation may be under way
            self._lost(f"Spark does not say whether a commit is still under way: {first_line(e)}", False)

    def end_all(self) -> None:
        """Have the operations of all publishers of these runs ended. Raises whatever Spark does if that cannot be known."""
        self._sessions.end_publications(self._launch.publishers)

    def leave_if_lost(self, error: Exception) -> None:
        """The runs stay accepted, and an attempt with another session publishes them."""
        leave_if_lost(error, self._sessions, self._lost)


def leave_if_lost(error: BaseException, sessions: PublisherSessions, lost: Lost) -> None:
    """End the process if the error shows that Spark lost a session of the attempt: no try can succeed any more."""
    loss = sessions.lost(error)
    if loss is not None:
        lost(f"Spark lost the session: {line_of(loss)}", sessions.shares_server and is_of_server(loss))


def versions_in(table: Format, groups: Iterable[Group]) -> dict[int, str]:
    """The runs of whole groups that publishers have published, by id: the table's versions since then."""
    found: dict[int, str] = {}
    left = [part for group in groups for part in table.groups(group)]
    for group in left:
        seen = table.look(group, again=True)
        found.update(seen.versions)
        if seen.burned and len(group.members) > 1:
            left += group.halves()
    return found


def steps(publication: TablePublication, session: Any, *, again: bool = True) -> Steps:
    """One try, step by step: yields a step's name before each change of a table.

    ``again``: not the first try of the first publisher.
    """
    output = publication.whole.output
    table = FORMATS[output.format](session, output.table)
    # Their rows are not staged any more.
    publication.settle(versions_in(table, publication.earlier))
    whole = publication.whole if table.fixed else publication.open(publication.whole)
    for group in table.groups(whole) if whole else ():
        yield from _publish(publication, table, group, session, again=again)
    yield "table:drop"
    if publication.is_over:
        _drop(output.staged, session)


def _publish(publication: TablePublication, table: Format, group: Group, session: Any, *, again: bool) -> Steps:
    """Publish a group, or its parts if the table does not take it as a whole."""
    open = publication.open(group)
    if open is None:
        return
    yield "table:look"
    seen = table.look(group, again=again)
    _ask(publication, open)
    publication.settle(seen.versions)
    rest = publication.open(group)
    if rest is not None:
        yield from _decide(publication, table, group if table.fixed else rest, session, seen.burned, again=again)
    published = {found for run in open.runs if isinstance(found := publication.results[run.id], str)}
    if publication.keep_days and published:
        yield "table:keep"
        _keep(publication, table, group, published)


def _decide(
    publication: TablePublication, table: Format, group: Group, session: Any, burned: Burned | None, *, again: bool
) -> Steps:
    """Commit a group. If that cannot be, burn it and go on with its halves."""
    unfit = {} if burned else _unfit(publication, table, group, session)
    if unfit and not table.fixed:
        publication.settle(unfit)
        fit = publication.open(group)
        if fit is None:
            return
        group, unfit = fit, {}
    error = None
    result: str | Burned | None = burned
    if result is None and not unfit:
        yield "table:commit"
        result, error = _commit(publication, table, group, session)
    if result is None:
        why = next(iter(unfit.values())) if error is None else error_info(error)
        yield "table:burn"
        result = table.burn(group, _text(why))
    if not isinstance(result, Burned):
        _compare_after(publication, table, group, result)
        publication.settle({run.id: result for run in group.runs})
    elif len(group.members) == 1 or (result.at_once and isinstance(error, _HOPELESS)):
        found = _why(result.why, table.table) if error is None else error_info(error)
        publication.settle({run.id: unfit.get(run.id, found) for run in group.runs})
    else:
        for half in group.halves():
            yield from _publish(publication, table, half, session, again=again or not result.at_once)


def _commit(
    publication: TablePublication, table: Format, group: Group, session: Any
) -> tuple[str | Burned | None, Exception | None]:
    """What became of a commit; or ``None``, and why it cannot be. Raises what another try may not meet."""
    staged = group.output.staged
    try:
        return table.replace(group.output.rows(session).where(group.condition), group), None
    except Exception as e:
        if not _is_final(e):
            raise
        if isinstance(e, NotPublished) or session.catalog.tableExists(staged):
            return None, e
        # By a former publisher of the runs, or by a later one.
        seen = table.look(group, again=True)
        if seen.versions:
            _ask(publication, group)
            publication.settle(seen.versions)
            return next(iter(seen.versions.values())), None
        gone = StagedOutputGone(
            f"the rows that attempt {group.attempt} staged for {group.output.table} are no longer in {staged}, "
            "nor are they published"
        )
        gone.__cause__ = e
        return seen.burned, gone


def _unfit(publication: TablePublication, table: Format, group: Group, session: Any) -> dict[int, Unfit]:
    """The runs of a group that must not be published now, by id, and why."""
    failed = {run.id: publication.failed[run.id] for run in group.runs if run.id in publication.failed}
    if table.is_begun(group):
        # A former publisher has compared them before it began.
        return failed
    return {
        **{id: error_info(error) for id, error in table.changed(group).items()},
        # An undo that was reviewed is reviewed again, instead.
        **({} if publication.reviewed is None else publication.reviewed.changed(table, group, session)),
        **failed,
    }


def _compare_after(publication: TablePublication, table: Format, group: Group, version: str) -> None:
    """Find out whether somebody changed rows between the comparison and the commit, as far as the format shows it."""
    if publication.reviewed is None:
        return
    try:
        replaced = publication.reviewed.replaced_changes(table, group, version)
    except Exception as e:  # noqa: BLE001 - the rows are published
        log.warning("replaced_rows_not_compared", table=table.table, error=first_line(e))
        return
    if replaced:
        publication.replaced_changes |= replaced
        log.warning("replaced_change", output=table.table, runs=sorted(replaced), restored_by="undo")


def _ask(publication: TablePublication, group: Group) -> None:
    open = publication.open(group)
    if open is not None and not publication.permitted(open.runs):
        raise NotPermitted(f"another driver publishes run {open.runs[0].id}")


def _keep(publication: TablePublication, table: Format, group: Group, versions: Collection[str]) -> None:
    try:
        table.keep(group, versions, publication.keep_days)
    except Exception as e:  # noqa: BLE001 - the rows are published; they can be undone until the table forgets the others
        log.warning("replaced_rows_not_kept", table=group.output.table, error=first_line(e))


def _drop(staged: str, session: Any) -> None:
    try:
        drop(session, staged)
    except Exception as e:  # noqa: BLE001 - the rows are published; the next attempt of the interval drops it
        log.warning("staged_table_not_dropped", table=staged, error=first_line(e))


def _is_final(error: Exception) -> bool:
    """Whether another try cannot help."""
    return isinstance(error, NotPublished) or is_refusal(error)


def is_refusal(error: Exception) -> bool:
    """Whether Spark has refused the statement for ever, because of what it says, the rows or the table's rules."""
    from pyspark.errors import AnalysisException, PySparkException

    if not isinstance(error, PySparkException):
        return False
    state = error.getSqlState() if hasattr(error, "getSqlState") else None
    known = condition_of(error) not in (None, _OF_HIVE)
    return known and (isinstance(error, AnalysisException) or (state or "").startswith(_REFUSALS))


def _text(why: Unfit) -> str:
    return f"{_HELD}{why.output}" if isinstance(why, BaseChanged) else f"{why.type}: {why.message}"


def _why(text: str, table: str) -> Unfit:
    """Why a former publisher burned a group, from its text."""
    if text.startswith(_HELD):
        return BaseChanged(f"the interval in {table}", text[len(_HELD) :])
    type, _, message = text.partition(": ")
    return ErrorInfo(type, message)
