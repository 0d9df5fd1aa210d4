"""Writes the results section of ``docs/reliability.md``: aims, and a table whose rows name their commit."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.plays import PLAYS, SPARK
from tests.chaos.report import AIMS, HEADS, MISSED, SERVICE_AIM, Result, facts, row, table, total
from tests.support import pages
from tests.support.git import git
from tests.support.installation import ROOT

ORDER = [*PLAYS, SPARK]
PAGE = ROOT / "docs" / "reliability.md"
MARKERS = "<!-- chaos: begin -->", "<!-- chaos: end -->"


def section(results: list[Result], profile: str, before: str = "") -> str:
    """The section for ``results``.

    ``before``: the section so far, of which the rows of other scenarios stay if profile and cores were the same.
    """
    head = f"`make chaos SEED=… ONLY=… PROFILE={profile}` on {os.cpu_count()} cores: "
    others = {*ORDER} - {each.name for each in results}
    kept = [line for line in before.splitlines() if _scenario(line) in others] if head in before else []
    rows = [pages.cells(line) for line in kept if line.startswith("|")]
    rows += ([*row(each), f"{datetime.now(UTC):%Y-%m-%d}", commit()] for each in results)
    rows.sort(key=lambda row: ORDER.index(row[0]))
    said = [*(line for line in kept if not line.startswith("|")), *facts(results)]
    broken = ", ".join(dict.fromkeys(row[0] for row in rows if row[HEADS.index("violations")] != "0"))
    missed = sum(cell.count(MISSED) for row in rows for cell in row)
    servers = f"{max(AIMS.values()):.0f} s after a server ({', '.join(AIMS)}), {SERVICE_AIM:.0f} s after a service"
    return "\n".join(
        [
            f"{head}{total(rows, 'runs'):,} runs and {total(rows, 'events checked'):,} events checked, "
            f"{total(rows, 'violations')} violations{f' (in {broken})' if broken else ''}. "
            f"The aims for moving again: {servers}; {missed or 'none'} missed.",
            "",
            table(rows, "run on", "at commit"),
            "",
            *sorted(said, key=lambda line: ORDER.index(_scenario(line))),
        ]
    )


def _scenario(line: str) -> str:
    """The scenario of a row, or of a fact's line."""
    return pages.cells(line)[0] if line.startswith("|") else line.partition(":")[0]


def write(page: Path, results: list[Result], profile: str) -> None:
    """Write the results into ``page``; rows of scenarios that were not played stay."""
    text = page.read_text()
    before = pages.parted(text, *MARKERS)[1]
    page.write_text(pages.rewritten(text, *MARKERS, section(results, profile, before)))


def commit() -> str:
    """The tested commit: tag or short hash, and whether the tree had changes other than this page's."""
    try:
        described = git("describe", "--tags", "--always")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{PAGE.relative_to(ROOT)}")
    except FileNotFoundError:
        return "unknown (no git)"
    return f"{described}{'-dirty' if changed else ''}" if described else "unknown"
