"""The bodies of what pages ask for."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from retrofill_core.contract.fields import RunId
from retrofill_core.domain.bounds import Bound
from retrofill_core.domain.budget import Budget

# Callbacks or dead letters that are replayed at a time: each waits for its answer.
MOST_REPLAYED = 100


class Body(BaseModel):
    """A JSON object. Unknown fields are refused: they are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


class Nothing(Body):
    """An empty object."""


class Entry(Body):
    """A login."""

    token: str = Field(description="The token of RETROFILL_CONSOLE_TOKEN")
    name: str | None = Field(None, max_length=200, description="Who you are: goes into triggered_by")


class Approval(Body):
    """How a review ends."""

    force: bool = Field(False, description="Whether to publish over what somebody has changed since it was compared")
    review: int | None = Field(
        None,
        ge=0,
        description="The review that is approved, as the page shows it: refused if another one has begun since",
    )


class Resume(Body):
    """How a paused backfill goes on."""

    budget: Budget | None = Field(None, description="Replaces its budget; without limits: removes it")


class NamedRuns(Body):
    """Runs of a backfill: by their ids, or by a range of their logical dates."""

    backfill_id: str = Field(min_length=1, description="Id of the backfill")
    ids: tuple[RunId, ...] = Field((), max_length=1000, description="Ids of runs")
    from_: Bound | None = Field(None, alias="from", description="First logical date; a bare date means that whole day")
    to: Bound | None = Field(None, description="Last logical date, inclusive; a bare date means that whole day")

    @model_validator(mode="after")
    def _ids_or_range(self) -> Self:
        if bool(self.ids) == (self.from_ is not None and self.to is not None):
            raise ValueError("name the runs: give either ids, or from and to")
        return self


class CallbackIds(Body):
    """Callbacks that failed."""

    ids: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        min_length=1, max_length=MOST_REPLAYED, description="Their ids"
    )


class Places(Body):
    """Dead letters."""

    places: tuple[str, ...] = Field(min_length=1, max_length=MOST_REPLAYED, description="Each PARTITION:OFFSET")
