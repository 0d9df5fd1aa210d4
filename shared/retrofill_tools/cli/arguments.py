"""The options that describe a backfill, shared by ``backfill create`` and ``dry-run``."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import ValidationError

from retrofill.errors import WrongUsage
from retrofill.sdk.names import MAX_BATCH, seconds_of
from retrofill_core.contract.backfills import BackfillRequested
from retrofill_core.contract.base import Undecodable, decode_object, explain
from retrofill_core.domain.backfill import Budget, OnRunFailure, Publish, ReprocessBehavior
from retrofill_core.domain.schedule import parse_bound
from retrofill_tools.cli.options import pipeline_names
from retrofill_tools.client.connect import local_user

Dates = Annotated[
    list[str] | None,
    typer.Option(
        "--dates",
        metavar="DATE,…",
        help="Logical dates; a day means all intervals that start on it. With commas, or repeated.",
    ),
]
BUDGET = typer.Option(
    "--budget",
    metavar="LIMITS",
    help="Pause when a limit is reached, like failed_runs=3,core_hours=10,until=2026-01-31T18:00:00+01:00.",
)


@dataclass(frozen=True)
class BackfillOptions:
    """The options as typed by the user."""

    pipeline: Annotated[
        str, typer.Argument(metavar="PIPELINE", help="Name of an applied pipeline.", autocompletion=pipeline_names)
    ]
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="DATE", help="First logical date: a day, or a datetime with an offset."),
    ] = None
    to: Annotated[str | None, typer.Option("--to", metavar="DATE", help="Last logical date, inclusive.")] = None
    dates: Dates = None
    dates_file: Annotated[
        str | None,
        typer.Option("--dates-file", metavar="FILE", help="A file with logical dates, one per line; - is stdin."),
    ] = None
    max_active_runs: Annotated[
        int | None, typer.Option(min=1, max=10_000, help="Maximum concurrency. Default: the pipeline's.")
    ] = None
    batch_size: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_BATCH, help="Batch size, up to the pipeline's. Default: the pipeline's."),
    ] = None
    reprocess: Annotated[ReprocessBehavior, typer.Option(help="Which processed intervals to run again.")] = (
        ReprocessBehavior.NONE
    )
    backwards: Annotated[bool, typer.Option("--backwards", help="Start with the latest interval.")] = False
    on_run_failure: Annotated[
        OnRunFailure, typer.Option("--on-run-failure", help="What to do when a run fails permanently.")
    ] = OnRunFailure.CONTINUE
    conf: Annotated[
        str | None, typer.Option(metavar="JSON|@FILE", help="A JSON object to pass to the tasks, or a file with one.")
    ] = None
    finish_by: Annotated[
        str | None,
        typer.Option(metavar="MOMENT", help="A deadline for the whole backfill, like 2026-01-31T18:00:00+01:00."),
    ] = None
    review: Annotated[
        bool, typer.Option("--review", help="Publish staged output only after 'retrofill backfill publish ID'.")
    ] = False
    latest_code: Annotated[
        bool, typer.Option("--latest-code", help="Each run uses the code that is applied when it starts.")
    ] = False
    budget: Annotated[str | None, BUDGET] = None
    id: Annotated[str | None, typer.Option("--id", help="The backfill's id. Default: a new one.")] = None

    def request(self) -> BackfillRequested:
        """The options as a request. Raises ``WrongUsage``."""
        dates = [*read_dates(self.dates), *_dates_in(self.dates_file)]
        no_dates, no_range = not self.dates and self.dates_file is None, (self.from_, self.to) == (None, None)
        if not (no_dates or dates):
            raise WrongUsage(f"{'--dates' if self.dates_file is None else '--dates-file'} has no date")
        if no_dates == no_range or (no_dates and None in (self.from_, self.to)):
            raise WrongUsage("give either --from and --to, or --dates DATE,… or --dates-file FILE")
        values = {
            "id": self.id,
            "pipeline": self.pipeline,
            "from": None if self.from_ is None else read_bound("--from", self.from_),
            "to": None if self.to is None else read_bound("--to", self.to),
            "intervals": dates,
            "max_active_runs": self.max_active_runs,
            "batch_size": self.batch_size,
            "reprocess_behavior": self.reprocess,
            "run_backwards": self.backwards,
            "on_run_failure": self.on_run_failure,
            "conf": read_conf(self.conf),
            "triggered_by": local_user(),
            "finish_by": self.finish_by,
            "publish": Publish.REVIEW if self.review else Publish.AT_ONCE,
            "latest_code": self.latest_code,
            "budget": None if self.budget is None else read_budget(self.budget),
        }
        if self.id is not None and not self.id.strip():
            raise WrongUsage("--id is empty")
        try:
            return BackfillRequested.model_validate(values)
        except ValidationError as e:
            raise WrongUsage(explain(e)) from e


def takes_backfill_options(command: Callable[..., None]) -> Callable[..., None]:
    """Expand a command's first parameter, ``BackfillOptions``, into one option per field."""
    hints = get_type_hints(BackfillOptions, include_extras=True)
    options = inspect.signature(BackfillOptions).parameters.values()
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @functools.wraps(command)
    def expanded(**given: Any) -> None:
        chosen = BackfillOptions(**{field.name: given.pop(field.name) for field in fields(BackfillOptions)})
        command(chosen, **given)

    parameters = [option.replace(annotation=hints[option.name]) for option in options] + own
    keyword_only = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    expanded.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    expanded.__annotations__ = {each.name: each.annotation for each in keyword_only}
    return expanded


