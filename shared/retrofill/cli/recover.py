"""``recover``: go on after Postgres lost commits. An administrator's command, as ``init`` is: it connects as the owner."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from retrofill.admin.recovery import Found, find
from retrofill.admin.recovery import recover as go_on
from retrofill.bus.crash import arm
from retrofill.cli.output import print_text
from retrofill.contract.topics import CLI_CLIENT
from retrofill.errors import UserError
from retrofill.settings import Settings
from retrofill.store.engine import make_engine
from retrofill.store.installation import SchemaTooOld, check_schema, read_installation

PLAN = """It will
- end what relays and owners of shards still have open, and give later ones higher epochs than ever before
- number events beyond the last that Kafka has, and drop waiting ones that Kafka has already
- queue the runs that are live here again, and give all unfinished ones attempts that nobody had before
- give new runs and deadlines ids that nobody had before
- read requests and commands again from the offsets that Postgres has"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(recover)


def recover(yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Go on after a restore or a fail-over of Postgres in which commits may have been lost. Stop the services first."""
    settings = Settings()
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
            raise UserError("the settings are not those of this database's 'retrofill init': set them back")
        found = find(settings, engine)
        _say(found)
        if not yes:
            _confirm()
        done = go_on(settings, engine, found)
    finally:
        engine.dispose()
    for name, count in done.dropped.items():
        print_text(
            f"{name}: its events were behind Kafka's; {count:,} that waited here were published already and are dropped"
        )
    print_text(
        f"recovered (generation {done.generation}): {done.requeued:,} live runs are queued again. Start the services"
    )


def _say(found: Found) -> None:
    for sign in found.signs:
        print_text(f"found: {sign}")
    if not found.signs:
        print_text("found: nothing that shows that Postgres lost commits")
    print_text(PLAN)


def _confirm() -> None:
    """Raises ``UserError`` for anything but yes."""
    if not sys.stdin.isatty():
        raise UserError("nothing was changed: type it on a terminal, or give --yes")
    sys.stderr.write("go on? [y/N]: ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UserError("nothing was changed (--yes does not ask)")
