"""The base of all messages: JSON bodies with a ``type``, and the registry that decodes them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from math import isfinite
from typing import Annotated, Any, ClassVar, NoReturn, Self, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from retrofill.errors import shortened

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


MAX_INT = 2**63 - 1
# Code that validates, stores and prints a message may recurse.
MAX_DEPTH = 100
TOO_DEEP = f"the value is nested more than {MAX_DEPTH} levels deep"
# The newest known major version of the message format.
VERSION = 1
MAX_REASON = 500
# Schema Registry serializers prefix each value with a 0 byte and a schema id, 4 bytes big-endian.
REGISTRY_MAGIC = b"\0"
REGISTRY_PREFIX_BYTES = 5


class Undecodable(Exception):
    """Bytes that are not a valid message. The reason is one actionable line."""

    def __init__(self, reason: str) -> None:
        # The reason may quote arbitrary text of the message.
        super().__init__(shortened(" ".join(reason.split()), MAX_REASON))


class Facts(BaseModel):
    """Data inside messages. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True, defer_build=True)

    @model_validator(mode="after")
    def _numbers_that_fit(self) -> Self:
        # Pydantic also reads numbers from strings, which the JSON decoder did not check.
        for name, value in self.__dict__.items():
            if not all(map(_fits, value if isinstance(value, tuple) else (value,))):
                raise ValueError(f"{name} does not fit: use a finite number, and at most 64 bits for an integer")
        return self


def _fits(value: object) -> bool:
    return abs(value) <= MAX_INT if isinstance(value, int) else not isinstance(value, float) or isfinite(value)


class Message(Facts):
    """A message on a topic."""

    # Whether users write this type: an unknown field is then a mistake and refused.
    of_users: ClassVar[bool] = False

    type: str = Field("", description="Name of the message type")
    version: int = Field(VERSION, ge=1, le=VERSION, description="Major version of the message's format")
    in_reply_to: str | None = Field(None, description="ce_id of the message this one replies to")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register the subclass under its ``type``, which is its class name."""
        super().__pydantic_init_subclass__(**kwargs)
        if "type" in cls.__annotations__:
            REGISTRY[cls.__name__] = cls

    def encode(self) -> bytes:
        """UTF-8 JSON, one object, without fields that are ``None``."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()


Moment = AwareDatetime
# Message types by name, registered when their modules are imported.
REGISTRY: dict[str, type[Message]] = {}


def decode_object(value: bytes) -> dict[str, Any]:
    """Decode a JSON object from UTF-8 bytes. Raises ``Undecodable``."""
    _refuse_registry_prefix(value)
    try:
        text = value.decode("utf-8")
        body = json.loads(text, parse_constant=_no_constant, parse_int=_int64, parse_float=_finite)
    except UnicodeDecodeError as e:
        raise Undecodable(f"the value is not UTF-8: {e.reason} at byte {e.start}") from e
    except RecursionError as e:
        raise Undecodable(TOO_DEEP) from e
    except ValueError as e:
        raise Undecodable(f"the value is not JSON: {e}") from e
    if not isinstance(body, dict):
        raise Undecodable(f"the value is JSON but not an object: {type(body).__name__}")
    # Only values that can contain a violation are traversed.
    if text.count("{") + text.count("[") > MAX_DEPTH or "\\u" in text:
        _check_content(body)
    return body


def decode(value: bytes | None, header_type: str | None = None) -> Message:
    """Decode a message of type ``header_type``, or else the body's ``type``.

    Raises ``Undecodable``.
    """
    if value is None:
        raise Undecodable("the value is null")
    body = decode_object(value)
    named = header_type or body.get("type")
    if not isinstance(named, str):
        raise Undecodable("the message has no type: neither a ce_type header nor a field 'type'")
    model = REGISTRY.get(named)
    if model is None:
        raise Undecodable(f"unknown message type {named!r}")
    _refuse_newer(named, body.get("version"))
    try:
        return model.model_validate({**body, "type": named}, extra="forbid" if model.of_users else "ignore")
    except ValidationError as e:
        raise Undecodable(f"{named}: {explain(e, model)}") from e


def _refuse_registry_prefix(value: bytes) -> None:
    if value.startswith(REGISTRY_MAGIC) and len(value) >= REGISTRY_PREFIX_BYTES:
        schema = int.from_bytes(value[1:REGISTRY_PREFIX_BYTES], "big")
        raise Undecodable(
            f"the value begins with a 0 byte and a schema id ({schema}), as Schema Registry serializers write it: "
            "publish plain JSON with a string serializer (the JSON Schemas are in schemas/)"
        )


def _refuse_newer(named: str, version: object) -> None:
    if isinstance(version, int) and version > VERSION:
        raise Undecodable(
            f"{named}: version {version} is newer than what this service knows ({VERSION}): upgrade the service, "
            "then replay this message, or publish the older version"
        )


def _check_content(body: Any) -> None:
    """Refuse text that Postgres cannot store, and excessive nesting. Raises ``Undecodable``."""
    left: list[tuple[Any, int]] = [(body, 1)]
    while left:
        each, depth = left.pop()
        if isinstance(each, str):
            _check_text(each)
        elif isinstance(each, dict | list):
            if depth > MAX_DEPTH:
                raise Undecodable(TOO_DEEP)
            inner = itertools.chain(each, each.values()) if isinstance(each, dict) else each
            left += ((one, depth + 1) for one in inner)


def _check_text(text: str) -> None:
    if "\0" in text:
        raise Undecodable("the value contains a NUL character, which the database cannot store")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise Undecodable("the value contains half a surrogate pair, which is not a character") from e


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _int64(text: str) -> int:
    if len(text) > 20 or abs(number := int(text)) > MAX_INT:
        raise ValueError(f"the integer {text[:24]} does not fit 64 bits")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:24]} is too large")
    return number


PipelineName = Annotated[str, Field(description="Name of the pipeline")]
BackfillId = Annotated[str, Field(description="Id of the backfill: the key of its request")]
RunId = Annotated[int, Field(description="Id of the run")]
UndoneRunId = Annotated[int | None, Field(description="Of an undo: id of the run whose output it takes back")]
Attempt = Annotated[int, Field(description="Attempt of the run, from 1")]
TaskName = Annotated[str, Field(description="Name of the task")]
TryNumber = Annotated[int, Field(description="Number of the task's try within this attempt, from 1")]
DeadlineId = Annotated[int, Field(description="Id of the deadline, and of its callback")]
CallbackId = Annotated[
    int, Field(description="Id of the callback: that of its deadline, or its own if it is about a run or backfill")
]
AlertName = Annotated[str, Field(description="Name of the pipeline's alert, or finish_by for a request's own deadline")]
IntervalStart = Annotated[Moment, Field(description="Start of the data interval: the logical date")]
IntervalEnd = Annotated[Moment, Field(description="End of the data interval, exclusive")]
DueAt = Annotated[Moment, Field(description="The moment by which it had to be done")]
Explanation = Annotated[str, Field(description="Why, in one line for people")]


class Cost(Facts):
    """The resources that Spark reported."""

    core_seconds: float | None = Field(None, ge=0, description="Seconds of executor cores: the run time of all tasks")
    shuffle_bytes: int | None = Field(None, ge=0, description="Bytes written for shuffles")
    rows_read: int | None = Field(None, ge=0, description="Rows read from sources")
    rows_written: int | None = Field(None, ge=0, description="Rows written to sinks")
