"""The docs say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retrofill.domain import backfill, callback, deadline, run, task_run
from retrofill.settings import Settings

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    "machine", [m.MACHINE for m in (backfill, run, task_run, deadline, callback)], ids=lambda m: m.entity
)
def test_the_diagram_is_the_table_of_edges(machine: run.machine) -> None:  # type: ignore[valid-type]
    text = (DOCS / "how-it-works.md").read_text()
    drawn = re.search(rf"state {machine.entity} {{(.*?)}}", text, re.DOTALL)
    assert drawn is not None
    edges = set(re.findall(r"(\w+) --> (\w+)", drawn.group(1)))
    assert edges == {(str(a), str(b)) for a, following in machine.edges.items() for b in following}


def test_every_setting_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text()
    for name in Settings.model_fields:
        assert f"`RETROFILL_{name.upper()}`" in text, name


def test_every_link_leads_somewhere() -> None:
    root = DOCS.parent
    for page in [root / "README.md", *DOCS.rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(root)} → {target}"
