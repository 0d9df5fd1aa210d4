"""Keeps what is released of the messages for ever: ``python -m tests.support.freeze`` writes what is not there yet.

For each message type one complete sample, one with the required fields alone, and its JSON Schema. What is there is never
changed: tests read it with whatever the models have become.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.examples import example_of
from tools.schemas import schema_of

from retrofill.contract.base import REGISTRY, VERSION

# One of two fields is needed, which the schema does not say.
ALSO = {"CodeLocation": ("file",)}
SAMPLES = Path(__file__).parents[1] / "samples"


def messages(version: int = VERSION) -> Path:
    """The folder with the samples of a version."""
    return SAMPLES / "messages" / f"v{version}"


def schemas(version: int = VERSION) -> Path:
    """The folder with the schemas of a version."""
    return SAMPLES / "schemas" / f"v{version}"


def minimal(sample: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The sample with the type and the fields that the schema requires alone, inside of it too."""
    return {"type": sample["type"], **_required(sample, schema, schema.get("$defs", {}))}


def _required(value: Any, schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    if "$ref" in schema:
        return _required(value, definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if isinstance(value, list):
        return [_required(each, schema.get("items", {}), definitions) for each in value]
    if isinstance(value, dict) and "properties" in schema:
        names = [*schema.get("required", ()), *ALSO.get(schema.get("title", ""), ())]
        return {name: _required(value[name], schema["properties"][name], definitions) for name in names}
    return value


def missing() -> dict[Path, dict[str, Any]]:
    """What is not kept yet of the present version, by its file."""
    wanted: dict[Path, dict[str, Any]] = {}
    for name, model in REGISTRY.items():
        schema, full = schema_of(model), example_of(name)
        wanted[schemas() / f"{name}.json"] = schema
        wanted[messages() / f"{name}.full.json"] = full
        wanted[messages() / f"{name}.minimal.json"] = minimal(full, schema)
    return {path: content for path, content in wanted.items() if not path.exists()}


def main() -> None:
    """Write what is missing."""
    for path, content in missing().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
