"""``Deadline``: what users write to be called when a run is not done in time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from pydantic import JsonValue

from retrofill.domain.pipeline import DeadlineAlert, Reference

__all__ = ["Deadline", "Reference"]


@dataclass(frozen=True)
class Deadline:
    """Every run must be done ``interval`` after its ``reference``, or ``callback`` is called, once, with ``kwargs``.

    ``callback`` is a name of the allow-list in the settings. A run whose moment is past
    already when the deadline would be armed is let off unless ``fire_if_past``; a run that failed before it, unless
    ``fire_on_failure``.
    """

    name: str
    reference: Reference
    interval: timedelta
    callback: str | None = None
    kwargs: Mapping[str, JsonValue] | None = field(default=None, hash=False)
    fire_if_past: bool = False
    fire_on_failure: bool = False

    def __post_init__(self) -> None:
        """Check it where it is written, so that the traceback names the user's line."""
        if not isinstance(self.interval, timedelta):
            raise ValueError(f"deadline {self.name!r} has the interval {self.interval!r}: give a timedelta")
        self.to_alert()

    def to_alert(self) -> DeadlineAlert:
        """The deadline as data."""
        return DeadlineAlert(
            name=self.name,
            reference=self.reference,
            interval_seconds=self.interval.total_seconds(),
            callback=self.callback,
            kwargs=dict(self.kwargs or {}),
            fire_if_past=self.fire_if_past,
            fire_on_failure=self.fire_on_failure,
        )
