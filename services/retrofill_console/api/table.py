"""Every endpoint of the API: its path, what it answers, and what it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from retrofill_console.answers import JSON
from retrofill_console.api import health, logs, pages, requests
from retrofill_console.api.inputs import Approval, CallbackIds, NamedRuns, Nothing, Places, Resume
from retrofill_console.live.events import STREAM
from retrofill_core.contract.backfills import BackfillChangeRequested, BackfillRequested
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.callback import CallbackState
from retrofill_core.domain.deadline import DeadlineState
from retrofill_core.domain.run import RunState

LIMIT = {"limit": "At most this many, 50 by default"}
OF = {"pipeline": "Only this pipeline", "backfill": "Only this backfill"}
REPEATABLE = "; repeatable"


@dataclass(frozen=True)
class Read:
    """GET. ``shared``: its answers are given to all viewers (``retrofill_console.console.Shared``)."""

    path: str
    about: str
    work: Callable[..., Any]
    query: Mapping[str, str] = field(default_factory=dict)
    shared: bool = True
    media_type: str = JSON


@dataclass(frozen=True)
class Ask:
    """POST of a ``body``; ``of_id``: the path names what it is for."""

    path: str
    about: str
    work: Callable[..., Any]
    body: type[BaseModel]
    status: int = 200

    @property
    def of_id(self) -> bool:
        return "{id}" in self.path


def _state(known: Iterable[str], more: str = "") -> dict[str, str]:
    return {"state": f"Only in this state{more}: {', '.join(known)}"}


READS = (
    Read(
        "/api/backfills",
        "Backfills, newest first, with progress and estimate (backfill list --json)",
        pages.backfills,
        {"pipeline": OF["pipeline"], **_state(BackfillState, REPEATABLE), **LIMIT},
    ),
    Read(
        "/api/backfills/{id}",
        "One backfill (backfill show --json)",
        pages.backfill,
        {"failures": "At most this many failed runs with their errors, 10 by default"},
    ),
    Read("/api/backfills/{id}/grid", "Its intervals as columns of equal length", pages.grid),
    Read(
        "/api/runs",
        "The runs of a backfill (runs list --json)",
        pages.runs,
        {"backfill": "The backfill", **_state(RunState, REPEATABLE), **LIMIT},
    ),
    Read("/api/runs/{id}", "One run: attempts, tasks, error, deadlines, callbacks (runs show --json)", pages.run),
    Read("/api/pipelines", "Applied pipelines (pipelines list --json)", pages.pipelines),
    Read("/api/pipelines/{name}", "One pipeline's definition (pipelines show --json)", pages.pipeline),
    Read(
        "/api/deadlines",
        "Deadlines, latest first (deadlines list --json)",
        pages.deadlines,
        {**_state(DeadlineState), **OF, **LIMIT},
    ),
    Read(
        "/api/callbacks",
        "Callbacks, newest first (callbacks list --json)",
        pages.callbacks,
        {**_state(CallbackState), **OF, **LIMIT},
    ),
    Read(
        "/api/dead-letters",
        "Messages that no service could handle (dead-letters list --json)",
        requests.dead_letters,
        LIMIT,
    ),
    Read("/api/health", "Services and their lag, hosts, pools, live attempts", health.health),
)


LOG = Read(
    "/api/runs/{id}/log",
    "What the run printed: events lines (a list of texts), then end or problem",
    logs.log,
    {"attempt": "Id of an attempt; the last one by default", "follow": "1: until the attempt has ended"},
    media_type=STREAM,
)


LIVE = Read(
    "/api/live",
    "What happens: events hello, changes, reload and kafka; Last-Event-ID: what was missed comes first",
    lambda: None,
    {"backfill": "Also each event of this backfill's runs"},
    media_type=STREAM,
)


ASKS = (
    Ask("/api/preview", "What would become of a request, without making it", requests.preview, BackfillRequested),
    Ask("/api/backfills", "Request a backfill", requests.create, BackfillRequested, 201),
    Ask("/api/backfills/{id}/pause", "Start no new runs; runs in progress finish", requests.pause, Nothing),
    Ask("/api/backfills/{id}/resume", "Start runs again", requests.resume, Resume),
    Ask("/api/backfills/{id}/publish", "Publish what a backfill in review has staged", requests.publish, Approval),
    Ask("/api/backfills/{id}/undo", "Restore what an ended backfill replaced", requests.undo, Nothing),
    Ask("/api/backfills/{id}/discard", "Cancel a backfill in review", requests.discard, Nothing),
    Ask("/api/backfills/{id}/cancel", "Cancel all runs that have not ended", requests.cancel, Nothing),
    Ask("/api/backfills/{id}/change", "Change an active backfill", requests.change, BackfillChangeRequested),
    Ask(
        "/api/backfills/{id}/retry",
        "Retry all failed runs; of an ended backfill, by a new one",
        requests.retry,
        Nothing,
    ),
    Ask("/api/runs/cancel", "Cancel runs that have not ended", requests.cancel_runs, NamedRuns),
    Ask("/api/runs/retry", "Retry failed runs of an active backfill", requests.retry_runs, NamedRuns),
    Ask("/api/callbacks/replay", "Call failed callbacks again", requests.replay_callbacks, CallbackIds),
    Ask("/api/dead-letters/replay", "Publish dead letters that are requests again", requests.replay_letters, Places),
)
