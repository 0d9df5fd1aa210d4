"""An Airflow operator that requests a backfill and waits for it without a worker: ``RetrofillBackfillOperator``.

Put this file into Airflow's ``plugins`` or DAGs folder, install the package ``retrofill`` beside Airflow with ``--no-deps`` (it
needs the standard library only), and make a connection ``retrofill``: type HTTP, the console's address as the host, a token as
the password. Its role is ``publish``, or ``request`` for backfills with a review.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.sdk import BaseHook, BaseOperator
from airflow.triggers.base import BaseTrigger, TriggerEvent

from retrofill_client import Backfill, Client, NoAnswer, NotFound, Refused, Unreachable

PATIENCE_SECONDS = 600.0


class RetrofillBackfillOperator(BaseOperator):
    """Requests a backfill of the logical dates from ``start`` to ``end``, inclusive, and succeeds when it does.

    ``options``: what ``Client().backfills.create`` takes beside the range, for example ``{"conf": {…}, "review": True}``. With a
    review, the task waits until somebody has ended it. The task's XCom is the backfill's id.

    The id is made from the task's run, so that a worker that was lost requests nothing twice. When the task is retried, it
    waits for the backfill of an earlier try that still runs; otherwise it requests what did not succeed.
    """

    template_fields = ("pipeline", "start", "end", "options")

    def __init__(
        self,
        *,
        pipeline: str,
        start: str = "{{ ds }}",
        end: str = "{{ ds }}",
        options: Mapping[str, Any] | None = None,
        conn_id: str = "retrofill",
        poll_seconds: float = 10.0,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.pipeline = pipeline
        self.start = start
        self.end = end
        self.options = dict(options or {})
        self.conn_id = conn_id
        self.poll_seconds = poll_seconds

    def execute(self, context: Any) -> None:
        client = client_of(BaseHook.get_connection(self.conn_id))
        backfill = self._backfill(client, context["ti"])
        if backfill is None:
            self.log.info("all intervals have succeeded since: nothing to run")
            return
        self.log.info("backfill %s of %s: %s runs, %s", backfill.id, backfill.pipeline, backfill.runs, backfill.state)
        self.defer(trigger=BackfillTrigger(self.conn_id, backfill.id, self.poll_seconds), method_name="ended")

    def ended(self, context: Any, event: Mapping[str, str]) -> str:  # noqa: ARG002 - as Airflow calls it
        """The backfill's id. Raises ``BackfillFailed``, with its reason in one line, unless it has succeeded."""
        client = client_of(BaseHook.get_connection(self.conn_id))
        return client.backfills.wait(event["backfill"]).id

    def _backfill(self, client: Client, ti: Any) -> Backfill | None:
        base = f"{ti.dag_id}.{ti.task_id}.{ti.run_id}.{ti.map_index}"[-180:]
        for earlier in range(ti.try_number - 1, 0, -1):
            try:
                found = client.backfills.get(f"{base}.{earlier}")
            except NotFound:
                continue
            if not found.ended:
                return found
            break
        options = dict(self.options)
        if ti.try_number > 1:
            options.setdefault("reprocess", "failed")
        id = f"{base}.{ti.try_number}"
        try:
            return client.backfills.create(self.pipeline, self.start, self.end, id=id, **options)
        except Refused as e:
            if e.reason == "nothing_to_run" and ti.try_number > 1:
                return None
            raise


class BackfillTrigger(BaseTrigger):
    """Fires when a backfill has ended. The token stays in the connection."""

    def __init__(self, conn_id: str, backfill: str, poll_seconds: float) -> None:
        super().__init__()
        self.conn_id = conn_id
        self.backfill = backfill
        self.poll_seconds = poll_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        known = {"conn_id": self.conn_id, "backfill": self.backfill, "poll_seconds": self.poll_seconds}
        return f"{type(self).__module__}.{type(self).__qualname__}", known

    async def run(self) -> AsyncIterator[TriggerEvent]:
        client, heard = client_of(await BaseHook.aget_connection(self.conn_id)), time.monotonic()
        while True:
            try:
                found = await asyncio.to_thread(client.backfills.get, self.backfill)
                heard = time.monotonic()
            except (Unreachable, NoAnswer) as e:
                # A console that is being upgraded fails no task.
                if time.monotonic() > heard + PATIENCE_SECONDS:
                    raise
                self.log.warning("waiting for the console: %s", e)
            else:
                if found.ended:
                    yield TriggerEvent({"backfill": found.id, "state": found.state})
                    return
            await asyncio.sleep(self.poll_seconds)


def client_of(connection: Any) -> Client:
    """The client of an Airflow connection: ``host`` is an address, or a name with ``schema`` and ``port``."""
    url = connection.host
    if "://" not in url:
        port = f":{connection.port}" if connection.port else ""
        url = f"{connection.schema or 'https'}://{url}{port}"
    return Client(url=url, token=connection.password)
