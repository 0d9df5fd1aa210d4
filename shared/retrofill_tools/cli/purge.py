"""``purge``: deletes old backfills from Postgres.

Like ``init``, it connects as the database's owner.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from retrofill.errors import UserError, WrongUsage
from retrofill.sdk.names import seconds_of
from retrofill.system.crash import arm
from retrofill_core.contract.topics import CLI_CLIENT
from retrofill_core.store.engine import make_engine
from retrofill_tools.admin.purge import CannotExport, CannotPurge, Purge, Purged
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import console, counts, moment, print_json, print_table, print_text
from retrofill_tools.client.connect import load_settings

# Messages about backfills that ended more recently may still be unread.
LEAST = timedelta(days=1)
MOST = timedelta(days=36_500)
LINE_SECONDS = 5.0


def purge(
    older_than: Annotated[
        str, typer.Option(metavar="TIME", help="Only backfills that ended this long ago, like 90d; at least 1d.")
    ],
    export: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="First write what is deleted to Parquet files in this directory."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete backfills that ended long ago, except runs that later backfills depend on."""
    age = read_age(older_than)
    settings = load_settings()
    arm(settings.crash_point)
    engine = make_engine(settings.dsn_of("owner"), f"{CLI_CLIENT}-purge", pool_size=2)
    try:
        with _progress(quiet=as_json) as report:
            done = Purge(engine, age, export, dry_run, report).run()
    except (CannotPurge, CannotExport) as e:
        raise UserError(str(e)) from e
    finally:
        engine.dispose()
    if as_json:
        return print_json({**_document(done), "dry_run": dry_run})
    return _print(done, export, dry_run=dry_run)


def read_age(text: str) -> timedelta:
    """The age of ``--older-than``. Raises ``WrongUsage``."""
    try:
        seconds = seconds_of(text)
    except ValueError as e:
        raise WrongUsage(f"--older-than: {e}") from e
    if not LEAST.total_seconds() <= seconds <= MOST.total_seconds():
        raise WrongUsage(f"--older-than {text[:20]}: it must be from 1d to {MOST.days}d")
    return timedelta(seconds=seconds)


def _document(done: Purged) -> dict[str, Any]:
    return {
        "cutoff": done.cutoff,
        "backfills": done.backfills,
        "rows": dict(done.rows),
        "held_back": dict(done.held),
        "files": done.files,
    }


def _print(done: Purged, export: Path | None, *, dry_run: bool) -> None:
    verb = "would be deleted" if dry_run else "deleted"
    rows = [(name, number) for name, number in done.rows.items() if number]
    print_table(["table", f"rows {verb}"], rows, empty=f"nothing ended before {moment(done.cutoff)} (UTC) that can go")
    if export is not None and done.files:
        print_text(f"exported to {done.files:,} files in {export}")
    if done.held:
        print_text(f"backfills that cannot be purged yet: {counts(done.held)}")


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[Purged], None]]:
    """Show progress on stderr: a status line on a terminal, else a line every few seconds."""
    out = console(stderr=True)
    if quiet:
        yield lambda _: None
    elif out.is_terminal:
        with out.status("searching") as spinner:
            yield lambda done: spinner.update(_summary(done))
    else:
        printed_at = time.monotonic()

        def show(done: Purged) -> None:
            nonlocal printed_at
            if time.monotonic() - printed_at >= LINE_SECONDS:
                printed_at = time.monotonic()
                out.print(_summary(done), markup=False, soft_wrap=True)

        yield show


def _summary(done: Purged) -> str:
    return f"{done.backfills:,} backfills checked, {done.rows.total():,} rows"
