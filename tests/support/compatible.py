"""The properties of a released JSON Schema that a new one must preserve, so that existing readers
and senders keep working.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]
# Keywords that limit a value. The new limit must be at most the old one, at least the old one, or
# the same.
AT_MOST = ("minimum", "minLength", "minItems", "exclusiveMinimum")
AT_LEAST = ("maximum", "maxLength", "maxItems", "exclusiveMaximum")
SAME = ("format", "pattern")


def breaks(old: Schema, new: Schema, *, sent_by_others: bool) -> list[str]:
    """The changes in ``new`` that break clients made for ``old``, one line each with the place.

    For every type: a removed field, or a newly required one. For types that others send: anything
    previously accepted that no longer is. For types that services send: a field that is no longer
    always present, or that may have a new JSON type. New enum values are allowed, because readers
    are told to expect them.
    """
    return list(_Comparison(old.get("$defs", {}), new.get("$defs", {}), sent_by_others).objects("", old, new))


class _Comparison:
    def __init__(self, old: Schema, new: Schema, sent_by_others: bool) -> None:
        self.old, self.new, self.sent_by_others = old, new, sent_by_others

    def objects(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        """The breaking changes between two objects."""
        now = new.get("properties", {})
        for name, was in old.get("properties", {}).items():
            there = f"{place}.{name}".removeprefix(".")
            if name not in now:
                yield f"{there} is gone"
            else:
                yield from self.values(there, was, now[name])
        before, after = set(old.get("required", ())), set(new.get("required", ()))
        yield from (f"{place}.{name} is required now".removeprefix(".") for name in sorted(after - before))
        if not self.sent_by_others:
            yield from (f"{place}.{name} is not always there".removeprefix(".") for name in sorted(before - after))

    def values(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        """The breaking changes between two fields. Each old alternative needs a fitting new one."""
        olds, news = list(_alternatives(old, self.old)), list(_alternatives(new, self.new))
        if not self.sent_by_others:
            for kind in sorted({str(each.get("type")) for each in news} - {str(each.get("type")) for each in olds}):
                yield f"{place} may be of type {kind} now"
        for was in olds:
            # Services may stop sending an alternative without harming readers.
            fitting = [now for now in news if self.sent_by_others or now.get("type") == was.get("type")]
            complaints = [list(self.alternative(place, was, now)) for now in fitting]
            if complaints:
                yield from min(complaints, key=len)

    def alternative(self, place: str, old: Schema, new: Schema) -> Iterator[str]:
        """The breaking changes between two alternatives of a field."""
        if self.sent_by_others:
            yield from _narrowed(place, old, new)
        if "properties" in old:
            yield from self.objects(place, old, new)
        for inner in ("items", "additionalProperties"):
            if isinstance(old.get(inner), dict) and isinstance(new.get(inner), dict):
                yield from self.values(f"{place}[]", old[inner], new[inner])


def _narrowed(place: str, old: Schema, new: Schema) -> Iterator[str]:
    """Values that ``old`` accepted and ``new`` does not, without looking at nested values."""
    was, now = old.get("type"), new.get("type")
    if now is not None and now != was and (was, now) != ("integer", "number"):
        yield f"{place} is {now} and was {was}"
    yield from (f"{place} does not take {value!r} any more" for value in _lost(old, new))
    for keyword in (*AT_MOST, *AT_LEAST, *SAME):
        limit, before = new.get(keyword), old.get(keyword)
        if limit is None or limit == before:
            continue
        wider = before is not None and (
            (keyword in AT_MOST and limit < before) or (keyword in AT_LEAST and limit > before)
        )
        if not wider:
            yield f"{place} has {keyword} {limit} and had {before}"


def _lost(old: Schema, new: Schema) -> list[Any]:
    now = _listed(new)
    if now is None:
        return []
    return [value for value in _listed(old) or ["anything"] if value not in now]


def _listed(schema: Schema) -> list[Any] | None:
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _alternatives(schema: Schema, definitions: Schema) -> Iterator[Schema]:
    """The plain schemas that a schema resolves to: references followed, choices expanded."""
    if "$ref" in schema:
        yield from _alternatives(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    elif "anyOf" in schema or "oneOf" in schema:
        for each in schema.get("anyOf") or schema["oneOf"]:
            yield from _alternatives(each, definitions)
    else:
        yield schema
