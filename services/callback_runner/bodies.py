"""Ready-made bodies of webhooks: for Slack, PagerDuty (Events API v2) and Microsoft Teams. Pure.

All parts are bounded, so that every body stays below the limits of its service.

The limits named here are those that the services document; tests/samples/bodies has their schemas.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from callback_runner.record import Claim
from retrofill.errors import shortened
from retrofill.wording import plural
from retrofill_core.bus.envelope import ID_NAMESPACE
from retrofill_core.domain.deadline import Scope
from retrofill_core.domain.schedule import written_range

TITLE_CHARACTERS = 150
NAME_CHARACTERS = 40
VALUE_CHARACTERS = 200
LINE_CHARACTERS = 400
MAX_FACTS = 15
# Of a digest, the first are listed.
MAX_LISTED = 5
Event = Mapping[str, Any]
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Notice:
    """``subject``: what it is about; two notices about the same concern one incident.

    ``resolves``: it reports that the subject is well again.
    """

    title: str
    severity: str
    subject: str
    happened_at: datetime
    facts: tuple[tuple[str, str], ...] = ()
    lines: tuple[str, ...] = ()
    command: str | None = None
    resolves: bool = False


@dataclass(frozen=True)
class _Said:
    title: str
    facts: Facts = field(default_factory=dict)
    lines: Iterable[str] = ()
    severity: str = "error"
    resolves: bool = False


def notice_of(claim: Claim) -> Notice:
    """What happened, then the callback's arguments as further facts."""
    event = claim.event
    said = _SAID.get(claim.event_type, _other)(event)
    backfill = claim.backfill_id or (event.get("backfill_id") if event.get("scope") == Scope.BACKFILL else None)
    facts = [(name, value) for name, value in (*said.facts.items(), *claim.kwargs.items()) if value is not None]
    return Notice(
        title=cut(said.title, TITLE_CHARACTERS),
        severity=said.severity,
        subject=f"backfill:{backfill}" if backfill else f"deadline:{claim.deadline_id}",
        happened_at=claim.happened_at,
        facts=tuple((cut(name, NAME_CHARACTERS), cut(_text(value), VALUE_CHARACTERS)) for name, value in facts)[
            :MAX_FACTS
        ],
        lines=tuple(cut(line, LINE_CHARACTERS) for line in said.lines if line),
        command=event.get("command"),
        resolves=said.resolves,
    )


