"""The contract as third parties get it: the files in ``schemas/``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[2] / "schemas"
Document = dict[str, Any]


@cache
def topics() -> Document:
    """The AsyncAPI document. It is cached, so callers must not modify it."""
    document: Document = yaml.safe_load((FOLDER / "asyncapi.yaml").read_text("utf-8"))
    return document


def found(reference: str) -> Any:
    """Resolve a reference inside that document."""
    inside: Any = topics()
    for step in reference.removeprefix("#/").split("/"):
        inside = inside[step]
    return inside


@cache
def headers_of(name: str) -> Draft202012Validator:
    """The validator for this message's headers."""
    headers = topics()["components"]["messages"][name]["headers"]
    if "$ref" in headers:
        return Draft202012Validator(found(headers["$ref"]))
    return Draft202012Validator({**headers, "allOf": [found(each["$ref"]) for each in headers["allOf"]]})


@cache
def value_of(name: str) -> Draft202012Validator:
    """The validator for this message's value."""
    return Draft202012Validator(json.loads((FOLDER / f"{name}.json").read_text("utf-8")))
