"""``Deadline`` and ``Callback``: what happens when a run, a task or a backfill is not done in time, fails or ends.

They call a function of the allow-list in the settings, a ``Webhook`` or a ``KafkaTopic``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Mapping, NoReturn

from retrofill.sdk.checking import checked
from retrofill.sdk.names import BODIES, seconds_of
from retrofill.sdk.names import Reference as R


@dataclass(frozen=True)
class Target:
    """What a callback calls. Create one with ``Webhook`` or ``KafkaTopic``."""

    fields: Mapping[str, Any] = field(hash=False)


def Webhook(
    url: str | None = None,
    *,
    receiver: str | None = None,
    secret: str = "default",
    body: str = "event",
    routing_key: str | None = None,
) -> Target:
    """A callback that POSTs to a ``receiver``, signed with the ``secret`` of that name.

    ``receiver``: the name of an address in the settings, as that of Slack or Teams is a secret; an address that everyone
    may know can be the ``url`` instead.
    ``body``: the event as JSON, or a message for ``"slack"``, ``"pagerduty"`` or ``"teams"``.
    ``routing_key``: for PagerDuty, the name of the integration's key in the settings.
    """
    if body not in BODIES:
        raise ValueError(f"a webhook has the unknown body {body!r}: use one of {', '.join(BODIES)}")
    where = {"url": url} if receiver is None else {"url": url, "receiver": receiver}
    fields = {"kind": "webhook", **where, "secret": secret, "body": body, "routing_key": routing_key}
    return Target(checked("target", fields))


def KafkaTopic(topic: str) -> Target:
    """A callback that publishes the event to one of your Kafka topics."""
    return Target(checked("target", {"kind": "topic", "topic": topic}))


@dataclass(frozen=True)
class Callback:
    """One callback of a pipeline's ``on_run_failed`` or ``on_backfill_…``, with options.

    ``target`` is a name from the allow-list in the settings, a ``Webhook`` or a ``KafkaTopic``.
    Strings in ``kwargs`` may refer to what happened, like ``{backfill.id}``.
    With ``at_most_once``, a call with an unknown outcome is not repeated.
    ``digest``, only for ``on_run_failed``: failures of a backfill are collected for this long into
    one call, ``"1m"`` by default; with ``"0s"``, each failed run has its own.
    """

    target: str | Target
    kwargs: Mapping[str, Any] | None = field(default=None, hash=False)
    at_most_once: bool = False
    digest: str | timedelta | None = None

    def to_rule(self, where: str) -> dict[str, Any]:
        """The callback as data. Raises ``ValueError`` that names the list ``where`` it stands."""
        if self.kwargs is not None and not isinstance(self.kwargs, Mapping):
            raise ValueError(f"{where} has the kwargs {self.kwargs!r}: give a dict")
        fields = {
            "callback": target_of(self.target, where),
            "kwargs": dict(self.kwargs or {}),
            "at_most_once": self.at_most_once,
            "digest_seconds": None if self.digest is None else seconds_of(self.digest),
        }
        return checked("rule", fields)


def target_of(given: str | Target, where: str) -> dict[str, Any]:
    """A callback as data; a bare name means a function. Raises ``ValueError``."""
    if isinstance(given, str):
        return checked("target", {"kind": "function", "name": given})
    if isinstance(given, Target):
        return dict(given.fields)
    raise ValueError(f"{where} has the callback {given!r}: give a name from the allow-list, a Webhook or a KafkaTopic")


def rules_of(given: Any, where: str) -> list[dict[str, Any]]:
    """A list of callbacks as data. Raises ``ValueError``."""
    if isinstance(given, str) or not isinstance(given, (list, tuple)):
        raise ValueError(f"{where} is {given!r}: give a list of callbacks")
    return [(each if isinstance(each, Callback) else Callback(each)).to_rule(where) for each in given]


@dataclass(frozen=True)
class ReferencePoint:
    """The moment a deadline counts from. Create one with ``Reference``."""

    name: R
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)


class _References:
    RUN_QUEUED_AT = ReferencePoint(R.RUN_QUEUED_AT)
    """The run was planned."""
    RUN_STARTED_AT = ReferencePoint(R.RUN_STARTED_AT)
    """The first attempt of the run started."""
    LOGICAL_DATE = ReferencePoint(R.LOGICAL_DATE)
    """The start of the run's data interval."""
    BACKFILL_REQUESTED_AT = ReferencePoint(R.BACKFILL_REQUESTED_AT)
    """The backfill was planned: a deadline for the whole backfill."""

    @staticmethod
    def FIXED_DATETIME(at: datetime) -> ReferencePoint:
        """The moment ``at``. Raises ``ValueError`` if it has no time zone."""
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise ValueError(f"FIXED_DATETIME({at!r}): give a datetime with a time zone")
        return ReferencePoint(R.FIXED_DATETIME, {"at": at})

    @staticmethod
    def AVERAGE_RUNTIME(last_n: int = 10, min_runs: int = 3) -> ReferencePoint:
        """The first start plus the average runtime of the pipeline's last ``last_n`` successes.

        With fewer than ``min_runs`` successes there is no deadline.
        """
        return ReferencePoint(R.AVERAGE_RUNTIME, {"last_n": last_n, "min_runs": min_runs})

    @staticmethod
    def TASK_STARTED_AT(task: str) -> ReferencePoint:
        """The first start of ``task`` in the run: a deadline for that task."""
        return ReferencePoint(R.TASK_STARTED_AT, {"task": getattr(task, "__name__", task)})

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"unknown reference {name}: use one of {', '.join(R)}")