def cut(text: str, characters: int) -> str:
    """``text`` on one line of at most so many characters, none of them unprintable."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return shortened(line, characters)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _missed(event: Event) -> _Said:
    facts = {
        "Due": event.get("due_at"),
        "State": event.get("run_state"),
        "Interval": event.get("interval_start"),
        "Task": event.get("task"),
        "Backfill": event.get("backfill_id"),
        "Runs done": _of(event.get("runs_done"), event.get("runs")),
    }
    return _Said(f"{event.get('pipeline')}: deadline {event.get('alert')} missed", facts, severity="warning")


def _missed_many(event: Event) -> _Said:
    count, missed = event.get("count", 0), event.get("missed", ())
    listed = (
        f"{_name(each.get('interval_start'), each.get('task'))} was due {each.get('due_at')}"
        for each in missed[:MAX_LISTED]
    )
    title = f"{event.get('pipeline')}: {plural(count, 'deadline')} {event.get('alert')} missed"
    return _Said(title, {}, (*listed, _more(count, len(missed))), "warning")


def _failed_runs(event: Event) -> _Said:
    count, failed = event.get("count", 0), event.get("failed", ())
    errors = ((each.get("interval_start"), each.get("error") or {}) for each in failed[:MAX_LISTED])
    listed = (f"{start}: {error.get('type', 'failed')}: {error.get('message', '')}" for start, error in errors)
    facts = {"Backfill": event.get("backfill_id"), "Runs done": _of(event.get("runs_done"), event.get("runs"))}
    return _Said(f"{event.get('pipeline')}: {plural(count, 'run')} failed", facts, (*listed, _more(count, len(failed))))


def _backfill(event: Event, how: str) -> tuple[str, Facts]:
    facts = {
        "Backfill": event.get("backfill_id"),
        "Range": _range(event),
        "Runs": ", ".join(f"{count:,} {state}" for state, count in sorted(event.get("runs", {}).items())),
    }
    what = f"undo of backfill {event['undoes']}" if event.get("undoes") else "backfill"
    return f"{event.get('pipeline')}: {what} {how}", facts


def _range(event: Event) -> str | None:
    start, end = (event.get(name) for name in ("range_start", "range_end"))
    if start is None or end is None:
        return None
    return written_range(datetime.fromisoformat(start), datetime.fromisoformat(end), event.get("timezone") or "UTC")


def _backfill_failed(event: Event) -> _Said:
    return _Said(*_backfill(event, "failed"), (event.get("message") or "",))


def _backfill_succeeded(event: Event) -> _Said:
    return _Said(*_backfill(event, "succeeded"), severity="info", resolves=True)


def _other(event: Event) -> _Said:
    return _Said(
        f"{event.get('pipeline', 'Retrofill')}: {event.get('type', 'a deadline was missed')}", severity="warning"
    )


_SAID: dict[str, Callable[[Event], _Said]] = {
    "DeadlineMissed": _missed,
    "DeadlinesMissed": _missed_many,
    "RunsFailed": _failed_runs,
    "BackfillFailed": _backfill_failed,
    "BackfillSucceeded": _backfill_succeeded,
}


def _name(interval_start: str | None, task: str | None) -> str:
    return f"{interval_start}" if task is None else f"{interval_start}, task {task},"


def _of(done: int | None, all_: int | None) -> str | None:
    return None if done is None or not all_ else f"{done:,} of {all_:,}"


def _more(count: int, listed: int) -> str:
    left = count - min(listed, MAX_LISTED)
    return f"and {left:,} more" if left > 0 else ""


Body = dict[str, Any]
# Most fields of one section in Slack.
SLACK_FIELDS = 10
CARD = "application/vnd.microsoft.card.adaptive"
CARD_SCHEMA = "http://adaptivecards.io/schemas/adaptive-card.json"
# The newest version that all of Teams' clients show.
CARD_VERSION = "1.4"


def ready_made(claim: Claim, installation: str, routing_key: str | None) -> Body | None:
    """The body that the webhook's service expects, or ``None`` for the event itself.

    ``routing_key``: that of PagerDuty's integration.
    """
    match claim.options.get("body"):
        case "slack":
            return slack(notice_of(claim))
        case "teams":
            return teams(notice_of(claim))
        case "pagerduty":
            return pagerduty(notice_of(claim), installation, routing_key or "", claim.pipeline, claim.event_type)
        case _:
            return None


def slack(notice: Notice) -> Body:
    """A message of Slack's incoming webhooks: blocks, and the text of its notification."""
    blocks: list[Body] = [{"type": "header", "text": {"type": "plain_text", "text": notice.title}}]
    fields = [_mrkdwn(f"*{_escaped(name)}*\n{_escaped(value)}") for name, value in notice.facts]
    for first in range(0, len(fields), SLACK_FIELDS):
        blocks.append({"type": "section", "fields": fields[first : first + SLACK_FIELDS]})
    blocks += [{"type": "section", "text": _mrkdwn(_escaped(line))} for line in notice.lines]
    if notice.command:
        blocks.append({"type": "context", "elements": [_mrkdwn(f"`{_escaped(notice.command)}`")]})
    return {"text": _escaped(notice.title), "blocks": blocks}


def _mrkdwn(text: str) -> Body:
    return {"type": "mrkdwn", "text": text}


def _escaped(text: str) -> str:
    """Text that Slack shows as it is, with no link and no mention in it."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def pagerduty(notice: Notice, installation: str, routing_key: str, pipeline: str, event_type: str) -> Body:
    """An event of PagerDuty's Events API v2.

    All notices about one subject have the same ``dedup_key``, so they are one incident.
    """
    details: Body = dict(notice.facts)
    if notice.lines:
        details["Details"] = "\n".join(notice.lines)
    if notice.command:
        details["Command"] = notice.command
    return {
        "routing_key": routing_key,
        "event_action": "resolve" if notice.resolves else "trigger",
        "dedup_key": f"retrofill-{uuid.uuid5(ID_NAMESPACE, f'{installation}:{notice.subject}').hex}",
        "client": "Retrofill",
        "payload": {
            "summary": notice.title,
            "source": pipeline or "retrofill",
            "severity": notice.severity,
            "timestamp": notice.happened_at.isoformat(),
            "component": pipeline or "retrofill",
            "class": event_type,
            "custom_details": details,
        },
    }


_COLORS = {"error": "Attention", "warning": "Warning", "info": "Good"}


def teams(notice: Notice) -> Body:
    """A message of the Workflows app in Teams: an Adaptive Card."""
    title = {
        "type": "TextBlock",
        "text": notice.title,
        "size": "Large",
        "weight": "Bolder",
        "color": _COLORS[notice.severity],
        "wrap": True,
    }
    facts = [{"title": name, "value": value} for name, value in notice.facts]
    body: list[Body] = [title, *([{"type": "FactSet", "facts": facts}] if facts else [])]
    # Unlike a text block, a run of text is not read as Markdown.
    body += [{"type": "RichTextBlock", "inlines": [_run(line)]} for line in notice.lines]
    if notice.command:
        body.append({"type": "RichTextBlock", "inlines": [_run(notice.command, "Monospace")]})
    card = {"$schema": CARD_SCHEMA, "type": "AdaptiveCard", "version": CARD_VERSION, "body": body}
    return {"type": "message", "attachments": [{"contentType": CARD, "contentUrl": None, "content": card}]}


def _run(text: str, font: str = "Default") -> Body:
    return {"type": "TextRun", "text": text, "fontType": font}
