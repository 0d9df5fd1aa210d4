"""``init``, ``recover``, ``purge`` and ``config``: what services need in Postgres and Kafka, its repair, and the settings."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from confluent_kafka import KafkaException

from retrofill.errors import UserError, WrongUsage
from retrofill.masking import masked_conf, masked_remote
from retrofill.sdk.names import seconds_of
from retrofill.system.crash import arm
from retrofill.wording import plural
from retrofill_core.bus.clients import explain
from retrofill_core.contract.topics import CLI_CLIENT
from retrofill_core.settings import Settings
from retrofill_core.store.engine import LimitsMissing, SchemaTooOld, check_schema, make_engine, read_installation
from retrofill_tools.admin.access import NoAuthorizer
from retrofill_tools.admin.init import InstallationDiffers, PostgresTooOld, initialize
from retrofill_tools.admin.purge import CannotExport, CannotPurge, Purge, Purged
from retrofill_tools.admin.recovery import Found, find
from retrofill_tools.admin.recovery import recover as go_on
from retrofill_tools.admin.topics import TopicsDiffer, compare_topics
from retrofill_tools.cli.asking import Yes, confirm
from retrofill_tools.cli.options import AsJson
from retrofill_tools.cli.output import console, counts, instant, print_json, print_table, print_text
from retrofill_tools.client.connect import checked_settings, load_settings

PLAN = """It will
- fence the current relays and shard owners, and give later ones epochs that were never used
- number new events after the last one in Kafka, and drop pending events that Kafka already has
- queue live runs again, and give all unfinished runs attempt numbers that were never used
- give new runs and deadlines ids that were never used
- read requests and commands again, from the offsets in Postgres"""


def init(as_json: AsJson = False) -> None:
    """Create the schema and roles in Postgres, and topics, users and ACLs in Kafka.

    Existing ones are kept.
    """
    settings = checked_settings()
    # Both addresses are required: fail before anything is changed.
    settings.dsn_of("owner")
    settings.bootstrap_servers()
    try:
        initialize(settings)
    except (InstallationDiffers, PostgresTooOld, LimitsMissing, TopicsDiffer, NoAuthorizer) as e:
        raise UserError(str(e)) from e
    except KafkaException as e:
        raise UserError(f"Kafka cannot be used: {explain(settings, e)}") from e
    _compare(settings)
    if as_json:
        users = settings.kafka_user("*") if settings.kafka_acls else None
        return print_json({"topics": f"{settings.topic_prefix}*", "partitions": settings.partitions, "users": users})
    typer.echo("Postgres  schema and roles exist")
    typer.echo(f"Kafka     topics {settings.topic_prefix}* with {settings.partitions} partitions exist")
    if settings.kafka_acls:
        typer.echo(f"Kafka     users {settings.kafka_user('*')} have their rights")
    return None


def _compare(settings: Settings) -> None:
    """Report topic settings that differ from the required ones.

    Raises ``UserError`` if one is fatal.
    """
    try:
        found = compare_topics(settings)
    except KafkaException as e:
        typer.echo(f"retrofill: the settings of the topics cannot be read: {explain(settings, e)}", err=True)
        return
    lines = [one.line(settings.bootstrap_servers()) for one in found]
    refused = bool(found) and found[0].fatal
    for line in lines[1:] if refused else lines:
        typer.echo(f"retrofill: {line}", err=True)
    if refused:
        raise UserError(lines[0])


def recover(yes: Yes = False, as_json: AsJson = False) -> None:
    """Repair the state after a Postgres restore or failover that may have lost commits.

    Stop the services first.
    """
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
        confirm("repair the state", yes=yes)
        done = go_on(settings, engine, found)
    finally:
        engine.dispose()
    if as_json:
        return print_json({"signs": found.signs, **asdict(done)})
    for name, count in done.dropped.items():
        print_text(f"{name}: its events were behind Kafka's; pending events dropped as already published: {count:,}")
    print_text(
        f"recovered (generation {done.generation}): live runs that are queued again: {done.requeued:,}. Start the services"
    )
    return None


def _show(found: Found) -> None:
    for sign in found.signs:
        print_text(f"found: {sign}")
    if not found.signs:
        print_text("found no sign that Postgres lost commits")
    print_text(PLAN)


def config(as_json: AsJson = False) -> None:
    """Show all settings, with secrets masked."""
    values = shown(load_settings())
    if as_json:
        return print_json(values)
    for name, value in values.items():
        text = value if isinstance(value, str) else "" if value is None else json.dumps(value)
        print_text(f"{name}={text}")
    return None


def shown(settings: Settings) -> dict[str, Any]:
    """JSON values by variable, with secrets masked."""
    # In JSON mode pydantic also masks secrets inside lists and mappings.
    values = settings.model_dump(mode="json")
    # Spark settings are plain strings, and most are not secret.
    values |= {name: masked_conf(values[name]) for name in ("spark_conf", "spark_submit_conf")}
    values["spark_remote"] = masked_remote(settings.spark_remote)
    values["pools"] = {name: pool.shown() for name, pool in settings.pools.items()}
    return {f"RETROFILL_{name.upper()}": value for name, value in values.items()}


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
        typer.Option(metavar="FOLDER", help="Export the rows to Parquet files in this directory before deleting them."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would be deleted.")] = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete backfills that ended long ago, except runs that later backfills depend on."""
    age = read_age(older_than)
    if not dry_run:
        confirm(f"permanently delete backfills that ended more than {older_than} ago", yes=yes)
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
    print_table(
        ["table", f"rows {verb}"], rows, empty=f"nothing to purge that ended before {instant(done.cutoff)} (UTC)"
    )
    if export is not None and done.files:
        print_text(f"exported to {plural(done.files, 'file')} in {export}")
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
    return f"{plural(done.backfills, 'backfill')} checked, {plural(done.rows.total(), 'row')}"
