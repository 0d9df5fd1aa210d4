"""Callbacks: their states, their targets (a function, a webhook or a topic), and the rules by which a pipeline lists them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    JsonValue,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from retrofill.masking import MASK
from retrofill.sdk.names import Body
from retrofill.states import machine
from retrofill_core.domain.data import Data, Name
from retrofill_core.domain.templates import BACKFILL_ENDED_FIELDS, RUN_FAILED_FIELDS, check_templates


class CallbackState(StrEnum):
    """States of a callback."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DROPPED = "dropped"


class Occasion(StrEnum):
    """What a callback that a pipeline lists is called for. Those of deadlines have none."""

    RUN_FAILED = "run_failed"
    BACKFILL_SUCCEEDED = "backfill_succeeded"
    BACKFILL_FAILED = "backfill_failed"


S = CallbackState
MACHINE = machine(
    "callback",
    {
        # Dropped: it was not delivered, and its subject no longer matters.
        S.PENDING: (S.RUNNING, S.DROPPED),
        S.RUNNING: (S.SUCCEEDED, S.FAILED, S.PENDING),
        S.SUCCEEDED: (),
        # By a requested replay. A callback that succeeded is never called again.
        S.FAILED: (S.PENDING,),
        S.DROPPED: (),
    },
)
# A failed callback can be replayed, so these are not just the terminal states.
ENDED = (S.SUCCEEDED, S.FAILED, S.DROPPED)


def order_key(kind: str, name: str, options: Mapping[str, Any], backfill_id: str) -> str:
    """What a receiver's callbacks about one backfill share: they are called one after the other."""
    about = json.dumps([kind, name, options.get("routing_key"), backfill_id])
    return hashlib.sha256(about.encode()).hexdigest()[:32]


_HTTP_URL: TypeAdapter[HttpUrl] = TypeAdapter(HttpUrl, config=ConfigDict(defer_build=True))
TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")

KIND = "Kind of callback"
# Rows name webhooks by it and a name of the settings: neither addresses nor topics begin so.
RECEIVER = "receiver:"


class FunctionCall(Data):
    """A Python function or coroutine, by its name in the allow-list of the settings."""

    kind: Literal["function"] = Field("function", description=KIND)
    name: Name = Field(description="Its name in the allow-list")

    @property
    def key(self) -> str:
        """What rows name it by."""
        return self.name


class WebhookCall(Data):
    """A POST of the event, signed according to Standard Webhooks, to a ``receiver`` or a ``url``."""

    kind: Literal["webhook"] = Field("webhook", description=KIND)
    receiver: Name | None = Field(None, description="Name of its address in the settings")
    url: str | None = Field(
        None, max_length=2000, description="An http(s) address that is no secret", json_schema_extra={"format": "uri"}
    )
    secret: Name = Field("default", description="Name of the signing secrets in the settings")
    body: Body = Field("event", description="The event as JSON, or a message as this service expects it")
    routing_key: Name | None = Field(
        None, description="With body pagerduty: name of the integration's key in the settings"
    )

    @model_validator(mode="after")
    def _is_complete(self) -> WebhookCall:
        if (self.url is None) == (self.receiver is None):
            raise ValueError("a webhook needs either a url or a receiver, the name of its address in the settings")
        if self.url is not None:
            check_url(self.url)
        if self.body == "pagerduty" and self.routing_key is None:
            raise ValueError(
                "a webhook with body='pagerduty' needs routing_key: the name of the integration's key in "
                "RETROFILL_PAGERDUTY_KEYS"
            )
        if self.body != "pagerduty" and self.routing_key is not None:
            raise ValueError(
                f"a webhook with body={self.body!r} takes no routing_key: remove it, or set body='pagerduty'"
            )
        return self

    @property
    def key(self) -> str:
        """What rows name it by."""
        return self.url or f"{RECEIVER}{self.receiver}"


class TopicMessage(Data):
    """A message on one of the user's own Kafka topics."""

    kind: Literal["topic"] = Field("topic", description=KIND)
    topic: str = Field(
        description="Full name of the topic; no prefix is added",
        json_schema_extra={"pattern": f"^{TOPIC.pattern}$"},
    )

    @model_validator(mode="after")
    def _is_a_topic(self) -> TopicMessage:
        if not TOPIC.fullmatch(self.topic) or self.topic in (".", ".."):
            raise ValueError(
                f"invalid topic name {self.topic!r}: use letters, digits, '.', '_' and '-', at most 249 characters"
            )
        return self

    @property
    def key(self) -> str:
        """What rows name it by."""
        return self.topic


def check_url(url: str) -> None:
    """Raises ``ValueError`` for anything but a plain http(s) URL. It shows no more of one than ``shown``."""
    seen = shown("webhook", url) if "://" in url else MASK
    try:
        parts = _HTTP_URL.validate_python(url)
    except ValidationError as e:
        why = e.errors(include_url=False)[0]["msg"]
        raise ValueError(f"invalid URL {seen!r} ({why}): use http or https, like https://example.org/hook") from e
    if parts.username is not None or parts.password is not None:
        raise ValueError("a webhook's URL must not contain a user or password, which are not sent: sign with a secret")
    if not url.isprintable() or " " in url:
        raise ValueError(f"invalid URL {seen!r}: percent-encode spaces and unprintable characters")


def shown(kind: str, name: str) -> str:
    """How events, people and logs see a target: of an address only the host, because the rest may be a secret."""
    scheme, mark, address = name.partition("://")
    if kind != "webhook" or not mark:
        return name
    login_and_host, *rest = re.split("[/?#]", address, maxsplit=1)
    return f"{scheme}://{login_and_host.rpartition('@')[2]}" + (f"/{MASK}" if any(rest) else "")


def _named(value: Any) -> Any:
    """A bare name means a function."""
    return {"kind": "function", "name": value} if isinstance(value, str) else value


Target = Annotated[FunctionCall | WebhookCall | TopicMessage, Field(discriminator="kind")]
CallbackTarget = Annotated[Target, BeforeValidator(_named)]


def options_of(target: Target | None, *, at_most_once: bool) -> dict[str, Any]:
    """How to call ``target``, as stored with a callback."""
    options: dict[str, Any] = {"at_most_once": at_most_once}
    if isinstance(target, WebhookCall):
        options["secret"] = target.secret
        if target.body != "event":
            options["body"] = target.body
        if target.routing_key is not None:
            options["routing_key"] = target.routing_key
    return options


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
