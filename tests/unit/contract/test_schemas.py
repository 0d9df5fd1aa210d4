"""The checked-in schemas and page match the models. Everything is documented, and every example is
valid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tools.examples import BODIES, example_of
from tools.schemas import COMMAND, differing, main, page
from tools.schemas import schema_of as make_schema

from retrofill_core.contract import decode
from retrofill_core.contract.base import REGISTRY

ROOT = Path(__file__).parents[3]
FOLDER, PAGE = ROOT / "schemas", ROOT / "docs" / "messages.md"
# Fields that one complete example cannot contain: one for digests only, and an alternative to
# another field.
NOT_TOGETHER = {
    "DeadlineMissed.recovered_at",
    "CodeLocation.module",
    "SubmitScript.main_class",
    "BackfillRequested.intervals",
    "RunRetryRequested.all_failed",
    "BackfillRequested.interval_ends",
}
# The JSON Schema 2020-12 keywords that the models use.
KEYWORDS = {
    *("$schema", "$defs", "$ref", "title", "description", "default", "examples", "type", "const", "enum", "anyOf"),
    *(
        "oneOf",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "maxItems",
        "maxProperties",
        "minItems",
        "minLength",
        "maxLength",
    ),
    *("minimum", "maximum", "pattern", "format"),
}
Schema = dict[str, Any]
schema_of = cache(make_schema)


def validator(name: str) -> Draft202012Validator:
    """The validator of a message type."""
    return Draft202012Validator(schema_of(REGISTRY[name]), format_checker=Draft202012Validator.FORMAT_CHECKER)


def objects(name: str) -> Iterator[tuple[str, Schema]]:
    """All types that a message's schema defines, the message itself first."""
    schema = schema_of(REGISTRY[name])
    yield name, schema
    yield from schema.get("$defs", {}).items()


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_the_schema_is_one_and_fits_what_is_written(name: str) -> None:
    Draft202012Validator.check_schema(schema_of(REGISTRY[name]))
    written = decode(json.dumps(example_of(name)).encode()).encode()
    assert decode(written).encode() == written
    fits = validator(name)
    fits.validate(json.loads(written))
    assert not fits.is_valid([])
    assert not fits.is_valid({**json.loads(written), "type": "Other"})


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_the_schema_needs_what_the_model_needs(name: str) -> None:
    schema, complete = schema_of(REGISTRY[name]), example_of(name)
    for needed in schema.get("required", ()):
        assert not validator(name).is_valid({field: value for field, value in complete.items() if field != needed})


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_every_type_and_every_field_is_described(name: str) -> None:
    for owner, schema in objects(name):
        assert described(schema), owner
        assert [field for field, about in schema.get("properties", {}).items() if not described(about)] == [], owner


def described(schema: Schema) -> bool:
    """Whether it has a meaningful description."""
    return len(schema.get("description", "").split()) > 1


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_the_schema_uses_keywords_of_its_dialect_alone(name: str) -> None:
    assert keywords(schema_of(REGISTRY[name])) <= KEYWORDS


def keywords(schema: Schema) -> set[str]:
    """All keywords of a schema and its nested schemas."""
    found = set(schema)
    for named in ("properties", "$defs"):
        for inner in schema.get(named, {}).values():
            found |= keywords(inner)
    for keyword in ("anyOf", "oneOf", "items", "additionalProperties"):
        inside = schema.get(keyword)
        for inner in inside if isinstance(inside, list) else [inside]:
            if isinstance(inner, dict):
                found |= keywords(inner)
    return found


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_the_example_is_complete_and_fits(name: str) -> None:
    schema = schema_of(REGISTRY[name])
    (complete,) = schema["examples"]
    validator(name).validate(complete)
    absent = {f"{name}.{field}" for field in schema["properties"].keys() - complete.keys()}
    assert absent <= NOT_TOGETHER


def test_every_field_inside_of_messages_is_in_some_example() -> None:
    present: dict[str, set[str]] = {}
    for name in REGISTRY:
        schema = schema_of(REGISTRY[name])
        collect(example_of(name), schema, schema.get("$defs", {}), present)
    inner = {owner: schema for name in REGISTRY for owner, schema in objects(name) if "properties" in schema}
    absent = {
        f"{owner}.{field}" for owner, schema in inner.items() for field in schema["properties"].keys() - present[owner]
    }
    assert absent == NOT_TOGETHER


