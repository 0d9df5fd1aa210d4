"""Archives the released messages: ``python -m tests.support.freeze`` writes the missing files.

Each message type has a complete sample, a sample with only the required fields, and its JSON
Schema. Existing files are never changed: tests read them with the current models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tools.examples import example_of
from tools.schemas import schema_of

from retrofill_core.contract.base import REGISTRY, VERSION

# One of two fields is required, which the schema cannot express.
ALSO = {"CodeLocation": ("file",)}
SAMPLES = Path(__file__).parents[1] / "samples"


def messages(version: int = VERSION) -> Path:
    """The folder with a version's samples."""
    return SAMPLES / "messages" / f"v{version}"


def schemas(version: int = VERSION) -> Path:
    """The folder with a version's schemas."""
    return SAMPLES / "schemas" / f"v{version}"


def minimal(sample: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The sample with only its type and the required fields, at every level."""
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
    """The current version's files that do not exist yet, with their content."""
    wanted: dict[Path, dict[str, Any]] = {}
    for name, model in REGISTRY.items():
        schema, full = schema_of(model), example_of(name)
        wanted[schemas() / f"{name}.json"] = schema
        wanted[messages() / f"{name}.full.json"] = full
        wanted[messages() / f"{name}.minimal.json"] = minimal(full, schema)
    return {path: content for path, content in wanted.items() if not path.exists()}


def main() -> None:
    """Write the missing files."""
    for path, content in missing().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
