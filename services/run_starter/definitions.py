"""Definitions that backfills were planned with; they never change, so each is read once."""

from __future__ import annotations

from sqlalchemy import Connection, select

from retrofill.bus.faults import Poison
from retrofill.domain.pipeline import PipelineDefinition
from retrofill.store.tables import backfill

KEPT = 1000


class Definitions:
    """A cache by backfill id, which forgets the oldest beyond ``KEPT``."""

    def __init__(self) -> None:
        self._known: dict[str, PipelineDefinition] = {}

    def of(self, conn: Connection, backfill_id: str) -> PipelineDefinition:
        """The definition of a backfill. Raises ``Poison`` where there is no such backfill."""
        known = self._known.get(backfill_id)
        if known is None:
            row = conn.execute(select(backfill.c.definition).where(backfill.c.id == backfill_id)).first()
            if row is None:
                raise Poison(f"there is no backfill {backfill_id!r}")
            known = PipelineDefinition.model_validate(row.definition)
            if len(self._known) >= KEPT:
                self._known.pop(next(iter(self._known)))
            self._known[backfill_id] = known
        return known
