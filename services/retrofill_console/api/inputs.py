"""Contents of requests: parameters of paths and queries, and the bodies of what viewers ask for."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.requests import Request

from retrofill.errors import WrongUsage
from retrofill_core.contract.backfills import MAX_DATES
from retrofill_core.contract.base import MAX_INT, RunId
from retrofill_core.domain.backfill import Budget, Publish
from retrofill_core.domain.schedule import Bound, parse_bound
from retrofill_tools.client.backfills import Search

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


def search(request: Request) -> Search:
    """What backfills are searched by. Raises ``WrongUsage``."""
    query = request.query_params
    day = _bound(query.get("day"), "day")
    if isinstance(day, datetime):
        raise WrongUsage(f"day={query['day'][:40]}: use a date like 2024-01-31")
    return Search(
        text=query.get("text") or None,
        requester=query.get("requester") or None,
        since=_in_utc(_bound(query.get("since"), "since"), end=False),
        until=_in_utc(_bound(query.get("until"), "until"), end=True),
        day=day,
    )


def _bound(text: str | None, name: str) -> date | datetime | None:
    try:
        return parse_bound(text) if text else None
    except ValueError as e:
        raise WrongUsage(f"{name}: {e}") from e


def _in_utc(given: date | datetime | None, *, end: bool) -> datetime | None:
    """A moment, or of a day its first one, or the first one after it. Raises ``WrongUsage``."""
    if given is None or isinstance(given, datetime):
        return given
    try:
        return datetime.combine(given + timedelta(days=end), time.min, UTC)
    except OverflowError as e:
        raise WrongUsage(f"{given} is outside the calendar") from e


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
    intervals: tuple[Bound, ...] = Field(
        (),
        max_length=MAX_DATES,
        description="Logical dates of the runs to publish, while the others wait for the next review. Default: all",
    )


class Undo(Body):
    """How what an ended backfill replaced is restored."""

    id: str | None = Field(None, description="The new backfill's id: the same id again undoes nothing twice")
    from_: Bound | None = Field(None, alias="from", description="First logical date to undo; default: all")
    to: Bound | None = Field(None, description="Last logical date to undo, inclusive; default: all")
    publish: Publish = Field(Publish.AT_ONCE, description="review: what is restored waits for a review")


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
