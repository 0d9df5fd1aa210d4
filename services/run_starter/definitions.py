"""The definitions that backfills were planned with. They never change, so each is read once.

A definition written by a newer release may be unreadable. Only its own backfill is affected: the
log names it, and this instance starts none of its runs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pydantic import ValidationError
from sqlalchemy import Connection, select

from retrofill.errors import first_line
from retrofill.log import get_log
from retrofill_core.bus.faults import Poison
from retrofill_core.domain.pipeline import PipelineDefinition
from retrofill_core.store.sql import one_of
from retrofill_core.store.tables import backfill

log = get_log(__name__)
KEPT = 1000
_READ = select(backfill.c.definition, backfill.c.id, backfill.c.pipeline, backfill.c.review).where(
    one_of(backfill.c.id, "ids")
)


@dataclass(frozen=True)
class _Known:
    """What never changes of a backfill. ``definition``: ``None`` if unreadable."""

    pipeline: str
    definition: PipelineDefinition | None
    review: bool


class Definitions:
    """A cache by backfill id that evicts the oldest beyond ``KEPT``."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def of(self, conn: Connection, backfill_ids: Collection[str]) -> dict[str, PipelineDefinition]:
        """The readable definitions by backfill id. Raises ``Poison`` for an unknown backfill."""
        known = self._of(conn, backfill_ids)
        return {id: each.definition for id, each in known.items() if each.definition is not None}

    def names(self, conn: Connection, backfill_ids: Collection[str]) -> dict[str, str]:
        """Pipeline names by backfill id, also for unreadable definitions. Raises like ``of``."""
        return {id: each.pipeline for id, each in self._of(conn, backfill_ids).items()}

    def reviewed(self, conn: Connection, backfill_ids: Collection[str]) -> list[str]:
        """Those whose request asked for a review. Raises like ``of``."""
        return [id for id, each in self._of(conn, backfill_ids).items() if each.review]

    def _of(self, conn: Connection, backfill_ids: Collection[str]) -> dict[str, _Known]:
        wanted = set(backfill_ids)
        found = {id: self._known[id] for id in wanted & self._known.keys()}
        missing = wanted - found.keys()
        if missing:
            rows = conn.execute(_READ, {"ids": sorted(missing)})
            found |= {row.id: _Known(row.pipeline, _read(row.id, row.definition), row.review) for row in rows}
            if not found.keys() >= wanted:
                raise Poison(f"there is no backfill {min(wanted - found.keys())!r}")
            self._keep({id: found[id] for id in missing})
        return found

    def _keep(self, found: dict[str, _Known]) -> None:
        self._known |= found
        while len(self._known) > KEPT:
            self._known.pop(next(iter(self._known)))


def _read(backfill_id: str, stored: object) -> PipelineDefinition | None:
    try:
        return PipelineDefinition.model_validate(stored)
    except ValidationError as e:
        log.error(
            "definition_unreadable",
            backfill=backfill_id,
            error=first_line(e),
            what_to_do="a newer release planned it: restart that release's run-starter, or cancel the backfill",
        )
        return None
