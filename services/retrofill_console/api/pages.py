"""State for pages, read from Postgres: the same documents as the commands print with ``--json``."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from retrofill.errors import NotThere
from retrofill_console.api.parameters import filters, limit, number, states
from retrofill_console.console import Console
from retrofill_core.domain.backfill import BackfillState
from retrofill_core.domain.callback import CallbackState
from retrofill_core.domain.deadline import DeadlineState
from retrofill_core.domain.run import RunState
from retrofill_tools.client import backfill_facts, listed, read_runs, run_facts
from retrofill_tools.client import grid as grids
from retrofill_tools.client import read as reads
from retrofill_tools.client.pipeline_facts import find_pipeline, pipeline_as_json


def backfills(console: Console, request: Request) -> Any:
    with console.reading() as conn:
        rows = reads.backfills(
            conn, request.query_params.get("pipeline"), states(request, BackfillState), limit(request)
        )
        return listed.backfills(conn, rows)


def backfill(console: Console, request: Request) -> Any:
    failures = number(request.query_params.get("failures", "10"), "failures", 0, 10_000)
    with console.reading() as conn:
        row = backfill_facts.existing(conn, request.path_params["id"])
        return backfill_facts.describe(conn, row, failures)


def grid(console: Console, request: Request) -> Any:
    with console.reading() as conn:
        return grids.grid(conn, backfill_facts.existing(conn, request.path_params["id"]))


def runs(console: Console, request: Request) -> Any:
    id = request.query_params.get("backfill", "")
    with console.reading() as conn:
        backfill_facts.existing(conn, id)
        return listed.runs(reads.runs(conn, id, states(request, RunState), limit(request)))


def run(console: Console, request: Request) -> Any:
    id = number(request.path_params["id"], "id")
    with console.reading() as conn:
        row = read_runs.one_run(conn, id)
        if row is None:
            raise NotThere(f"there is no run {id}")
        return run_facts.describe(conn, row)


def pipelines(console: Console, _: Request) -> Any:
    with console.reading() as conn:
        return listed.pipelines(reads.pipelines(conn))


def pipeline(console: Console, request: Request) -> Any:
    name = request.path_params["name"]
    with console.reading() as conn:
        return pipeline_as_json(find_pipeline(conn, name).definition, reads.applied_at(conn, name))


def deadlines(console: Console, request: Request) -> Any:
    with console.reading() as conn:
        return listed.deadlines(reads.deadlines(conn, filters(request, DeadlineState), limit(request)))


def callbacks(console: Console, request: Request) -> Any:
    with console.reading() as conn:
        return listed.callbacks(reads.callbacks(conn, filters(request, CallbackState), limit(request)))
