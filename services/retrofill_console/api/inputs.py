"""Contents of requests: parameters of paths and queries, and the bodies of what viewers ask for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request

from retrofill.errors import WrongUsage
from retrofill_core.contract.base import MAX_INT, RunId
from retrofill_core.domain.backfill import Budget
from retrofill_core.domain.schedule import Bound

MOST, USUAL = 10_000, 50
# Python refuses to read texts of thousands of digits.
MOST_DIGITS = 20
# Callbacks or dead letters that are replayed at a time: each waits for its answer.
MOST_REPLAYED = 100


def number(text: str, name: str, first: int = 1, last: int = MAX_INT) -> int:
    """A number between two bounds. Raises ``WrongUsage``."""
    if not (text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS and first <= int(text) <= last):
        raise WrongUsage(f"{name}={text[:40]}: use a number from {first:,} to {last:,}")
    return int(text)


def limit(request: Request) -> int:
    return number(request.query_params.get("limit", str(USUAL)), "limit", 1, MOST)


def states(request: Request, known: Iterable[str]) -> list[str]:
    """The states that are asked for; none: all. Raises ``WrongUsage``."""
    found, names = request.query_params.getlist("state"), list(known)
    if wrong := [each for each in found if each not in names]:
        raise WrongUsage(f"state={wrong[0][:40]}: use one of {', '.join(names)}")
    return found


def filters(request: Request, known: Iterable[str]) -> dict[str, str | int | None]:
    """By column: what deadlines and callbacks are asked for. Raises ``WrongUsage``."""
    found, query = states(request, known), request.query_params
    if len(found) > 1:
        raise WrongUsage("give one state")
    return {
        "state": found[0] if found else None,
        "pipeline": query.get("pipeline"),
        "backfill_id": query.get("backfill"),
    }


class Body(BaseModel):
    """A JSON object. Unknown fields are refused: they are mistakes."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, defer_build=True)


class Nothing(Body):
    """An empty object."""


class Entry(Body):
    """A login."""

    token: str = Field(description="A user's token, of retrofill tokens create")


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
