"""Pydantic's errors in one line for people, with the nearest known name for an unknown field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

SHOWN = 3
# Comparing takes quadratic time, and no field name is this long.
MAX_COMPARED = 100
Step = int | str


def explain(
    error: ValidationError, model: type[BaseModel] | None = None, *, within: Sequence[str] | None = None
) -> str:
    """The first few errors, each with its location. ``model`` is the validated type.

    ``within``: fields that people do not see as such, but only those inside of them. Then the whole has no name either.
    """
    parts = []
    complaints = error.errors(include_url=False, include_input=False)
    fields = complaints[0]["loc"]
    for complaint in complaints[:SHOWN]:
        loc = complaint["loc"]
        if complaint["type"] == "too_short" and fields[: len(loc)] == loc != fields:
            # For an invalid list item, pydantic also reports the list as too short.
            continue
        if complaint["type"] == "extra_forbidden" and loc:
            place, text = loc[:-1], _unknown(model, loc)
        else:
            place, text = loc or ("body",), complaint["msg"].removeprefix("Value error, ")
        if within is not None and place and place[0] in (*within, "body"):
            place = place[1:]
        parts.append(": ".join(part for part in (".".join(str(step) for step in place), text) if part))
    return "; ".join(parts)


def _unknown(model: type[BaseModel] | None, loc: Sequence[Step]) -> str:
    name = str(loc[-1])
    known = list(dict.fromkeys(_fields_at(model, loc[:-1])))
    nearest = get_close_matches(name, known, 1) if len(name) <= MAX_COMPARED else []
    hint = f": did you mean {nearest[0]!r}?" if nearest else f"; known fields: {', '.join(known)}" if known else ""
    return f"unknown field {name[:MAX_COMPARED]!r}{hint}"


def _fields_at(model: type[BaseModel] | None, place: Sequence[Step]) -> Iterator[str]:
    """Field names of the object at ``place``, as written in JSON."""
    models = [] if model is None else [model]
    for step in place:
        fields = [field for each in models for name, field in each.model_fields.items() if step in (name, field.alias)]
        # A step that is not a field is a list index or a union's discriminator.
        models = [inner for field in fields for inner in _models_in(field.annotation)] or models
    for each in models:
        yield from (field.alias or name for name, field in each.model_fields.items())


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)
