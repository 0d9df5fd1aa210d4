"""A deadline alert: the rule of a pipeline from which the deadlines of its runs are made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    BeforeValidator,
    Field,
    HttpUrl,
    JsonValue,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from retrofill.domain.data import Data, Name
from retrofill.domain.templates import BACKFILL_FIELDS, FIELDS, check_templates

# Alerts that requests add have this name.
FINISH_BY = "finish_by"
MAX_SECONDS = 3_155_760_000
_HTTP_URL: TypeAdapter[HttpUrl] = TypeAdapter(HttpUrl)
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Reference(StrEnum):
    """The moment a deadline counts from."""

    RUN_QUEUED_AT = "RUN_QUEUED_AT"
    RUN_STARTED_AT = "RUN_STARTED_AT"
    LOGICAL_DATE = "LOGICAL_DATE"
    FIXED_DATETIME = "FIXED_DATETIME"
    AVERAGE_RUNTIME = "AVERAGE_RUNTIME"
    TASK_STARTED_AT = "TASK_STARTED_AT"
    BACKFILL_REQUESTED_AT = "BACKFILL_REQUESTED_AT"


R = Reference
# Armed with the backfill; the others when a run or task starts for the first time.
AT_PLANNING = (R.RUN_QUEUED_AT, R.LOGICAL_DATE, R.FIXED_DATETIME)
AT_RUN_START = (R.RUN_STARTED_AT, R.AVERAGE_RUNTIME)
AT_TASK_START = (R.TASK_STARTED_AT,)
# Of the whole backfill, armed with it.
OF_BACKFILL = (R.BACKFILL_REQUESTED_AT,)
# Which reference takes which arguments.
ARGUMENTS: dict[Reference, tuple[str, ...]] = {
    R.FIXED_DATETIME: ("at",),
    R.AVERAGE_RUNTIME: ("last_n", "min_runs"),
    R.TASK_STARTED_AT: ("task",),
}


def check_handled(handled: Iterable[Reference], wanted: Iterable[Reference] = R) -> None:
    """Every reference has somebody who arms it: whoever adds one finds out at import. Raises ``NotImplementedError``."""
    if left := set(wanted) ^ set(handled):
        raise NotImplementedError(f"nobody arms deadlines that count from {', '.join(sorted(left))}")


check_handled([*AT_PLANNING, *AT_RUN_START, *AT_TASK_START, *OF_BACKFILL])

KIND = "Which kind of callback this is"


class FunctionCall(Data):
    """A Python function or coroutine, by its name in the allow-list of the settings."""

    kind: Literal["function"] = Field("function", description=KIND)
    name: Name = Field(description="Its name in the allow-list")

    @property
    def label(self) -> str:
        """What events call it."""
        return self.name


class WebhookCall(Data):
    """A POST of the event, signed as Standard Webhooks says with the secrets that the settings have under ``secret``."""

    kind: Literal["webhook"] = Field("webhook", description=KIND)
    url: str = Field(max_length=2000, description="An http(s) address", json_schema_extra={"format": "uri"})
    secret: Name = Field("default", description="Name of the secrets in the settings that sign it")

    @model_validator(mode="after")
    def _is_http(self) -> WebhookCall:
        check_url(self.url)
        return self

    @property
    def label(self) -> str:
        """What events call it."""
        return self.url


class TopicMessage(Data):
    """A message on a Kafka topic of the user's own."""

    kind: Literal["topic"] = Field("topic", description=KIND)
    topic: str = Field(
        description="The topic's whole name; no prefix is put before it",
        json_schema_extra={"pattern": f"^{TOPIC.pattern}$"},
    )

    @model_validator(mode="after")
    def _is_a_topic(self) -> TopicMessage:
        if not TOPIC.fullmatch(self.topic) or self.topic in (".", ".."):
            raise ValueError(
                f"{self.topic!r} is no name of a Kafka topic: letters, digits, '.', '_' and '-', up to 249"
            )
        return self

    @property
    def label(self) -> str:
        """What events call it."""
        return self.topic


