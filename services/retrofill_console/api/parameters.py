"""The parameters of paths and queries."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request

from retrofill.errors import WrongUsage
from retrofill_core.contract.base import MAX_INT

MOST, USUAL = 10_000, 50
# Python refuses to read texts of thousands of digits.
MOST_DIGITS = 20


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
