"""The drivers' plain classes name what the services' models have, and mean the same where nothing is given."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any

import pytest
from pydantic import BaseModel

from retrofill.driver.config import Config
from retrofill.protocol.launch import Code, Definition, Script, Sql, Task
from retrofill.sdk.texts import Table
from retrofill_core.domain.pipeline import (
    CodeLocation,
    PipelineDefinition,
    SqlFile,
    StagedTable,
    SubmitScript,
    TaskDefinition,
)
from retrofill_core.settings import Settings
from run_starter.executors.command import told

PAIRS = [
    (Definition, PipelineDefinition),
    (Task, TaskDefinition),
    (Script, SubmitScript),
    (Table, StagedTable),
    (Sql, SqlFile),
    (Code, CodeLocation),
    (Config, Settings),
]
# The host adds it, for drivers on its own machine.
NOT_A_SETTING = {"bundled_java"}


def default_of(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def same(value: Any) -> Any:
    """Lists and tuples are the same in JSON."""
    return list(value) if isinstance(value, tuple) else value


@pytest.mark.parametrize(("of_driver", "model"), PAIRS, ids=lambda each: each.__name__)
def test_a_drivers_class_has_only_fields_of_the_model_and_its_defaults(of_driver: Any, model: type[BaseModel]) -> None:
    ours = {field.name: field for field in fields(of_driver) if field.name not in NOT_A_SETTING}
    assert ours.keys() <= model.model_fields.keys()
    for name, field in ours.items():
        theirs = model.model_fields[name]
        if (default := default_of(field)) is MISSING:
            assert theirs.is_required(), name
        else:
            assert same(default) == same(theirs.get_default(call_default_factory=True)), name


def test_a_driver_is_sent_each_of_its_settings() -> None:
    assert told(Settings()).keys() == {field.name for field in fields(Config)}