def read_bound(option: str, text: str) -> date | datetime:
    """A day or a moment. Raises ``WrongUsage``."""
    try:
        bound: date | datetime = parse_bound(text.strip())
    except ValueError as e:
        where = option if text in str(e) else f"{option} {text[:40]}"
        raise WrongUsage(f"{where}: {e}") from e
    return bound


def read_dates(texts: Sequence[str] | None, option: str = "--dates") -> list[date | datetime]:
    """Days or moments, separated by commas or white space. Raises ``WrongUsage``."""
    return [read_bound(option, each) for text in texts or () for each in text.replace(",", " ").split()]


def read_since(text: str) -> datetime:
    """The moment of ``--since``: a day of this machine's time zone, a moment, or an age. Raises ``WrongUsage``."""
    try:
        return datetime.now(UTC) - timedelta(seconds=seconds_of(text))
    except (ValueError, OverflowError):
        pass
    try:
        bound = parse_bound(text.strip())
        return bound if isinstance(bound, datetime) else datetime.combine(bound, time.min).astimezone()
    except (ValueError, OverflowError) as e:
        raise WrongUsage(
            f"--since {text[:40]}: use an age like 12h or 7d, a day like 2024-01-31, or a datetime with an offset"
        ) from e


def _dates_in(file: str | None) -> list[date | datetime]:
    """The dates in a file, of which a line may have several."""
    if file is None:
        return []
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise WrongUsage(f"--dates-file: {e}") from e
    return read_dates([text], "--dates-file")


def read_conf(text: str | None) -> dict[str, Any]:
    """The JSON object of ``--conf``, inline or as ``@file``. Raises ``WrongUsage``."""
    if text is None:
        return {}
    if text.startswith("@"):
        try:
            text = Path(text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise WrongUsage(f"--conf: {e}") from e
    try:
        return decode_object(text.encode())
    except (Undecodable, UnicodeEncodeError) as e:
        raise WrongUsage(f"--conf must be a JSON object like '{{\"key\": 1}}' or @FILE: {e}") from e


def read_budget(text: str) -> Budget:
    """Limits like ``failed_runs=3,core_hours=10``, or ``none``. Raises ``WrongUsage``."""
    parts = [] if text.strip() == "none" else text.split(",")
    limits: dict[str, str] = {}
    for part in parts:
        name, _, value = part.strip().partition("=")
        if name not in Budget.model_fields or not value or name in limits:
            known = "=…, ".join(Budget.model_fields)
            raise WrongUsage(f"--budget {part.strip()!r}: use each of {known}=… at most once, separated by commas")
        limits[name] = value
    try:
        return Budget.model_validate(limits)
    except ValidationError as e:
        raise WrongUsage(f"--budget: {explain(e)}") from e
