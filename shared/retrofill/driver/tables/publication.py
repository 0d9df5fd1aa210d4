"""Publishes staged tables: replaces the rows of a run's interval in one commit, exactly once."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import timezone
from typing import Any, Callable, Generator, cast

from retrofill.bus.crash import crash_point
from retrofill.driver.interval import interval_of
from retrofill.driver.kept import NotKept
from retrofill.driver.launch import Launch, LaunchedRun
from retrofill.driver.log import get_log
from retrofill.driver.loss import line_of
from retrofill.driver.publication import PublishedAgain, StagedOutputGone
from retrofill.driver.session import Sessions
from retrofill.driver.tables.formats import FORMATS
from retrofill.driver.tables.key import Key
from retrofill.driver.tables.marker import Marker, of_run, of_undo
from retrofill.driver.tables.output import TableOutput
from retrofill.driver.tables.protocol import Format, NotPublished
from retrofill.driver.tables.staging import drop
from retrofill.driver.tables.states import same_rows
from retrofill.errors import first_line

log = get_log(__name__)
# As long as a table is changed by others too, or its catalog is unavailable.
TRIES = 10
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 10.0


class NotPermitted(Exception):
    """Another publisher has replaced this one."""


class Tables:
    """Publishes staged tables in a session of its own, which is opened for the first one.

    ``permitted`` asks whether this driver still publishes a run. ``lost`` ends the process.
    """

    def __init__(
        self,
        launch: Launch,
        sessions: Sessions,
        permitted: Callable[[LaunchedRun], bool],
        lost: Callable[[str], object],
    ) -> None:
        self._launch = launch
        self._sessions = sessions
        self._permitted = permitted
        self._lost = lost

    def publish(self, output: TableOutput, run: LaunchedRun, attempt: int) -> str | None:
        """Replace the rows of a run's interval, staged by the ``attempt`` (id) that was accepted. Idempotent.

        Returns the table's version since then, if it tells. Raises ``StagedOutputGone``, ``NotPermitted``,
        ``NotPublished``, ``PublishedAgain``, ``NotKept`` or the last error of Spark.
        """
        publication = TablePublication(output, self._launch, run, attempt, lambda: self._permitted(run))
        tries = 0
        while True:
            tries += 1
            try:
                again = tries > 1 or run.publication > 0
                return _walk(steps(publication, self._sessions.publisher(), again=again))
            except (StagedOutputGone, NotPermitted, NotPublished, PublishedAgain, NotKept):
                raise
            except Exception as e:
                self.leave_if_lost(e)
                if tries == TRIES or _is_final(e):
                    raise
                log.warning("publication_waits", table=output.table, error=first_line(e))
            threading.Event().wait(min(FIRST_PAUSE_SECONDS * 2.0 ** (tries - 1), MAX_PAUSE_SECONDS))

    def leave_if_lost(self, error: Exception) -> None:
        """The run stays accepted, and an attempt with another session publishes it."""
        loss = self._sessions.lost(error)
        if loss is not None:
            self._lost(f"Spark lost the session: {line_of(loss)}")


@dataclass(frozen=True)
class TablePublication:
    """One staged table of a run, staged by the ``attempt`` (id) that was accepted."""

    output: TableOutput
    launch: Launch
    run: LaunchedRun
    attempt: int
    permitted: Callable[[], bool]

    @property
    def marker(self) -> Marker:
        moments = {"interval_start": self.run.interval_start, "interval_end": self.run.interval_end}
        return Marker(
            {
                "installation": self.launch.installation,
                "pipeline": self.launch.pipeline.name,
                "backfill_id": self.launch.backfill_id,
                "run_id": str(self.run.id),
                "attempt_id": str(self.attempt),
                "publication": str(self.run.publication),
                "column": self.output.formats or self.output.column,
                **({"undoes": str(self.output.undoes)} if self.output.undoes else {}),
                **{name: moment.astimezone(timezone.utc).isoformat() for name, moment in moments.items()},
            }
        )


Steps = Generator[str, None, "str | None"]


def _walk(steps: Steps) -> str | None:
    while True:
        try:
            crash_point(next(steps))
        except StopIteration as end:
            return cast("str | None", end.value)


def steps(publication: TablePublication, session: Any, *, again: bool = True) -> Steps:
    """One try, step by step: yields a step's name before each change of a table. Returns the table's version.

    ``again``: not the first try of the run's first publisher.
    """
    output = publication.output
    yield "table:look"
    table = FORMATS[output.format](session, output.table)
    version = table.look(publication.marker, again=again)
    _ask(publication)
    if version is None:
        yield "table:commit"
        if output.undoes and not (again and table.published(publication.marker)):
            _refuse_changed(publication, session, table)
        version = _replace(publication, session, table)
    if publication.launch.keep_replaced_days:
        yield "table:keep"
        _keep(publication, table)
    yield "table:drop"
    _drop_when_done(publication, session, table)
    return version


def _replace(publication: TablePublication, session: Any, table: Format) -> str | None:
    output, run = publication.output, publication.run
    rows = Key.of(output).condition([interval_of(publication.launch, run)])
    try:
        return table.replace(session.table(output.staged).where(rows), rows, publication.marker)
    except Exception as e:
        if _is_final(e) and not session.catalog.tableExists(output.staged):
            version = table.published(publication.marker)
            if version is not None:
                # By a former publisher of the run, or by a later one.
                _ask(publication)
                return version
            raise StagedOutputGone(
                f"the rows that run {run.id} staged for {output.table} are no longer in {output.staged}, "
                "nor are they published"
            ) from e
        raise


def refuse_changed_table(output: TableOutput, launch: Launch, run: LaunchedRun, session: Any) -> None:
    """Raise ``PublishedAgain`` if the undo of an output would not be published now, or ``NotKept``."""
    publication = TablePublication(output, launch, run, launch.attempt_id, lambda: True)
    table = FORMATS[output.format](session, output.table)
    table.look(publication.marker, again=False)
    _refuse_changed(publication, session, table)


def _refuse_changed(publication: TablePublication, session: Any, table: Format) -> None:
    """Raise ``PublishedAgain`` if the interval's rows are no longer those that the undone run published."""
    output = publication.output
    undone = of_run(publication.launch.installation, output.undoes)
    former = of_undo(publication.launch.installation, output.undoes)
    if table.published(former) is not None:
        # Another undo restored this output, and failed after that.
        undone = former
    published, present = table.after(undone), session.table(output.table)
    # To rename a column is no commit.
    if published.columns == present.columns and table.only_others_since(undone, publication.marker):
        return
    rows = Key.of(output).condition([interval_of(publication.launch, publication.run)])
    if not same_rows(published, present, rows):
        raise PublishedAgain(
            f"the rows of {output.table} were changed after run {output.undoes} had published them, so its undo leaves "
            "them alone"
        )


def _keep(publication: TablePublication, table: Format) -> None:
    try:
        table.keep(publication.marker, publication.launch.keep_replaced_days)
    except Exception as e:  # noqa: BLE001 - the rows are published; they can be undone until the table forgets the others
        log.warning("replaced_rows_not_kept", table=publication.output.table, error=first_line(e))


def _ask(publication: TablePublication) -> None:
    if not publication.permitted():
        raise NotPermitted(f"another driver publishes run {publication.run.id}")


def _drop_when_done(publication: TablePublication, session: Any, table: Format) -> None:
    """Drop the staged table, unless other runs of its range are still to be published."""
    output = publication.output
    if output.drops == 1 or (output.drops and table.runs_published(publication.marker) >= output.drops):
        try:
            drop(session, output.staged)
        except Exception as e:  # noqa: BLE001 - the rows are published; the next attempt of the interval drops it
            log.warning("staged_table_not_dropped", table=output.staged, error=first_line(e))


def _is_final(error: Exception) -> bool:
    """Whether another try cannot help: Spark has refused the statement before it did anything."""
    from pyspark.errors import AnalysisException

    return isinstance(error, AnalysisException)
