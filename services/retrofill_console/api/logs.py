"""The log of an attempt, as server-sent events while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from retrofill.attempt_logs import Part
from retrofill.errors import NotThere, UserError
from retrofill.states import LIVE, AttemptMode
from retrofill_console.api.inputs import number
from retrofill_console.console import Console
from retrofill_console.live import STREAM, message
from retrofill_tools.client.attempts import Attempt, NoLog, Source, Tail, find_attempt, find_log
from retrofill_tools.client.runs import attempts_of, find_run

POLL_SECONDS = 0.5
# A message without lines: proxies cut streams that are silent.
QUIET_SECONDS = 15.0


async def log(console: Console, request: Request) -> Response:
    """The part of the log that is about one run, unless the attempt processed a range at once."""
    id = number(request.path_params["id"], "id")
    wanted = request.query_params.get("attempt")
    found = await run_in_threadpool(_find, console, id, None if wanted is None else number(wanted, "attempt"))
    follow = request.query_params.get("follow") in ("1", "true", "")
    return StreamingResponse(_Follower(console, *found, follow).events(), media_type=STREAM)


def _find(console: Console, run_id: int, attempt_id: int | None) -> tuple[Attempt, int | None]:
    """The attempt, and the run if it has a part of its own. Raises ``NotThere``."""
    with console.reading() as conn:
        run = find_run(conn, run_id)
        if run is None:
            raise NotThere(f"there is no run {run_id}")
        attempts = attempts_of(conn, run)
    found = [each for each in attempts if attempt_id in (None, each.id)]
    if not found:
        which = "no driver has been given it yet" if attempt_id is None else f"attempt {attempt_id} did not have it"
        raise NotThere(f"run {run_id} is {run.state}: {which}")
    return found[-1], None if found[-1].mode == AttemptMode.RANGE else run_id


@dataclass(frozen=True)
class _Follower:
    console: Console
    attempt: Attempt
    run_id: int | None
    follow: bool

    async def events(self) -> AsyncIterator[bytes]:
        try:
            source = await self._source()
            async for lines in self._lines(Tail(source), Part(self.run_id)):
                yield message("lines", lines)
        except (UserError, OSError) as e:
            yield message("problem", {"error": str(e)})
            return
        ended = await run_in_threadpool(self._now)
        yield message("end", {"attempt": ended.id, "outcome": ended.outcome, "reason": ended.reason})

    async def _source(self) -> Source:
        """Where the log is; with ``follow``, one of a live attempt may still begin."""
        while True:
            try:
                return await run_in_threadpool(find_log, self.console.settings, self.console.engine, self.attempt)
            except NoLog as e:
                if not (self.follow and e.may_come):
                    raise
                await asyncio.sleep(POLL_SECONDS)

    async def _lines(self, tail: Tail, part: Part) -> AsyncIterator[list[str]]:
        """The next lines of the run; none at first, and now and then while nothing is printed."""
        last, quiet = not self.follow, QUIET_SECONDS
        while True:
            found = await run_in_threadpool(tail.more_if_there, last=last)
            if shown := [line for line in found or () if part.has(line)]:
                yield shown
                quiet = 0.0
            elif quiet >= QUIET_SECONDS:
                yield []
                quiet = 0.0
            if found is None:
                if last:
                    break
                await asyncio.sleep(POLL_SECONDS)
                quiet += POLL_SECONDS
                # What was written before its end was known is still read.
                last = (await run_in_threadpool(self._now)).state not in LIVE
        if rest := [line for line in tail.rest() if part.has(line)]:
            yield rest

    def _now(self) -> Attempt:
        with self.console.reading() as conn:
            return find_attempt(conn, self.attempt.id) or self.attempt
