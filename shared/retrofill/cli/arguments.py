"""From the arguments of ``backfill create`` and ``dry-run`` to a request. Wrong ones are one line and status 2."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from retrofill.contract.backfills import BackfillRequested
from retrofill.contract.base import Undecodable, decode_object
from retrofill.contract.explain import explain
from retrofill.domain.backfill import OnRunFailure, ReprocessBehavior
from retrofill.domain.bounds import parse_bound
from retrofill.errors import WrongUsage

PipelineName = Annotated[str, typer.Argument(metavar="PIPELINE", help="Name of an applied pipeline.")]
From = Annotated[
    str, typer.Option("--from", metavar="DATE", help="First logical date: a day, or a datetime with an offset.")
]
To = Annotated[str, typer.Option("--to", metavar="DATE", help="Last logical date, inclusive.")]
MaxActiveRuns = Annotated[
    int | None, typer.Option(min=1, max=10_000, help="Runs at the same time. Default: the pipeline's.")
]
Reprocess = Annotated[ReprocessBehavior, typer.Option(help="Which finished intervals to run again.")]
Backwards = Annotated[bool, typer.Option("--backwards", help="Start with the latest interval.")]
OnFailure = Annotated[OnRunFailure, typer.Option("--on-run-failure", help="What to do once a run failed for good.")]
Conf = Annotated[
    str | None, typer.Option(metavar="JSON|@FILE", help="A JSON object that is handed to the tasks, or a file with it.")
]
FinishBy = Annotated[
    str | None,
    typer.Option(metavar="MOMENT", help="A deadline for the whole backfill, like 2026-01-31T18:00:00+01:00."),
]
LatestCode = Annotated[
    bool, typer.Option("--latest-code", help="Each run uses the code that was applied last when it starts.")
]
Id = Annotated[str | None, typer.Option("--id", help="The backfill's id. Default: a fresh one.")]


@dataclass(frozen=True)
class Wish:
    """The arguments as typed."""

    pipeline: str
    from_: str
    to: str
    max_active_runs: int | None
    reprocess: ReprocessBehavior
    backwards: bool
    on_run_failure: OnRunFailure
    conf: str | None
    id: str | None
    finish_by: str | None = None
    latest_code: bool = False

    def request(self) -> BackfillRequested:
        """The request. Raises ``UserError``."""
        values = {
            "id": self.id,
            "pipeline": self.pipeline,
            "from": read_bound("--from", self.from_),
            "to": read_bound("--to", self.to),
            "max_active_runs": self.max_active_runs,
            "reprocess_behavior": self.reprocess,
            "run_backwards": self.backwards,
            "on_run_failure": self.on_run_failure,
            "conf": read_conf(self.conf),
            "triggered_by": _user(),
            "finish_by": self.finish_by,
            "latest_code": self.latest_code,
        }
        if self.id is not None and not self.id.strip():
            raise WrongUsage("--id is empty")
        try:
            return BackfillRequested.model_validate(values)
        except ValidationError as e:
            raise WrongUsage(explain(e)) from e


def read_bound(option: str, text: str) -> date | datetime:
    """A day or a moment. Raises ``UserError``."""
    try:
        bound: date | datetime = parse_bound(text.strip())
    except ValueError as e:
        where = option if text in str(e) else f"{option} {text[:40]}"
        raise WrongUsage(f"{where}: {e}") from e
    return bound


def read_conf(text: str | None) -> dict[str, Any]:
    """The JSON object of ``--conf``, given as it is or as ``@file``. Raises ``UserError``."""
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


def _user() -> str | None:
    try:
        return getpass.getuser()[:200]
    except (KeyError, OSError, ImportError):  # an account without a name, as in many containers
        return None
