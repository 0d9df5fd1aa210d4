"""Ready-made bodies of webhooks: for Slack, PagerDuty (Events API v2) and Microsoft Teams. Pure.

The limits named here are those that the services document; tests/samples/bodies has their schemas.
"""

from __future__ import annotations

import uuid
from typing import Any

from callback_runner.claims import Claim
from callback_runner.webhooks.notices import Notice, notice_of
from retrofill_core.bus.envelope import ID_NAMESPACE

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
