"""Writes the table of ``docs/configuration.md``: ``python tools/configuration.py``."""

from __future__ import annotations

from pathlib import Path

from retrofill_core.settings import Settings

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"
HEAD = "| variable | default | what it is |\n|---|---|---|\n"


def table() -> str:
    """One row per setting, in their order."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = "" if default is None or default in ({}, []) else f"`{default}`"
        assert field.description, f"the setting {name} has no description"
        rows.append(f"| `RETROFILL_{name.upper()}` | {shown} | {field.description} |\n")
    return HEAD + "".join(rows)


def page() -> str:
    """The page with the current table."""
    text = PAGE.read_text()
    before, _, rest = text.partition(HEAD)
    _, _, after = rest.partition("\n\n")
    return f"{before}{table()}\n{after}"


if __name__ == "__main__":
    PAGE.write_text(page())
