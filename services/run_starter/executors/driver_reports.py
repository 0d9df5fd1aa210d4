"""Reports of drivers, checked by the contract before they are published."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from retrofill.states import AttemptMode
from retrofill_core.contract.base import explain
from retrofill_core.contract.runs import (
    AttemptEnded,
    AttemptHeartbeat,
    Report,
    RunBaseChanged,
    RunBegan,
    RunPublicationPutOff,
    RunReport,
    RunReported,
    RunStaged,
    TaskReported,
)
from run_starter.executors import LaunchRequest

_KINDS: Mapping[str, type[Report]] = {
    each.__name__: each
    for each in (
        *(AttemptHeartbeat, AttemptEnded, RunBegan, TaskReported, RunStaged, RunPublicationPutOff),
        *(RunBaseChanged, RunReported),
    )
}
# Who publishes them, in the messages' headers.
SOURCE = "spark-driver"


class NotAReport(ValueError):
    """A driver sent something that it must not publish. The message is one line."""


def report_of(launch: LaunchRequest, run_ids: Collection[int], fields: Any) -> Report:
    """The report of the attempt's driver, which can be about nothing else. Raises ``NotAReport``."""
    model = _KINDS.get(fields.get("type", "")) if isinstance(fields, dict) else None
    if model is None:
        raise NotAReport("its driver sent an unknown kind of report")
    try:
        report = model.model_validate({**fields, **launch.about})
    except ValidationError as e:
        raise NotAReport(f"its driver sent an invalid {model.__name__}: {explain(e)}") from e
    if isinstance(report, RunReport) and report.run_id not in run_ids:
        raise NotAReport(f"its driver reported on run {report.run_id}, which it was not given")
    own = ("done", "released") if launch.mode == AttemptMode.PUBLISH else ("done", "failed")
    if isinstance(report, AttemptEnded) and report.state not in own:
        raise NotAReport(f"its driver reported that it was {report.state}, which only its host can")
    return report
