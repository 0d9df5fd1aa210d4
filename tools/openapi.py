"""Writes ``docs/console.openapi.json``, the console's API: ``python -m tools.openapi``."""

from __future__ import annotations

import json
from pathlib import Path

from retrofill_console.api.table import document

PAGE = Path(__file__).parents[1] / "docs" / "console.openapi.json"


def page() -> str:
    """The document as it is kept."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