def check_url(url: str) -> None:
    """Refuse what is no plain http(s) URL. Raises ``ValueError``."""
    try:
        parts = _HTTP_URL.validate_python(url)
    except ValidationError as e:
        why = e.errors(include_url=False)[0]["msg"]
        raise ValueError(f"{url!r} is no http(s) URL ({why}): write it like https://example.org/hook") from e
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL of a webhook has a user or password in it: events would show it; sign with a secret")
    if not url.isprintable() or " " in url:
        raise ValueError(f"{url!r} has characters that no URL has: percent-encode them")


def _named(value: Any) -> Any:
    """A bare name is a function's."""
    return {"kind": "function", "name": value} if isinstance(value, str) else value


Target = Annotated[FunctionCall | WebhookCall | TopicMessage, Field(discriminator="kind")]
CallbackTarget = Annotated[Target, BeforeValidator(_named)]


class DeadlineAlert(Data):  # type: ignore[no-redef]  # the plugin takes the field kwargs for **kwargs
    """A rule of a pipeline: each run, task or backfill must be done ``interval_seconds`` after its reference moment."""

    name: Name = Field(description="Unique in the pipeline")
    reference: Reference = Field(description="What the moment counts from")
    interval_seconds: float = Field(
        ge=-MAX_SECONDS,
        le=MAX_SECONDS,
        allow_inf_nan=False,
        description="Added to the reference's moment; negative for a warning ahead of it",
    )
    at: AwareDatetime | None = Field(None, description="FIXED_DATETIME: the moment")
    last_n: int | None = Field(None, ge=1, le=1000, description="AVERAGE_RUNTIME: over so many last successes")
    min_runs: int | None = Field(None, ge=1, le=1000, description="AVERAGE_RUNTIME: with fewer there is no deadline")
    task: str | None = Field(None, description="TASK_STARTED_AT: the task that must be done")
    callback: CallbackTarget | None = Field(None, description="What to call; a bare name is a function's")
    kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="Handed to the callback; texts may refer to the deadline, as in {run.id}"
    )
    at_most_once: bool = Field(False, description="Do not call again where it is not known how a call ended")
    fire_if_past: bool = Field(False, description="Also where the moment is past when the deadline is armed")
    fire_on_failure: bool = Field(False, description="Also where it failed or was cancelled before the moment")
    digest_seconds: float | None = Field(None, ge=1, le=86_400, description="Collect misses for so long into one event")

    @model_validator(mode="after")
    def _consistent(self) -> DeadlineAlert:
        wanted = ARGUMENTS.get(self.reference, ())
        for name in ("at", "last_n", "min_runs", "task"):
            if (getattr(self, name) is None) == (name in wanted):
                needs = f"needs {' and '.join(wanted)}" if name in wanted else f"takes no {name!r}"
                raise ValueError(f"deadline {self.name!r}: the reference {self.reference} {needs}")
        if (self.min_runs or 0) > (self.last_n or 0):
            raise ValueError(f"deadline {self.name!r}: min_runs is more than last_n, so it would never be armed")
        if self.of_backfill and self.digest_seconds is not None:
            raise ValueError(
                f"deadline {self.name!r} is of the whole backfill: there is nothing to collect in a digest"
            )
        try:
            check_templates(self.kwargs, BACKFILL_FIELDS if self.of_backfill else FIELDS)
        except ValueError as e:
            raise ValueError(f"deadline {self.name!r}: {e}") from e
        return self

    @property
    def of_backfill(self) -> bool:
        """Whether it is a deadline of the whole backfill."""
        return self.reference == R.BACKFILL_REQUESTED_AT or self.name == FINISH_BY


def finish_by(at: datetime, callback: str | None = None) -> DeadlineAlert:
    """The alert that a request adds for its own backfill: all done by ``at``."""
    target = None if callback is None else FunctionCall(name=callback)
    return DeadlineAlert(name=FINISH_BY, reference=R.FIXED_DATETIME, interval_seconds=0, at=at, callback=target)