Reference = _References()


@dataclass(frozen=True)
class Deadline:
    """Calls ``callback`` once if the work is not done ``interval`` after ``reference``.

    ``interval`` may be negative, for a warning before that moment.
    ``callback`` is a name from the allow-list in the settings, a ``Webhook`` or a ``KafkaTopic``.
    Strings in ``kwargs`` may refer to the deadline, like ``{run.logical_date}``.
    With ``at_most_once``, a call with an unknown outcome is not repeated.
    A deadline that is already past when it would be armed fires only with ``fire_if_past``;
    one whose run failed or was cancelled before it was due fires only with ``fire_on_failure``.
    ``digest="5m"`` combines the misses of five minutes into one event and one call.
    """

    name: str
    reference: ReferencePoint
    interval: timedelta = timedelta(0)
    callback: str | Target | None = None
    kwargs: Mapping[str, Any] | None = field(default=None, hash=False)
    at_most_once: bool = False
    fire_if_past: bool = False
    fire_on_failure: bool = False
    digest: str | timedelta | None = None

    def __post_init__(self) -> None:
        """Validate here, so the traceback points to the user's line."""
        if not isinstance(self.interval, timedelta):
            raise ValueError(f"deadline {self.name!r} has the interval {self.interval!r}: give a timedelta")
        if not isinstance(self.reference, ReferencePoint):
            given = getattr(self.reference, "__name__", self.reference)
            raise ValueError(
                f"deadline {self.name!r} has the reference {given!r}: give one of Reference.{', '.join(R)}, "
                "with arguments where required"
            )
        if self.kwargs is not None and not isinstance(self.kwargs, Mapping):
            raise ValueError(f"deadline {self.name!r} has the kwargs {self.kwargs!r}: give a dict")
        self.to_alert()

    def to_alert(self) -> dict[str, Any]:
        """The alert as data. Raises ``ValueError``."""
        fields = {
            "name": self.name,
            "reference": str(self.reference.name),
            "interval_seconds": self.interval.total_seconds(),
            **{name: _plain(value) for name, value in self.reference.arguments.items()},
            "callback": None if self.callback is None else target_of(self.callback, f"deadline {self.name!r}"),
            "kwargs": dict(self.kwargs or {}),
            "at_most_once": self.at_most_once,
            "fire_if_past": self.fire_if_past,
            "fire_on_failure": self.fire_on_failure,
            "digest_seconds": None if self.digest is None else seconds_of(self.digest),
        }
        return checked("alert", fields)


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
