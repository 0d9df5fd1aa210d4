"""Definitions that backfills were planned with; they never change, so each is read once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, select

from retrofill.bus.faults import Poison
from retrofill.domain.pipeline import PipelineDefinition
from retrofill.store.tables import backfill

KEPT = 1000


class Definitions:
    """A cache by backfill id."""

    def __init__(self) -> None:
        self._parse = lru_cache(KEPT)(self._parse_once)
        self._raw: dict[str, Any] = {}

    def of(self, conn: Connection, backfill_id: str) -> PipelineDefinition:
        """The definition of a backfill. Raises ``Poison`` where there is no such backfill."""
        if self._parse.cache_info().currsize and backfill_id in self._raw:
            return self._parse(backfill_id)
        row = conn.execute(select(backfill.c.definition).where(backfill.c.id == backfill_id)).first()
        if row is None:
            raise Poison(f"there is no backfill {backfill_id!r}")
        self._raw[backfill_id] = row.definition
        return self._parse(backfill_id)

    def _parse_once(self, backfill_id: str) -> PipelineDefinition:
        return PipelineDefinition.model_validate(self._raw.pop(backfill_id))
