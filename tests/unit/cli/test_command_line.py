"""The command line that makes a request is understood as that request."""

from __future__ import annotations

import shlex
from dataclasses import fields
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from retrofill_core.contract.backfills import BackfillRequested
from retrofill_tools.cli.arguments import BackfillOptions
from retrofill_tools.cli.main import command_line
from retrofill_tools.client.requests import command_of, request_as_json

RANGE = {"from": "2013-01-01", "to": "2013-01-31"}


def understood(line: str) -> BackfillRequested:
    command: Any = typer.main.get_command(command_line())
    words = shlex.split(line)[1:]
    while isinstance(command, TyperGroup):
        _, command, words = command.resolve_command(typer.Context(command), words)
        assert command is not None
    given = command.make_context("create", words).params
    return BackfillOptions(**{field.name: given[field.name] for field in fields(BackfillOptions)}).request()


@pytest.mark.parametrize(
    "more",
    [
        RANGE,
        {"from": "2013-01-01T02:00:00+02:00", "to": "2013-01-31T00:00:00Z"},
        {"intervals": ["2013-01-05", "2013-01-07T00:00:00+00:00"]},
        {**RANGE, "max_active_runs": 3, "batch_size": 7, "run_backwards": True, "latest_code": True},
        {**RANGE, "reprocess_behavior": "completed", "on_run_failure": "pause", "id": "it's mine"},
        {**RANGE, "conf": {"a b": [1, "ü", None], "quote": "'"}},
        {**RANGE, "finish_by": "2030-01-31T18:00:00+01:00"},
        {**RANGE, "budget": {"failed_runs": 3, "core_hours": 1.5, "until": "2030-01-31T18:00:00+01:00"}},
        {**RANGE, "budget": {}},
    ],
)
def test_it_is_the_same_request(more: dict[str, Any]) -> None:
    request = BackfillRequested.model_validate({"pipeline": "flights", **more})
    line = command_of(request)
    assert understood(line).model_copy(update={"triggered_by": None}) == request, line
    again = BackfillRequested.model_validate(request_as_json(request))
    assert again == request


def test_it_names_only_what_is_not_as_by_default() -> None:
    request = BackfillRequested.model_validate({"pipeline": "flights", **RANGE, "triggered_by": "ada"})
    assert command_of(request) == "retrofill backfill create flights --from 2013-01-01 --to 2013-01-31"
    assert request_as_json(request) == {"pipeline": "flights", **RANGE}
