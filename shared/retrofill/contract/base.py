"""What all messages share: JSON bodies told apart by ``type``, and the registry that reads them."""

from __future__ import annotations

import itertools
import json
from math import isfinite
from typing import Any, ClassVar, NoReturn, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator

from retrofill.contract.explain import explain

MAX_INT = 2**63 - 1
# What validates, stores and prints a message may recurse over it.
MAX_DEPTH = 100
TOO_DEEP = f"the value is nested more than {MAX_DEPTH} levels deep"
# Format of a message, the newest that is known.
VERSION = 1
MAX_REASON = 500
# What serializers of a Schema Registry put before each value: a byte 0 and the schema's id, four bytes, the highest first.
REGISTRY_MAGIC = b"\0"
REGISTRY_PREFIX_BYTES = 5


class Undecodable(Exception):
    """Bytes that are no message: the reason is one line that a person can act on."""

    def __init__(self, reason: str) -> None:
        # Names and texts of the message may be quoted in the reason, whatever is in them.
        line = " ".join(reason.split())
        super().__init__(line if len(line) <= MAX_REASON else f"{line[: MAX_REASON - 1]}…")


class Facts(BaseModel):
    """Data inside of messages. Unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    @model_validator(mode="after")
    def _numbers_that_fit(self) -> Self:
        # A number is taken from a text too, and those were not looked at when the JSON was read.
        for name, value in self.__dict__.items():
            if (isinstance(value, int) and abs(value) > MAX_INT) or (isinstance(value, float) and not isfinite(value)):
                raise ValueError(f"{name} does not fit: 64 bits are the most of an integer, and a number is finite")
        return self


class Message(Facts):
    """One fact or wish on a topic. ``in_reply_to`` is the ``ce_id`` that it answers."""

    # Whether people write it by hand: then an unknown field is a mistake, and is refused.
    of_users: ClassVar[bool] = False

    type: str = Field("", description="Name of the message type")
    version: int = Field(VERSION, ge=1, le=VERSION, description="Major version of the message's format")
    in_reply_to: str | None = Field(None, description="ce_id of the message that this one answers")

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Register the subclass under its ``type``, which is its class name."""
        super().__pydantic_init_subclass__(**kwargs)
        if "type" in cls.__annotations__:
            REGISTRY[cls.__name__] = cls

    def encode(self) -> bytes:
        """UTF-8 JSON, one object, without the fields that are not set."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()


Moment = AwareDatetime
# Every message type by its name, filled as the modules of messages are imported.
REGISTRY: dict[str, type[Message]] = {}


def decode_object(value: bytes) -> dict[str, Any]:
    """A JSON object of UTF-8 bytes. Raises ``Undecodable``."""
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
    # Only what could hold something wrong is looked through.
    if text.count("{") + text.count("[") > MAX_DEPTH or "\\u" in text:
        _check_content(body)
    return body


def decode(value: bytes | None, header_type: str | None = None) -> Message:
    """Read a message; its type is ``header_type`` where given, else the body's. Raises ``Undecodable``."""
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
            f"the value begins with a byte 0 and a schema id ({schema}), as serializers of a Schema Registry write it: "
            "publish the plain JSON, with a string serializer (the JSON Schemas are in schemas/)"
        )


def _refuse_newer(named: str, version: object) -> None:
    if isinstance(version, int) and version > VERSION:
        raise Undecodable(
            f"{named}: version {version} is newer than what this service knows ({VERSION}): upgrade the service, "
            "then replay this message, or publish the older version"
        )


def _check_content(body: Any) -> None:
    """No text that the database cannot store, and no nesting that something may give up on. Raises ``Undecodable``."""
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
        raise Undecodable("the value holds a NUL character, which the database cannot store")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as e:
        raise Undecodable("the value holds half a surrogate pair, which is no character") from e


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
