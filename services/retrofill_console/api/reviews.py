"""The comparison of a review, as server-sent events while Spark computes it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from retrofill.errors import NotConfigured, UserError
from retrofill.log import get_log
from retrofill_console.api.logs import QUIET_SECONDS
from retrofill_console.console import Console
from retrofill_console.live import STREAM, message
from retrofill_tools.client.backfills import Backfill, find_backfill

log = get_log(__name__)
# Comparisons at a time; the others wait. Each reads the outputs once.
AT_A_TIME = threading.BoundedSemaphore(2)
NO_SPARK = (
    "this console has no pyspark, which compares outputs: install retrofill[spark] beside it, or use "
    "'retrofill backfill diff {id}' where it is installed"
)


async def diff(console: Console, request: Request) -> Response:
    """Of the staged outputs of a backfill in review; it ends when its viewer leaves."""
    of = await run_in_threadpool(_find, console, request.path_params["id"])
    return StreamingResponse(_Comparison(console, of).events(), media_type=STREAM)


def _find(console: Console, id: str) -> Backfill:
    """Raises ``NotThere``."""
    with console.reading() as conn:
        return find_backfill(conn, id)


@dataclass(frozen=True)
class _Comparison:
    console: Console
    of: Backfill
    left: threading.Event = field(default_factory=threading.Event)

    async def events(self) -> AsyncIterator[bytes]:
        loop, told = asyncio.get_running_loop(), asyncio.Queue[tuple[str, Any]]()

        def tell(event: str, document: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the console stops
                loop.call_soon_threadsafe(told.put_nowait, (event, document))

        threading.Thread(target=self._run, args=(tell,), name="comparison", daemon=True).start()
        try:
            while True:
                try:
                    event, document = await asyncio.wait_for(told.get(), QUIET_SECONDS)
                except TimeoutError:
                    event, document = "waiting", {}
                yield message(event, document)
                if event in ("end", "problem"):
                    break
        finally:
            self.left.set()

    def _run(self, tell: Any) -> None:
        with AT_A_TIME:
            if self.left.is_set():
                return
            try:
                self._compare(tell)
            except (UserError, NotConfigured, OSError) as e:
                tell("problem", {"error": str(e)})
            except ImportError as e:
                tell("problem", {"error": NO_SPARK.format(id=self.of.id) if e.name == "pyspark" else str(e)})
            except Exception as e:
                log.error("comparison_failed", backfill=self.of.id, error=f"{type(e).__name__}: {e}", exc_info=e)
                tell("problem", {"error": f"the comparison failed: {type(e).__name__}; the console's log says more"})

    def _compare(self, tell: Any) -> None:
        # Most consoles compare nothing, and start sooner without what it needs.
        from retrofill_tools.client.comparing import review_of

        with self.console.reading() as conn:
            review = review_of(conn, self.of)
        tell("begin", {"review": self.of.approved, "runs": len(review.runs), "outputs": review.outputs})
        with review.changes(self.console.settings) as changes:
            for change in changes:
                if self.left.is_set():
                    return
                tell("change", change.as_json())
        tell("end", {})
