"""The section of ``docs/reliability.md`` that a run writes: when, on what, of which commit, with the table and the aims."""

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
    """What the page says of a run."""
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
    """A page with the section between its two markers. Raises ``ValueError`` where it has not each of them once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(
            f"the page needs one line {BEGIN} and, after it, one line {END}: the section goes between them"
        )
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section}\n{END}{after}"


def write(page: Path, results: list[Result], command: str) -> None:
    """Put the section into a page."""
    page.write_text(rewrite(page.read_text(), section(results, command)))


def commit() -> str:
    """What was tried: the tag or short hash, and whether there were changes on top of it."""
    try:
        done = subprocess.run(
            ["git", "describe", "--tags", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return "unknown (no git)"
    return done.stdout.strip() if done.returncode == 0 else "unknown"
