"""Compares the staged output of a backfill in review with the published one, interval by interval."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from sqlalchemy import Connection, select

from retrofill.driver.session import connect_apart
from retrofill.driver.versions import set_all
from retrofill.errors import UserError
from retrofill.masking import masked_remote
from retrofill.outputs.kept import key_of
from retrofill.outputs.publication import own_folder
from retrofill.outputs.summary import Summary, of_folder, of_table
from retrofill.outputs.tables.iceberg import use_current_state
from retrofill.protocol.launch import Interval
from retrofill.protocol.table_output import TableOutput
from retrofill.spark.loss import line_of
from retrofill_core.domain.run import RunState
from retrofill_core.pools import pools_of, settings_of
from retrofill_core.settings import Settings
from retrofill_core.store.engine import read_installation
from retrofill_core.store.sql import in_state
from retrofill_core.store.tables import run
from retrofill_tools.client.backfills import Backfill
from retrofill_tools.client.documents import names
from retrofill_tools.client.pipelines import StoredDefinition

RETRIES: dict[str, Any] = {"max_retries": 3, "initial_backoff": 200, "max_backoff": 1000, "jitter": 0}


@dataclass(frozen=True)
class StagedRun:
    """A run that waits for a review."""

    id: int
    interval_start: datetime
    interval_end: datetime
    outputs: dict[str, list[str]]
    accepted_attempt: int


@dataclass(frozen=True)
class Change:
    """One output of a run. ``before``: what is published; ``None`` if nothing is.

    ``changed``: somebody has changed that since the run was staged or approved, so only another review or a forced
    publication replaces it.
    """

    run_id: int
    start: datetime
    end: datetime
    output: str
    after: Summary
    before: Summary | None
    changed: bool = False

    @property
    def rows(self) -> int:
        """How many rows more there would be."""
        return (self.after.rows or 0) - ((self.before and self.before.rows) or 0)

    @property
    def columns(self) -> list[str]:
        """Those with other figures, and those that only one side has."""
        before = {} if self.before is None else self.before.columns
        names = dict.fromkeys([*self.after.columns, *before])
        return [name for name in names if self.after.columns.get(name) != before.get(name)]

    def as_json(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "interval_start": self.start,
            "interval_end": self.end,
            "output": self.output,
            "row_change": self.rows,
            "changed_columns": self.columns,
            "changed_by_others": self.changed,
            "staged": asdict(self.after),
            "published": None if self.before is None else asdict(self.before),
        }


@dataclass(frozen=True)
class Review:
    """A backfill in review, the runs that wait for it, and the installation that staged their output."""

    of: Backfill
    runs: Sequence[StagedRun]
    installation: str

    @property
    def outputs(self) -> int:
        """How many outputs there are to compare."""
        return sum(len(each.outputs["folders"]) for each in self.runs)

    @contextmanager
    def changes(self, settings: Settings) -> Iterator[Iterator[Change]]:
        """Connect to Spark, then compute the changes one by one. Raises like ``spark_of`` and ``changes``."""
        with spark_of(settings, self.of.definition) as session:
            yield changes(session, self.runs, self.of.definition, self.installation)


def review_of(conn: Connection, of: Backfill) -> Review:
    """Raises like ``staged_runs``."""
    runs, installation = staged_runs(conn, of), read_installation(conn)
    assert installation is not None  # it has a backfill
    return Review(of, runs, installation.id)


def staged_runs(conn: Connection, of: Backfill) -> list[StagedRun]:
    """The runs of a backfill that wait for its review. Raises ``UserError`` if there are none."""
    if of.approved is None:
        raise UserError(f"backfill {of.id} did not ask for a review (publish, --review): there is nothing to compare")
    mine = (run.c.backfill_id == of.id) & in_state(run, RunState.STAGED) & (run.c.review >= of.approved)
    columns = (run.c[name] for name in names(StagedRun))
    found = [StagedRun(*row) for row in conn.execute(select(*columns).where(mine).order_by(run.c.position))]
    if not found and of.approved:
        raise UserError(f"backfill {of.id} was approved: there is nothing to compare")
    if not found:
        raise UserError(f"backfill {of.id} is {of.state} and has nothing staged yet: there is nothing to compare")
    return found


@contextmanager
def spark_of(settings: Settings, definition: StoredDefinition) -> Iterator[Any]:
    """A session of the pool's Spark Connect, with the pipeline's settings.

    Raises ``UserError`` if the pool has no address of it, or it does not answer.
    """
    pool = definition.pool
    try:
        pool_settings = settings_of(settings, pool)
        session_conf = pools_of(settings)[pool].session_conf
    except KeyError as e:
        raise UserError(f"RETROFILL_POOLS does not define the pool {pool!r} of the pipeline") from e
    remote = pool_settings.spark_remote
    if remote is None:
        why = f" that knows the catalogs of {definition.data['name']}" if definition.submits else ""
        raise UserError(f"comparing reads the outputs by Spark Connect: set RETROFILL_SPARK_REMOTE to a server{why}")
    by_submit = pool_settings.spark_submit_conf if definition.submits else {}
    session = connect_apart(remote, RETRIES)
    try:
        try:
            # The first call connects. What a running server cannot change, such as the size of its heap, stays as it is.
            conf = {**by_submit, **session_conf, **definition.data.get("spark_conf", {})}
            with warnings.catch_warnings():
                # Each setting that stays would be a warning.
                warnings.simplefilter("ignore")
                set_all(session, {**conf, "spark.sql.session.timeZone": "UTC"})
            use_current_state(session)
        except Exception as e:
            raise UserError(f"Spark at {masked_remote(remote)} does not answer: {line_of(e)}") from e
        yield session
    finally:
        session.stop()


def changes(
    session: Any, runs: Sequence[StagedRun], definition: StoredDefinition, installation: str
) -> Iterator[Change]:
    """Of each output of each run, in their order; two Spark jobs each. Raises ``UserError``."""
    zone = definition.timezone
    for each in runs:
        start, end = (at.astimezone(ZoneInfo(zone)) for at in (each.interval_start, each.interval_end))
        changed = each.outputs.get("changed", ())
        for output in each.outputs["folders"]:
            try:
                name, after, before = _sides(session, each, output, Interval(start, end), installation)
            except UserError:
                raise
            except Exception as e:
                raise UserError(f"run {each.id}: {_unreadable(output, definition)}: {line_of(e)}") from e
            yield Change(each.id, start, end, name, after, before, output in changed)


def _unreadable(output: str, definition: StoredDefinition) -> str:
    table = TableOutput.of(output)
    if table is None or not definition.submits:
        return f"{output} cannot be read"
    return (
        f"{table.table} and {table.staged} were written by spark-submit, and the Spark Connect server of the pool "
        f"{definition.pool} cannot read them (give it the jars and the catalog of {definition.data['name']}, or "
        "compare the two tables in a session of your own)"
    )


def _sides(
    session: Any, of: StagedRun, output: str, interval: Interval, installation: str
) -> tuple[str, Summary, Summary | None]:
    table = TableOutput.of(output)
    if table is not None:
        after, before = (of_table(session, table, interval, staged=staged) for staged in (True, False))
        return table.table, after, before
    target = Path(output)
    # Its number rises with each publisher, of which there was none yet.
    own = own_folder(target, key_of(installation, of.id))
    sealed = sorted(own.glob(f"{of.accepted_attempt}.publish-*/new"))
    staged = of_folder(session, sealed[0]) if sealed else None
    if staged is None:
        raise UserError(
            f"run {of.id} has staged {output}, which is not there: compare on a machine that sees it, or discard it"
        )
    return output, staged, of_folder(session, target)
