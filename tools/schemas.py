"""Generates ``schemas/`` (JSON Schema 2020-12 and AsyncAPI) and the reference page.

Run ``python -m tools.schemas [--check] [--docs PAGE] FOLDER``. It needs the dev extra.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import yaml

from retrofill_core.contract.base import REGISTRY, Message
from retrofill_core.contract.topics_of import Document
from tools import asyncapi, reference
from tools.examples import example_of

DIALECT = "https://json-schema.org/draft/2020-12/schema"
ASYNCAPI = "asyncapi.yaml"
COMMAND = "python -m tools.schemas"


def generate() -> dict[str, str]:
    """The text of every generated file, by name. Deterministic."""
    files = {f"{name}.json": _as_json(schema_of(REGISTRY[name])) for name in sorted(REGISTRY)}
    files[ASYNCAPI] = yaml.dump(asyncapi.document(), Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110)
    return files


def schema_of(model: type[Message]) -> Document:
    """The JSON Schema of a message type, for readers, with an example."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    # Each type redefines this field, so it does not inherit the description.
    schema["properties"]["type"]["description"] = Message.model_fields["type"].description
    if "JsonValue" in schema.get("$defs", {}):
        schema["$defs"]["JsonValue"] = {"description": "Any JSON value."}
    _remove(schema, "discriminator")
    if model.of_users:
        for each in (schema, *schema.get("$defs", {}).values()):
            if "properties" in each:
                each["additionalProperties"] = False
    return {"$schema": DIALECT, **schema, "examples": [example_of(model.__name__)]}


def _remove(schema: Document, keyword: str) -> None:
    """Remove an OpenAPI keyword next to ``oneOf``, which makes it redundant."""
    for inner in schema.values():
        for each in inner if isinstance(inner, list) else [inner]:
            if isinstance(each, dict):
                _remove(each, keyword)
    if "oneOf" in schema:
        schema.pop(keyword, None)


class _Plain(yaml.SafeDumper):
    """A YAML dumper that writes repeated objects in full, without anchors."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _as_json(document: Document) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    """The text of the reference page."""
    return reference.page({name: schema_of(REGISTRY[name]) for name in REGISTRY})


def differing(folder: Path, docs: Path | None = None) -> list[str]:
    """Names of files that are missing, outdated or obsolete."""
    files = generate()
    present = {path.name: path.read_text("utf-8") for path in folder.glob("*") if path.is_file()}
    stale = sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))
    if docs is not None and (not docs.is_file() or docs.read_text("utf-8") != page()):
        stale.append(docs.name)
    return stale


def write(folder: Path, docs: Path | None = None) -> None:
    """Write the generated files, delete any others in the folder, and write the page."""
    folder.mkdir(parents=True, exist_ok=True)
    files = generate()
    for path in folder.glob("*"):
        if path.is_file() and path.name not in files:
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    if docs is not None:
        docs.write_text(page(), "utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Write the folder and the page, or with ``--check`` compare them. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Generate the schemas and the reference of all messages."
    )
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a file is outdated")
    parser.add_argument("--docs", type=Path, help="also write the reference of all topics and messages to PAGE")
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(arguments)
    if not options.check:
        write(options.folder, options.docs)
        return 0
    stale = differing(options.folder, options.docs)
    if stale:
        docs = f"--docs {options.docs} " if options.docs else ""
        sys.stderr.write(f"outdated: {', '.join(stale)}; run '{COMMAND} {docs}{options.folder}'\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
