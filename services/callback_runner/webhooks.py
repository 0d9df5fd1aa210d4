"""Standard Webhooks (https://www.standardwebhooks.com): signed requests, meaning of responses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import SecretStr
from standardwebhooks import Webhook

from callback_runner.bodies import ready_made
from callback_runner.decide import Impossible, Outcome, Raised, Returned, unknown
from callback_runner.interruptible import Permit
from callback_runner.record import Claim
from callback_runner.sender import Answer, NotConnected, Refused, Sender
from retrofill.masking import MASK
from retrofill_core.domain.callback import RECEIVER, shown

Secrets = Mapping[str, Sequence[SecretStr]]
# The longest ``Retry-After`` that is honored.
_LATER = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS)
MAX_RETRY_SECONDS = 3600.0
BODY_CHARACTERS = 500
# Shorter parts of an address are words of the language.
SECRET_CHARACTERS = 6


@dataclass(frozen=True)
class Signer:
    """What all webhooks of an installation are sent with; ``keys`` are PagerDuty's, by name."""

    installation: str
    secrets: Secrets
    keys: Mapping[str, SecretStr]

    def hash_of(self, address: str) -> str:
        """What rows have of an address."""
        return hashlib.sha256(f"{self.installation}:{address}".encode()).hexdigest()[:16]


def address_of(claim: Claim, receivers: Mapping[str, SecretStr | None]) -> str | Impossible:
    """Where it is sent: its address, or the one that the settings have now for its receiver."""
    if not claim.name.startswith(RECEIVER):
        return claim.name
    name = claim.name.removeprefix(RECEIVER)
    address = receivers.get(name)
    if address is None:
        return unknown(f"there is no address of the receiver {name!r}", "RETROFILL_RECEIVERS", receivers)
    return address.get_secret_value()


def call(claim: Claim, address: str, signer: Signer, sender: Sender, permit: Permit) -> Outcome:
    """One try. Raises ``CutOff``, and httpcore's errors for a broken connection."""
    name = str(claim.options.get("secret", "default"))
    if not signer.secrets.get(name):
        # Nothing is sent unsigned.
        return unknown(f"there is no secret {name!r} to sign with", "RETROFILL_WEBHOOK_SECRETS", signer.secrets)
    key = claim.options.get("routing_key")
    if key is not None and key not in signer.keys:
        return unknown(f"there is no routing key {key!r}", "RETROFILL_PAGERDUTY_KEYS", signer.keys)
    body = body_of(claim, signer.installation, None if key is None else signer.keys[key].get_secret_value())
    id = claim.message_id(signer.installation)
    headers = headers_of(id, body, signer.secrets[name], datetime.now(UTC))
    try:
        answer = sender.post(address, headers, body.encode(), permit, claim.attempts)
    except Refused as e:
        return Impossible(str(e))
    except NotConnected as e:
        return Raised(str(e))
    outcome = outcome_of(answer, datetime.now(UTC))
    if isinstance(outcome, Returned):
        return outcome
    # Some receivers repeat what they were asked for.
    error = without(address, outcome.error)
    return (
        Impossible(error, gone=signer.hash_of(address))
        if isinstance(outcome, Impossible)
        else replace(outcome, error=error)
    )


def body_of(claim: Claim, installation: str = "", routing_key: str | None = None) -> str:
    """The payload, the same for every try."""
    payload = ready_made(claim, installation, routing_key)
    if payload is None:
        payload = {"type": claim.event_type, "timestamp": claim.happened_at.isoformat(), "data": claim.fields}
    return json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


def headers_of(message_id: str, body: str, secrets: Sequence[SecretStr], now: datetime) -> dict[str, str]:
    """One signature per secret, so receivers can switch to a new one at their own pace."""
    signatures = [Webhook(secret.get_secret_value()).sign(message_id, now, body) for secret in secrets]
    return {
        "content-type": "application/json",
        "user-agent": "retrofill",
        "webhook-id": message_id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def outcome_of(answer: Answer, now: datetime) -> Outcome:
    """2xx is a success and 410 Gone switches the webhook off; all else is a failed try. Later ones may succeed if the
    receiver has trouble (5xx) or asks for patience.
    """
    if 200 <= answer.status < 300:
        return Returned()
    error = f"the webhook answered {_status(answer.status)}{_said(answer)}"
    if answer.status == HTTPStatus.GONE:
        return Impossible(error)
    refused = 300 <= answer.status < 500 and answer.status not in _LATER
    return Raised(error, after_seconds=retry_after(answer.headers.get("retry-after"), now), refused=refused)


def without(address: str, text: str) -> str:
    """A text in which no part of an address that may be secret is left."""
    parts = urlsplit(address)
    steps = [*parts.path.split("/"), *(value for _, value in parse_qsl(parts.query))]
    whole = (address, address.removeprefix(f"{parts.scheme}://{parts.netloc}"))
    secret = {each for each in (*whole, *steps, *map(unquote, steps)) if len(each) >= SECRET_CHARACTERS}
    for each in sorted(secret, key=len, reverse=True):
        text = text.replace(each, MASK)
    return text


def retry_after(header: str | None, now: datetime) -> float:
    """Seconds in a ``Retry-After`` (RFC 9110), at most an hour; 0 if missing or invalid."""
    text = (header or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:9]), MAX_RETRY_SECONDS)
    try:
        until = parsedate_to_datetime(text)
        # A date without a zone is in UTC.
        seconds = (until if until.tzinfo else until.replace(tzinfo=UTC)) - now
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds.total_seconds(), 0.0), MAX_RETRY_SECONDS)


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _shown(location: str) -> str:
    """A ``Location``, which may repeat a secret address."""
    return shown("webhook", location) if "://" in location else MASK


def _said(answer: Answer) -> str:
    if 300 <= answer.status < 400:
        to = answer.headers.get("location")
        where = "nowhere" if to is None else _shown(to)[:BODY_CHARACTERS]
        return f", a redirect to {where}; redirects are not followed"
    body = answer.body.decode("utf-8", "replace").strip()[:BODY_CHARACTERS]
    return f": {body}" if body else ""
