"""The runner's decisions. Pure: the next step after a try or replay request, fairness, wake-ups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING

from tenacity import RetryCallState, Retrying, wait_exponential_jitter

from retrofill_core.domain.callback import CallbackState
from retrofill_core.domain.deadline import seconds_until

if TYPE_CHECKING:
    from retrofill_core.store.callbacks import Due, Pending
    from retrofill_core.store.receivers import Outage

# Bodies that are messages to people.
READY_MADE = ("slack", "teams", "pagerduty")
_BACKOFF = wait_exponential_jitter(multiplier=0.5, max=60, exp_base=2, jitter=0.5)


@dataclass(frozen=True)
class Returned:
    """The function returned, the webhook answered 2xx, or the message is on its topic."""


@dataclass(frozen=True)
class Raised:
    """The try failed; another may succeed.

    ``at_once``: retry without backoff, because the receiver did not cause the failure.
    ``uncertain``: the call may have succeeded all the same.
    ``after_seconds``: the receiver asked for this delay. ``refused``: it answered that it does not take this call.
    """

    error: str
    at_once: bool = False
    uncertain: bool = False
    after_seconds: float = 0.0
    refused: bool = False


@dataclass(frozen=True)
class Impossible:
    """No try can succeed. ``gone``: a hash of the address, if it wants no more calls."""

    error: str
    gone: str = ""


@dataclass(frozen=True)
class Superseded:
    """Another runner has the claim now: there is nothing to record."""


Outcome = Returned | Raised | Impossible


@dataclass(frozen=True)
class Succeed:
    """The callback succeeded."""


@dataclass(frozen=True)
class GiveUp:
    """The callback failed permanently. ``uncertain``: its last call may have succeeded. ``gone``: as above."""

    error: str
    uncertain: bool = False
    gone: str = ""


@dataclass(frozen=True)
class TryAgain:
    error: str
    after_seconds: float


Decision = Succeed | GiveUp | TryAgain


def after_try(
    outcome: Outcome, attempts: int, max_attempts: int, *, at_most_once: bool = False, patient: bool = False
) -> Decision:
    """Decide what follows call number ``attempts`` (from 1).

    ``at_most_once``: a call with an uncertain outcome is not repeated, so it failed permanently. ``patient``: a receiver
    that is away may still come back, so only what it refused counts.
    """
    match outcome:
        case Returned():
            return Succeed()
        case Impossible(error, gone):
            return GiveUp(error, gone=gone)
        case Raised(error, at_once, uncertain, after_seconds, refused):
            used_up = attempts >= max_attempts and (refused or not patient)
            if used_up or (uncertain and at_most_once):
                return GiveUp(error, uncertain)
            return TryAgain(error, max(after_seconds, 0.0 if at_once else backoff(attempts)))


class Heard(Enum):
    """What a try says about its receiver."""

    UP = "up"
    DOWN = "down"
    NOTHING = "nothing"


def heard(outcome: Outcome) -> Heard:
    """Whether the receiver is there: an answer to this call alone says so, whatever it is."""
    match outcome:
        case Returned() | Raised(refused=True):
            return Heard.UP
        case Impossible(gone=gone) if gone:
            return Heard.UP
        case Raised(at_once=False):
            return Heard.DOWN
        case _:
            return Heard.NOTHING


def backoff(attempts: int) -> float:
    """Seconds before the next call: exponential in ``attempts`` with jitter, at most 60."""
    state = RetryCallState(Retrying(), None, (), {})
    state.attempt_number = attempts
    return _BACKOFF(state)


def seconds_to_next(next_try: datetime | None, next_lapse: datetime | None, now: datetime) -> float:
    """Seconds until the next check. ``next_try``: ``None`` while no slot is free."""
    return seconds_until(min((moment for moment in (next_try, next_lapse) if moment), default=None), now)


def max_per_pipeline(slots: int) -> int:
    """Slots of a runner that one pipeline's callbacks may hold, so others get some too."""
    return max(1, slots // 2)


def take_turns(
    due: Iterable[Due], running: Mapping[str, int], served: Mapping[str, int], free: int, most: int
) -> list[int]:
    """The deadline ids of up to ``free`` callbacks to claim.

    Pipelines take turns: fewest ``running`` calls first, then the least recently ``served`` (a
    growing number). None gets more than ``most`` slots. Within one, the longest waiting is first.
    """
    queues: dict[str, list[Due]] = {}
    for one in sorted(due, key=lambda w: (w.since, w.deadline_id), reverse=True):
        queues.setdefault(one.pipeline, []).append(one)
    calls = {pipeline: running.get(pipeline, 0) for pipeline in queues}
    chosen: list[int] = []
    while len(chosen) < free:
        open_ = [pipeline for pipeline, queue in queues.items() if queue and calls[pipeline] < most]
        if not open_:
            break
        turn = min(open_, key=lambda p: (calls[p], served.get(p, 0), queues[p][-1].since, p))
        chosen.append(queues[turn].pop().deadline_id)
        calls[turn] += 1
    return chosen


def why_not_replayed(state: str | None, newer: int | None) -> str:
    """Why a callback in ``state`` (``None``: no callback) cannot be replayed.

    ``newer``: a later one about the same backfill, which its receiver got.
    """
    match state:
        case CallbackState.FAILED if newer is not None:
            return f"its receiver got the newer callback {newer} about the same backfill: replay it with --force"
        case CallbackState.DROPPED:
            return "it was dropped: 'retrofill callbacks show' says why"
        case None:
            return "there is none: 'retrofill callbacks list' shows them all"
        case CallbackState.SUCCEEDED:
            return "it succeeded, and is never called again"
        case CallbackState.FAILED:
            return "it failed, and another transaction is changing it: try again"
        case _:
            return f"it is {state}: it is called without a replay"


def why_dropped(one: Pending) -> str | None:
    """Why a callback that is due is not called; ``None`` if it is. The receiver has got nothing of it.

    Of the messages that people read, the newest about a backfill says how things stand.
    """
    if one.collects:
        return "all of its runs were retried before it was called"
    tried = one.attempts > 0 or one.replayed
    if one.newer is not None and not tried and one.options.get("body") in READY_MADE:
        return f"callback {one.newer} is newer and about the same backfill"
    return None


def unknown(what: str, setting: str, known: Iterable[str]) -> Impossible:
    """The outcome for a name that is missing in a setting; ``what`` says so."""
    return Impossible(f"{what} ({setting}); names there: {', '.join(sorted(known)) or 'none'}")


def given_up(outage: Outage, patience_seconds: float) -> Impossible:
    """The outcome for a callback whose receiver did not come back in time."""
    return Impossible(
        f"given up after {patience_seconds:g} s (RETROFILL_CALLBACK_PATIENCE_SECONDS): its receiver has been down since "
        f"{outage.down_since:%Y-%m-%d %H:%M:%S} UTC. Once it is back: retrofill callbacks replay. Last error: "
        f"{outage.last_error}"
    )


def switched_off(webhook: str, since: datetime) -> Impossible:
    """The outcome for a webhook that has answered 410 Gone."""
    return Impossible(
        f"{webhook} has been switched off since {since:%Y-%m-%d %H:%M:%S} UTC: it answered 410 Gone. Once it "
        "accepts calls again, replay a failed one (retrofill callbacks replay): a success switches it on. A new address of a "
        "receiver in RETROFILL_RECEIVERS is called at once"
    )
