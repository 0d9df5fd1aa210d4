"""The schemas of ready-made webhook bodies (tests/samples/bodies)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[1] / "samples" / "bodies"


def problems(service: str, body: Any) -> list[str]:
    """What ``service`` would refuse about a body."""
    schema = json.loads((FOLDER / f"{service}.json").read_text())
    validator = Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(body)]
