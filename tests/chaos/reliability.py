"""Writes the results section of ``docs/reliability.md``: date, machine, commit, table and aims."""

from __future__ import annotations

import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.report import AIMS, SERVICE_AIM, Result, missed_aims, table
from tests.support.installation import ROOT

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- chaos: begin -->", "<!-- chaos: end -->"


def section(results: list[Result], command: str) -> str:
    """The section for one long run."""
    violations = sum(len(each.violations) for each in results)
    broken = ", ".join(sorted({each.name for each in results if each.violations}))
    missed = missed_aims(results)
    servers = f"{max(AIMS.values()):.0f} s after a server ({', '.join(AIMS)}), {SERVICE_AIM:.0f} s after a service"
    return "\n".join(
        [
            f"{datetime.now(UTC):%Y-%m-%d}, commit `{commit()}`, {os.cpu_count()} cores, `{command}`: "
            f"{sum(each.runs for each in results):,} runs and {sum(each.events for each in results):,} events checked, "
            f"{violations} violations{f' (in {broken})' if broken else ''}. "
            f"The aims of the last column: {servers}; {missed or 'none'} missed.",
            "",
            table(results),
        ]
    )


def rewrite(text: str, section: str) -> str:
    """Replace the section between the two markers.

    Raises ``ValueError`` unless each occurs once.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(
            f"the page needs one line {BEGIN} and, after it, one line {END}: the section goes between them"
        )
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section}\n{END}{after}"


def write(page: Path, results: list[Result], command: str) -> None:
    """Write the section into ``page``."""
    page.write_text(rewrite(page.read_text(), section(results, command)))


def commit() -> str:
    """The tested commit: tag or short hash, and whether the tree had changes."""
    try:
        done = subprocess.run(
            ["git", "describe", "--tags", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "unknown (no git)"
    return done.stdout.strip() if done.returncode == 0 else "unknown"
