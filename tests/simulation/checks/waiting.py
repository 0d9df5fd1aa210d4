"""All work drains, and only commands wait for a backfill's lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrofill_core.contract.topics import PLANNER, WATCHER, Topic
from tests.simulation.checks.base import ENDED, LIVE, REST, Check
from tests.simulation.checks.messages import OFFSETS, OUTBOXES
from tests.simulation.memory.rows import Row, Tx

if TYPE_CHECKING:
    from tests.simulation.world import World


class Waiting(Check):
    """Invariant 14. A missed wake-up would show as work that never drains."""

    name = "waiting"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        world.database.on_wait.append(self._waits)

    def _waits(self, tx: Tx, row: Row) -> None:
        """Only a command may wait for its backfill, because it must be answered."""
        if row in self.database.tables["backfill"].rows and not tx.who.startswith(PLANNER.name):
            self.violated(f"{tx.who} waits for the lock of {row.committed}")

    def drained(self) -> bool:
        """Whether all work is done."""
        rows = self.rows
        if any(b["state"] not in ENDED["backfill"] and b["state"] not in REST for b in rows("backfill")):
            return False
        if any(rows(name) for name in OUTBOXES) or any(c["state"] in ("pending", "running") for c in rows("callback")):
            return False
        if any(a["state"] != "ended" for a in rows("attempt")):
            return False
        approvals = {b["id"]: b["approvals"] for b in rows("backfill") if b["review"]}
        held = {r["id"] for r in rows("run") if r["review"] >= approvals.get(r["backfill_id"], 1)}
        if any(r["state"] in LIVE or (r["state"] == "staged" and r["id"] not in held) for r in rows("run")):
            return False
        if any(d["closed_at"] is None for d in rows("deadline_digest")):
            return False
        now = self.database.now()
        watched = WATCHER in self.world.services
        if watched and any(d["state"] == "armed" and d["due_at"] <= now for d in rows("deadline")):
            return False
        retried = {r["id"] for r in rows("run") if r["superseded_by"] is not None}
        if watched and any(d["state"] == "armed" and d["run_id"] in retried for d in rows("deadline")):
            return False
        # No lock is left behind: at some moment, no transaction is open.
        if self.database.open or self.database.advisory or not self.world.broker.settled():
            return False
        return all(self._is_read(table, s.reads) for table, s in OFFSETS.items() if s in self.world.services)

    def _is_read(self, table: str, topics: tuple[Topic, ...]) -> bool:
        stored = {(r["topic"], r["partition"]): r["next_offset"] for r in self.rows(table)}
        return all(
            stored.get((str(topic), p), 0) >= log.high_watermark
            for topic in topics
            for p, log in enumerate(self.world.broker.topics[str(topic)])
        )

    def what(self) -> str:
        """The remaining work, to debug a schedule that does not drain."""
        rows, now = self.rows, self.database.now()
        left: dict[str, Any] = {
            "backfills": [(b["id"], b["state"]) for b in rows("backfill") if b["ended_at"] is None],
            "runs": [(r["id"], r["state"], r["attempt_id"]) for r in rows("run") if r["state"] in (*LIVE, "staged")],
            "attempts": [(a["id"], a["host"], str(a["lease_until"])) for a in rows("attempt") if a["slot"]],
            "outboxes": {name: len(rows(name)) for name in OUTBOXES if rows(name)},
            "callbacks": [c["deadline_id"] for c in rows("callback") if c["state"] in ("pending", "running")],
            "due": [d["id"] for d in rows("deadline") if d["state"] == "armed" and d["due_at"] <= now],
            "open": [(tx.who, tx.last_active) for tx in self.database.open],
            "unread": [t for t, s in OFFSETS.items() if s in self.world.services and not self._is_read(t, s.reads)],
        }
        return f"{ {name: what for name, what in left.items() if what} } at {now}"
