"""State for pages, read from Postgres: the same documents as the commands print with ``--json``."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from retrofill.errors import NotThere
from retrofill_console.api.inputs import filters, limit, number, states
from retrofill_console.console import Console
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.callback import CallbackState
from retrofill_core.domain.deadline import DeadlineState
from retrofill_core.domain.run import RunState
from retrofill_tools.client.backfills import (
    BackfillSummary,
    FullBackfill,
    describe_backfill,
    find_backfill,
    find_backfills,
)
from retrofill_tools.client.deadlines import Callback, Deadline, find_callbacks, find_deadlines
from retrofill_tools.client.grid import grid_of_backfill
from retrofill_tools.client.pipelines import (
    PipelineSummary,
    applied_pipelines,
    find_pipeline,
    last_applied_at,
    pipeline_as_json,
)
from retrofill_tools.client.runs import FullRun, RunSummary, describe_run, find_run, find_runs


def backfills(console: Console, request: Request) -> list[BackfillSummary]:
    pipeline, wanted = request.query_params.get("pipeline"), states(request, BackfillState)
    with console.reading() as conn:
        return find_backfills(conn, pipeline, wanted, limit(request))


def backfill(console: Console, request: Request) -> FullBackfill:
    failures = number(request.query_params.get("failures", "10"), "failures", 0, 10_000)
    with console.reading() as conn:
        return describe_backfill(conn, find_backfill(conn, request.path_params["id"]), failures)


def grid(console: Console, request: Request) -> dict[str, Any]:
    with console.reading() as conn:
        return grid_of_backfill(conn, find_backfill(conn, request.path_params["id"]))


def runs(console: Console, request: Request) -> list[RunSummary]:
    id = request.query_params.get("backfill", "")
    with console.reading() as conn:
        find_backfill(conn, id)
        return find_runs(conn, id, states(request, RunState), limit(request))


def run(console: Console, request: Request) -> FullRun:
    id = number(request.path_params["id"], "id")
    with console.reading() as conn:
        found = find_run(conn, id)
        if found is None:
            raise NotThere(f"there is no run {id}")
        return describe_run(conn, found)


def pipelines(console: Console, _: Request) -> list[PipelineSummary]:
    with console.reading() as conn:
        return applied_pipelines(conn)


def pipeline(console: Console, request: Request) -> dict[str, Any]:
    name = request.path_params["name"]
    with console.reading() as conn:
        return pipeline_as_json(find_pipeline(conn, name).definition, last_applied_at(conn, name))


def deadlines(console: Console, request: Request) -> list[Deadline]:
    with console.reading() as conn:
        return find_deadlines(conn, filters(request, DeadlineState), limit(request))


def callbacks(console: Console, request: Request) -> list[Callback]:
    with console.reading() as conn:
        return find_callbacks(conn, filters(request, CallbackState), limit(request))