def collect(value: Any, schema: Schema, definitions: Schema, into: dict[str, set[str]]) -> None:
    """Record the fields of each type that occur in a value."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for alternative in [*schema.get("anyOf", ()), *schema.get("oneOf", ())]:
        inside = Draft202012Validator({**alternative, "$defs": definitions})
        if inside.is_valid(value):
            collect(value, alternative, definitions, into)
    if isinstance(value, list):
        for each in value:
            collect(each, schema.get("items", {}), definitions, into)
    if isinstance(value, dict) and "properties" in schema:
        into.setdefault(schema["title"], set()).update(value)
        for name, inner in value.items():
            collect(inner, schema["properties"][name], definitions, into)


def test_there_is_one_example_for_each_type() -> None:
    assert set(BODIES) == set(REGISTRY)


@pytest.mark.parametrize(
    ("name", "path", "format"),
    [
        ("RunStarted", ("at",), "date-time"),
        ("BackfillRequested", ("finish_by",), "date-time"),
        ("BackfillRequested", ("from",), "date"),
        ("BackfillRequested", ("from",), "date-time"),
    ],
)
def test_moments_and_days_have_their_formats(name: str, path: tuple[str, ...], format: str) -> None:
    field: Schema = schema_of(REGISTRY[name])["properties"][path[0]]
    assert format in {each.get("format") for each in field.get("anyOf", [field])}


# the checked-in files


def test_what_is_checked_in_is_current() -> None:
    assert differing(FOLDER, PAGE) == []


def test_the_check_names_what_differs_and_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, docs = tmp_path / "schemas", tmp_path / "messages.md"
    arguments = ["--docs", str(docs), str(folder)]
    assert main(arguments) == 0
    assert main(["--check", *arguments]) == 0
    (folder / "RunStarted.json").write_text("{}")
    (folder / "Stranger.json").write_text("{}")
    (folder / "RunFailed.json").unlink()
    docs.write_text("# Messages")
    capsys.readouterr()
    assert main(["--check", *arguments]) == 1
    said = capsys.readouterr().err
    assert said == (
        "outdated: RunFailed.json, RunStarted.json, Stranger.json, messages.md; "
        f"run '{COMMAND} --docs {docs} {folder}'\n"
    )
    assert main(arguments) == 0
    assert main(["--check", *arguments]) == 0


# the page

text_of_page = cache(page)


def section(name: str) -> str:
    """The text under one heading of the page, up to the next heading."""
    found = re.search(rf"^### {name}$(.*?)(?=^##|\Z)", text_of_page(), re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found.group(1)


@pytest.mark.parametrize("name", sorted(REGISTRY))
def test_the_page_has_each_message_with_its_fields_and_example(name: str) -> None:
    text = section(name)
    fields = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert fields == schema_of(REGISTRY[name])["properties"].keys() - {"type", "version", "in_reply_to"}
    needed = set(re.findall(r"^\| `(\w+)` \|.*\| yes \|", text, re.MULTILINE))
    assert needed == set(schema_of(REGISTRY[name]).get("required", ()))
    found = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert found is not None
    assert json.loads(found.group(1)) == example_of(name)


def test_links_inside_of_the_page_lead_to_a_heading() -> None:
    """Complements the other link tests: these links are in tables, where column formatting could
    break them.
    """
    headings = re.findall(r"^#+ (.+)$", text_of_page(), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = set(re.findall(r"\]\(#([^)]+)\)", text_of_page()))
    assert {"taskdefinition", "retrofillpipelines"} <= links <= anchors


def test_rows_of_the_page_have_as_many_cells_as_their_heads() -> None:
    widths: list[int] = []
    for line in text_of_page().splitlines():
        if not line.startswith("|"):
            widths = []
            continue
        widths.append(len(re.findall(r"(?<!\\)\|", line)))
        assert widths[-1] == widths[0], line
