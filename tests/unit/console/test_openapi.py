"""The kept OpenAPI document is the one that is made from the table of endpoints, and is complete."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import SecretStr
from tests.support.installation import ROOT
from tools.openapi import PAGE, page

from retrofill_console.api.routes import routes
from retrofill_console.api.table import document
from retrofill_console.console import make_console
from retrofill_console.login import Login
from retrofill_core.settings import Settings


def test_the_kept_document_is_the_present_one() -> None:
    assert PAGE.read_text() == page(), "python -m tools.openapi writes it"


def test_every_route_is_in_it_and_nothing_else() -> None:
    dsn = SecretStr("postgresql://nobody@127.0.0.1:1/none")
    settings = Settings(home=ROOT, kafka_bootstrap_servers="127.0.0.1:1", postgres_dsn=dsn)
    there = {
        (route.path, method.lower())
        for route in routes(make_console(settings), Login(settings))
        for method in route.methods or ()
        if method != "HEAD"
    }
    described = {(path, method) for path, methods in document()["paths"].items() for method in methods}
    assert there - described == {("/api/v1/openapi.json", "get")}
    assert described <= there


def test_every_reference_leads_somewhere() -> None:
    found = document()
    names = set(re.findall(r"#/components/schemas/(\w+)", str(found)))
    assert names <= set(found["components"]["schemas"])
    assert {"BackfillRequested", "NamedRuns", "Error"} <= names


@pytest.mark.parametrize("path", ["/api/v1/runs/{id}", "/api/v1/backfills/{id}/retry"])
def test_a_path_s_parameters_are_described(path: str) -> None:
    (of,) = document()["paths"][path].values()
    parameters: list[dict[str, Any]] = of["parameters"]
    assert [(each["name"], each["in"], each["required"]) for each in parameters] == [("id", "path", True)]
