"""``recover``: repairs the state after Postgres lost commits.

Like ``init``, it connects as the database's owner.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from retrofill.errors import UserError, WrongUsage
from retrofill.system.crash import arm
from retrofill_core.contract.topics import CLI_CLIENT
from retrofill_core.store.engine import make_engine
from retrofill_core.store.installation import SchemaTooOld, check_schema, read_installation
from retrofill_tools.admin.recovery import Found, find
from retrofill_tools.admin.recovery import recover as go_on
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import print_json, print_text
from retrofill_tools.client.connect import checked_settings

PLAN = """It will
- fence the current relays and shard owners, and give later ones epochs that were never used
- number new events after the last one in Kafka, and drop pending events that Kafka already has
- queue live runs again, and give all unfinished runs attempt numbers that were never used
- give new runs and deadlines ids that were never used
- read requests and commands again, from the offsets in Postgres"""


def register(app: typer.Typer) -> None:
    app.command()(recover)


def recover(
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")] = False, as_json: AsJson = False
) -> None:
    """Repair the state after a Postgres restore or failover that may have lost commits.

    Stop the services first.
    """
    if as_json and not yes:
        raise WrongUsage("--json requires --yes: nobody reads the question")
    settings = checked_settings()
    arm(settings.crash_point)
    engine = make_engine(settings.dsn_of("owner"), f"{CLI_CLIENT}-recover", pool_size=2)
    try:
        with engine.connect() as conn:
            fixed = read_installation(conn)
            try:
                check_schema(conn)
            except SchemaTooOld as e:
                raise UserError(str(e)) from e
        if fixed is None or (fixed.topic_prefix, fixed.partitions) != (settings.topic_prefix, settings.partitions):
            raise UserError("topic prefix or partitions differ from this database's 'retrofill init': restore them")
        found = find(settings, engine)
        if not as_json:
            _show(found)
        if not yes:
            _confirm()
        done = go_on(settings, engine, found)
    finally:
        engine.dispose()
    if as_json:
        return print_json({"signs": found.signs, **asdict(done)})
    for name, count in done.dropped.items():
        print_text(f"{name}: its events were behind Kafka's; pending events dropped as already published: {count:,}")
    print_text(
        f"recovered (generation {done.generation}): {done.requeued:,} live runs are queued again. Start the services"
    )
    return None


def _show(found: Found) -> None:
    for sign in found.signs:
        print_text(f"found: {sign}")
    if not found.signs:
        print_text("found: no sign that Postgres lost commits")
    print_text(PLAN)


def _confirm() -> None:
    """Raises ``UserError`` unless the answer is yes."""
    if not sys.stdin.isatty():
        raise UserError("nothing was changed: run this on a terminal, or use --yes")
    sys.stderr.write("continue? [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("nothing was changed (use --yes to skip this question)")
