"""The crash points around every commit of every service, and the points for each round."""

from __future__ import annotations

import random

COMMON = (
    "takeover:before-commit",
    "takeover:committed",
    "batch:before-begin",
    "batch:begun",
    "batch:before-commit",
    "batch:committed",
    "check:begun",
    "check:before-commit",
    "check:committed",
    "outbox:written",
    "relay:epoch-taken",
    "relay:fenced",
    "relay:numbered",
    "relay:kafka-begun",
    "relay:before-kafka-commit",
    "relay:published",
    "relay:before-deletion-commit",
    "relay:deleted",
)
OWN: dict[str, tuple[str, ...]] = {
    "backfill-planner": (
        "plan:outcome-recorded",
        "plan:backfill-written",
        "plan:runs-written",
        "plan:deadlines-written",
        "run-cancel:written",
        "run-retry:written",
        "end:written",
        "end:committed",
        "pause:written",
    ),
    "run-starter": (
        "claim:written",
        "claim:committed",
        "claim:launched",
        "report:written",
        "report:end-written",
        "report:end-committed",
        "lease:end-written",
        "run-cancel:applied",
    ),
    "deadline-watcher": ("deadline:judged", "deadline:miss-written", "deadline:miss-committed"),
    "callback-runner": (
        "callback:claimed",
        "callback:claim-committed",
        "callback:started",
        "callback:called",
        "callback:before-commit",
        "callback:committed",
    ),
}
POINTS = {service: (*COMMON, *own) for service, own in OWN.items()}
# These points are passed often, so a later pass is reached too.
OFTEN = ("batch:", "check:", "outbox:", "relay:numbered", "relay:published", "relay:deleted", "claim:", "report:")


def rounds(chance: random.Random, count: int | None = None) -> list[dict[str, str]]:
    """Rounds with one point per service: ``count`` random ones, or enough to cover all points."""
    shuffled = {service: chance.sample(points, len(points)) for service, points in POINTS.items()}
    most = max(map(len, shuffled.values())) if count is None else count
    return [
        {service: _pass(chance, points[n]) for service, points in shuffled.items() if n < len(points)}
        for n in range(most)
    ]


def _pass(chance: random.Random, point: str) -> str:
    return f"{point}@{chance.randint(1, 3)}" if point.startswith(OFTEN) else point
