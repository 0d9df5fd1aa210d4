"""The driver's facts about its Spark application, as far as Spark tells."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.driver.served import DONE, World, world

from retrofill.driver.application import ConnectApplication, application_of
from retrofill.protocol.facts import SparkApplication

__all__ = ["world"]
APP = {"spark.app.id": "app-1"}


@pytest.mark.parametrize(
    ("settings", "ui"),
    [
        ({}, None),
        ({"spark.driver.appUIAddress": "http://yarn:1/proxy"}, "http://yarn:1/proxy"),
        ({"spark.driver.host": "spark", "spark.ui.port": "4050"}, "http://spark:4050"),
        # The port was chosen by Spark, which does not tell.
        ({"spark.driver.host": "spark", "spark.ui.port": "0"}, None),
        ({"spark.driver.host": "spark"}, None),
        ({"spark.driver.host": "spark", "spark.ui.port": "4050", "spark.ui.enabled": "false"}, None),
        ({"spark.driver.appUIAddress": "http://" + "x" * 1000}, None),
    ],
)
def test_the_address_of_the_ui(settings: dict[str, str], ui: str | None) -> None:
    assert application_of(APP | settings) == SparkApplication(id="app-1", ui=ui)


def test_a_server_that_does_not_tell_is_no_problem() -> None:
    class Refuses:
        @property
        def conf(self) -> Any:
            raise RuntimeError("not allowed")

    server = ConnectApplication()
    server.ask(Refuses())
    assert server.application is None
    assert application_of({}) is None


def test_it_is_in_the_first_report_about_a_run(world: World) -> None:
    world.launch()
    world.begins(1, DONE)
    (began, *others) = world.reports.bodies
    assert (began["type"], began["spark"]) == ("RunBegan", {"id": "app-1", "ui": "http://spark:4040"})
    assert all("spark" not in body for body in others)
