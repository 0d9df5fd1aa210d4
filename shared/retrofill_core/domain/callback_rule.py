"""Callbacks of a pipeline for failed runs and ended backfills: its ``on_…`` lists."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, JsonValue

from retrofill_core.domain.callback import Occasion
from retrofill_core.domain.data import Data
from retrofill_core.domain.target import CallbackTarget
from retrofill_core.domain.templates import BACKFILL_ENDED_FIELDS, RUN_FAILED_FIELDS, check_templates

# Most callbacks of one list: their rows are written together with what they are about.
MAX_RULES = 10
# Failures of a backfill are collected for this long into one call, unless a rule says otherwise.
DIGEST_SECONDS = 60.0
# Names that texts in the arguments may refer to, with examples.
FIELDS: dict[Occasion, Mapping[str, Any]] = {
    Occasion.RUN_FAILED: RUN_FAILED_FIELDS,
    Occasion.BACKFILL_SUCCEEDED: BACKFILL_ENDED_FIELDS,
    Occasion.BACKFILL_FAILED: BACKFILL_ENDED_FIELDS,
}


class CallbackRule(Data):  # type: ignore[no-redef]  # the plugin takes the field kwargs for **kwargs
    """One callback of an ``on_…`` list."""

    callback: CallbackTarget = Field(description="What to call; a bare name means a function")
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="Passed to the callback; texts may refer to what happened, as in {backfill.id}",
    )
    at_most_once: bool = Field(False, description="Do not call again if the result of a call is unknown")
    digest_seconds: float | None = Field(
        None,
        ge=0,
        le=86_400,
        description=f"on_run_failed: collect a backfill's failures for this long into one call (default: "
        f"{DIGEST_SECONDS:g}); 0: a call for each",
    )

    def check(self, occasion: Occasion) -> None:
        """Check what depends on the list that it is in. Raises ``ValueError``."""
        if occasion != Occasion.RUN_FAILED and self.digest_seconds is not None:
            raise ValueError(
                f"on_{occasion}: remove the digest, as a backfill ends once and there is nothing to collect"
            )
        try:
            check_templates(self.kwargs, FIELDS[occasion])
        except ValueError as e:
            raise ValueError(f"on_{occasion}: {e}") from e

    @property
    def window_seconds(self) -> float:
        """How long failures are collected into one call; 0 if each has its own."""
        return DIGEST_SECONDS if self.digest_seconds is None else self.digest_seconds


def check_rules(rules: Mapping[Occasion, tuple[CallbackRule, ...]]) -> None:
    """Check the lists of a pipeline. Raises ``ValueError``."""
    for occasion, listed in rules.items():
        if len(listed) > MAX_RULES:
            raise ValueError(f"on_{occasion} lists {len(listed)} callbacks, more than {MAX_RULES}: remove some")
        for rule in listed:
            rule.check(occasion)
